# Test::Nginx::Server - the nginx under test: its root, configuration, life.
#
# A server root is emptied and remade for every start.  nginx daemonises, so
# that its parent's exit status says whether the configuration was taken, and
# the pid file who it is.  Nothing sleeps for a fixed time: a start is over
# when the pid file is there, a stop when the process is gone, a reload when
# a new worker runs and the old ones have left or say that they will.

package Test::Nginx::Server;

use strict;
use warnings;

use DI::Nginx ();
use DI::Proc ();
use File::Path ();
use File::Spec ();

my @temp_paths = qw(client_body proxy fastcgi uwsgi scgi);

# Environment of the format; everything has a default.
#   root     where the server lives; remade at each start
#   port     that the default server listens on
#   hup      reload instead of restart between configurations
sub new {
    my ($class) = @_;
    my $random = $ENV{TEST_NGINX_RANDOMIZE};
    my $suffix = $random ? '_' . substr("$$" . int(rand(1e6)), -8) : '';
    my $root = $ENV{TEST_NGINX_SERVROOT} // "t/servroot$suffix";
    my $port = $ENV{TEST_NGINX_PORT} // 1984;

    my $self = bless {
        root          => File::Spec->rel2abs($root),
        port          => $ENV{TEST_NGINX_SERVER_PORT}
                         // ($random ? DI::Proc::free_port() : $port),
        binary        => $ENV{TEST_NGINX_BINARY} // 'nginx',
        hup           => $ENV{TEST_NGINX_USE_HUP},
        valgrind      => $ENV{TEST_NGINX_USE_VALGRIND},
        random        => $random,
        log_level     => 'debug',
        workers       => 1,
        connections   => 64,
        master        => $ENV{TEST_NGINX_MASTER_PROCESS},
        root_location => 1,
        env           => [],
        offset        => {},
    }, $class;

    $self->{client_port} = $ENV{TEST_NGINX_CLIENT_PORT} // $self->{port};
    DI::Proc::guard_pidfile($self->pidfile);
    return $self;
}

sub pidfile  { "$_[0]{root}/logs/nginx.pid" }
sub log_file { "$_[0]{root}/logs/$_[1].log" }
sub html_dir { "$_[0]{root}/html" }
sub pid      { $_[0]{pid} }

# -------------------------------------------------------- configuration --

# The whole nginx.conf for a block's fragments (already expanded).
sub conf {
    my ($self, %part) = @_;
    my $root = $self->{root};
    my $master = $self->{master} || $self->{hup} ? 'on' : 'off';
    my $level = $ENV{TEST_NGINX_LOG_LEVEL} // $part{log_level}
                // $self->{log_level};
    my $temp = join '', map { "    ${_}_temp_path $root/${_}_temp;\n" }
                        @temp_paths;
    my $postpone = $ENV{TEST_NGINX_POSTPONE_OUTPUT};
    my $http = defined $postpone ? "    postpone_output $postpone;\n" : '';
    my $event = $ENV{TEST_NGINX_EVENT_TYPE};
    my $use = $event ? "    use $event;\n" : '';
    my $html = $self->{root_location} ? <<"END" : '';

        location / {
            root $root/html;
            index index.html index.htm;
        }
END
    my $user = $ENV{TEST_NGINX_WORKER_USER} // 'root';
    my $user_line = $> == 0 ? "user $user;\n" : '';

    return <<"END";
worker_processes $self->{workers};
daemon on;
master_process $master;
error_log $root/logs/error.log $level;
pid $root/logs/nginx.pid;
${\ $self->env_lines}${\ load_lines()}
$part{main_config}

http {
    access_log $root/logs/access.log;
$temp    default_type text/plain;
    keepalive_timeout 68000ms;
$http
$part{http_config}

    server {
        listen $self->{port};
        server_name '$part{server_name}';
        client_max_body_size 30M;

$part{config}
$html    }
}

$part{post_main_config}

events {
    accept_mutex off;
    worker_connections $self->{connections};
$use}
$user_line
END
}

sub load_lines {
    return join '', map { "load_module $_;\n" }
                    split ' ', $ENV{TEST_NGINX_LOAD_MODULES} // '';
}

sub env_lines {
    my ($self) = @_;

    return join '', map { /\s/ ? "env '$_';\n" : "env $_;\n" }
                    @{ $self->{env} };
}

# ----------------------------------------------------------- start, stop --

# Bring up nginx with this configuration and these files under html/.
# Returns the exit status of the start: 0 = it serves.  `fresh` forbids to
# keep or reload a running one.
sub up {
    my ($self, $conf, $files, $fresh) = @_;
    my $running = $self->{pid} && DI::Proc::alive($self->{pid});

    if ($running && !$fresh) {
        if ($self->{hup}) {
            $self->write_files($files);
            return $self->reload($conf);
        }
        if ($self->{running_conf} eq $conf && no_forced_restart()) {
            $self->write_files($files);
            return 0;
        }
    }

    $self->down;
    return $self->start($conf, $files);
}

