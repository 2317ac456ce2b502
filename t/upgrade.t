# What an operator does to a running server: a new binary beside the old one
# and back again, another model by a reload, more and fewer workers, a worker
# that is killed beside others; TLS.  Streams notice none of it but the death
# of their own worker.

use strict;
use warnings;

use DI::Client qw(curl encode_json http_get http_post stream_text);
use DI::Engine qw(echo);
use DI::Nginx;
use DI::Proc;
use Test::More;
use Time::HiRes qw(sleep time);

my $chat = '/v1/chat/completions';
my $engine = DI::Engine->nth(1);
my $root = DI::Proc::tempdir();
my $tls = DI::Proc::free_port();
my $spread = DI::Proc::free_port();      # the kernel spreads it over workers

my $certified = system("openssl req -x509 -newkey rsa:2048 -nodes -batch"
    . " -subj /CN=localhost -days 2 -keyout $root/key.pem -out $root/cert.pem"
    . " > $root/openssl.log 2>&1") == 0;

sub configuration {
    my ($pool) = @_;
    my $listen = $certified ? <<"END" : '';
        listen 127.0.0.1:$tls ssl http2;
        ssl_certificate     $root/cert.pem;
        ssl_certificate_key $root/key.pem;
END

    $listen .= "listen 127.0.0.1:$spread reuseport;\n";
    return (http => <<"END", server => $listen . <<"END2");
    deepinfer_pool $pool {
        model  $ENV{TEST_NGINX_DEEPINFER_MODEL};
        engine unix:@{[$engine->socket_path]};
    }
END
        client_max_body_size 8m;
        location = $chat { deepinfer_pass $pool; }
        location = /metrics { deepinfer_api metrics; }
        location = /v1/models { deepinfer_api models; }
END2
}

my $nginx = DI::Nginx->start(workers => 2, configuration('echo'));
my $port = $nginx->port;

sub script {
    my ($script, %more) = @_;

    return encode_json({ model => 'echo', messages => [{ role => 'user',
                         content => $script }], %more });
}

