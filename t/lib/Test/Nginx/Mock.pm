# Test::Nginx::Mock - a one-shot TCP server for tests of upstreams.
#
# The parent opens the listening socket, so the port is ready before the
# request goes out; a child accepts one connection, reads one query, answers
# and leaves.  What it read it writes down, before it answers, in a nameless
# file that both have open (a pipe would block it on a large query).

package Test::Nginx::Mock;

use strict;
use warnings;

use DI::Proc ();
use Socket;
use Time::HiRes qw(time);

use constant PATIENCE => 5;         # seconds for a query to arrive
use constant LINGER   => 0.05;      # silence that ends a query of no form

# Start it.
#   port      on 127.0.0.1
#   reply     string, list of strings (separate writes), or code that gets
#             the query and returns either
#   delay     seconds before the reply, and between its pieces
#   length    bytes of a query; without it, one HTTP request
#   no_close  leave closing to the client
sub start {
    my ($class, %arg) = @_;

    die "tcp_listen takes a port, not \"$arg{port}\"\n"
        if $arg{port} !~ /\A\d+\z/;
    socket(my $listen, AF_INET, SOCK_STREAM, 0) or die "socket: $!\n";
    setsockopt($listen, SOL_SOCKET, SO_REUSEADDR, 1);
    bind($listen, pack_sockaddr_in($arg{port}, INADDR_LOOPBACK))
        or die "tcp_listen: cannot bind port $arg{port}: $!\n";
    listen($listen, 5) or die "listen: $!\n";
    open(my $record, '+>', undef) or die "cannot make a file: $!\n";

    my $pid = DI::Proc::fork_child('mock server', sub {
        serve($listen, $record, \%arg);
    });
    return bless { pid => $pid, record => $record }, $class;
}

# Stop it; the query that it received, '' if none.  `wanted`: give one that
# is on its way a moment to arrive.
sub finish {
    my ($self, $wanted) = @_;
    my $record = $self->{record};

    DI::Proc::wait_until(0.5, sub { -s $record }) if $wanted;
    DI::Proc::stop($self->{pid}, TERM => 1);

    local $/;
    seek($record, 0, 0);
    return readline($record) // '';
}

sub serve {
    my ($listen, $record, $arg) = @_;

    accept(my $peer, $listen) or return;
    close($listen);

    my $query = read_query($peer, $arg->{length});
    syswrite($record, $query);

    my $reply = $arg->{reply} // '';
    $reply = $reply->($query) if ref $reply eq 'CODE';
    for my $piece (ref $reply eq 'ARRAY' ? @$reply : $reply) {
        DI::Proc::pause($arg->{delay}) if $arg->{delay};
        write_all($peer, $piece) or last;
    }

    if ($arg->{no_close}) {
        1 while sysread($peer, my $ignored, 4096);
    }
    close($peer);
}

sub write_all {
    my ($peer, $bytes) = @_;

    while (length $bytes) {
        my $n = syswrite($peer, $bytes) or return 0;
        substr($bytes, 0, $n, '');
    }
    return 1;
}

sub read_query {
    my ($peer, $length) = @_;
    my $query = '';
    my $deadline = time + PATIENCE;

    while (!query_is_whole($query, $length)) {
        my $shapeless = !defined $length && length $query
                        && $query !~ m{\A[A-Z]+ \S+ HTTP/};
        my $wait = $shapeless ? LINGER : $deadline - time;
        my $bits = '';

        last if $wait <= 0;
        vec($bits, fileno($peer), 1) = 1;
        last if select($bits, undef, undef, $wait) <= 0;
        sysread($peer, $query, 65536, length $query) or last;
    }

    return $query;
}

sub query_is_whole {
    my ($query, $length) = @_;

    return length($query) >= $length if defined $length;

    my ($head, $body) = $query =~ m{\A([A-Z]+ \S+ HTTP/.*?\r\n\r\n)(.*)}s
        or return 0;
    return $body =~ /(?:\A|\r\n)0\r\n\r\n\z/
        if $head =~ /^Transfer-Encoding:\s*chunked/mi;
    return length($body) >= ($head =~ /^Content-Length:\s*(\d+)/mi ? $1 : 0);
}

1;
