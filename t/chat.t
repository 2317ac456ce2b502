# Chat Completions through nginx, answered by the echo engine: what is in a
# body, what is in a stream, which fields do what.

use DI::Engine 'echo';
use Test::Nginx::Socket 'no_plan';

our $Pool = <<'END';
    deepinfer_pool echo {
        model   $TEST_NGINX_DEEPINFER_MODEL;
        engine  unix:$TEST_NGINX_DEEPINFER_SOCK;
        alias   default gpt-4o;
    }
END

our $Chat = <<'END';
        location = /v1/chat/completions {
            deepinfer_pass echo;
            deepinfer_api chat;
        }
END

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(http_config => $::Pool)
        if !defined $block->http_config;
    $block->set_value(config => $::Chat) if !defined $block->config;
    $block->set_value(no_error_log => "[error]\n[alert]\n[emerg]\n")
        if !defined $block->no_error_log;
});

# A request with one user message, and more fields.
sub chat {
    my ($content, $fields) = @_;

    $content =~ s/(["\\])/\\$1/g;
    $content =~ s/\n/\\n/g;
    return "POST /v1/chat/completions\n"
           . '{"model":"echo","messages":[{"role":"user","content":"'
           . $content . '"}]' . ($fields ? ",$fields" : '') . '}';
}

log_level('notice');
no_long_string();
run_tests();

__DATA__

=== TEST 1: one body
--- request eval
main::chat('hello world')
--- response_headers_like
Content-Type: application/json
X-Request-Id: [0-9a-f]{32}
Content-Length: \d+
--- response_body_like eval
qr/^\{"id":"chatcmpl-[0-9a-f]{32}","object":"chat\.completion",
"created":\d{10},"model":"echo","choices":\[\{"index":0,"message":
\{"role":"assistant","content":"hello[ ]world","refusal":null\},
"logprobs":null,"finish_reason":"stop"\}\],"usage":\{"prompt_tokens":\d+,
"completion_tokens":3,"total_tokens":\d+,"prompt_tokens_details":
\{"cached_tokens":0\}\}\}$/x



=== TEST 2: a stream
--- request eval
main::chat('hello', '"stream":true')
--- response_headers
Content-Type: text/event-stream; charset=utf-8
Cache-Control: no-cache
X-Accel-Buffering: no
! Content-Length
--- response_body_like eval
my $head = qr/data: \{"id":"chatcmpl-[0-9a-f]{32}","object":"chat\.completion\.chunk","created":\d{10},"model":"echo",/;
qr/^$head"choices":\[\{"index":0,"delta":\{"role":"assistant","content":"","refusal":null\},"logprobs":null,"finish_reason":null\}\]\}\n
$head"choices":\[\{"index":0,"delta":\{"content":"hello"\},"logprobs":null,"finish_reason":null\}\]\}\n
$head"choices":\[\{"index":0,"delta":\{\},"logprobs":null,"finish_reason":"stop"\}\]\}\n
data: \[DONE\]\n
$/



=== TEST 3: a stream with usage, in a chunk of its own
--- request eval
main::chat("\@\@cached 16\n\@\@say hello", '"stream":true,"stream_options":{"include_usage":true}')
--- response_body_like eval
qr/"delta":\{"content":"hello"\},"logprobs":null,"finish_reason":null\}\],"usage":null\}\n
.*"choices":\[\],"usage":\{"prompt_tokens":\d+,"completion_tokens":2,"total_tokens":\d+,"prompt_tokens_details":\{"cached_tokens":16\}\}\}\n
data: \[DONE\]\n
$/s



=== TEST 4: a model by its alias
--- request
POST /v1/chat/completions
{"model":"gpt-4o","messages":[{"role":"user","content":"a"}]}
--- response_body_like: "model":"echo",.*"content":"a"



=== TEST 5: content in parts, and other roles
--- request
POST /v1/chat/completions
{"model":"echo","messages":[{"role":"system","content":"S"},{"role":"user","content":"no"},{"role":"assistant","content":"A"},{"role":"user","content":[{"type":"text","text":"hello"},{"type":"text","text":"world"}]}]}
--- response_body_like: "content":"hello\\n\\nworld"



=== TEST 6: special tokens in a message are plain text
--- request eval
main::chat('<|im_end|><|endoftext|>a')
--- response_body_like: "content":"<\|im_end\|><\|endoftext\|>a"



=== TEST 7: characters that are split over tokens
--- request eval
main::chat("\@\@bytes e4 bd a0 f0 9f 98 80 c3 a9")
--- response_body_like eval
qr/"content":"\xe4\xbd\xa0\xf0\x9f\x98\x80\xc3\xa9"/



=== TEST 8: the same in a stream: no event holds half a character
--- request eval
main::chat("\@\@bytes e4 bd a0 c3 a9", '"stream":true')
--- response_body_like eval
qr/"content":"\xe4\xbd\xa0"\}.*"content":"\xc3\xa9"\}/s



=== TEST 9: bytes that are no character
--- request eval
main::chat("\@\@bytes ff 61")
--- response_body_like eval
qr/"content":"\xef\xbf\xbda"/



=== TEST 10: what JSON must escape
--- request eval
main::chat('@@say \x22\\\\\n\t\x01')
--- response_body_like eval
qr/"content":"\\"\\\\\\n\\t\\u0001"/



=== TEST 11: max_tokens
--- request eval
main::chat('hello world', '"max_tokens":1')
--- response_body_like: "content":"hello".*"finish_reason":"length".*"completion_tokens":1,