sub stream {
    my ($tokens, $every, $on) = @_;
    my $client = DI::Client->connect(port => $on // $port);

    $client->request('POST', $chat,
                     script("\@\@every $every\n\@\@repeat $tokens hello",
                            stream => JSON::PP::true));
    return $client;
}

sub whole {
    my ($client, $tokens, $name) = @_;
    my @events = $client->read_events;

    is(scalar(() = stream_text(0, @events) =~ /hello/g), $tokens,
       "$name: every token");
    is($events[-1]{data}, '[DONE]', "$name: and its end");
}

# Several requests in a row are served, so that each worker had one.
sub serves {
    my ($name, $model) = @_;
    my $served = 0;

    ok(DI::Proc::wait_until(10, sub {
        my $r = http_post($port, $chat,
                          script('hello', model => $model // 'echo'));
        $served = $r->{status} == 200 ? $served + 1 : 0;
        $served >= 10;
    }), $name);
}

serves('workers serve');

# ---------------------------------------------------------------- upgrades --

# The pid file is the new master's; the old one's gets another name.
sub upgrade {
    my $logs = $nginx->root . '/logs';
    my $old = $nginx->pid;
    my $new;

    kill('USR2', $old);
    DI::Proc::wait_until(10, sub {
        $new = DI::Proc::read_pidfile("$logs/nginx.pid");
        defined $new && $new != $old && -e "$logs/nginx.pid.oldbin"
        && DI::Nginx::workers_of($new) == 2;
    }) or die "no new master:\n" . $nginx->log;
    return $new;
}

my $running = stream(150, 20);
$running->read_event;
my $new = upgrade();
kill('WINCH', $nginx->pid);
ok(DI::Proc::wait_until(5, sub {
    !grep { !DI::Nginx::leaving($_) } DI::Nginx::workers_of($nginx->pid)
}), 'the old workers take nothing new');
serves('the new ones do');

# Back to the old one: its workers start again, the new master leaves.
kill('HUP', $nginx->pid);
ok(DI::Proc::wait_until(5, sub { $nginx->workers == 2 }),
   'the old master starts workers again');
my $beside = stream(100, 20);
$beside->read_event;
kill('QUIT', $new);
serves('and they serve');
whole($running, 150, 'a stream that began before');
whole($beside, 100, 'one of meanwhile');
ok(DI::Proc::wait_until(10, sub { !DI::Proc::alive($new) }),
   'the new master has left');

# And forward for good.
$running = stream(100, 20);
$running->read_event;
$new = upgrade();
kill('WINCH', $nginx->pid);
kill('QUIT', $nginx->pid);
serves('a new binary serves');
whole($running, 100, 'a stream of the old one');
my $old = $nginx->pid;
ok(DI::Proc::wait_until(10, sub { !DI::Proc::alive($old) }),
   'the old master has left');
$nginx->{pid} = $new;

# ----------------------------------------------------------------- reloads --

# Another model at the same address, by another number of workers.
$running = stream(100, 20);
$running->read_event;
$nginx->{workers} = 4;
$nginx->configure(configuration('other'));
$nginx->reload;
serves('a reload with another pool', 'other');
is(http_post($port, $chat, script('hello'))->{status}, 404,
   'the old name is gone');
whole($running, 100, 'a stream of the old pool');

$nginx->configure(configuration('echo'));
$nginx->reload;
serves('four workers serve');

# ----------------------------------------------------------------- workers --

# One of four is killed: its streams end, the others' go on, and the engine
# lets go of what it had.
my @streams = map { stream(300, 10, $spread) } 1 .. 24;
$_->read_event for @streams;
my %fds = map { my $pid = $_; $pid => scalar(() = glob("/proc/$pid/fd/*")) }
          $nginx->workers;
my ($victim) = sort { $fds{$b} <=> $fds{$a} } keys %fds;
kill('KILL', $victim);
my @text = map { stream_text(0, $_->read_events) } @streams;
my $full = grep { 300 == (() = /hello/g) } @text;
cmp_ok($full, '<', 24, 'streams of a killed worker end');
cmp_ok($full, '>', 0, 'those of others go on');
is(scalar(grep { !$_->done } @streams), 24 - $full,
   'and a cut one is no whole answer');
ok(DI::Proc::wait_until(5, sub { $nginx->workers == 4 }), 'a new one starts');
serves('and serves');
ok(DI::Proc::wait_until(5, sub {
    http_get($port, '/metrics')->{body}
        =~ /^deepinfer_engine_running\{model="echo"[^}]*\} 0$/m
}), 'the engine has no sequence left');

# --------------------------------------------------------------------- TLS --

SKIP: {
    skip('no openssl', 4) if !$certified;

    my @url = ('-k', '-N', '-m', 20, "https://localhost:$tls$chat",
               '--resolve', "localhost:$tls:127.0.0.1");

    for my $version ('--http1.1', '--http2') {
        my $body = "$root/body.json";

        DI::Proc::spew($body, script("\@\@every 2\n\@\@repeat 200 hello",
                                     stream => JSON::PP::true));
        my ($status, $output) = curl(@url, $version, '-d', "\@$body");
        is(scalar(() = $output =~ /"hello"/g), 200, "TLS, $version: a stream");

        DI::Proc::spew($body, script("\@\@say ok\n" . 'word ' x 30_000));
        ($status, $output) = curl(@url, $version, '-d', "\@$body");
        like($output, qr/"content":"ok"/, "TLS, $version: a long body");
    }
}

# ------------------------------------------------------- nothing is left --

ok($nginx->stop, 'nginx leaves when asked');
is(join("\n", grep { !/exited on signal 9/ } $nginx->complaints), '',
   'nothing wrong in the error log');
unlike($nginx->log, qr/open socket/, 'no open socket');

done_testing();
