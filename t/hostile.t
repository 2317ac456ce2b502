# What hostile, broken and merely unusual clients send, at the level of bytes:
# bodies in any pieces, lengths that lie, methods and versions, pipelines,
# connections that end at any point.  After each the next request is served,
# and at the end no descriptor, connection or sequence is left.

use strict;
use warnings;

use DI::Client qw(decode_json encode_json http_get http_post);
use DI::Engine qw(echo);
use DI::H2;
use DI::Nginx;
use DI::Proc;
use Test::More;
use Time::HiRes qw(sleep time);

my $chat = '/v1/chat/completions';
my $engine = DI::Engine->nth(1);
my $root = DI::Proc::tempdir();

my $nginx = DI::Nginx->start(
    workers => 1, main => 'thread_pool default threads=2;',
    http => <<"END", server => <<"END2");
    deepinfer_ping 300ms;
    deepinfer_pool echo {
        model  $ENV{TEST_NGINX_DEEPINFER_MODEL};
        engine unix:@{[$engine->socket_path]};
    }
END
        listen unix:$root/h2.sock http2;
        client_max_body_size 1m;
        client_body_buffer_size 2k;
        client_body_timeout 2s;
        send_timeout 3s;
        error_page 400 414 494 505 /error;
        error_page 404 405 408 413 \@error;
        location = /error { internal; deepinfer_error; }
        location \@error { deepinfer_error; }
        location = $chat { deepinfer_pass echo; }
        location = /gzip {
            gzip on;
            gzip_types text/event-stream application/json;
            gzip_min_length 1;
            deepinfer_pass echo;
        }
        location = /metrics { deepinfer_api metrics; }
END2
my $port = $nginx->port;
my ($worker) = $nginx->workers;

sub script {
    my ($script, %more) = @_;

    return encode_json({ model => 'echo', messages => [{ role => 'user',
                         content => $script }], %more });
}

sub connected { return DI::Client->connect(port => $port) }

# One request of raw bytes, in pieces; its response.
sub raw {
    my (@pieces) = @_;
    my $client = connected();

    for my $piece (@pieces) {
        $client->send($piece) or last;
        sleep(0.001) if @pieces > 1 && @pieces < 500;
    }
    return $client->response;
}

sub post_head {
    my (@headers) = @_;

    return join("\r\n", "POST $chat HTTP/1.1", 'Host: a',
                'Connection: close', @headers) . "\r\n\r\n";
}

sub serves {
    my ($after) = @_;
    my $r = http_post($port, $chat, script('still here'));

    is($r->{json}{choices}[0]{message}{content}, 'still here',
       "served after: $after");
}

sub fds { return scalar(() = glob("/proc/$worker/fd/*")) }

DI::Proc::eventually(sub { http_post($port, $chat, script('a'))->{status}
                              == 200 });
my $fds = fds();

# ----------------------------------------------------------- body in pieces --

