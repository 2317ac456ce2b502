# DI::Client - an HTTP client that a test can stop anywhere.
#
# One object is one connection.  It sends bytes as they are given, and reads
# a response in the steps that a test wants to see: the head, single
# server-sent events with a time limit, the rest of the body.  It can close
# its half, close, or reset.  Framing errors die: a test must not be kind.

package DI::Client;

use strict;
use warnings;

use DI::Proc ();
use JSON::PP ();
use Socket;
use Time::HiRes qw(time);

use Exporter qw(import);
our @EXPORT_OK = qw(decode_json encode_json http_get http_post http_request
                    curl has_h2
                    stream_text);

use constant TIMEOUT => 2 * DI::Proc::PATIENCE;    # of steps that have none

my $json = JSON::PP->new->utf8->canonical->allow_nonref;

sub encode_json { $json->encode($_[0]) }
sub decode_json { $json->decode($_[0]) }

# Connect to 127.0.0.1.
#   port
#   rcvbuf  bytes of receive buffer, to play a slow reader
sub connect {
    my ($class, %arg) = @_;

    socket(my $sock, AF_INET, SOCK_STREAM, 0) or die "socket: $!\n";
    setsockopt($sock, SOL_SOCKET, SO_RCVBUF, $arg{rcvbuf}) if $arg{rcvbuf};
    CORE::connect($sock, pack_sockaddr_in($arg{port}, INADDR_LOOPBACK))
        or die "cannot connect to port $arg{port}: $!\n";
    setsockopt($sock, Socket::IPPROTO_TCP, Socket::TCP_NODELAY, 1);

    return bless {
        sock  => $sock,
        raw   => '',            # received, not yet taken apart
        body  => '',            # decoded, not yet handed out
        head  => undef,         # the current response's { status, headers }
        left  => 0,             # bytes of the current chunk or body to come
        done  => 0,             # the current response is complete
        eof   => 0,
    }, $class;
}

sub sock { $_[0]{sock} }
sub eof  { $_[0]{eof} }
sub done { $_[0]{done} }

# -------------------------------------------------------------- sending --

# True when everything went out; false when the peer has closed.
sub send {
    my ($self, $bytes) = @_;

    while (length $bytes) {
        my $n = syswrite($self->{sock}, $bytes) or return 0;
        substr($bytes, 0, $n, '');
    }
    return 1;
}