sub no_forced_restart {
    return ($ENV{TEST_NGINX_FORCE_RESTART_ON_TEST} // '') eq '0';
}

sub start {
    my ($self, $conf, $files) = @_;
    my $root = $self->{root};

    $self->make_root;
    $self->write_files($files);
    $self->write_conf($conf);

    my @command = ($self->{binary}, '-p', "$root/", '-c',
                   "$root/conf/nginx.conf", '-e', "$root/logs/error.log");
    unshift @command, valgrind_command() if $self->{valgrind};

    my $starter = DI::Proc::spawn(name => 'nginx', cmd => \@command,
                                  out => $self->output_file,
                                  env => DI::Nginx::preload());
    my $ended = DI::Proc::eventually(sub {
        defined DI::Proc::status_of($starter);
    });
    DI::Proc::stop($starter) if !$ended;
    DI::Proc::forget($starter);

    my $status = $ended ? DI::Proc::status_of($starter) : -1;
    return $status >> 8 || $status if $status;

    $self->{pid} = DI::Proc::eventually(sub {
        DI::Proc::read_pidfile($self->pidfile);
    });
    return -1 if !$self->{pid};

    $self->{running_conf} = $conf;
    return 0;
}

sub valgrind_command {
    my @suppress = -f 'valgrind.suppress'
                   ? '--suppressions=valgrind.suppress' : ();

    return ('valgrind', '-q', '--tool=memcheck', '--leak-check=full',
            '--gen-suppressions=all', @suppress);
}

# What nginx, or valgrind around it, printed.
sub output_file { "$_[0]{root}/logs/output.txt" }

sub output {
    my ($self) = @_;

    return DI::Proc::slurp($self->output_file);
}

# Stop nginx and wait until it is gone.  Its logs stay.
sub down {
    my ($self) = @_;
    my $pid = delete $self->{pid} or return;
    my $first = $ENV{TEST_NGINX_FAST_SHUTDOWN} ? 'TERM' : 'QUIT';
    my $patience = $self->{valgrind} ? 30 : 3;

    DI::Proc::stop($pid, $first => $patience, TERM => 1);
    print STDERR $self->output if $self->{valgrind};
}

# Put the new configuration in force by SIGHUP.
sub reload {
    my ($self, $conf) = @_;
    my @old = DI::Nginx::workers_of($self->{pid});
    my $offset = -s $self->log_file('error') // 0;

    $self->write_conf($conf);
    kill('HUP', $self->{pid});
    my $failed;
    my $done = DI::Proc::eventually(sub {
        my $log = DI::Proc::slurp($self->log_file('error'), $offset);
        return $failed = 1 if $log =~ /\[emerg\]/;

        my %leaving = map { $_ => 1 }
                      grep { DI::Nginx::leaving($_) } @old;
        my %now = map { $_ => 1 } DI::Nginx::workers_of($self->{pid});
        return 0 if grep { $now{$_} && !$leaving{$_} } @old;
        delete @now{@old};
        return keys(%now) > 0;
    });

    $self->{running_conf} = $conf;
    return $done && !$failed ? 0 : 1;
}

# ----------------------------------------------------------------- files --

# Empty the root.  A directory that does not look like a server root is not
# ours to empty.
sub make_root {
    my ($self) = @_;
    my $root = $self->{root};

    if (-d $root) {
        my @entries = glob("$root/*");
        die "$root is not empty and holds no nginx server root:"
            . " TEST_NGINX_SERVROOT must name a directory of its own\n"
            if @entries && !-e "$root/conf/nginx.conf" && !-d "$root/logs";
        File::Path::remove_tree($root, { keep_root => 1 });
    }

    File::Path::make_path("$root/conf", "$root/logs", "$root/html",
                          map { "$root/${_}_temp" } @temp_paths);
    DI::Proc::spew("$root/html/index.html",
         "<html><head><title>It works!</title></head>"
         . "<body>It works!</body></html>");
    $self->{offset} = {};
}

# The random root of a parallel run has served its purpose.
sub remove_root {
    my ($self) = @_;

    return if !$self->{random} || $ENV{TEST_NGINX_NO_CLEAN};
    File::Path::remove_tree($self->{root});
}

sub write_conf {
    my ($self, $conf) = @_;

    DI::Proc::spew("$self->{root}/conf/nginx.conf", $conf);
}

# $files is a list of [name, content, mtime or undef].
sub write_files {
    my ($self, $files) = @_;

    for my $file (@{ $files // [] }) {
        my ($name, $content, $mtime) = @$file;
        my $path = "$self->{root}/html/$name";
        my ($dir) = $path =~ m{^(.*)/};

        File::Path::make_path($dir);
        DI::Proc::spew($path, $content);
        utime($mtime, $mtime, $path) if defined $mtime;
    }
}

# Log text since the last mark_log() of that log.
sub new_log {
    my ($self, $name) = @_;

    return DI::Proc::slurp($self->log_file($name), $self->{offset}{$name} // 0);
}

sub mark_logs {
    my ($self) = @_;

    $self->{offset}{$_} = -s $self->log_file($_) // 0 for qw(error access);
}

1;
