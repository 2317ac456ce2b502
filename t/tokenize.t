# tokenize and detokenize: what the codec answers alone, without an engine.

use DI::Engine 'echo';
use Test::Nginx::Socket 'no_plan';

our $Pool = <<'END';
    deepinfer_pool echo {
        model   $TEST_NGINX_DEEPINFER_MODEL;
        engine  unix:$TEST_NGINX_DEEPINFER_SOCK;
    }
    deepinfer_pool away {
        model   $TEST_NGINX_DEEPINFER_MODEL;
        engine  unix:$TEST_NGINX_DEEPINFER_SOCK.none;
    }
    client_max_body_size 8m;
END

our $Locations = <<'END';
    location = /tokenize { deepinfer_pass echo; deepinfer_api tokenize; }
    location = /away { deepinfer_pass away; deepinfer_api tokenize; }
    location = /detokenize { deepinfer_pass echo; deepinfer_api detokenize; }
    location = /chat { deepinfer_pass echo; }
    location = /metrics { deepinfer_api metrics; }
END

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(http_config => $::Pool);
    $block->set_value(config => $::Locations);
    $block->set_value(no_error_log => "[alert]\n[emerg]\n[crit]\n");
});

log_level('info');
no_long_string();
run_tests();

__DATA__

=== TEST 1: a text, with and without strings
--- request eval
["POST /tokenize\n" . '{"prompt":"Hello world"}',
 "POST /tokenize\n" . '{"prompt":"Hi é","return_token_strs":true,"model":"echo"}',
 "POST /tokenize\n" . '{"prompt":"","return_token_strs":true}']
--- error_code eval
[200, 200, 200]
--- response_body_like eval
[qr/^\{"count":2,"max_model_len":(?:null|\d+),"tokens":\[\d+,\d+\],"token_strs":null\}$/,
 qr/"token_strs":\["H","i","Ġ","Ã","©"\]/,
 qr/^\{"count":0,"max_model_len":\d+,"tokens":\[\],"token_strs":\[\]\}$/]



=== TEST 2: a text that spells a special token stays text
--- request
POST /tokenize
{"prompt":"<|im_end|>","return_token_strs":true}
--- response_body_like: "token_strs":\["<","\|"?.*\]
--- response_body_unlike: "<\|im_end\|>"



=== TEST 3: a conversation is the prompt of a chat
--- request eval
["POST /tokenize\n" . '{"model":"echo","return_token_strs":true,"messages":[{"role":"user","content":"a"}]}',
 "POST /tokenize\n" . '{"model":"echo","return_token_strs":true,"add_generation_prompt":false,"messages":[{"role":"user","content":"a"}]}',
 "POST /chat\n" . '{"model":"echo","messages":[{"role":"user","content":"a"}]}']
--- response_body_like eval
[qr/"token_strs":\["<\|im_start\|>",.*"<\|im_end\|>","Ċ","<\|im_start\|>",[^<]*\]\}$/,
 qr/"token_strs":\["<\|im_start\|>",.*"a","<\|im_end\|>","Ċ"\]\}$/,
 '"content":"a"']



=== TEST 4: without an engine
--- request
POST /away
{"prompt":"a"}
--- response_body_like: ^\{"count":1,"max_model_len":null,"tokens":\[\d+\],"token_strs":null\}$



=== TEST 5: back to text, special tokens as they are spelled, half a character
--- request eval
["POST /detokenize\n" . '{"tokens":[]}', "POST /detokenize\n" . '{"tokens":[1]}',
 "POST /detokenize\n" . '{"model":"echo","tokens":[200,299]}']
--- error_code eval
[200, 200, 200]
--- response_body_like eval
['^\{"prompt":""\}$', '^\{"prompt":"<\|im_start\|>"\}$', '^\{"prompt":".+"\}$']



=== TEST 6: what is wrong is named
--- request eval
[map { "POST $_" }
 "/tokenize\n{", "/tokenize\n{}", "/tokenize\n" . '{"prompt":5}',
 "/tokenize\n" . '{"prompt":"a","messages":[]}',
 "/tokenize\n" . '{"model":"echo","messages":[]}',
 "/tokenize\n" . '{"prompt":"a","chat_template":"x"}',
 "/tokenize\n" . '{"prompt":"a","model":"none"}',
 "/detokenize\n{}", "/detokenize\n" . '{"tokens":"1"}',
 "/detokenize\n" . '{"tokens":[1,-1]}', "/detokenize\n" . '{"tokens":[99999999]}',
 "/detokenize\n" . '{"tokens":[1.5]}']
--- error_code eval
[(400) x 6, 404, (400) x 5]
--- response_body_like eval
['invalid_json', '"param":"prompt"', '"param":"prompt"', '"param":"messages"',
 '"param":"messages"', '"param":"chat_template"', 'model_not_found',
 '"param":"tokens"', '"param":"tokens"', '"param":"tokens\[1\]"',
 '"param":"tokens\[0\]"', '"param":"tokens\[0\]"']



=== TEST 7: other methods, and the counters
--- request eval
["GET /tokenize", "POST /tokenize\n" . '{"prompt":"a"}', "GET /metrics"]
--- error_code eval
[405, 200, 200]
--- response_body_like eval
['method_not_allowed', '"count":1',
 'requests_total\{model="echo",code="200"\} 1\n']



=== TEST 8: a long text goes through a thread
--- request eval
["POST /tokenize\n" . '{"prompt":"' . ('word ' x 200000) . '"}']
--- response_body_like eval
qr/^\{"count":400001,/
