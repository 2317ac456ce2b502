# DI::Proc - processes of a test file, and nothing left of them afterwards.
#
# A test starts nginx, engines and mock servers.  They must be gone when the
# test ends, however it ends: normally, by die, by Ctrl-C, or by SIGKILL from
# the outside.  The first three are an END block's work.  For the last one a
# small guard process waits at the other end of a pipe; when the pipe closes
# it kills whatever was registered and not yet stopped.  A child registers
# itself before it execs, so there is no moment at which it is unknown.
# Daemons (nginx with `daemon on`) are registered by the path of their pid
# file instead.
#
# Nothing here knows nginx or the engine; both Test::Nginx::Socket and the
# other DI modules build on it.

package DI::Proc;

use strict;
use warnings;

use File::Path ();
use File::Temp ();
use POSIX qw(:sys_wait_h);
use Socket;
use Time::HiRes qw(time);

# Seconds that any step may take on a machine that others overload: what a test
# looks for is loss and hanging, and only one that fails waits so long.
use constant PATIENCE => 60;

my $owner = $$;         # the test process; a fork of it must not clean up
my %running;            # pid => name, direct children not yet reaped
my %exit_status;        # pid => $? of those that were reaped
my %pidfile;            # pid files of daemons
my %tempdir;            # removed at the end
my @at_exit;            # handlers that run before anything is killed
my %port_lock;          # port => socket that holds it for this process
my $guard_pipe;         # write end; its closing wakes the guard

# Let END blocks run when the test is interrupted.  A handler that a test
# file installs later replaces this one, and the guard still cleans up.
for my $sig (qw(INT TERM HUP)) {
    my $number = { INT => 2, TERM => 15, HUP => 1 }->{$sig};

    $SIG{$sig} = sub { exit(128 + $number) } unless $SIG{$sig};
}

$SIG{PIPE} = 'IGNORE';  # a peer that closed early is a result, not a death

sub pause {
    my ($seconds) = @_;

    select(undef, undef, undef, $seconds);
}

# Call $test every few milliseconds until it is true; its value, or nothing
# after $timeout seconds.
sub wait_until {
    my ($timeout, $test) = @_;
    my $deadline = time + $timeout;
    my $step = 0.001;

    while (1) {
        my $value = $test->();
        return $value if $value;
        return if time >= $deadline;

        pause($step);
        $step *= 1.5 if $step < 0.02;
    }
}

sub eventually { return wait_until(PATIENCE, @_) }

# True while the process runs.  A zombie that its parent has not collected
# counts as gone: pid 1 of a container may never collect.
sub alive {
    my ($pid) = @_;

    reap();
    open(my $fh, '<', "/proc/$pid/stat") or return 0;
    my $stat = <$fh> // '';
    return $stat =~ /\)\s+([A-Za-z])/ && $1 ne 'Z' && $1 ne 'X' ? 1 : 0;
}

sub reap {
    for my $pid (keys %running) {
        if (waitpid($pid, WNOHANG) == $pid) {
            $exit_status{$pid} = $?;
            delete $running{$pid};
        }
    }
}

# The wait status of a child that has ended; undef before that.
sub status_of {
    my ($pid) = @_;

    reap();
    return $exit_status{$pid};
}