my $body = script("\@\@say one byte\n");
my $r = raw(post_head('Transfer-Encoding: chunked'),
            (map { sprintf("1\r\n%s\r\n", $_) } split //, $body),
            "0\r\n\r\n");
like($r->{body}, qr/one byte/, 'chunks of one byte');

$r = raw(post_head('Content-Length: ' . length $body), split //, $body);
like($r->{body}, qr/one byte/, 'a body byte by byte');

$r = raw(post_head('Transfer-Encoding: chunked'),
         sprintf("%x;name=\"value\"\r\n%s\r\n", length $body, $body),
         "0\r\nTrailer: x\r\n\r\n");
like($r->{body}, qr/one byte/, 'chunk extensions and a trailer');

my $client = connected();
$client->send(post_head('Expect: 100-continue',
                        'Content-Length: ' . length $body));
$client->receive(time + 3);
like($client->{raw}, qr{\AHTTP/1\.1 100 Continue\r\n\r\n},
     'Expect: 100-continue is answered at once');
$client->send($body);
like($client->response->{body}, qr/one byte/, 'and then the request');

# ------------------------------------------------------------- lying lengths --

$client = connected();
$client->send(post_head('Content-Length: ' . (length($body) + 10)) . $body);
is($client->read_head, undef, 'a body that stops short: no answer');
ok($client->eof, 'and the end, as nginx does it');
serves('a short body');

$client = connected();
$client->send(post_head('Content-Length: ' . (length($body) + 10)) . $body);
$client->half_close;
$client->receive(time + 5) while !$client->eof;
serves('a short body and the end');

$client = connected();
$client->send(post_head('Content-Length: ' . (length($body) - 1)) . $body);
$r = $client->response;
is($r->{status}, 400, 'a body longer than it says is cut there');
like($r->{json}{error}{message}, qr/./, 'which is malformed');

is(raw(post_head('Content-Length: -1') . $body)->{status}, 400,
   'a negative length');
is(raw(post_head('Content-Length: 5', 'Transfer-Encoding: chunked')
       . "0\r\n\r\n")->{status}, 400, 'a length and chunks');
is(raw(post_head('Transfer-Encoding: chunked') . "zz\r\n")->{status}, 400,
   'a chunk without a size');
$r = raw(post_head('Content-Length: 2000000') . 'x');
is($r->{status}, 413, 'a length over the limit');
is($r->{json}{error}{code}, 'request_too_large', 'in JSON');
$r = raw(post_head('Transfer-Encoding: chunked')
         . "200000\r\n" . 'x' x 0x1000);
is($r->{status}, 413, 'a chunk over the limit');
is($r->{json}{error}{code}, 'request_too_large', 'in JSON, too');
is(raw(post_head('Content-Encoding: gzip', 'Content-Length: 1') . 'x')
   ->{status}, 415, 'a compressed body');
is(raw(post_head('Content-Encoding: identity',
                 'Content-Length: ' . length $body) . $body)->{status}, 200,
   'identity is none');

# ------------------------------------------------------ addresses, headers --

# nginx can't take these to a named location: there is no address yet
for (['a line that is no request', "garbage\r\n\r\n", 400],
     ['an escape that is none', "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400],
     ['a zero byte', "GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400],
     ['a way out', "GET /../.. HTTP/1.1\r\nHost: a\r\n\r\n", 400],
     ['no host', "GET / HTTP/1.1\r\n\r\n", 400],
     ['two hosts', "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400],
     ['a version of the future', "GET / HTTP/9.9\r\nHost: a\r\n\r\n", 505],
     ['a long address', 'GET /' . 'a' x 9000 . " HTTP/1.1\r\n\r\n", 414],
     ['a long header', "GET / HTTP/1.1\r\nHost: a\r\nX: " . 'a' x 9000
                       . "\r\n\r\n", 400],
     ['many headers', "GET / HTTP/1.1\r\nHost: a\r\n"
                      . join('', map { "X$_: " . 'a' x 1000 . "\r\n" } 1 .. 60)
                      . "\r\n", 400])
{
    my ($name, $head, $status) = @$_;

    $r = raw($head);
    is($r->{status}, $status, "$name: $status");
    ok($r->{json} && $r->{json}{error}{message}, 'in JSON');
}
serves('all of these');

# -------------------------------------------------------- methods, versions --

for my $method (qw(HEAD GET OPTIONS PUT DELETE PATCH PURGE)) {
    $client = connected();
    $client->send("$method $chat HTTP/1.1\r\nHost: a\r\nConnection: close"
                  . "\r\n\r\n");
    my $head = $client->read_head;
    is($head->{status}, 405, "$method: 405");
    is($head->{headers}{allow}, 'POST', "$method: what is allowed");
}

$client = connected();
$client->send("POST $chat HTTP/1.0\r\nContent-Length: "
              . length($body) . "\r\n\r\n$body");
$r = $client->response;
like($r->{body}, qr/one byte/, 'HTTP/1.0 without a Host');

$client = connected();
my $stream = script('@@repeat 5 hello', stream => JSON::PP::true);
$client->send("POST $chat HTTP/1.0\r\nConnection: keep-alive\r\n"
              . "Content-Length: " . length($stream) . "\r\n\r\n$stream");
$r = $client->response;
like($r->{body}, qr/\[DONE\]\n\n\z/, 'a stream for HTTP/1.0 keep-alive');
ok($client->eof, 'ends with the connection');

# --------------------------------------------------------------- pipelines --

$client = connected();
my @say = map { script("\@\@every 1\n\@\@say number $_",
                       $_ % 2 ? (stream => JSON::PP::true) : ()) } 1 .. 30;
$client->send(join '', map { "POST $chat HTTP/1.1\r\nHost: a\r\n"
                             . 'Content-Length: ' . length($_)
                             . "\r\n\r\n$_" } @say);
my $right = 0;
for my $i (1 .. 30) {
    my $text = $client->response->{body};
    $text = join '', map { decode_json($_)->{choices}[0]{delta}{content}
                           // '' } $text =~ /^data: (\{.*)$/mg
        if $i % 2;
    $right++ if $text =~ /number $i\b/;
    @$client{qw(head done body left)} = (undef, 0, '', 0);
}
is($right, 30, 'thirty requests in one write, in order');

# ------------------------------------------------------------------- gzip --

SKIP: {
    eval { require IO::Uncompress::Gunzip; 1 } or skip('no Gunzip', 3);

    for my $more ('', 'stream') {
        $client = connected();
        $client->request('POST', '/gzip',
            script('@@repeat 50 hello',
                   $more ? (stream => JSON::PP::true) : ()),
            'Accept-Encoding' => 'gzip');
        my $packed = $client->read_body;
        my $plain;
        IO::Uncompress::Gunzip::gunzip(\$packed => \$plain);
        is(scalar(() = $plain =~ /hello/g), 50, "gzip $more");
    }

    $client = connected();
    $client->request('POST', '/gzip',
        script("\@\@first 60000\n\@\@say late", stream => JSON::PP::true),
        'Accept-Encoding' => 'gzip');
    $client->read_head;
    ok($client->receive(time + 10), 'pings pass through gzip');
    $client->close;
}

# --------------------------------------------------------- ends at any point --

my $request = post_head('Content-Length: ' . length $stream) . $stream;
for my $how (qw(close rst half_close)) {
    for (my $cut = 1; $cut < length $request; $cut += 11) {
        $client = connected();
        $client->send(substr($request, 0, $cut));
        $client->$how;
    }
    serves("$how at each point of a request");
}

my $slow = script("\@\@first 20\n\@\@every 5\n\@\@repeat 30 hello",
                  stream => JSON::PP::true);
for my $how (qw(close rst half_close)) {
    for my $i (0 .. 13) {
        $client = connected();
        $client->request('POST', $chat, $slow);
        sleep(0.015 * $i);
        $client->$how;
    }
    serves("$how at each point of a stream");
}

# ----------------------------------------------------------------- HTTP/2 --

# fifty streams of one connection; half of them are left early
my $h2 = DI::H2->connect(path => "$root/h2.sock");
my @streams = map {
    $h2->post($chat, script("\@\@every 5\n\@\@repeat 60 hello\n"
                            . 'x' x 100_000, stream => JSON::PP::true))
} 1 .. 50;
ok($h2->run(60, sub { !grep { $_->{body} !~ /hello/ } @streams }),
   'fifty streams with long bodies on one HTTP/2 connection begin');
$h2->cancel($streams[2 * $_]) for 0 .. 24;
my @stay = map { $streams[2 * $_ + 1] } 0 .. 24;
ok($h2->run(60, sub { !grep { !$_->{done} } @stay }),
   'those that stay end when half are reset');
is(scalar(grep { $_->{body} =~ /\[DONE\]\n\n\z/
                 && 60 == (() = $_->{body} =~ /"content":"hello"/g) } @stay),
   25, 'and are whole');

# no window at all: held in the engine, other streams go on, then the rest
$h2 = DI::H2->connect(path => "$root/h2.sock", window => 0);
my $shut = $h2->post($chat, script('@@repeat 2000 hello',
                                   stream => JSON::PP::true));
my $open = $h2->post($chat, script('@@repeat 2000 hello',
                                   stream => JSON::PP::true));
$h2->open_window($open, 1 << 30);
ok($h2->run(60, sub { $open->{done} }), 'a stream beside one that is shut');
is($shut->{body}, '', 'which has got nothing');
$h2->open_window($shut, 1 << 30);
ok($h2->run(60, sub { $shut->{done} }), 'which ends when it may');
is(scalar(() = $shut->{body} =~ /"content":"hello"/g), 2000, 'and is whole');

# a window that never opens: send_timeout
$shut = $h2->post($chat, script('@@repeat 20000 hello',
                                stream => JSON::PP::true));
ok($h2->run(60, sub { $shut->{done} }), 'a stream that is shut for good ends');
ok($shut->{reset}, 'by a reset');

# --------------------------------------------------------- nothing is left --

undef $_ for $h2, $client;
serves('everything');
ok(DI::Proc::eventually(sub { fds() <= $fds }), 'no descriptor is left')
    or diag `ls -l /proc/$worker/fd`;
my $metrics = '';
ok(DI::Proc::eventually(sub {
       $metrics = http_get($port, '/metrics')->{body};
       $metrics =~ /^deepinfer_engine_running\{.*\} 0$/m
       && $metrics =~ /^deepinfer_engine_waiting\{.*\} 0$/m;
   }), 'no sequence is left') or diag $metrics;
is(join(' ', $nginx->workers), $worker, 'the worker lives');
ok($nginx->stop, 'and leaves when asked');
is(join("\n", $nginx->complaints), '', 'no alert');
unlike($nginx->log, qr/open socket/, 'no open socket');

done_testing();
