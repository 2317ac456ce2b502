# What stands behind an engine's socket is not always an engine that works:
# another model, a stranger, a stopped process, one that comes and goes.  The
# clients get an answer in time, and service resumes by itself.

use strict;
use warnings;

use DI::Client qw(encode_json http_get http_post stream_text);
use DI::Engine qw(echo echo);
use DI::Nginx;
use DI::Proc;
use Socket;
use Test::More;
use Time::HiRes qw(sleep time);

my $chat = '/v1/chat/completions';
my $engine = DI::Engine->nth(1);
my $path = $engine->socket_path;
my $root = DI::Proc::tempdir();
my $strange = "$root/strange.sock";
chmod(0755, $root);

my $nginx = DI::Nginx->start(workers => 2, http => <<"END", server => <<"END2");
    deepinfer_ping 300ms;
    deepinfer_pool echo {
        model  $ENV{TEST_NGINX_DEEPINFER_MODEL};
        engine unix:$path;
    }
    deepinfer_pool pair {
        model  $ENV{TEST_NGINX_DEEPINFER_MODEL};
        engine unix:$path;
        engine unix:@{[DI::Engine->nth(2)->socket_path]};
        engine_timeout 10s;
    }
    deepinfer_pool strange {
        model  $ENV{TEST_NGINX_DEEPINFER_MODEL};
        engine unix:$strange;
    }
END
        location = $chat { deepinfer_pass echo; }
        location = /pair { deepinfer_pass pair; }
        location = /strange { deepinfer_pass strange; }
        location = /metrics { deepinfer_api metrics; }
END2
my $port = $nginx->port;

sub script {
    my ($script, %more) = @_;

    return encode_json({ model => 'echo', messages => [{ role => 'user',
                         content => $script }], %more });
}

sub ask { return http_post($port, $chat, script(shift)) }

# Both workers answer: several requests in a row are served.
sub serves {
    my ($name) = @_;
    my $served = 0;

    ok(DI::Proc::eventually(sub {
        my $r = ask('hello');
        $served = $r->{status} == 200 ? $served + 1 : 0;
        $served >= 8;
    }), $name);
}

sub fds {
    my ($pid) = @_;

    return scalar(() = glob("/proc/$pid/fd/*"));
}

serves('an engine serves');
my %fds = map { $_ => fds($_) } $nginx->workers;

# -------------------------------------------------------------- other model --

my $other = DI::Proc::slurp($engine->model);
$other =~ s/Echo/Ekko/ or die "the model has no name\n";
DI::Proc::spew("$root/other.gguf", $other);
$engine->stop;
my $intruder = DI::Proc::spawn(
    name => 'an engine of another model', out => "$root/intruder.log",
    cmd => [$engine->program, 'serve', '--model', "$root/other.gguf",
            '--listen', "unix:$path", $> == 0 ? ('--group', 'nogroup') : ()]);
DI::Proc::eventually(sub { $engine->listens });
my $from = length $nginx->log;
ok($nginx->wait_log(qr/\[error\].*: engine "unix:\Q$path\E" of .*model/),
   'an engine of another model is seen');
sleep(1.5);
my $r = ask('hello');
is($r->{status}, 503, 'but does not serve');
is($r->{json}{error}{code}, 'engine_unavailable', 'which the client is told');
cmp_ok(scalar(() = substr($nginx->log, $from) =~ /\[error\].*of pool "echo"/g),
       '<=', 4, 'not at each attempt');
DI::Proc::stop($intruder, TERM => 5);
$engine->run;
serves('the right one serves by itself');

# ---------------------------------------------------------------- strangers --

# Listen like an engine, and treat each connection as told.
sub stranger {
    my ($name, $code) = @_;

    unlink $strange;
    socket(my $listen, AF_UNIX, SOCK_SEQPACKET, 0) or die "socket: $!\n";
    bind($listen, pack_sockaddr_un($strange)) or die "bind: $!\n";
    chmod(0777, $strange);
    listen($listen, 16) or die "listen: $!\n";
    my $pid = DI::Proc::fork_child($name, sub {
        my @kept;
        while (accept(my $c, $listen)) {
            $code->($c);
            push @kept, $c;
            shift @kept if @kept > 20;
        }
    });
    close($listen);
    return $pid;
}

my @strangers = (
    ['one that closes at once', sub { close($_[0]) }],
    ['one that says nothing', sub { }],
    ['one that sends zeros', sub { send($_[0], "\0" x 512, 0) }],
    ['one that sends a short welcome', sub {
        recv($_[0], my $hello, 4096, 0); send($_[0], "\1", 0); }],
    ['one that sends our own hello back', sub {
        recv($_[0], my $hello, 4096, 0); send($_[0], $hello, 0); }],
    ['one that sends random bytes', sub {
        send($_[0], join('', map { chr rand 256 } 1 .. 300), 0) }],
);

