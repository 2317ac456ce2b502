# Clients of each API that read slowly, and bodies that nginx can't keep: a
# sequence waits for its reader, whatever the API, and a full disk costs one
# request.

use strict;
use warnings;

use DI::Client qw(decode_json encode_json http_get http_post);
use DI::Engine qw(echo);
use DI::Nginx;
use DI::Proc;
use Test::More;
use Time::HiRes qw(sleep time);

# Four of them are an event, and a ring has room for half of the events.
use constant TOKENS => 120000;

my $engine = DI::Engine->nth(1);
my $small = DI::Proc::free_port();
my $disk = disk();

# The server's send buffer is small on one port, to see a slow client early.  A
# client that reads, but that the machine lets run too seldom, must not be taken
# for one that stalls: only /stalled/ has a short send_timeout.
my $nginx = DI::Nginx->start(
    workers => 1, http => <<"END", server => <<"END2");
    deepinfer_pool echo {
        model  $ENV{TEST_NGINX_DEEPINFER_MODEL};
        engine unix:@{[$engine->socket_path]};
    }
    deepinfer_store ttl=10s size=8m;
END
        listen 127.0.0.1:$small sndbuf=16k;
        client_max_body_size 8m;
        send_timeout @{[2 * DI::Proc::PATIENCE]};
        error_page 500 \@error;
        location \@error { deepinfer_error; }
        location = /v1/chat/completions { deepinfer_pass echo; }
        location = /v1/completions {
            deepinfer_pass echo;
            deepinfer_api completions;
        }
        location = /v1/responses {
            deepinfer_pass echo;
            deepinfer_api responses;
        }
        location = /v1/messages {
            deepinfer_pass echo;
            deepinfer_api messages;
        }
        location ^~ /stalled/ {
            send_timeout 3s;
            location = /stalled/v1/completions {
                deepinfer_pass echo;
                deepinfer_api completions;
            }
            location = /stalled/v1/responses {
                deepinfer_pass echo;
                deepinfer_api responses;
            }
            location = /stalled/v1/messages {
                deepinfer_pass echo;
                deepinfer_api messages;
            }
        }
        location = /full {
            deepinfer_pass echo;
            client_body_buffer_size 1k;
            client_body_temp_path $disk;
        }
END2
my $port = $nginx->port;

# A file system of 64 KB, or "" where this test may not mount one.
sub disk {
    my $dir = DI::Proc::tempdir() . '/disk';

    mkdir($dir) or die "mkdir $dir: $!\n";
    chmod(0777, $dir);
    return $dir if $> != 0
        || system("mount -t tmpfs -o size=64k,mode=777 none $dir 2>&-") != 0;
    DI::Proc::at_exit(sub { system('umount', '-l', $dir) });
    $main::mounted = 1;
    return $dir;
}

# What each API is asked, and the key of a delta's text.
my $script = "\@\@per 4\n\@\@repeat @{[TOKENS]} hello";
my @chat = (messages => [{ role => 'user', content => $script }]);
my @apis = (
    ['/v1/completions', { prompt => $script, max_tokens => TOKENS + 9 },
     'text', qr/\[DONE\]/],
    ['/v1/responses', { input => $script, store => JSON::PP::false },
     'delta', qr/"response\.completed"/],
    ['/v1/messages', { @chat, max_tokens => TOKENS + 9 }, 'text',
     qr/"message_stop"/],
);

sub stream {
    my ($uri, $body) = @_;
    my $client = DI::Client->connect(port => $small, rcvbuf => 4096);

    $client->request('POST', $uri,
                     { model => 'echo', stream => JSON::PP::true, %$body });
    return $client;
}

sub engine_logs {
    my ($from, $pattern) = @_;

    return DI::Proc::eventually(sub {
        substr($engine->log, $from) =~ $pattern;
    });
}

sub rss {
    my ($pid) = $nginx->workers;

    return DI::Proc::slurp("/proc/$pid/status") =~ /VmRSS:\s+(\d+)/ && $1;
}

ok(DI::Proc::eventually(sub {
    http_post($port, '/v1/chat/completions',
              { model => 'echo', messages => [{ role => 'user',
                content => 'a' }] })->{status} == 200;
}), 'serves');

for my $api (@apis) {
    my ($uri, $body, $key, $end) = @$api;
    my $from = length $engine->log;
    my $client = stream($uri, $body);

    ok(engine_logs($from, qr/pause/), "$uri: a slow client is waited for");
    my $before = rss();
    my ($text, $last) = ('', '');
    while (my $e = $client->read_event) {
        $last = $e->{data} // next;
        # Responses has the whole text again behind the deltas
        $text .= $1 if ($e->{event} // '') !~ /\.(?:done|completed)$/
                       && $last =~ /"$key":"((?:[^"\\]|\\.)*)"/;
    }
    ok(engine_logs($from, qr/resume/), "$uri: and gone on with");
    is(scalar(() = $text =~ /hello/g), TOKENS, "$uri: it gets every token");
    like($last, $end, "$uri: up to the end");
    ok($client->done, "$uri: and its framing");
    # what lies in the ring when the worker gets to run may lie in its buffer
    # next, and the text of a response is kept for its last event
    cmp_ok(rss(), '<', $before + 3000 + ($uri =~ /responses/ ? 6000 : 0),
           "$uri: memory stays flat");

    # where the engine did not run for those seconds, once more
    my ($cancelled, $paused);
    for (1 .. 5) {
        $from = length $engine->log;
        $client = stream("/stalled$uri", $body);
        $cancelled = engine_logs($from, qr/cancel/) or last;
        $paused = substr($engine->log, $from) =~ /pause/ and last;
    }
    ok($cancelled, "$uri: send_timeout ends a stalled one");
    ok($paused, "$uri: which had paused");
}

# A whole answer lies in the worker until the last of it was read.
{
    my $from = length $engine->log;
    my $client = DI::Client->connect(port => $small, rcvbuf => 4096);

    $client->request('POST', '/v1/chat/completions',
                     { model => 'echo', @chat, max_tokens => TOKENS });
    ok(engine_logs($from, qr/finish/, 20), 'a whole answer is there');
    sleep 0.5;
    my $text = $client->response->{json}{choices}[0]{message}{content};
    is(scalar(() = $text =~ /hello/g), TOKENS, 'a slow client gets all of it');
}

# --------------------------------------------------------------- full disk --

sub long {
    my ($bytes) = @_;

    return http_post($port, '/full',
                     { model => 'echo', messages => [
                       { role => 'system', content => 'x' x $bytes },
                       { role => 'user', content => '@@say there' }] });
}

SKIP: {
    skip('may not mount a file system', 6) if !$main::mounted;

    my $r = long(20000);
    is($r->{status}, 200, 'a body in a file');
    is($r->{json}{choices}[0]{message}{content}, 'there', 'is read');
    $r = long(2000000);
    is($r->{status}, 500, 'a body that its disk has no room for: 500');
    like($r->{json}{error}{type}, qr/server_error/, 'of the API');
    like($nginx->log, qr/No space left on device/, 'and the log says why');
    is(long(20000)->{json}{choices}[0]{message}{content}, 'there',
       'the next body finds room');
}
unlike($nginx->log, qr/\[alert\]|\[emerg\]/, 'nothing alarming was logged');

done_testing();
