# What is wrong is refused: the right status, the API's own shape, the field
# by its name; nothing reaches the engine.

use DI::Engine 'echo';
use Test::Nginx::Socket 'no_plan';

our $Pool = <<'END';
    deepinfer_pool echo {
        model   $TEST_NGINX_DEEPINFER_MODEL;
        engine  unix:$TEST_NGINX_DEEPINFER_SOCK;
    }
END

our $Chat = <<'END';
        error_page 400 401 403 404 405 413 414 429 500 502 503 504 @error;

        location = /v1/chat/completions {
            deepinfer_pass echo;
            deepinfer_api chat;
        }

        location @error {
            deepinfer_error;
        }
END

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(http_config => $::Pool)
        if !defined $block->http_config;
    $block->set_value(config => $::Chat) if !defined $block->config;
    $block->set_value(no_error_log => "[alert]\n[emerg]\n")
        if !defined $block->no_error_log;
});

# A request whose body is the given text.
sub post {
    return "POST /v1/chat/completions\n$_[0]";
}

# A valid request with one more field.
sub with {
    return post('{"model":"echo","messages":[{"role":"user","content":"a"}],'
                . $_[0] . '}');
}

# What the body of a refusal looks like.
sub refusal {
    my ($message, $param, $code, $type) = @_;

    $type //= 'invalid_request_error';
    $param = defined $param ? qr/"\Q$param\E"/ : qr/(?:null|"[^"]*")/;
    $code = defined $code ? qr/"\Q$code\E"/ : qr/(?:null|"[^"]*")/;
    my $text = qr/(?:[^"\\]|\\.)*/;
    my $said = qr/$text(?:$message)$text/;
    return qr/^\{"error":\{"message":"$said",
              "type":"$type","param":$param,"code":$code\}\}$/x;
}

log_level('notice');
no_long_string();
run_tests();

__DATA__

=== TEST 1: no JSON at all, of many kinds
--- request eval
[map { main::post($_) } '', 'hello', '{', '{"model":"echo",}', "{'model':1}",
 '{"a":1} x', '{"a":01}', '{"a":+1}', '{"a":.5}', '{"a":NaN}', '{"a":"\q"}',
 "{\"a\":\"\x01\"}", '{"a":"\ud800"}', '{"a":"\udc00x"}', "{\"a\":\"\xff\"}",
 "{\"a\":\"\xc0\x80\"}", "{\"a\":\"\xed\xa0\x80\"}", '{"a":1,"a":2}', '[1]',
 '"text"', 'null', "\xef\xbb\xbf", '{"a":1e999}']
--- error_code eval
[(400) x 23]
--- response_body_like eval
[(main::refusal('')) x 23]



=== TEST 2: nested too deep
--- request eval
main::post('{"messages":' . ('[' x 5000) . (']' x 5000) . '}')
--- error_code: 400
--- response_body_like eval
main::refusal('deep|nest')



=== TEST 3: required fields
--- request eval
[main::post('{}'), main::post('{"model":"echo"}'),
 main::post('{"model":"echo","messages":[]}'),
 main::post('{"model":"echo","messages":[{"content":"a"}]}'),
 main::post('{"messages":[{"role":"user","content":"a"}]}')]
--- error_code eval
[(400) x 5]
--- response_body_like eval
[main::refusal(''), main::refusal('', 'messages'),
 main::refusal('', 'messages'), main::refusal('', 'messages[0].role'),
 main::refusal('', 'model')]



=== TEST 4: wrong types are named
--- request eval
[map { main::with($_) } '"temperature":"hot"', '"max_tokens":"5"',
 '"max_tokens":1.5', '"stream":1', '"n":"two"', '"stop":5', '"stop":[5]',
 '"logit_bias":[]', '"seed":"x"', '"logprobs":1', '"stream_options":true']
--- error_code eval
[(400) x 11]
--- response_body_like eval
[map { main::refusal('', $_) } qw(temperature max_tokens max_tokens stream n
 stop stop[0] logit_bias seed logprobs stream_options)]



=== TEST 5: values out of range are named
--- request eval
[map { main::with($_) } '"temperature":-0.1', '"top_p":-1', '"top_p":1.01',
 '"max_tokens":0', '"max_tokens":-1', '"n":0', '"n":129',
 '"presence_penalty":2.1', '"frequency_penalty":-2.1',
 '"logprobs":true,"top_logprobs":21', '"logit_bias":{"1":101}',
 '"min_p":-1', '"repetition_penalty":0']
--- error_code eval
[(400) x 13]
--- response_body_like eval
[map { main::refusal('', $_) } qw(temperature top_p top_p max_tokens
 max_tokens n n presence_penalty frequency_penalty top_logprobs
 logit_bias.1 min_p repetition_penalty)]



=== TEST 6: an unknown model
--- request
POST /v1/chat/completions
{"model":"gpt-5","messages":[{"role":"user","content":"a"}]}
--- error_code: 404
--- response_body_like eval
main::refusal('`gpt-5` does not exist', 'model', 'model_not_found')



=== TEST 7: an image, for a model that has no vision
--- request
POST /v1/chat/completions
{"model":"echo","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}
--- error_code: 400
--- response_body_like eval
main::refusal('no vision', 'messages[0].content[1]')



=== TEST 8: a body larger than nginx allows
--- config eval
$::Chat =~ s/deepinfer_api/client_max_body_size 1k; deepinfer_api/r
--- request eval
main::post('x' x 2000)
--- error_code: 413
--- response_body_like eval
main::refusal('larger than', undef, 'request_too_large')



=== TEST 9: nothing at this address, and a method that nothing takes
--- request eval
["GET /v2/chat", "PUT /v1/chat/completions\n{}"]
--- error_code eval
[404, 405]
--- response_body_like eval
[main::refusal(''), main::refusal('')]



=== TEST 10: refused by nginx's own means: access and rate
--- http_config eval
$::Pool . 'limit_req_zone $server_name zone=one:1m rate=1r/m;'
--- config eval
"$::Chat
        limit_req zone=one;
        limit_req_status 429;
        location = /closed { deny all; }"
--- request eval
[main::with('"n":1'), main::with('"n":1'), "GET /closed"]
--- error_code eval
[200, 429, 429]
--- response_headers_like eval
["Content-Type: application/json", "Retry-After: \\d+",
 "Content-Type: application/json"]
--- response_body_like eval
['"content":"a"', main::refusal('', undef, 'rate_limit_exceeded',
 'rate_limit_error'), main::refusal('', undef, undef, 'rate_limit_error')]



=== TEST 11: what the engine refuses
--- request eval
[map { my $r = main::with('"n":1'); $r =~ s/"a"/"\@\@reject $_"/; $r }
 'queue_full 5 5', 'too_long 9000 8192', 'draining', 'kv 10 5', 'internal']
--- error_code eval
[429, 400, 503, 400, 500]
--- response_body_like eval
[main::refusal('5', undef, 'queue_full', 'rate_limit_error'),
 main::refusal('8192.*9000', 'messages', 'context_length_exceeded'),
 main::refusal('', undef, undef, 'server_error'),
 main::refusal(''), main::refusal('', undef, undef, 'server_error')]



=== TEST 12: a fault after the stream has begun is an event in it
--- request eval
my $r = main::with('"stream":true');
$r =~ s/"a"/"\@\@every 30\\n\@\@say hello world\\n\@\@finish error"/; $r
--- response_body_like eval
qr/"content":"hello".*\ndata: \{"error":\{"message":"[^"]+","type":"server_error","param":null,"code":"[^"]+"\}\}\n\n/s
--- error_log
failed



=== TEST 13: no engine: come again later
--- http_config
    deepinfer_pool echo {
        model   $TEST_NGINX_DEEPINFER_MODEL;
        engine  unix:$TEST_NGINX_SERVER_ROOT/none.sock;
    }
--- request eval
main::with('"stream":true')
--- error_code: 503
--- response_headers
Retry-After: 1
Content-Type: application/json
--- response_body_like eval
main::refusal('', undef, undef, 'server_error')



=== TEST 14: the query string and odd paths do no harm
--- request eval
["POST /v1/chat/completions?a=b\n" . (main::with('"n":1') =~ s/^.*?\n//r),
 "POST /v1/chat/completions/\n{}"]
--- error_code eval
[200, 404]
--- response_body_like eval
['"content":"a"', main::refusal('')]
