# Stored responses in Redis, and what clients see when it is slow or gone.

use strict;
use warnings;

use DI::Client qw(decode_json http_get http_post http_request);
use DI::Engine qw(echo);
use DI::Nginx;
use DI::Proc;
use Test::More;
use Time::HiRes qw(sleep time);

my ($server) = grep { -x $_ } map { "$_/redis-server" }
               split /:/, "$ENV{PATH}:/usr/sbin";
plan(skip_all => 'no redis-server is installed') if !$server;

my $model = $ENV{TEST_NGINX_DEEPINFER_MODEL};
my $socket = DI::Engine->nth(1)->socket_path;
my $redis_port = DI::Proc::free_port();
my $dir = DI::Proc::tempdir();
my $redis;

# Start Redis, and wait until it listens.
sub run_redis {
    $redis = DI::Proc::spawn(
        name => 'redis',
        cmd  => [$server, '--port', $redis_port, '--bind', '127.0.0.1',
                 '--save', '', '--dir', $dir, '--requirepass', 'secret'],
        out  => "$dir/redis.log",
    );
    DI::Proc::eventually(sub {
        eval { DI::Client->connect(port => $redis_port) };
    }) or die "redis does not start\n";
}

run_redis();

# One worker: each finds out for itself that Redis is back.
my $nginx = DI::Nginx->start(
    workers => 1, http => <<"END", server => <<'END2');
    deepinfer_redis 127.0.0.1:$redis_port prefix=t: password=secret db=1
                    timeout=2s;
    deepinfer_store ttl=100s;
    deepinfer_pool echo {
        model   $model;
        engine  unix:$socket;
    }
END
    location /v1/responses { deepinfer_pass echo; deepinfer_api responses; }
    location = /v1/chat { deepinfer_pass echo; }
    location = /health { deepinfer_api health; }
END2
my $port = $nginx->port;

ok(DI::Proc::eventually(sub {
    http_get($port, '/health')->{status} == 200;
}), 'healthy');

sub json_of { return decode_json($_[0]{body}) }

sub respond {
    my ($input, %more) = @_;

    return http_post($port, '/v1/responses',
                     { model => 'echo', input => $input, %more });
}

# A response, once Redis has it.
sub stored {
    my $response = json_of(respond(@_));

    DI::Proc::eventually(sub {
        http_get($port, "/v1/responses/$response->{id}")->{status} == 200;
    });
    return $response;
}

my $one = stored('@@say hello');
is_deeply(json_of(http_get($port, "/v1/responses/$one->{id}")), $one,
          'a response comes back as it was');

# over a connection that has asked for database 1
my $client = DI::Client->connect(port => $redis_port);
sub ask {
    $client->send(join '', '*' . @_ . "\r\n",
                  map { '$' . length($_) . "\r\n$_\r\n" } @_);
    $client->receive(time + 2);
    my $said = $client->{raw};
    $client->{raw} = '';
    return $said;
}
ask('AUTH', 'secret');
ask('SELECT', '1');
like(ask('TTL', "t:response:$one->{id}"), qr/^:(?:100|9\d)\r/,
     'its key has the prefix and a time to live');

my $two = stored('@@say more', previous_response_id => $one->{id});
is($two->{output}[0]{content}[0]{text}, 'more', 'going on from it');
my $items = json_of(http_get($port, "/v1/responses/$two->{id}/input_items"));
is(scalar @{ $items->{data} }, 3, 'with its items');

is(http_request($port, 'DELETE', "/v1/responses/$one->{id}")->{status}, 200,
   'it is deleted');
is(ask('EXISTS', "t:response:$one->{id}"), ":0\r\n", 'in Redis, too');
is(http_request($port, 'DELETE', "/v1/responses/$one->{id}")->{status}, 404,
   'once');
is(respond('a', previous_response_id => $one->{id})->{status}, 400,
   'and cannot be gone on from');

ask('SET', 't:response:resp_bad', 'no record');
is(http_get($port, '/v1/responses/resp_bad')->{status}, 500,
   'a record that is none is an error');
is(respond('a', previous_response_id => 'resp_bad')->{status}, 500,
   'for whoever goes on from it, too');

# a Redis that hangs: answers come in time, and say what is wrong
kill('STOP', $redis);
my $start = time;
my $response = http_get($port, "/v1/responses/$two->{id}");
is($response->{status}, 503, 'Redis hangs: 503');
is(json_of($response)->{error}{code}, 'store_unavailable', 'with its code');
is($response->{headers}{'retry-after'}, 1, 'and Retry-After');
cmp_ok(time - $start, '<', 10, 'in time');
is(respond('a', previous_response_id => $two->{id})->{status}, 503,
   'so gets who goes on from one');
$start = time;
is(respond('@@say on')->{status}, 200, 'a new response needs no Redis');
is(http_post($port, '/v1/chat', { model => 'echo', messages => [
       { role => 'user', content => 'a' }] })->{status}, 200,
   'nor does a chat');
cmp_ok(time - $start, '<', 2, 'and none waits for it');
kill('CONT', $redis);
ok(DI::Proc::eventually(sub {
    http_get($port, "/v1/responses/$two->{id}")->{status} == 200;
}), 'it comes back');

# a client that does not wait
kill('STOP', $redis);
for (1 .. 5) {
    my $client = DI::Client->connect(port => $port);
    $client->request('GET', "/v1/responses/$two->{id}");
    $client->rst;
}
sleep(0.5);
kill('CONT', $redis);

# a Redis that dies, and one that is not there
DI::Proc::stop($redis, KILL => 5);
is(http_get($port, "/v1/responses/$two->{id}")->{status}, 503,
   'Redis is gone: 503');
is(respond('@@say on', previous_response_id => $two->{id})->{status}, 503,
   'no going on');
is(respond('@@say on')->{status}, 200, 'a new response works');
run_redis();
ok(DI::Proc::eventually(sub {
    http_get($port, "/v1/responses/$two->{id}")->{status} == 404;
}), 'a new Redis is used');
is(http_get($port, '/v1/responses/' . stored('@@say again')->{id})->{status},
   200, 'and stores');

cmp_ok(scalar(() = $nginx->log =~ /redis "[^"]+" is not available/g), '<', 12,
       'no line a request');
is(join("\n", $nginx->complaints), '', 'nothing wrong in the error log');
ok($nginx->stop(5), 'nginx leaves in time');

done_testing();