# A whole request.  A body that is a reference goes as JSON.
sub request {
    my ($self, $method, $uri, $body, %headers) = @_;

    $body = encode_json($body) if ref $body;
    $headers{'Content-Type'} //= 'application/json' if defined $body;
    $headers{'Content-Length'} //= length $body if defined $body;
    $headers{Host} //= 'localhost';

    my $head = join '', "$method $uri HTTP/1.1\r\n",
                    map { "$_: $headers{$_}\r\n" } sort keys %headers;
    @$self{qw(head done body left)} = (undef, 0, '', 0);
    return $self->send("$head\r\n" . ($body // ''));
}

sub half_close {
    my ($self) = @_;

    shutdown($self->{sock}, 1);
}

sub close {
    my ($self) = @_;

    CORE::close($self->{sock});
}

# Close with a reset: what a client that dies behind a firewall looks like.
sub rst {
    my ($self) = @_;

    setsockopt($self->{sock}, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0));
    CORE::close($self->{sock});
}

# ------------------------------------------------------------- receiving --

# Wait for bytes until the deadline.  False on time-out; an end of file and
# a reset set eof.
sub receive {
    my ($self, $deadline) = @_;
    my $bits = '';
    my $wait = $deadline - time;

    vec($bits, fileno($self->{sock}), 1) = 1;
    return 0 if select($bits, undef, undef, $wait > 0 ? $wait : 0) <= 0;

    my $n = sysread($self->{sock}, $self->{raw}, 65536,
                    length $self->{raw});
    $self->{eof} = 1 if !$n;
    return 1;
}

# The response's { status, headers => { lower-case name => value }, raw },
# undef at an end of file before one, or on time-out.
sub read_head {
    my ($self, $timeout) = @_;
    my $deadline = time + ($timeout // TIMEOUT);

    while ($self->{raw} !~ /\r\n\r\n/) {
        return if $self->{eof};
        $self->receive($deadline) or return;
    }

    $self->{raw} =~ s/\A(.*?\r\n)\r\n//s;
    my $raw = $1;
    my ($status) = $raw =~ m{\AHTTP/1\.[01] (\d{3})[ \r]}
        or die "not a status line: $raw\n";
    return $self->read_head($timeout) if $status == 100;

    my %headers;
    for my $line ((split /\r\n/, $raw)[1 .. ($raw =~ tr/\n//) - 1]) {
        my ($name, $value) = $line =~ /\A([^\s:]+):\s*(.*?)\s*\z/
            or die "not a header line: $line\n";
        $name = lc $name;
        $headers{$name} = exists $headers{$name} ? "$headers{$name}, $value"
                                                 : $value;
    }

    $self->{head} = { status => $status, headers => \%headers, raw => $raw };
    $self->{left} = $headers{'content-length'};
    $self->{done} = 1 if $status == 204 || $status == 304;
    $self->decode;
    return $self->{head};
}

# Move what has come from raw to body.
sub decode {
    my ($self) = @_;
    my $coding = $self->{head}{headers}{'transfer-encoding'} // '';

    return if $self->{done};
    return $self->decode_chunks if $coding eq 'chunked';

    my $n = length $self->{raw};
    $n = $self->{left} if defined $self->{left} && $n > $self->{left};
    $self->{body} .= substr($self->{raw}, 0, $n, '');
    if (defined $self->{left}) {
        $self->{left} -= $n;
        $self->{done} = $self->{left} == 0;
    } else {
        $self->{done} = $self->{eof};
    }
}

sub decode_chunks {
    my ($self) = @_;

    while ($self->{raw} =~ /\A([0-9a-fA-F]+)\r\n/) {
        my $size = hex $1;
        my $head = length($1) + 2;

        if ($size == 0) {
            $self->{raw} =~ s/\A0+\r\n(?:[^\r\n]+\r\n)*\r\n// or return;
            $self->{done} = 1;
            return;
        }
        return if length $self->{raw} < $head + $size + 2;

        $self->{body} .= substr($self->{raw}, $head, $size);
        substr($self->{raw}, 0, $head + $size) = '';
        $self->{raw} =~ s/\A\r\n// or die "no line end after a chunk\n";
    }

    die "not a chunk size: " . substr($self->{raw}, 0, 20) . "\n"
        if $self->{raw} =~ /\A(?:[^0-9a-fA-F]|[0-9a-fA-F]+[^0-9a-fA-F\r])/;
}

# The rest of the body; dies if it is cut short or takes too long.
sub read_body {
    my ($self, $timeout) = @_;
    my $deadline = time + ($timeout // TIMEOUT);

    $self->read_head($timeout) // die "no response\n" if !$self->{head};
    while (!$self->{done}) {
        die "the body ends early\n" if $self->{eof};
        $self->receive($deadline) or die "the body takes too long\n";
        $self->decode;
    }

    my $body = $self->{body};
    $self->{body} = '';
    return $body;
}

# The next server-sent event: { event, data, comment } with undef for what it
# has not.  Nothing on time-out or at the end of the stream: see done(), which
# is true for a stream that ended as it should, and eof().
sub read_event {
    my ($self, $timeout) = @_;
    my $deadline = time + ($timeout // TIMEOUT);

    if (!$self->{head}) {
        $self->read_head($timeout) or return;
    }
    while ($self->{body} !~ /\n\n/) {
        return if $self->{done} || $self->{eof};
        $self->receive($deadline) or return;
        $self->decode;
    }

    $self->{body} =~ s/\A(.*?)\n\n//s;
    my %event = (event => undef, data => undef, comment => undef);
    for my $line (split /\n/, $1) {
        my ($field, $value) = $line =~ /\A(event|data|):[ ]?(.*)\z/
            or die "not a line of an event: $line\n";
        $field ||= 'comment';
        $event{$field} = defined $event{$field} ? "$event{$field}\n$value"
                                                : $value;
    }
    return \%event;
}

# All events until the end, [DONE] included.
sub read_events {
    my ($self, $timeout) = @_;
    my @events;

    while (my $event = $self->read_event($timeout)) {
        push @events, $event;
    }
    return @events;
}

# { status, headers, raw, body }; json is the decoded body where it is JSON.
sub response {
    my ($self, $timeout) = @_;
    my $head = $self->read_head($timeout) // die "no response\n";
    my $body = $self->read_body($timeout);
    my $type = $head->{headers}{'content-type'} // '';

    return { %$head, body => $body,
             json => $type =~ m{^application/json}
                     ? decode_json($body) : undef };
}

# ---------------------------------------------------- whole conversations --

sub http_request {
    my ($port, $method, $uri, $body, %headers) = @_;
    my $client = DI::Client->connect(port => $port);

    $client->request($method, $uri, $body, Connection => 'close', %headers);
    return $client->response;
}

sub http_get {
    my ($port, $uri, %headers) = @_;

    return http_request($port, 'GET', $uri, undef, %headers);
}

sub http_post {
    my ($port, $uri, $body, %headers) = @_;

    return http_request($port, 'POST', $uri, $body, %headers);
}

# What a chat stream said: the text of the choice in the events' data.
sub stream_text {
    my ($choice, @events) = @_;
    my $text = '';

    for my $event (@events) {
        next if !defined $event->{data} || $event->{data} eq '[DONE]';
        for my $part (@{ decode_json($event->{data})->{choices} // [] }) {
            $text .= $part->{delta}{content} // ''
                if $part->{index} == $choice;
        }
    }
    return $text;
}

# Run curl; (its exit status, what it printed).  For HTTP/2 without TLS give
# it --http2-prior-knowledge.
sub curl {
    my @args = @_;

    open(my $from, '-|', 'curl', '-sS', @args) or die "cannot run curl: $!\n";
    local $/;
    my $output = readline($from) // '';
    CORE::close($from);
    return ($? >> 8, $output);
}

sub has_h2 {
    return `curl --version 2>/dev/null` =~ /\bHTTP2\b/;
}

1;