for my $case (@strangers) {
    my ($name, $code) = @$case;
    my $pid = stranger($name, $code);
    my $start = time;

    sleep(1.2);
    my $answer = http_post($port, '/strange',
                           script('hello') =~ s/"echo"/"strange"/r);
    is($answer->{status}, 503, "$name: 503");
    cmp_ok(time - $start, '<', 9, "$name: in time");
    DI::Proc::stop($pid, KILL => 5);
}
unlink $strange;
DI::Proc::spew($strange, 'a plain file');
sleep(1.2);
is(http_post($port, '/strange', script('hello') =~ s/"echo"/"strange"/r)
   ->{status}, 503, 'a plain file: 503');
serves('the other pool is not disturbed');

# ------------------------------------------------------------ comes and goes --

for (1 .. 15) {
    my @clients = map {
        my $c = DI::Client->connect(port => $port);
        $c->request('POST', $chat, script("\@\@every 3\n\@\@repeat 200 hello",
                    stream => $_ % 2 ? JSON::PP::true : JSON::PP::false));
        $c;
    } 1 .. 6;
    sleep(0.02 * $_);
    $engine->kill_with('KILL');
    $engine->run;
    for my $c (@clients) {
        my $head = $c->read_head or BAIL_OUT('a client hangs');
        $c->read_body;
    }
}
serves('an engine that was killed fifteen times');

# ------------------------------------------------------------------ workers --

my $client = DI::Client->connect(port => $port);
$client->request('POST', $chat, script("\@\@every 10\n\@\@repeat 100000 hello",
                                       stream => JSON::PP::true));
$client->read_event;
$from = length $engine->log;
my @old = $nginx->workers;
kill('KILL', @old);
ok(DI::Proc::eventually(sub { substr($engine->log, $from) =~ /closed/ }),
   'a killed worker is seen by the engine');
$client->receive(time + 5) while !$client->eof;
ok(DI::Proc::eventually(sub { $nginx->workers == 2 }), 'new workers start');
serves('and serve');
ok(DI::Proc::eventually(sub {
    http_get($port, '/metrics')->{body}
        =~ /^deepinfer_engine_running\{model="echo"[^}]*\} 0$/m
}), 'the sequences of dead workers are gone');

# ------------------------------------------------------------------ stopped --

$engine->signal('STOP');
$client = DI::Client->connect(port => $port);
$client->request('POST', $chat, script('hello', stream => JSON::PP::true));
is(($client->read_event // {})->{comment}, 'ping',
   'a stopped engine: the connection lives');
$nginx->reload;
my $start = time;
$r = ask('hello');
is($r->{status}, 503, 'new workers find no engine');
cmp_ok(time - $start, '<', 15, 'in time');
$engine->signal('CONT');
is(stream_text(0, $client->read_events), 'hello', 'it goes on, in old workers');
serves('and serves new ones');

# one of two is stopped: who is there already waits for it for a while, who
# comes later doesn't, and at last it counts as dead
sub pair {
    my ($script, @more) = @_;
    my $c = DI::Client->connect(port => $port);

    $c->request('POST', '/pair', script($script, @more) =~ s/"echo"/"pair"/r);
    return $c;
}

my @before = map { pair("\@\@first 4000\n\@\@say moved") } 1 .. 8;
my $begun = pair("\@\@every 20\n\@\@repeat 100000 hello",
                 stream => JSON::PP::true);
$begun->read_event;
$begun->read_event;
sleep(0.2);
$engine->signal('STOP');
sleep(2.5);
$start = time;
is(scalar(grep { pair('hello')->response->{status} == 200 } 1 .. 20), 20,
   'an engine that seems to hang gets no new requests');
cmp_ok(time - $start, '<', 6, 'so they are served at once');
is(scalar(grep { $_->response->{body} =~ /moved/ } @before), 8,
   'after engine_timeout its requests move to the other one');
ok($nginx->wait_log(qr/is lost: it hangs/), 'and the log says so');
$_->close for $begun, @before;
$engine->signal('CONT');
serves('when it goes on it serves again');

# --------------------------------------------------------- nothing is left --

for my $pid ($nginx->workers) {
    ok(DI::Proc::eventually(sub { fds($pid) <= 4 + (sort values %fds)[-1] }),
       'no descriptor is left');
}
ok($nginx->stop, 'nginx leaves when asked');
is(join("\n", grep { !/exited on signal 9/ } $nginx->complaints), '',
   'no alert');

done_testing();
