# DI::Nginx - an nginx of its own for a test that steers it: several workers,
# reloads during a stream, binary upgrades, killed workers.
#
# It runs as a user would run it: daemon, master and workers; workers as
# another user when the test is root.

package DI::Nginx;

use strict;
use warnings;

use DI::Proc ();

# Start one.
#   http      text for http {}
#   server    text for server {}; or `conf`, the whole of http {} instead
#   main      text for the main context
#   workers   default 2
#   level     of the error log, default info
sub start {
    my ($class, %arg) = @_;
    my $self = bless {
        root    => DI::Proc::tempdir(),
        port    => DI::Proc::free_port(),
        workers => $arg{workers} // 2,
        level   => $arg{level} // 'info',
        binary  => binary(),
    }, $class;
    my $root = $self->{root};

    for my $dir (qw(conf logs)) {
        mkdir("$root/$dir") or die "mkdir $root/$dir: $!\n";
    }
    DI::Proc::guard_pidfile("$root/logs/nginx.pid");
    $self->configure(%arg);
    $self->command() == 0
        or die "nginx does not start:\n"
               . DI::Proc::slurp("$root/logs/output.txt");
    $self->{pid} = DI::Proc::eventually(sub {
        DI::Proc::read_pidfile("$root/logs/nginx.pid");
    }) // die "nginx writes no pid file\n";
    DI::Proc::eventually(sub {
        $self->workers == $self->{workers};
    }) or die "nginx starts no workers:\n" . $self->log;
    return $self;
}

sub port { $_[0]{port} }
sub pid  { $_[0]{pid} }
sub root { $_[0]{root} }

# An absolute path: a binary upgrade executes argv[0].
sub binary {
    my $name = $ENV{TEST_NGINX_BINARY} // 'nginx';

    return $name if $name =~ m{^/};
    for my $dir (split(/:/, $ENV{PATH}), '/usr/sbin') {
        return "$dir/$name" if -x "$dir/$name";
    }
    die "$name is not in PATH\n";
}

# Write nginx.conf; reload() puts it in force.
sub configure {
    my ($self, %arg) = @_;
    my $root = $self->{root};
    my $main = $arg{main} // '';
    my $user = $> == 0 ? "user nobody nogroup;\n" : '';
    my $modules = join '', map { "load_module $_;\n" }
                           split ' ', $ENV{TEST_NGINX_LOAD_MODULES} // '';
    my $temp = join '', map { "    ${_}_temp_path $root/${_}_temp;\n" }
                        qw(client_body proxy fastcgi uwsgi scgi);
    my $http = $arg{conf} // ($arg{http} // '') . <<"END";
    server {
        listen 127.0.0.1:$self->{port};
$arg{server}
    }
END

    # a binary that takes over is preloaded, too
    my $env = join '', map { "env $_;\n" }
              %{ preload() } ? qw(LD_PRELOAD ASAN_OPTIONS UBSAN_OPTIONS) : ();

    DI::Proc::spew("$root/conf/nginx.conf", <<"END");
$modules$user$env
worker_processes $self->{workers};
error_log $root/logs/error.log $self->{level};
pid $root/logs/nginx.pid;
$main
events {
    worker_connections 512;
}
http {
    access_log $root/logs/access.log;
    default_type text/plain;
$temp
$http
}
END
}

# Run nginx on our configuration, with more arguments; its exit status.
sub command {
    my ($self, @args) = @_;
    my $root = $self->{root};
    my $pid = DI::Proc::spawn(
        name => 'nginx',
        cmd  => [$self->{binary}, '-p', "$root/", '-c',
                 "$root/conf/nginx.conf", '-e', "$root/logs/error.log",
                 @args],
        out  => "$root/logs/output.txt",
        env  => preload(),
    );

    DI::Proc::eventually(sub {
        defined DI::Proc::status_of($pid);
    }) or die "nginx @args hangs\n";
    DI::Proc::forget($pid);
    return DI::Proc::status_of($pid) >> 8;
}

# For nginx alone: the run-time of a sanitizer that the module is built with.
sub preload {
    my $libraries = $ENV{TEST_NGINX_LD_PRELOAD};

    return $libraries ? { LD_PRELOAD => $libraries } : {};
}

# Workers that accept; those that are on their way out are not among them.
sub workers {
    my ($self) = @_;

    return grep { !leaving($_) } workers_of($self->{pid});
}

sub workers_of {
    my ($master) = @_;

    return grep { DI::Proc::slurp("/proc/$_/cmdline") =~ /^nginx: worker/ }
           DI::Proc::children_of($master);
}

sub leaving {
    my ($pid) = @_;

    return !DI::Proc::alive($pid)
           || DI::Proc::slurp("/proc/$pid/cmdline") =~ /shutting down/;
}

# Reload, and wait until new workers have taken over.
sub reload {
    my ($self) = @_;
    my %old = map { $_ => 1 } $self->workers;

    kill('HUP', $self->{pid});
    DI::Proc::eventually(sub {
        my @now = $self->workers;
        @now == $self->{workers} && !grep { $old{$_} } @now;
    }) or die "no new workers after a reload:\n" . $self->log;
}

sub signal {
    my ($self, $signal) = @_;

    kill($signal, $self->{pid});
}

# SIGQUIT and wait; true if it left in time.
sub stop {
    my ($self, $patience) = @_;

    return DI::Proc::stop($self->{pid}, QUIT => $patience // 5, TERM => 2);
}

sub log {
    my ($self, $name) = @_;

    return DI::Proc::slurp("$self->{root}/logs/" . ($name // 'error')
                           . '.log');
}

# Wait for a line in a log.
sub wait_log {
    my ($self, $pattern, $timeout, $name) = @_;

    return DI::Proc::wait_until($timeout // DI::Proc::PATIENCE, sub {
        $self->log($name) =~ $pattern;
    });
}

# Lines that no healthy run has.
sub complaints {
    my ($self) = @_;

    return grep { /\[(?:alert|emerg|crit)\]|exited on signal/ }
           split /\n/, $self->log;
}

1;