# Start a command.
#   name    for messages
#   cmd     [program, arguments]
#   out     file for its stdout and stderr (truncated); default /dev/null
#   append  true: append to that file
#   env     { NAME => value } on top of ours
# Returns the pid, or dies.  A program that cannot be executed shows as exit
# status 127 with the reason in the output file.
sub spawn {
    my (%arg) = @_;
    my $out = $arg{out} // '/dev/null';
    my $mode = $arg{append} ? '>>' : '>';

    return fork_child($arg{name}, sub {
        %ENV = (%ENV, %{ $arg{env} // {} });
        open(STDIN, '<', '/dev/null');
        open(STDOUT, $mode, $out) or POSIX::_exit(126);
        open(STDERR, '>&', \*STDOUT) or POSIX::_exit(126);
        $SIG{$_} = 'DEFAULT' for qw(INT TERM HUP PIPE CHLD);

        { no warnings 'exec'; exec { $arg{cmd}[0] } @{ $arg{cmd} }; }
        syswrite(STDERR, "cannot execute $arg{cmd}[0]: $!\n");
        POSIX::_exit(127);
    });
}

# Run $code in a child that exits when it returns.
sub fork_child {
    my ($name, $code) = @_;

    start_guard();
    my $pid = fork() // die "cannot fork for $name: $!\n";

    if ($pid == 0) {
        tell_guard("+pid $$");
        close($guard_pipe);
        %running = ();
        $SIG{$_} = 'DEFAULT' for qw(INT TERM HUP);
        $code->();
        POSIX::_exit(0);
    }

    $running{$pid} = $name;
    return $pid;
}

# Stop a process: each signal in turn, with as many seconds to obey it as the
# pairs say; then SIGKILL.  True if it went before that.
sub stop {
    my ($pid, @ladder) = @_;
    my $obeyed = 0;

    while (my ($signal, $seconds) = splice(@ladder, 0, 2)) {
        kill($signal, $pid);
        $obeyed = wait_until($seconds, sub { !alive($pid) });
        last if $obeyed;
    }

    if (!$obeyed) {
        kill('KILL', $pid);
        wait_until(2, sub { !alive($pid) });
    }

    forget($pid);
    return $obeyed ? 1 : 0;
}

sub forget {
    my ($pid) = @_;

    reap();
    delete $running{$pid};
    tell_guard("-pid $pid");
}

# A daemon that writes this pid file dies with the test process too.
sub guard_pidfile {
    my ($path) = @_;

    start_guard();
    $pidfile{$path} = 1;
    tell_guard("+file $path");
}

sub read_pidfile {
    my ($path) = @_;

    open(my $fh, '<', $path) or return;
    my $line = <$fh> // '';
    return $line =~ /^(\d+)/ ? $1 : undef;
}

# Run a handler at the end of the test process, before the leftovers are
# killed: the place for an orderly stop.
sub at_exit {
    push @at_exit, @_;
}

# A whole file, or what follows an offset; '' if it cannot be read.
sub slurp {
    my ($path, $offset) = @_;

    open(my $fh, '<:raw', $path) or return '';
    seek($fh, $offset, 0) if $offset;
    local $/;
    return readline($fh) // '';
}

sub spew {
    my ($path, $content) = @_;

    open(my $fh, '>:raw', $path) or die "cannot write $path: $!\n";
    print $fh $content;
    close($fh) or die "cannot write $path: $!\n";
}

# A directory for sockets and files, open to nginx's workers whatever user
# they run as, removed at the end.  Under /tmp, for a unix socket's path may
# have 107 bytes only.
sub tempdir {
    my $dir = File::Temp::tempdir('deepinfer.XXXXXXXX', DIR => '/tmp');

    chmod(0755, $dir);
    $tempdir{$dir} = 1;
    return $dir;
}

# A TCP port on 127.0.0.1 that nobody listens on, below the range that the
# kernel takes client ports from.  It stays reserved for this process, also
# against other test processes: an abstract unix socket is the lock, which
# vanishes with its holder.
sub free_port {
    for (1 .. 500) {
        my $port = 10000 + int(rand(22000));

        next if $port_lock{$port};
        socket(my $lock, AF_UNIX, SOCK_STREAM, 0) or die "socket: $!\n";
        bind($lock, pack_sockaddr_un("\0deepinfer-test-port-$port")) or next;
        port_is_free($port) or next;

        $port_lock{$port} = $lock;
        return $port;
    }

    die "found no free TCP port in 500 attempts\n";
}

sub port_is_free {
    my ($port) = @_;

    socket(my $s, AF_INET, SOCK_STREAM, 0) or die "socket: $!\n";
    setsockopt($s, SOL_SOCKET, SO_REUSEADDR, 1);
    return bind($s, pack_sockaddr_in($port, INADDR_ANY));
}

sub release_port {
    my ($port) = @_;

    delete $port_lock{$port};
}

# ---------------------------------------------------------------- guard --

sub tell_guard {
    my ($line) = @_;

    syswrite($guard_pipe, "$line\n") if $guard_pipe;
}

sub start_guard {
    return if $guard_pipe;

    pipe(my $read, my $write) or die "pipe: $!\n";
    my $pid = fork() // die "cannot fork the guard: $!\n";

    if ($pid == 0) {
        close($write);
        POSIX::setsid();
        $SIG{$_} = 'IGNORE' for qw(INT TERM HUP);
        open($_, '+<', '/dev/null') for \*STDIN, \*STDOUT, \*STDERR;
        guard_loop($read);
        POSIX::_exit(0);
    }

    $guard_pipe = $write;
}

sub guard_loop {
    my ($read) = @_;
    my (%pid, %file);

    while (defined(my $line = readline($read))) {
        if ($line =~ /^\+pid (\d+)/)     { $pid{$1} = 1 }
        elsif ($line =~ /^-pid (\d+)/)   { delete $pid{$1} }
        elsif ($line =~ /^\+file (.+)/)  { $file{$1} = 1 }
        elsif ($line =~ /^-file (.+)/)   { delete $file{$1} }
    }

    kill_all(keys(%pid), pids_in(keys %file));
}

# A daemon whose parent has just left has its log open, but no pid file yet.
sub pids_in {
    my @found = map {
        my $path = $_;
        my ($dir) = $path =~ m{^(.*)/};

        eventually(sub { read_pidfile($path) || !users_of($dir) });
        (read_pidfile($path), read_pidfile("$path.oldbin"));
    } @_;

    return grep { defined } @found;
}

# Processes, other than this one, that have files open below a folder.
sub users_of {
    my ($dir) = @_;
    my @pids = grep { $_ != $$ } map { m{^/proc/(\d+)} } glob('/proc/[0-9]*');

    return grep {
        grep { (readlink($_) // '') =~ m{^\Q$dir\E/} } glob("/proc/$_/fd/*")
    } @pids;
}

# The workers of a master that has to be killed would live on.
sub kill_all {
    my @pids = grep { alive($_) } @_;

    kill('TERM', @pids);
    wait_until(10, sub { !grep { alive($_) } @pids });
    @pids = grep { alive($_) } @pids;
    kill('KILL', @pids, map { children_of($_) } @pids);
}

sub children_of {
    my ($pid) = @_;

    return split ' ', slurp("/proc/$pid/task/$pid/children");
}

END {
    if ($$ == $owner) {
        local $?;       # the test's exit status is not ours to change

        for my $handler (reverse @at_exit) {
            eval { $handler->(); 1 } or warn $@;
        }

        reap();
        kill_all(keys(%running), pids_in(keys %pidfile));
        reap();
        tell_guard("-file $_") for keys %pidfile;
        close($guard_pipe) if $guard_pipe;
        chdir('/');     # a current directory cannot be removed
        File::Path::remove_tree($_) for keys %tempdir;
    }
}

1;