=== TEST 12: max_completion_tokens in a stream
--- request eval
main::chat('hello world', '"max_completion_tokens":1,"stream":true')
--- response_body_like: "content":"hello".*"finish_reason":"length"
--- response_body_unlike: world



=== TEST 13: a stop string is cut off, also over tokens
--- request eval
main::chat('hello world', '"stop":["zzz","o w"]')
--- response_body_like: "content":"hell".*"finish_reason":"stop"



=== TEST 14: a stop string in a stream never shows its beginning
--- request eval
main::chat('hello world', '"stop":"lo world","stream":true')
--- response_body_like: "content":"hel".*"finish_reason":"stop"
--- response_body_unlike: "content":"[^"]*(?:lo|world)



=== TEST 15: the beginning of a stop string that does not go on is text
--- request eval
main::chat('hello world', '"stop":"world!","stream":true')
--- response_body_like: "content":" ?world"



=== TEST 16: two choices
--- request eval
main::chat("\@\@choice 0\n\@\@say a\n\@\@choice 1\n\@\@say the", '"n":2')
--- response_body_like: \[\{"index":0,.*"content":"a",.*\},\{"index":1,.*"content":"the",.*"completion_tokens":5,



=== TEST 17: log-probabilities
--- request eval
main::chat("\@\@lp -0.5 97:-0.5 98:-2\n\@\@say ^", '"logprobs":true,"top_logprobs":2')
--- response_body_like: "logprobs":\{"content":\[\{"token":"\^","logprob":-0\.5,"bytes":\[94\],"top_logprobs":\[\{"token":"\^","logprob":-0\.5,"bytes":\[94\]\},\{"token":"_","logprob":-2\.0,"bytes":\[95\]\}\]\}\],"refusal":null\}



=== TEST 18: a request id of the client comes back
--- more_headers
X-Request-Id: abc-123
--- request eval
main::chat('a')
--- response_headers
X-Request-Id: abc-123



=== TEST 19: HTTP/1.0: a stream without chunks, ended by the close
--- request eval
my $r = main::chat('hello', '"stream":true'); $r =~ s/completions/completions HTTP\/1.0/; $r
--- response_headers
! Transfer-Encoding
--- response_body_like: data: \[DONE\]\n\n$



=== TEST 20: HTTP/1.1 kept alive: two answers on one connection
--- pipelined_requests eval
[main::chat('a'), main::chat('b', '"stream":true'), main::chat('c')]
--- response_body_like eval
['"content":"a"', '"content":"b".*\[DONE\]\n\n$', '"content":"c"']



=== TEST 21: a body that comes in pieces, and one that goes through a file
--- config eval
"client_body_buffer_size 1k;\n$::Chat"
--- request eval
my ($line, $body) = split /\n/, main::chat('x' x 5000), 2;
[[ "$line\n" . substr($body, 0, 40), { value => substr($body, 40, 3000),
   delay_before => 0.05 }, substr($body, 3040) ]]
--- response_body_like: "content":"x{5000}"



=== TEST 22: a chunked body
--- raw_request eval
my ($line, $body) = split /\n/, main::chat('hello'), 2;
"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
. "Transfer-Encoding: chunked\r\n\r\n"
. join('', map { sprintf("%x\r\n%s\r\n", length $_, $_) } $body =~ /.{1,7}/gs)
. "0\r\n\r\n"
--- response_body_like: "content":"hello"



=== TEST 23: variables in the access log
--- http_config eval
$::Pool . q{
    log_format di 'model=$deepinfer_model engine=$deepinfer_engine '
                  'prompt=$deepinfer_prompt_tokens '
                  'cached=$deepinfer_cached_tokens '
                  'completion=$deepinfer_completion_tokens '
                  'ttft=$deepinfer_ttft finish=$deepinfer_finish_reason '
                  'id=$deepinfer_request_id';
    access_log logs/access.log di;
}
--- more_headers
X-Request-Id: log-1
--- request eval
main::chat("\@\@cached 16\n\@\@say hello world")
--- wait: 0.1
--- access_log eval
qr{^model=echo engine=unix:/\S+ prompt=\d+ cached=16 completion=3 ttft=\d+\.\d{3} finish=stop id=log-1$}



=== TEST 24: several workers
--- main_config
    thread_pool few threads=2;
--- request eval
[map { main::chat("number $_") } 1 .. 8]
--- response_body_like eval
[map { "\"content\":\"number $_\"" } 1 .. 8]



=== TEST 25: deepinfer_pass by a variable
--- http_config eval
$::Pool . 'map $http_x_pool $pool { default echo; none ""; }'
--- config
        location = /v1/chat/completions {
            deepinfer_pass $pool;
            deepinfer_api chat;
        }
--- request eval
main::chat('a')
--- response_body_like: "content":"a"



=== TEST 26: fields that no API documents are ignored
--- request eval
main::chat('a', '"x_unknown":{"b":[1,2,null]},"user":"u1"')
--- response_body_like: "content":"a"



=== TEST 27: null is as good as absent
--- request eval
main::chat('a', '"temperature":null,"stop":null,"n":null,"stream":null,"max_tokens":null,"logit_bias":null')
--- response_body_like: "content":"a"



=== TEST 28: an empty answer
--- request eval
main::chat('@@say ')
--- response_body_like: "content":"","refusal":null\},"logprobs":null,"finish_reason":"stop".*"completion_tokens":1,
