# DI::H2 - many requests at a time on one HTTP/2 connection, without TLS.
#
# Just what a test needs of the protocol: header fields go out as literals,
# response fields are not decoded, flow control is obeyed when sending and
# opened wide (or kept shut) when receiving.  A stream collects its DATA; it
# can be reset at any time.

package DI::H2;

use strict;
use warnings;

use Socket;
use Time::HiRes qw(time);

use constant { DATA => 0, HEADERS => 1, RST_STREAM => 3, SETTINGS => 4,
               PING => 6, GOAWAY => 7, WINDOW_UPDATE => 8 };
use constant { END_STREAM => 1, ACK => 1, END_HEADERS => 4 };
use constant { CANCEL => 8, WINDOW_ID => 4 };

# Connect to a unix socket.
#   path
#   window  bytes that the server may send on a stream, default much
sub connect {
    my ($class, %arg) = @_;

    socket(my $sock, AF_UNIX, SOCK_STREAM, 0) or die "socket: $!\n";
    CORE::connect($sock, pack_sockaddr_un($arg{path}))
        or die "cannot connect to $arg{path}: $!\n";
    $sock->blocking(0);

    my $self = bless {
        sock    => $sock,
        in      => '',
        out     => "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        next    => 1,
        window  => 65535,       # that the server gave the connection
        initial => 65535,       # and each new stream
        streams => {},
    }, $class;

    $self->frame(SETTINGS, 0, 0, pack('nN', WINDOW_ID,
                                      $arg{window} // 0x7fffffff));
    $self->frame(WINDOW_UPDATE, 0, 0, pack('N', 0x7fff0000));
    return $self;
}

sub frame {
    my ($self, $type, $flags, $id, $payload) = @_;

    $self->{out} .= substr(pack('N', length $payload), 1)
                    . pack('CCN', $type, $flags, $id) . $payload;
}

# Start a POST; the stream: { body, rest, window, done, reset }.
sub post {
    my ($self, $uri, $body) = @_;
    my $id = $self->{next};
    my %fields = (':method' => 'POST', ':scheme' => 'http',
                  ':authority' => 'localhost', ':path' => $uri);

    $self->{next} += 2;
    $self->frame(HEADERS, END_HEADERS, $id, join '', map {
        "\0" . chr(length) . $_ . chr(length $fields{$_}) . $fields{$_}
    } sort keys %fields);

    return $self->{streams}{$id} = { id => $id, body => '', rest => $body,
                                     window => $self->{initial},
                                     done => 0, reset => 0 };
}

# Let the server send more on a stream.
sub open_window {
    my ($self, $stream, $bytes) = @_;

    $self->frame(WINDOW_UPDATE, 0, $stream->{id}, pack('N', $bytes));
}

sub cancel {
    my ($self, $stream) = @_;

    $self->frame(RST_STREAM, 0, $stream->{id}, pack('N', CANCEL));
    $stream->{done} = 1;
}

# Send and receive until `until` is true; false on time-out or end of file.
sub run {
    my ($self, $timeout, $until) = @_;
    my $deadline = time + $timeout;

    until ($until->()) {
        $self->send_bodies;

        my $read = '';
        vec($read, fileno($self->{sock}), 1) = 1;
        my $write = length $self->{out} ? $read : '';
        my $wait = $deadline - time;
        return 0 if $wait <= 0;

        select($read, $write, undef, $wait > 0.1 ? 0.1 : $wait);

        if (length $self->{out}) {
            my $n = syswrite($self->{sock}, $self->{out});
            substr($self->{out}, 0, $n, '') if $n;
        }
        my $n = sysread($self->{sock}, $self->{in}, 65536,
                        length $self->{in});
        return 0 if defined $n && $n == 0;
        $self->take_frames;
    }
    return 1;
}

sub send_bodies {
    my ($self) = @_;

    for my $s (values %{ $self->{streams} }) {
        while (!$s->{done} && defined $s->{rest}) {
            my ($n) = sort { $a <=> $b } 16384, $self->{window},
                                         $s->{window}, length $s->{rest};
            last if $n <= 0 && length $s->{rest};

            my $part = substr($s->{rest}, 0, $n, '');
            my $end = length $s->{rest} == 0;
            $self->frame(DATA, $end ? END_STREAM : 0, $s->{id}, $part);
            $_ -= $n for $s->{window}, $self->{window};
            $s->{rest} = undef if $end;
        }
    }
}

sub take_frames {
    my ($self) = @_;

    while (length $self->{in} >= 9) {
        my ($high, $low, $type, $flags, $id) = unpack('CnCCN', $self->{in});
        my $len = $high << 16 | $low;
        last if length $self->{in} < 9 + $len;

        my $payload = substr($self->{in}, 9, $len);
        substr($self->{in}, 0, 9 + $len, '');
        $self->take($type, $flags, $self->{streams}{$id}, $payload);
    }
}

sub take {
    my ($self, $type, $flags, $s, $payload) = @_;

    if ($type == SETTINGS && !($flags & ACK)) {
        my %set = unpack('(nN)*', $payload);
        if (defined $set{ WINDOW_ID() }) {
            my $more = $set{ WINDOW_ID() } - $self->{initial};
            $self->{initial} += $more;
            $_->{window} += $more for values %{ $self->{streams} };
        }
        $self->frame(SETTINGS, ACK, 0, '');

    } elsif ($type == PING && !($flags & ACK)) {
        $self->frame(PING, ACK, 0, $payload);

    } elsif ($type == WINDOW_UPDATE) {
        ($s // $self)->{window} += unpack('N', $payload);

    } elsif ($type == GOAWAY) {
        die 'GOAWAY with code ' . unpack('x4N', $payload) . "\n"
            if unpack('x4N', $payload);

    } elsif ($s && $type == RST_STREAM) {
        $s->{reset} = $s->{done} = 1;

    } elsif ($s && ($type == DATA || $type == HEADERS)) {
        $s->{body} .= $payload if $type == DATA;
        $s->{done} = 1 if $flags & END_STREAM;
    }
}

1;
