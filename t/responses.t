# Responses and Messages against the echo engine: shapes, errors, stored
# responses in the shared zone.

use strict;
use utf8;
use warnings;

use DI::Client qw(http_get http_post http_request);
use DI::Engine qw(echo);
use DI::Nginx;
use DI::Proc;
use JSON::PP;
use Test::More;

my $model = $ENV{TEST_NGINX_DEEPINFER_MODEL};
my $engine = DI::Engine->nth(1);
my $socket = $engine->socket_path;

my $nginx = DI::Nginx->start(workers => 2, http => <<"END", server => <<'END2');
    deepinfer_store size=64k ttl=1h;
    deepinfer_pool echo {
        model   $model;
        engine  unix:$socket;
    }
    deepinfer_ping 100ms;
END
    error_page 404 413 @error;
    location @error { deepinfer_error; }
    location /v1/responses {
        deepinfer_pass echo;
        deepinfer_api  responses;
        client_max_body_size 1m;
    }
    location = /v1/messages {
        deepinfer_pass echo;
        deepinfer_api  messages;
        client_max_body_size 2m;
    }
    location = /v1/messages/count_tokens {
        deepinfer_pass echo;
        deepinfer_api  count_tokens;
        deepinfer_thread_pool off;
        client_max_body_size 2m;
    }
    location /v1/models { deepinfer_api models; }
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

sub messages {
    my ($content, %more) = @_;

    return http_post($port, '/v1/messages', {
        model => 'echo', max_tokens => 50, %more,
        messages => [{ role => 'user', content => $content }],
    });
}

# Events of a stream: [name, decoded data].
sub events {
    my ($body) = @_;

    return map { /^event: (\S+)\ndata: (.*)$/ ? [$1, decode_json($2)] : () }
           split /\n\n/, $body;
}

# ---------------------------------------------------------------- Responses --

my $response = respond('@@say hello');
is($response->{status}, 200, 'a response');
my $one = json_of($response);
like($one->{id}, qr/^resp_[0-9a-f]{32}$/, 'its id');
is($one->{status}, 'completed', 'it is complete');
is($one->{output}[0]{content}[0]{text}, 'hello', 'its text');
ok($one->{store}, 'it is stored');

my @events = events(respond('@@say hi', stream => JSON::PP::true)->{body});
is(join(' ', map { $_->[0] } @events[0, 1, 2, 3, 4]),
   'response.created response.in_progress response.output_item.added '
   . 'response.content_part.added response.output_text.delta',
   'a stream begins as it should');
