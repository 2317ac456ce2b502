# Test::Nginx::Client - requests as bytes, responses taken apart.
#
# A request is sent as a list of writes, each with a delay before it, so that
# a test can cut it anywhere.  Reading goes on while writing: a server that
# answers before it has read everything (413) must not be missed.  Framing is
# checked strictly; what does not parse is reported, never repaired.

package Test::Nginx::Client;

use strict;
use warnings;

use DI::Proc ();
use Errno qw(EAGAIN ECONNREFUSED EINPROGRESS EINTR EWOULDBLOCK);
use Fcntl qw(F_GETFL F_SETFL O_NONBLOCK);
use Socket;
use Time::HiRes qw(time);

use constant CONNECT_PATIENCE => 2;     # seconds; a port may open a bit late

# Pause between the writes of one request, seconds.
sub write_delay { $ENV{TEST_NGINX_SLEEP} // 0.015 }

# ----------------------------------------------------------- the request --

# Turn one `request` value into writes: [[bytes, delay_before], ...].
#   text     "METHOD URI [HTTP/1.x]\nbody", or a list of pieces of that,
#            each a string or { value, delay_before }
#   headers  text of more_headers
#   connection  what the default Connection header says
sub build {
    my ($text, $headers, $connection) = @_;
    my @piece = ref $text eq 'ARRAY' ? map { piece($_) } @$text
                                     : piece($text);
    my ($first, @rest) = @piece;
    my ($line, $body) = split_request($first->[0]);
    my $user = header_names($headers);

    $body =~ s/\n\z// if !@rest && !$user->{'content-length'};

    my $head = "$line\r\n";
    $head .= "Host: localhost\r\n" if !$user->{host};
    $head .= "Connection: $connection\r\n" if !$user->{connection};
    $head .= crlf($headers);

    my $length = length($body);
    $length += length($_->[0]) for @rest;
    $head .= "Content-Length: $length\r\n"
        if $length && !$user->{'content-length'};

    return [["$head\r\n$body", $first->[1]], @rest];
}

sub piece {
    my ($piece) = @_;

    return [$piece, 0] if !ref $piece;
    die "an item of a request is a string or { value, delay_before }\n"
        if ref $piece ne 'HASH' || !defined $piece->{value};
    return [$piece->{value}, $piece->{delay_before} // 0];
}

# Request line with its version, and what follows it.
sub split_request {
    my ($text) = @_;

    $text =~ s/\A(?:[ \t]*#[^\n]*\n|[ \t]*\n)+//;
    $text =~ s/\A([^\n]*)\n?// or die "an empty request\n";
    my $line = $1;
    $line =~ s/\s+\z//;
    $line =~ /\A\S+\s+\S/ or die "no METHOD URI in request line \"$line\"\n";
    $line .= ' HTTP/1.1' if $line !~ m{\sHTTP/\d+\.\d+\z};

    return ($line, $text);
}

sub header_names {
    my ($headers) = @_;

    return { map { /\A\s*([^:\s]+)\s*:/ ? (lc $1 => 1) : () }
             split /\n/, $headers };
}

sub crlf {
    my ($headers) = @_;

    return join '', map { s/\r\z//r . "\r\n" } grep { /\S/ }
                    split /\n/, $headers;
}

# ---------------------------------------------------------- the exchange --

# Connect, send, read.
#   host, port   where to
#   writes       [[bytes, delay_before], ...]
#   heads        [true for each expected response to HEAD]; its length is
#                the number of responses
#   timeout      seconds between two events on the socket
#   shutdown     argument of shutdown(2) after the last write, or undef
# Returns { responses, timed_out, error }; see parse() for a response.
sub exchange {
    my (%arg) = @_;
    my $result = { responses => [], timed_out => 0, error => undef };
    my $sock = connect_to($arg{host}, $arg{port}, $arg{timeout});

    if (!ref $sock) {
        $result->{error} = $sock;
        return $result;
    }

    my ($raw, $eof) = converse($sock, \%arg, $result);
    ($result->{responses}) = parse($raw, $arg{heads}, $eof);
    close($sock);
    return $result;
}

sub connect_to {
    my ($host, $port, $timeout) = @_;
    my $address = inet_aton($host) or return "unknown host $host";
    my $reason;

    my $sock = DI::Proc::wait_until(CONNECT_PATIENCE, sub {
        socket(my $s, AF_INET, SOCK_STREAM, 0) or die "socket: $!\n";
        nonblocking($s);
        if (!connect($s, pack_sockaddr_in($port, $address))) {
            if ($! == EINPROGRESS) {
                wait_writable($s, $timeout);
                $! = unpack('i', getsockopt($s, SOL_SOCKET, SO_ERROR));
            }
            $reason = "$!";
            return 0 if $! == ECONNREFUSED;
            return $reason if $!;
        }
        setsockopt($s, Socket::IPPROTO_TCP, Socket::TCP_NODELAY, 1);
        return $s;
    });

    return $sock // "cannot connect to $host:$port: $reason";
}

sub nonblocking {
    my ($sock) = @_;
    my $flags = fcntl($sock, F_GETFL, 0) or die "fcntl: $!\n";

    fcntl($sock, F_SETFL, $flags | O_NONBLOCK) or die "fcntl: $!\n";
}

sub wait_writable {
    my ($sock, $timeout) = @_;

    vec(my $bits = '', fileno($sock), 1) = 1;
    select(undef, $bits, undef, $timeout);
}

# Write and read until the response is over; returns (bytes, eof seen).
sub converse {
    my ($sock, $arg, $result) = @_;
    my @writes = map { [@$_] } @{ $arg->{writes} };
    my $due = time + (@writes ? $writes[0][1] : 0);
    my $quiet_since = time;
    my $raw = '';
    my ($eof, $shut);

    while (!$eof) {
        if (!@writes && !$shut && defined $arg->{shutdown}) {
            shutdown($sock, $arg->{shutdown});
            $shut = 1;
        }
        last if !@writes && is_over($raw, $arg->{heads});

        my $now = time;
        my $until = $quiet_since + $arg->{timeout};
        my $write_now = @writes && $now >= $due;
        $until = $due if @writes && !$write_now;

        vec(my $read = '', fileno($sock), 1) = 1;
        my $write = $write_now ? $read : '';
        my $wait = $until > $now ? $until - $now : 0;
        my $n = select($read, $write, undef, $wait);

        if ($n <= 0) {
            next if @writes && !$write_now;
            $result->{timed_out} = 1;
            last;
        }

        $quiet_since = time;
        if ($write_now && vec($write, fileno($sock), 1)) {
            if (write_some($sock, \@writes) && @writes) {
                $due = time + $writes[0][1];
            }
        }
        if (vec($read, fileno($sock), 1)) {
            $eof = !read_some($sock, \$raw);
        }
    }

    return ($raw, $eof);
}

# True when the first write has gone out whole.  A peer that closed its
# reading side ends the writing; what it has said remains to be read.
sub write_some {
    my ($sock, $writes) = @_;
    my $n = syswrite($sock, $writes->[0][0]);

    if (!defined $n) {
        return 0 if $! == EAGAIN || $! == EWOULDBLOCK || $! == EINTR;
        @$writes = ();
        return 1;
    }

    substr($writes->[0][0], 0, $n, '');
    return 0 if length($writes->[0][0]);

    shift @$writes;
    $writes->[0][1] ||= write_delay() if @$writes;
    return 1;
}

sub read_some {
    my ($sock, $raw) = @_;
    my $n = sysread($sock, $$raw, 65536, length($$raw));

    return 1 if !defined $n && ($! == EAGAIN || $! == EINTR);
    return $n;
}

# True when all responses have come and the server keeps the connection, so
# that no end of file will tell.
sub is_over {
    my ($raw, $heads) = @_;

    return 0 if $raw !~ /\r\n\r\n/;

    my ($responses, $complete) = parse($raw, $heads, 0);
    return 0 if !$complete;

    my $close = header($responses->[-1], 'connection') // '';
    return $close !~ /close/i;
}

# ---------------------------------------------------------- the response --

# Take apart what was received.
#   heads  as in exchange()
#   eof    the server closed
# Returns ([responses], complete).  A response, perhaps cut short:
#   { status, head (raw, CRLF), headers [[name, value]...], body,
#     error (what is wrong with its framing, or undef) }
sub parse {
    my ($raw, $heads, $eof) = @_;
    my @responses;
    my $complete = 1;

    pos($raw) = 0;
    for my $i (0 .. $#$heads) {
        my $last = $i == $#$heads;
        my $response = parse_head(\$raw);
        if (!$response) {
            $complete = 0;
            last;
        }

        $complete = parse_body(\$raw, $response, $heads->[$i], $last, $eof);
        push @responses, $response;
        last if !$complete;
    }

    return (\@responses, $complete && @responses == @$heads);
}

# The next final response's head; interim ones (1xx) are passed over.
sub parse_head {
    my ($raw) = @_;

    while ($$raw =~ m{\G(HTTP/\d\.\d\ +(\d\d\d)[^\r\n]*\r\n
                      (?:[^\r\n]+\r\n)*\r\n)}gcx)
    {
        my ($head, $status) = ($1, $2);
        next if $status =~ /^1/ && $status != 101;

        my (undef, @lines) = split /\r\n/, $head;
        my @headers = map { [split /\s*:\s*/, $_, 2] } @lines;
        return { status => $status, head => $head, headers => \@headers,
                 body => '', error => undef };
    }

    return;
}

sub header {
    my ($response, $name) = @_;
    my @values = map { $_->[1] // '' }
                 grep { lc $_->[0] eq lc $name } @{ $response->{headers} };

    return @values ? join(', ', @values) : undef;
}

# Fill in the body; true when it is whole.
sub parse_body {
    my ($raw, $response, $is_head, $last, $eof) = @_;
    my $status = $response->{status};
    my $rest = length($$raw) - pos($$raw);
    my $length = header($response, 'content-length');
    my $coding = header($response, 'transfer-encoding') // '';

    if ($is_head || $status == 204 || $status == 304) {
        $length = 0;
    } elsif ($coding =~ /\bchunked\b/i) {
        return parse_chunks($raw, $response, $last, $eof);
    }

    # The body of the last response of a closed connection is all that came,
    # so that bytes beyond Content-Length show in the comparison.
    my $whole = defined $length ? $rest >= $length : $eof;
    my $take = $last && $eof || !defined $length ? $rest
               : $whole ? $length : $rest;
    $response->{body} = substr($$raw, pos($$raw), $take);
    pos($$raw) += $take;
    return $whole;
}

sub parse_chunks {
    my ($raw, $response, $last, $eof) = @_;

    while ($$raw =~ /\G([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n/gc) {
        my $size = hex($1);

        if ($size == 0) {
            if ($$raw !~ /\G(?:[^\r\n]+\r\n)*\r\n/gc) {
                $response->{error} = 'chunked body ends inside its trailer';
                return 0;
            }
            $response->{error} = 'bytes follow the last chunk'
                if $last && pos($$raw) < length($$raw);
            return 1;
        }

        my $at = pos($$raw);
        if (length($$raw) < $at + $size + 2) {
            $response->{body} .= substr($$raw, $at, $size);
            pos($$raw) = length($$raw);
            $response->{error} = 'chunked body ends inside a chunk';
            return 0;
        }
        if (substr($$raw, $at + $size, 2) ne "\r\n") {
            $response->{error} = "no line end after a chunk of $size bytes";
            return 0;
        }
        $response->{body} .= substr($$raw, $at, $size);
        pos($$raw) = $at + $size + 2;
    }

    $response->{error} = pos($$raw) >= length($$raw)
                         ? 'chunked body has no last chunk'
                         : 'malformed chunk size';
    return 0;
}

1;
