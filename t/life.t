# The life of chat requests across everything that can happen to them: slow
# and leaving clients, dying engines, reloads, exits with a time limit.

use strict;
use warnings;

use DI::Client qw(decode_json encode_json http_get http_post curl has_h2
                  stream_text);
use DI::Engine qw(echo echo);
use DI::Nginx;
use DI::Proc;
use Test::More;
use Time::HiRes qw(sleep time);

my $chat = '/v1/chat/completions';
my ($one, $two) = map { DI::Engine->nth($_) } 1, 2;

# The server's send buffer is small on one port, to see a slow client early.
# Only /stalled has a short send_timeout: a client that reads, but that the
# machine lets run too seldom, must not be taken for one that stalls.
my $root = DI::Proc::tempdir();
my $small = DI::Proc::free_port();

sub server {
    return <<"END";
        listen unix:$root/h2.sock http2;
        listen 127.0.0.1:$small sndbuf=16k;
        client_max_body_size 64m;
        send_timeout @{[2 * DI::Proc::PATIENCE]};
        error_page 400 413 \@error;
        location \@error { deepinfer_error; }
        location = $chat { deepinfer_pass echo; }
        location = /pair { deepinfer_pass pair; }
        location = /short { deepinfer_pass short; }
        location = /quiet { deepinfer_pass echo; deepinfer_ping 1h; }
        location = /rate { deepinfer_pass echo; limit_rate 100k; }
        location = /stalled { deepinfer_pass echo; send_timeout 3s; }
        location = /patient {
            deepinfer_pass echo;
            deepinfer_ignore_client_abort on;
        }
        location = /file { root $root; sendfile on; tcp_nopush on; }
        location = /nopush { deepinfer_pass echo; tcp_nopush on; }
        location = /metrics { deepinfer_api metrics; }
        location = /health { deepinfer_api health; }
END
}

my $pools = <<"END";
    log_format di '\$status \$uri out=\$deepinfer_completion_tokens '
                  'end=\$deepinfer_finish_reason engine=\$deepinfer_engine';
    access_log logs/di.log di;
    deepinfer_ping 500ms;
    deepinfer_pool echo {
        model  $ENV{TEST_NGINX_DEEPINFER_MODEL};
        engine unix:@{[$one->socket_path]};
    }
    deepinfer_pool short {
        model  $ENV{TEST_NGINX_DEEPINFER_MODEL};
        engine unix:@{[$one->socket_path]};
        queue  2;
    }
    deepinfer_pool pair {
        model  $ENV{TEST_NGINX_DEEPINFER_MODEL};
        engine unix:@{[$one->socket_path]};
        engine unix:@{[$two->socket_path]};
    }
END

my %conf = (http => $pools, server => server(),
            main => "thread_pool default threads=2;\n"
                    . "worker_shutdown_timeout 20s;");
my $nginx = DI::Nginx->start(%conf);
my $port = $nginx->port;

# A request for what the script says; `more` are fields of the body.
sub script {
    my ($script, %more) = @_;

    return { model => 'echo', messages => [{ role => 'user',
             content => $script }], %more };
}