is($events[-1][0], 'response.completed', 'and ends so');
is(join(' ', map { $_->[1]{sequence_number} } @events),
   join(' ', 0 .. $#events), 'events are counted');
my $streamed = $events[-1][1]{response};
is($streamed->{output}[0]{content}[0]{text}, 'hi', 'the last one has all');

# by its id
$response = http_get($port, "/v1/responses/$one->{id}");
is($response->{status}, 200, 'it can be fetched');
is_deeply(json_of($response), $one, 'as it was');
is(json_of(http_get($port, "/v1/responses/$streamed->{id}"))->{id},
   $streamed->{id}, 'a streamed one, too');
is(http_get($port, "/v1/responses/$streamed->{id}?stream=true")->{status},
   400, 'but not as a stream');

my $items = json_of(http_get($port, "/v1/responses/$one->{id}/input_items"));
is(scalar @{ $items->{data} }, 1, 'one input item');
is($items->{data}[0]{content}[0]{text}, '@@say hello', 'with its text');

# going on
my $two = json_of(respond([{ role => 'user', content => '@@say more' }],
                          previous_response_id => $one->{id}));
is($two->{previous_response_id}, $one->{id}, 'it goes on from the first');
is($two->{output}[0]{content}[0]{text}, 'more', 'with its own text');
cmp_ok($two->{usage}{input_tokens}, '>', $one->{usage}{input_tokens} + 5,
       'and the earlier turns in its prompt');
my $path = "/v1/responses/$two->{id}/input_items";
$items = json_of(http_get($port, "$path?order=asc"));
is(join('|', map { "$_->{role}:$_->{content}[0]{text}" } @{ $items->{data} }),
   'user:@@say hello|assistant:hello|user:@@say more',
   'its input are all three items');
$items = json_of(http_get($port, "$path?limit=2"));
ok($items->{has_more}, 'there is another page');
$items = json_of(http_get($port, "$path?limit=2&after=$items->{last_id}"));
is($items->{data}[0]{content}[0]{text}, '@@say hello', 'which has the rest');
for my $args ('limit=0', 'limit=101', 'order=up', 'after=none') {
    is(http_get($port, "$path?$args")->{status}, 400, "$args is refused");
}

# what is not there
$response = respond('a', previous_response_id => 'resp_none');
is($response->{status}, 400, 'an unknown previous response');
is(json_of($response)->{error}{code}, 'previous_response_not_found',
   'says so');
my $private = json_of(respond('@@say x', store => JSON::PP::false));
is(http_get($port, "/v1/responses/$private->{id}")->{status}, 404,
   'one that was not to be stored is not');
$response = http_request($port, 'DELETE', "/v1/responses/$one->{id}");
is($response->{status}, 200, 'one is deleted');
is_deeply(json_of($response), { id => $one->{id}, object => 'response',
                                deleted => JSON::PP::true }, 'and says so');
is(http_get($port, "/v1/responses/$one->{id}")->{status}, 404, 'it is gone');
is(http_request($port, 'DELETE', "/v1/responses/$one->{id}")->{status}, 404,
   'and cannot be deleted again');
is(http_get($port, "/v1/responses/$two->{id}")->{status}, 200,
   'what went on from it stays');
is(http_request($port, 'PUT', "/v1/responses/$two->{id}")->{status}, 405,
   'other methods are refused');
is(http_get($port, "/v1/responses/$two->{id}/else")->{status}, 404,
   'other addresses, too');
is(http_get($port, '/v1/responses')->{status}, 405, 'there is no list');

# the bound: old ones go, a large one is not kept
$nginx->reload;
is(http_get($port, "/v1/responses/$two->{id}")->{status}, 200,
   'a reload keeps them');
for (1 .. 30) {
    respond('@@say x', metadata => { x => 'y' x 500 },
            instructions => 'z' x 3000);
}
is(http_get($port, "/v1/responses/$two->{id}")->{status}, 404,
   'the oldest went when the store was full');
my $big = json_of(respond('@@say x', instructions => 'z' x 40_000));
is(http_get($port, "/v1/responses/$big->{id}")->{status}, 404,
   'too large a one is not kept');
like($nginx->log, qr/no room to store response/, 'and the log has it');

# ----------------------------------------------------------------- Messages --

my $message = json_of(messages('@@say hello'));
is($message->{type}, 'message', 'a message');
is($message->{content}[0]{text}, 'hello', 'its text');
is($message->{stop_reason}, 'end_turn', 'its reason');

@events = events(messages("\@\@say a\n\@\@wait 1000\n\@\@say b",
                          stream => JSON::PP::true)->{body});
# on a busy machine either takes longer
my $pings = 'message_start content_block_start ping content_block_delta'
            . '(?: ping){2,} content_block_delta content_block_stop'
            . ' message_delta message_stop';
like(join(' ', map { $_->[0] } @events), qr/\A$pings\z/,
     'a stream with pings');

my $count = json_of(http_post($port, '/v1/messages/count_tokens', {
    model => 'echo', system => 'Be brief.',
    messages => [{ role => 'user', content => '@@say hello' }],
}));
is($count->{input_tokens},
   json_of(messages('@@say hello', system => 'Be brief.'))
       ->{usage}{input_tokens}, 'count_tokens counts what a message has');

# a long conversation, encoded in parts by several threads, and in place
my $long = join ' ', map { "word$_ and ${_}th 你好" } 1 .. 8000;
is(json_of(messages("\@\@say x\n$long"))->{usage}{input_tokens},
   json_of(http_post($port, '/v1/messages/count_tokens', {
       model => 'echo', messages => [{ role => 'user',
                                       content => "\@\@say x\n$long" }],
   }))->{input_tokens}, 'a long prompt has the same tokens');
for (1 .. 20) {
    my $client = DI::Client->connect(port => $port);
    $client->request('POST', '/v1/messages', {
        model => 'echo', max_tokens => 5,
        messages => [{ role => 'user', content => $long }] });
    DI::Proc::pause(0.0003 * $_);
    $client->rst;
}
is(json_of(messages('@@say on'))->{content}[0]{text}, 'on',
   'clients that leave while threads work on their prompt');

# errors in each API's own shape
for (['/v1/messages', 'invalid_request_error', 400, '{'],
     ['/v1/messages', 'not_found_error', 404,
      '{"model":"none","max_tokens":5,"messages":[{"role":"user",'
      . '"content":"a"}]}'],
     ['/v1/messages', 'api_error', 500, encode_json({
         model => 'echo', max_tokens => 5,
         messages => [{ role => 'user', content => '@@finish error' }] })],
     ['/v1/messages/count_tokens', 'invalid_request_error', 400, '{}'])
{
    my ($uri, $type, $status, $body) = @$_;
    my $response = http_post($port, $uri, $body);

    is($response->{status}, $status, "$uri: $status");
    my $error = json_of($response);
    is($error->{type}, 'error', "$uri: an error");
    is($error->{error}{type}, $type, "$uri: $type");
    is($error->{request_id}, $response->{headers}{'x-request-id'},
       "$uri: with its id");
}
@events = events(messages("\@\@say a\n\@\@wait 50\n\@\@finish error",
                          stream => JSON::PP::true)->{body});
is($events[-1][0], 'error', 'an error in a stream of messages');
is($events[-1][1]{error}{type}, 'api_error', 'in its shape');
@events = events(respond("\@\@say a\n\@\@wait 50\n\@\@finish error",
                         stream => JSON::PP::true)->{body});
is($events[-1][0], 'error', 'an error in a stream of a response');
is($events[-1][1]{sequence_number}, $#events, 'is counted, too');

# models and nginx's own errors, as the client expects them
my %anthropic = ('Anthropic-Version' => '2023-06-01');
my $models = json_of(http_get($port, '/v1/models', %anthropic));
is($models->{data}[0]{type}, 'model', 'models in the other shape');
is($models->{first_id}, 'echo', 'a page of them');
is(json_of(http_get($port, '/v1/models/echo', %anthropic))->{type}, 'model',
   'one of them');
is(json_of(http_get($port, '/v1/models/no', %anthropic))->{type}, 'error',
   'one that is none');
is(json_of(http_get($port, '/none', %anthropic))->{error}{type},
   'not_found_error', 'an error page in that shape');
is(json_of(http_get($port, '/none'))->{error}{code}, 'not_found',
   'and in the usual one');

is(join("\n", $nginx->complaints), '', 'nothing wrong in the error log');

done_testing();
