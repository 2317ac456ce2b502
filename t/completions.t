# The older Completions API against the echo engine.

use DI::Engine 'echo';
use Test::Nginx::Socket 'no_plan';

our $Pool = <<'END';
    deepinfer_pool echo {
        model   $TEST_NGINX_DEEPINFER_MODEL;
        engine  unix:$TEST_NGINX_DEEPINFER_SOCK;
    }
END

our $Locations = <<'END';
    location = /v1/completions {
        deepinfer_pass echo;
        deepinfer_api completions;
    }
    location = /metrics { deepinfer_api metrics; }
END

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(http_config => $::Pool);
    $block->set_value(config => $::Locations) if !defined $block->config;
    $block->set_value(no_error_log => "[alert]\n[emerg]\n[crit]\n");
});

# A request with a prompt, a JSON value, and more fields.
sub ask {
    my ($prompt, $fields) = @_;

    return "POST /v1/completions\n" . '{"model":"echo","prompt":' . $prompt
           . ($fields ? ",$fields" : '') . '}';
}

log_level('notice');
no_long_string();
run_tests();

__DATA__

=== TEST 1: a text
--- request eval
main::ask('"@@say hello"')
--- response_headers
Content-Type: application/json
--- response_body_like eval
qr/^\{"id":"cmpl-[0-9a-f]{32}","object":"text_completion","created":\d+,"model":"echo","choices":\[\{"index":0,"text":"hello","logprobs":null,"finish_reason":"stop"\}\],"usage":\{"prompt_tokens":\d+,"completion_tokens":\d+,"total_tokens":\d+,"prompt_tokens_details":\{"cached_tokens":0\}\}\}$/



=== TEST 2: the same as a stream, with usage
--- request eval
main::ask('"@@say hi"', '"stream":true,"stream_options":{"include_usage":true}')
--- response_headers
Content-Type: text/event-stream; charset=utf-8
--- response_body_like eval
qr/^(?:data: \{"id":"cmpl-\w+","object":"text_completion","created":\d+,"model":"echo","choices":\[\{"index":0,"text":"[hi]+","logprobs":null,"finish_reason":null\}\],"usage":null\}\n\n)+data: \{"id":.*"choices":\[\{"index":0,"text":"","logprobs":null,"finish_reason":"stop"\}\],"usage":null\}\n\ndata: \{"id":.*"choices":\[\],"usage":\{"prompt_tokens".*\}\}\}\n\ndata: \[DONE\]\n\n$/



=== TEST 3: several prompts, each with two choices
--- request eval
[main::ask('["@@say a","@@say b","@@say c"]', '"n":2'),
 main::ask('["@@say a","@@say b","@@say c"]', '"n":2,"stream":true')]
--- response_body_like eval
[join('.*', map { qr/"index":$_,"text":"$_"/ =~ s/"text":"\d"/'"text":"' . ('a', 'a', 'b', 'b', 'c', 'c')[$_] . '"'/er } 0 .. 5),
 qr/"index":0,"text":"a".*"index":2,"text":"b".*"index":5,"text":"c".*\[DONE\]/s]



=== TEST 4: token ids, one list and several
--- request eval
[main::ask('[75,76]'), main::ask('[[75],[76,77]]')]
--- response_body_like eval
['"index":0,"text":".+","logprobs":null', '"index":0,"text":".".*"index":1,"text":".."']



=== TEST 5: echo, alone and with log-probabilities
--- request eval
[main::ask('"ab"', '"echo":true'),
 main::ask('"ab"', '"echo":true,"logprobs":1,"max_tokens":1'),
 main::ask('"ab"', '"echo":true,"logprobs":0,"stream":true,"max_tokens":1')]
--- response_body_like eval
['"text":"abab"',
 qr/"text":"aba","logprobs":\{"text_offset":\[0,1,2\],"token_logprobs":\[null,-[\d.]+,-[\d.]+\],"tokens":\["a","b","a"\],"top_logprobs":\[null,\{.*\},\{.*\}\]\}/,
 qr/"text":"aba","logprobs":\{"text_offset":\[0,1,2\],"token_logprobs":\[null,-[\d.]+,-[\d.]+\],"tokens":\["a","b","a"\],"top_logprobs":\[null,\{"b":-[\d.]+\},\{"a":-[\d.]+\}\]\}/]



=== TEST 6: stop strings; characters split over tokens
--- request eval
[main::ask('"@@say one two three"', '"stop":" two"'),
 main::ask('"@@bytes e4 bd a0 f0 9f 98 80"', '"stream":true')]
--- response_body_like eval
['"text":"one","logprobs":null,"finish_reason":"stop"',
 '"text":"你".*(?s:.*)"text":"😀"']



=== TEST 7: what cannot be done is refused by name
--- request eval
[main::ask('"a"', '"suffix":"x"'), main::ask('[]'), main::ask('""'),
 main::ask('[1,"a"]'), main::ask('[99999999]'), main::ask('5'),
 main::ask('"a"', '"best_of":3'), main::ask('"a"', '"logprobs":99'),
 "POST /v1/completions\n" . '{"model":"echo"}',
 "POST /v1/completions\n" . '{"model":"none","prompt":"a"}']
--- error_code eval
[(400) x 9, 404]
--- response_body_like eval
['"param":"suffix"', '"param":"prompt"', '"param":"prompt',
 '"param":"prompt', '"param":"prompt', '"param":"prompt"',
 '"param":"best_of"', '"param":"logprobs"', '"param":"prompt"',
 'model_not_found']



=== TEST 8: an engine's refusal names the prompt; an error in a stream
--- request eval
[main::ask('"@@reject too_long 5 4"'),
 main::ask('"@@say a\n@@wait 50\n@@finish error"', '"stream":true'),
 main::ask('["@@say a", "@@finish error"]')]
--- error_code eval
[400, 200, 500]
--- response_body_like eval
['"param":"prompt","code":"context_length_exceeded"',
 qr/"text":"a".*data: \{"error":\{"message":"[^"]+","type":"server_error"/s,
 '"type":"server_error"']