sub stream {
    my ($script, %arg) = @_;
    my $client = DI::Client->connect(port => $port, %{ $arg{client} // {} });
    my $uri = $arg{uri} // $chat;
    my $body = script($script, stream => JSON::PP::true, %{$arg{body} // {}});

    $body->{model} = $1 if $uri =~ m{^/(pair|short)};
    $client->request('POST', $uri, $body);
    return $client;
}

sub ask {
    my ($script, %more) = @_;

    return http_post($port, $chat, script($script, %more));
}

# Until the engine's log has grown by a line like this.
sub engine_logs {
    my ($engine, $from, $pattern) = @_;

    return DI::Proc::eventually(sub {
        substr($engine->log, $from) =~ $pattern;
    });
}

sub up {
    my ($number) = @_;

    # each worker has its own connections: ask until both have said so
    my $seen = 0;
    DI::Proc::eventually(sub {
        my $text = http_get($port, '/metrics')->{body};
        my $n = () = $text =~ /^deepinfer_engine_up\{[^}]*\} 1$/mg;
        $seen = $n == $number ? $seen + 1 : 0;
        $seen >= 8;
    }) or diag http_get($port, '/metrics')->{body};
}

up(4);

# ------------------------------------------------------------------ plain --

is(ask('hello there')->{json}{choices}[0]{message}{content}, 'hello there',
   'an answer in one piece');

my $start;
my $client = stream("\@\@say one two\n\@\@every 20\n\@\@say three",
                    body => { stream_options => { include_usage => \1 } });
my @events = $client->read_events;
is(stream_text(0, @events), 'one twothree', 'a stream');
is($events[-1]{data}, '[DONE]', 'a stream ends with [DONE]');
is(decode_json($events[-2]{data})->{usage}{completion_tokens} > 3, 1,
   'and has its usage before');
ok($client->done, 'and its framing ends');

# ---------------------------------------------------------------- metrics --

# The metrics of the pool "echo", by their names.
sub metrics {
    my $text = http_get($port, '/metrics')->{body};
    my %value;

    for (split /\n/, $text) {
        my ($name, $le, $value)
            = /^deepinfer_(\w+)\{model="echo"(?:,le="(.*)")?\} (\S+)$/ or next;
        $value{defined $le ? "$name $le" : $name} = $value;
    }
    return \%value;
}

my $before;
DI::Proc::eventually(sub {      # both requests before are counted
    $before = metrics();
    $before->{ttft_seconds_count} == 2;
});
my $usage = ask("\@\@cached 16\n\@\@first 600\n\@\@say a b c")->{json}{usage};
my $now;

# a request is counted when nginx is done with it
DI::Proc::eventually(sub {
    $now = metrics();
    $now->{ttft_seconds_count} > $before->{ttft_seconds_count};
});
my %grown = map { $_ => $now->{$_} - $before->{$_} } keys %$now;

is($grown{prompt_tokens_total}, $usage->{prompt_tokens}, 'prompt tokens count');
is($grown{cached_tokens_total}, 16, 'and the cached of them');
is($grown{completion_tokens_total}, $usage->{completion_tokens},
   'and those of the completion');
is($grown{'ttft_seconds_bucket 0.500000'}, 0, 'a first token after 0.6 s');
is($grown{'ttft_seconds_bucket 60.000000'}, 1, 'is one below a minute');
is($grown{ttft_seconds_count}, 1, 'and one in all');

# ------------------------------------------------------------------ pings --

$client = stream("\@\@first 5000\n\@\@say late");
my $event = $client->read_event;
is($event->{comment}, 'ping', 'a comment comes before the first token');
@events = $client->read_events;
cmp_ok(scalar(grep { defined $_->{comment} } @events), '>', 0,
       'and again while it waits');
is(stream_text(0, @events), 'late', 'and the text after them');

# ----------------------------------------------------------- client leaves --

# Nothing is written to them that could fail: neither tokens nor pings.
for my $how (qw(close rst half_close)) {
    for my $when ('before the first token', 'during the stream') {
        my $from = length $one->log;
        my $wait = $when =~ /before/ ? '@@first 600000'
                                     : "\@\@say some\n\@\@wait 600000";
        my $c = stream("$wait\n\@\@say more", uri => '/quiet');

        $when =~ /before/ ? engine_logs($one, $from, qr/submit/)
                          : $c->read_event;
        $c->$how;
        ok(engine_logs($one, $from, qr/cancel/), "$how $when cancels");
    }
}

my $from = length $one->log;
$client = stream('@@every 1' . "\n" . '@@repeat 300 hello', uri => '/patient');
$client->read_event;
$client->half_close;
ok($client->read_events > 100, 'deepinfer_ignore_client_abort goes on');
unlike(substr($one->log, $from), qr/cancel/, 'and nothing was cancelled');

# An event does not wait until the client has acknowledged the one before: the
# worker's end of the connection, looked at from here, has TCP_NODELAY.
sub worker_end {
    my ($client) = @_;
    my $name = getsockname($client->sock);

    for my $pid ($nginx->workers) {
        my $pidfd = syscall(434, $pid + 0, 0);              # pidfd_open
        for my $fd (map { m{/(\d+)$} } glob("/proc/$pid/fd/*")) {
            my $copy = syscall(438, $pidfd, $fd + 0, 0);    # pidfd_getfd
            next if $copy < 0;
            open(my $sock, '+<&=', $copy) or die "open: $!\n";
            return $sock if (getpeername($sock) // '') eq $name;
        }
    }
    return;
}

sub sent_at_once {
    my ($client, $name) = @_;
    my $sock = worker_end($client);

    SKIP: {
        skip('the worker may not be looked into', 1) if !$sock;
        my ($nodelay, $cork)
            = map { unpack('i', getsockopt($sock, Socket::IPPROTO_TCP, $_)) }
              Socket::TCP_NODELAY, Socket::TCP_CORK;
        ok($nodelay && !$cork, $name);
    }
}

$client = stream("\@\@every 1\n\@\@repeat 100 hello");
$client->read_event;
sent_at_once($client, 'events are sent at once');
$client->close;

# Nor does it wait for a full segment, as what follows a file with tcp_nopush
# does if both were asked for in one go.
open(my $file, '>', "$root/file") or die "open: $!\n";
print $file 'text';
close($file);
chmod(0755, $root);
for my $uri ($chat, '/nopush') {
    my $body = encode_json(script("\@\@every 1\n\@\@repeat 100000 hello",
                                  stream => JSON::PP::true));

    $client = DI::Client->connect(port => $port);
    $client->send("GET /file HTTP/1.1\r\nHost: localhost\r\n\r\n"
                  . "POST $uri HTTP/1.1\r\nHost: localhost\r\n"
                  . 'Content-Length: ' . length($body) . "\r\n\r\n$body");
    $client->read_head;
    is($client->read_body, 'text', 'a file');
    $client->{head} = undef;
    $client->{done} = 0;
    is($client->read_head->{status}, 200, "and a stream of $uri behind it");
    $client->read_event;
    sent_at_once($client, 'the events of which are sent at once');
    $client->close;
}

# -------------------------------------------------------------- slow client --

$from = length $one->log;
$client = stream('@@per 4' . "\n" . '@@repeat 100000 hello',
                 client => { port => $small, rcvbuf => 4096 });
ok(engine_logs($one, $from, qr/pause/), 'a slow client pauses its sequence');
my @rss = map { DI::Proc::slurp("/proc/$_/status") =~ /VmRSS:\s+(\d+)/ }
          $nginx->workers;
my $text = '';
while (my $e = $client->read_event) {
    $text .= $e->{data} // '';
}
ok(engine_logs($one, $from, qr/resume/), 'and resumes it');
is(scalar(() = $text =~ /hello/g), 100000, 'and gets every token');
my @after = map { DI::Proc::slurp("/proc/$_/status") =~ /VmRSS:\s+(\d+)/ }
            $nginx->workers;
cmp_ok($after[$_], '<', $rss[$_] + 3000, "memory of worker $_ stays flat")
    for 0, 1;

$from = length $one->log;
$client = stream('@@per 4' . "\n" . '@@repeat 100000 hello',
                 uri => '/stalled',
                 client => { port => $small, rcvbuf => 4096 });
ok(engine_logs($one, $from, qr/cancel/), 'send_timeout ends a stalled one');

$start = time;
$client = stream("\@\@every 1\n\@\@repeat 800 hello", uri => '/rate');
is(scalar(() = stream_text(0, $client->read_events) =~ /hello/g), 800,
   'limit_rate loses nothing');
cmp_ok(time - $start, '>', 1, 'and limits');

# ------------------------------------------------------------------ engines --

$client = stream("\@\@say start\n\@\@wait 300\n\@\@die");
@events = $client->read_events;
like($events[-1]{data}, qr/"code":"engine_unavailable"/,
     'an engine that dies in a stream gives an error event');
ok($client->done, 'and the stream ends');
is(scalar(grep { ($_->{data} // '') eq '[DONE]' } @events), 0, 'with no DONE');

my $response = ask('hello');
is($response->{status}, 503, 'no engine: 503');
is($response->{headers}{'retry-after'}, 1, 'with Retry-After');
is($response->{json}{error}{code}, 'engine_unavailable', 'and its code');
is(http_get($port, '/health')->{status}, 503, 'health says so');

$response = http_post($port, '/pair',
                      { %{ script('hello') }, model => 'pair' });
is($response->{status}, 200, 'the other engine of a pool serves');

$one->run;
up(4);
is(ask('hello')->{status}, 200, 'an engine that is back serves by itself');
is(http_get($port, '/health')->{status}, 200, 'health says so, too');

# an engine that ends a sequence for reasons of its own
for ([error => 500, 'engine_error'], [cancel => 503, 'engine_unavailable']) {
    my ($reason, $status, $code) = @$_;

    $response = ask("\@\@finish $reason");
    is($response->{status}, $status, "finished by $reason: $status");
    is($response->{json}{error}{code}, $code, "and $code");
    @events = stream("\@\@say some\n\@\@wait 300\n\@\@finish $reason")
              ->read_events;
    is(decode_json($events[-1]{data})->{error}{code}, $code,
       'in a stream the event of it comes last');
}

# both engines are tried, for a script that kills the engine at once
$from = length $two->log;
$client = stream('@@die', uri => '/pair');
is($client->read_head->{status}, 503, 'a request that kills two engines: 503');
ok(DI::Proc::eventually(sub { !$one->alive && !$two->alive }),
   'it was given to both');
$_->run for $one, $two;
up(4);

# one engine of two dies while requests wait for their first token
$from = length $one->log;
my @waiting = map { stream("\@\@first 3000\n\@\@say moved", uri => '/pair') }
              1 .. 8;
engine_logs($one, $from, qr/submit/);
$one->kill_with('KILL');
is(join(' ', map { stream_text(0, $_->read_events) } @waiting),
   join(' ', ('moved') x 8), 'requests of a dead engine move to another');
like(http_get($port, '/metrics')->{body},
     qr/^deepinfer_resubmits_total\{model="pair"\} [1-9]/m, 'and are counted');
$one->run;
up(4);

# a full queue: of an engine, of both, and the pool's own
$response = http_post($port, '/pair', { %{ script('@@reject queue_full 5 5') },
                                        model => 'pair' });
is($response->{status}, 429, 'engines with full queues: 429');
is($response->{headers}{'retry-after'}, 1, 'with Retry-After');
is(scalar(grep { $_->log =~ /reject.*queue_full/ } $one, $two), 2,
   'both were asked');

$one->signal('STOP');
@waiting = map { stream('hello', uri => '/short') } 1 .. 6;
my @full;
ok(DI::Proc::eventually(sub {
    $_->{head} || $_->read_head(0.01) for @waiting;
    @full = grep { $_->{head} && $_->{head}{status} == 429 } @waiting;
    @full >= 2;
}), 'more than `queue` requests that wait: 429');
like($full[0]->read_body, qr/queue is full: 2/,
     'and says so');
my @held = grep { ($_->{head} // { status => 200 })->{status} == 200 } @waiting;
is($held[0]->read_event->{comment}, 'ping', 'an engine that hangs: pings');
$one->signal('CONT');
is(join(' ', map { stream_text(0, $_->read_events) } @held),
   join(' ', ('hello') x @held), 'and the rest when it goes on');

# ------------------------------------------------------------- long bodies --

for my $size (100_000, 1_000_000, 9_000_000) {
    my $body = encode_json(script("\@\@say ok\n"
                                  . 'long text ' x ($size / 10)));
    my $r = http_post($port, $chat, $body);

    is($r->{status}, $size < 1_000_000 ? 200 : 400, "a body of $size bytes")
        or diag $r->{body};

    my $c = DI::Client->connect(port => $port);
    $c->request('POST', $chat, undef, 'Content-Type' => 'application/json',
                'Transfer-Encoding' => 'chunked');
    $c->send(sprintf("%x\r\n%s\r\n", length, $_))
        for unpack('(a65000)*', $body);
    $c->send("0\r\n\r\n");
    is($c->response->{status}, $r->{status}, 'the same in chunks');
}
like($nginx->log, qr/temporary file/, 'some lay in files');

# clients that leave while a thread encodes their prompt
for (1 .. 10) {
    my $c = DI::Client->connect(port => $port);
    $c->request('POST', $chat, script('word ' x 400_000));
    $_ % 2 ? $c->rst : $c->close;
}
is(ask('hello')->{status}, 200, 'leaving during the encoding harms nobody');

# ------------------------------------------------------------------- HTTP/2 --

SKIP: {
    skip('curl has no HTTP/2', 3) if !has_h2();

    my @h2 = ('--http2-prior-knowledge', '-N', '--unix-socket',
              "$root/h2.sock", "http://localhost$chat");
    my ($status, $output) = curl(@h2, '-d', encode_json(
        script("\@\@every 5\n\@\@repeat 50 hello", stream => \1)));
    is(scalar(() = $output =~ /hello/g), 50, 'a stream over HTTP/2');

    $from = length $one->log;
    my @quiet = ("-m", 1, "-o", "/dev/null", "--stderr", "/dev/null");
    curl(@h2, @quiet, "-d", encode_json(
        script("\@\@every 5\n\@\@repeat 5000 hello", stream => \1)));
    ok(engine_logs($one, $from, qr/cancel/), 'a reset over HTTP/2 cancels');

    ($status, $output) = curl(@h2, '-d', encode_json(
        script("\@\@say ok\n" . 'word ' x 20_000)));
    like($output, qr/"content":"ok"/, 'a long body over HTTP/2');
}

# ------------------------------------------------------------------ reloads --

$client = stream("\@\@every 10\n\@\@repeat 200 hello");
$client->read_event;
$nginx->reload;
is(scalar(() = stream_text(0, $client->read_events) =~ /hello/g), 200,
   'a stream outlives a reload');

# new workers have no connection yet when their first requests come
my $failed = 0;
for (1 .. 20) {
    kill('HUP', $nginx->pid);
    for (1 .. 20) {
        my $r = eval { ask('hello') };
        $failed++ if !$r || $r->{status} != 200;
    }
}
is($failed, 0, 'reloads under load lose nothing');
DI::Proc::eventually(sub { DI::Nginx::workers_of($nginx->pid) == 2 });

$nginx->configure(%conf, main => "worker_shutdown_timeout 2s;\n"
                                . "thread_pool default threads=2;");
$nginx->reload;
$client = stream("\@\@every 100\n\@\@repeat 1000 hello");
$client->read_event;
$start = time;
kill('HUP', $nginx->pid);
@events = $client->read_events;
like($events[-1]{data}, qr/"code":"shutting_down"/,
     'worker_shutdown_timeout ends a stream with an error event');
ok($client->done, 'and its framing ends');
cmp_ok(time - $start, '>', 1, 'but not long before nginx cuts it off');
ok(DI::Proc::eventually(sub { DI::Nginx::workers_of($nginx->pid) == 2 }),
   'the old workers are gone');

ok($nginx->stop, 'nginx leaves by itself');
unlike($nginx->log, qr/\[(?:alert|emerg|crit)\]/, 'no alert in the log');
like($nginx->log('di'), qr/^200 $chat out=3 end=stop engine=unix:/m,
     'variables in the access log');
like($nginx->log('di'), qr/^499 $chat out=- end=abort/m, 'of aborts, too');

done_testing();
