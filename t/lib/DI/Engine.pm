# DI::Engine - engines for a test file.
#
#     use DI::Engine 'echo';            # or 'model'; one word for each engine
#     use Test::Nginx::Socket 'no_plan';
#
# starts the engines while the file compiles, so that the sockets are known
# before Test::Nginx looks at its environment, and sets
#
#     TEST_NGINX_DEEPINFER_SOCK     the first engine's socket, a path
#     TEST_NGINX_DEEPINFER_SOCK2    the second's, and so on
#     TEST_NGINX_DEEPINFER_MODEL    the model file that they serve
#     TEST_NGINX_LOAD_MODULES       our module, unless it is set already
#
# `model` is $TEST_DEEPINFER_ENGINE (build/deepinfer-engine) with the model
# $TEST_DEEPINFER_MODEL (the cached SmolLM2); where there is no model the
# whole file is skipped, saying so.  `echo` is build/echo-engine, which
# answers at once from a script in the prompt, on t/data/echo.gguf.
#
# A test that steers an engine takes it from DI::Engine->nth(1), or starts
# its own with DI::Engine->start(...).  Engines end with the test, whatever
# ends it (DI::Proc).

package DI::Engine;

use strict;
use warnings;

use Cwd ();
use DI::Proc ();
use File::Basename ();
use Socket;
use Test::More ();

use constant MODEL_FILE => 'SmolLM2-135M-Instruct.Q4_1.gguf';

# An engine is given up when it has not computed for so many seconds, and does
# not listen after so many: on an overloaded machine a start takes long.
use constant PATIENCE   => 60;
use constant START_MAX  => 600;

my $repository = Cwd::abs_path(File::Basename::dirname(__FILE__)
                               . '/../../..');
my $dir;                # for sockets and logs
my @engines;            # in the order of their start

sub import {
    my ($class, @kinds) = @_;

    export_module();
    $class->start(kind => $_) for @kinds;
}

# The module under test, for Test::Nginx and for DI::Nginx.
sub export_module {
    return if defined $ENV{TEST_NGINX_LOAD_MODULES};

    my $module = "$repository/build/ngx_http_deepinfer_module.so";
    die "$module is missing: run make first\n" if !-f $module;
    $ENV{TEST_NGINX_LOAD_MODULES} = $module;
}

# The n-th engine that was started, from 1.
sub nth {
    my ($class, $n) = @_;

    return $engines[$n - 1] // die "no engine $n was started\n";
}

# Start an engine and wait until it listens.
#   kind   'model' or 'echo'
#   args   further arguments of its command line
#   model  another model file
sub start {
    my ($class, %arg) = @_;
    my $kind = $arg{kind} // 'model';
    my $n = @engines + 1;

    $dir //= DI::Proc::tempdir();
    my $self = bless {
        kind   => $kind,
        name   => "engine $n",
        socket => "$dir/engine$n.sock",
        log    => "$dir/engine$n.log",
        args   => $arg{args} // [],
        model  => $arg{model} // model_of($kind),
        pid    => undef,
    }, $class;

    $ENV{'TEST_NGINX_DEEPINFER_SOCK' . ($n > 1 ? $n : '')} = $self->{socket};
    $ENV{TEST_NGINX_DEEPINFER_MODEL} //= $self->{model};
    push @engines, $self;
    $self->run;
    return $self;
}

sub model_of {
    my ($kind) = @_;

    return "$repository/t/data/echo.gguf" if $kind eq 'echo';
    die "unknown kind of engine \"$kind\"\n" if $kind ne 'model';

    my $cache = $ENV{XDG_CACHE_HOME} // "$ENV{HOME}/.cache";
    my $model = $ENV{TEST_DEEPINFER_MODEL}
                // "$cache/ngx_deepinfer/" . MODEL_FILE;
    Test::More::plan(skip_all => "no model at $model (make model fetches it)")
        if !-r $model;
    return Cwd::abs_path($model);
}

sub program {
    my ($self) = @_;
    my $program = $ENV{TEST_DEEPINFER_ENGINE}
                  // "$repository/build/deepinfer-engine";

    $program = File::Basename::dirname($program) . '/echo-engine'
        if $self->{kind} eq 'echo';

    die "$program is missing: run make first\n" if !-x $program;
    return $program;
}

# Start the process; also after kill_with() or stop(), on the same socket.
sub run {
    my ($self) = @_;

    die "$self->{name} runs already\n" if $self->alive;
    # Where the test is root, nginx's workers may be nobody.
    my @group = $> == 0 ? ('--group', 'nogroup') : ();
    my @command = ($self->program, 'serve', '--model', $self->{model},
                   '--listen', "unix:$self->{socket}", @group,
                   @{ $self->{args} });

    $self->{pid} = DI::Proc::spawn(name => $self->{name}, cmd => \@command,
                                   out => $self->{log}, append => 1);
    my ($ticks, $since) = (-1, time);
    DI::Proc::wait_until(START_MAX, sub {
        return 1 if !$self->alive || $self->listens;
        my $now = $self->cpu_ticks;
        ($ticks, $since) = ($now, time) if $now != $ticks;
        return time - $since > PATIENCE;
    });
    die "$self->{name} does not listen: @command\n" . $self->log
        if !$self->alive || !$self->listens;
}

sub pid    { $_[0]{pid} }
sub socket_path { $_[0]{socket} }
sub model  { $_[0]{model} }

sub alive {
    my ($self) = @_;

    return defined $self->{pid} && DI::Proc::alive($self->{pid});
}

# A connection without a HELLO is nothing to an engine.
sub listens {
    my ($self) = @_;

    socket(my $s, AF_UNIX, SOCK_SEQPACKET, 0) or die "socket: $!\n";
    return connect($s, pack_sockaddr_un($self->{socket})) ? 1 : 0;
}

# Send a signal and wait for the end; SIGKILL leaves the socket file behind.
sub kill_with {
    my ($self, $signal) = @_;

    DI::Proc::stop($self->{pid}, $signal => $signal eq 'KILL' ? 60 : 10);
    return DI::Proc::status_of($self->{pid});
}

# Drain and end; the wait status.
sub stop {
    my ($self) = @_;

    return $self->kill_with('TERM');
}

sub restart {
    my ($self) = @_;

    $self->stop if $self->alive;
    $self->run;
}

# Send a signal and go on: STOP makes an engine that hangs, CONT heals it.
sub signal {
    my ($self, $signal) = @_;

    kill($signal, $self->{pid});
}

sub log {
    my ($self) = @_;

    return DI::Proc::slurp($self->{log});
}

sub fd_count {
    my ($self) = @_;

    return scalar(() = glob("/proc/$self->{pid}/fd/*"));
}

# Processor time that it has used, user and system.
sub cpu_ticks {
    my ($self) = @_;
    my $stat = DI::Proc::slurp("/proc/$self->{pid}/stat");
    my @field = split ' ', $stat =~ s/.*\) //r;

    return ($field[11] // 0) + ($field[12] // 0);
}

# Resident memory, kB.
sub rss_kb {
    my ($self) = @_;
    my $status = DI::Proc::slurp("/proc/$self->{pid}/status");

    return $status =~ /^VmRSS:\s+(\d+)/m ? $1 : 0;
}

1;
