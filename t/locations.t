# Where deepinfer_pass may stand and what may stand around it: if, named
# locations, internal redirects, subrequests of other modules, nginx as a
# proxy in front of itself.

use DI::Engine 'echo';
use Test::Nginx::Socket 'no_plan';

our $Pool = <<'END';
    deepinfer_pool echo {
        model   $TEST_NGINX_DEEPINFER_MODEL;
        engine  unix:$TEST_NGINX_DEEPINFER_SOCK;
        alias   other;
    }
END

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(http_config => $::Pool . ($block->http_config // ''));
    $block->set_value(no_error_log => "[alert]\n[emerg]\n[crit]\n");
});

# A request to `uri` with one user message, and more fields.
sub post {
    my ($uri, $content, $fields) = @_;

    $content =~ s/(["\\])/\\$1/g;
    $content =~ s/\n/\\n/g;
    return "POST $uri\n"
           . '{"model":"echo","messages":[{"role":"user","content":"'
           . $content . '"}]' . ($fields ? ",$fields" : '') . '}';
}

log_level('notice');
no_long_string();
run_tests();

__DATA__

=== TEST 1: a variable that names no pool
--- config
    location /pass { deepinfer_pass $arg_pool; }
    location /health { deepinfer_pass $arg_pool; deepinfer_api health; }
    location /v1/models { deepinfer_pass $arg_pool; deepinfer_api models; }
--- request eval
[main::post('/pass?pool=none', 'a'), main::post('/pass', 'a'),
 main::post('/pass?pool=other', 'a'), main::post('/pass?pool=echo', 'a'),
 "GET /health?pool=none", "GET /v1/models?pool=none",
 "GET /v1/models/echo?pool=none"]
--- error_code eval
[404, 404, 200, 200, 503, 200, 404]
--- response_body_like eval
['"code":"model_not_found"', '"code":"model_not_found"', '"content":"a"',
 '"content":"a"', '"pools":\[\]', '"data":\[\]', 'model_not_found']



=== TEST 2: requests that are refused at once are counted, too
--- config
    add_header X-Finish $deepinfer_finish_reason always;
    location /pass { deepinfer_pass $arg_pool; }
    location /metrics { deepinfer_api metrics; }
--- request eval
["GET /pass?pool=echo", main::post('/pass?pool=none', 'a'),
 main::post('/pass?pool=other', 'a'), "GET /metrics"]
--- more_headers eval
['', '', 'Content-Encoding: gzip', '']
--- error_code eval
[405, 404, 415, 200]
--- response_headers eval
[('X-Finish: error') x 3, '!X-Finish']
--- response_body_like eval
[('"error"') x 3,
 'requests_total\{model="",code="404"\} 1\n(?s:.*)'
 . 'requests_total\{model="echo",code="405"\} 1\n(?s:.*)'
 . 'requests_total\{model="echo",code="415"\} 1\n(?s:.*)'
 . 'finished_total\{model="echo",reason="error"\} 2\n']



=== TEST 3: in if
--- config
    location /a {
        if ($arg_x) { deepinfer_pass echo; }
        return 204;
    }
    location /b {
        deepinfer_pass echo;
        set $y 1;
        if ($arg_x) { set $y 2; }
    }
    location /c {
        if ($arg_x) { deepinfer_pass echo; }
        deepinfer_pass $arg_pool;
    }
--- request eval
[main::post('/b', 'a'), main::post('/b?x=1', 'a'), main::post('/c?x=1', 'a'),
 main::post('/c?pool=echo', 'a'), main::post('/c', 'a')]
--- error_code eval
[200, 200, 200, 200, 404]
--- response_body_like eval
[('"content":"a"') x 4, 'model_not_found']



=== TEST 4: in a named location, by try_files, error_page and rewrite
--- config
    location /try { try_files /none @chat; }
    location /error { error_page 418 = @chat; return 418; }
    location /rewrite { rewrite ^ /chat last; }
    location /redirect { error_page 418 = /chat; return 418; }
    location @chat { deepinfer_pass echo; }
    location /chat { deepinfer_pass echo; }
--- request eval
[main::post('/try', 'a'), main::post('/error', 'a', '"stream":true'),
 main::post('/rewrite', 'a'), main::post('/redirect', 'a')]
--- error_code eval
[200, 200, 200, 405]
--- response_body_like eval
['"content":"a"', '"content":"a"', '"content":"a"',
 '"code":"method_not_allowed"']



=== TEST 5: a body that an error page asks for again
--- config
    error_page 413 = @chat;
    location /small { client_max_body_size 1k; deepinfer_pass echo; }
    location @chat { deepinfer_pass echo; }
--- request eval
main::post('/small', 'x' x 2000)
--- error_code_like: ^(?:400|413)$
--- response_body_like: error|413



=== TEST 6: an answer's own error is not replaced, nginx's error is
--- config
    error_page 400 404 405 413 @error;
    location /chat { client_max_body_size 1k; deepinfer_pass echo; }
    location @error { return 200 "page"; }
--- request eval
["POST /chat\n{", "GET /chat", main::post('/chat', 'x' x 2000), "GET /none"]
--- error_code eval
[400, 405, 413, 404]
--- response_body_like eval
['"error"', '"error"', 'page', 'page']



=== TEST 7: mirrored requests
--- config
    location /main { mirror /copy; deepinfer_pass echo; }
    location /copy { internal; deepinfer_pass echo; }
    location /plain { mirror /copy; return 200 "plain"; }
    location /metrics { deepinfer_api metrics; }
--- request eval
[main::post('/main', "\@\@every 3\n\@\@repeat 20 hello", '"stream":true'),
 main::post('/main', "\@\@every 3\n\@\@repeat 20 hello"),
 main::post('/main', "\@\@repeat 20000 hello", '"stream":true'),
 "POST /main\n{", main::post('/main', 'a'), "GET /metrics"]
--- error_code eval
[200, 200, 200, 400, 200, 200]
--- response_body_like eval
['(?:.*hello){20}', '(?: ?hello){20}', '(?:.*?hello){20000}', '"error"',
 '"content":"a"', 'requests_total\{model="echo",code="200"\} 8\n']



=== TEST 8: a mirrored request that outlives the main one
--- config
    location /main { mirror /copy; return 200 "main"; }
    location /slow { mirror /copy; deepinfer_pass echo; }
    location /copy {
        internal;
        deepinfer_pass echo;
    }
--- pipelined_requests eval
[main::post('/slow', "\@\@every 20\n\@\@say a b c d e"),
 main::post('/slow', "\@\@every 20\n\@\@say a b c d e", '"stream":true'),
 main::post('/slow', 'last')]
--- response_body_like eval
['a b c d e', '\[DONE\]', 'last']



=== TEST 9: subrequests of auth_request and SSI
--- config
    location /auth {
        auth_request /chat;
        try_files /none @ok;
    }
    location /guarded {
        auth_request /ok;
        deepinfer_pass echo;
    }
    location /ssi {
        ssi on;
        ssi_types text/plain;
        default_type text/plain;
        root $TEST_NGINX_HTML_DIR;
    }
    location = /ok { return 204; }
    location @ok { return 200; }
    location /chat { deepinfer_pass echo; }
    location /models { deepinfer_api models; }
    location /health { deepinfer_api health; }
    location /metrics { deepinfer_api metrics; }
--- user_files
>>> ssi/a
[<!--#include virtual="/chat" -->]
[<!--#include virtual="/models" -->]
[<!--#include virtual="/health" -->]
[<!--#include virtual="/metrics" -->]
[<!--#include virtual="/chat" set="v" wait="yes" -->]
--- request eval
[main::post('/guarded', 'a'), main::post('/auth', 'a'), "GET /ssi/a"]
--- error_code eval
[200, 500, 200]
--- response_body_like eval
['"content":"a"', '500',
 '\[\{"error".*method_not_allowed.*\[\{"object":"list".*\[\{"status".*\[# HELP.*\]\n\[\]']



=== TEST 10: nginx as a proxy in front, with its buffering
--- config
    location /proxy {
        proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/chat;
    }
    location /proxy11 {
        proxy_pass http://127.0.0.1:$TEST_NGINX_SERVER_PORT/chat;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_request_buffering off;
        proxy_buffering off;
    }
    location /chat { deepinfer_pass echo; }
--- request eval
[map { my $uri = $_; map { main::post($uri, '@@repeat 100 hello', $_) }
 '"n":1', '"stream":true' } '/proxy', '/proxy11']
--- response_body_like eval
['(?: ?hello){100}', '(?:.*?hello){100}.*\[DONE\]',
 '(?: ?hello){100}', '(?:.*?hello){100}.*\[DONE\]']



=== TEST 11: limit_rate and sub_filter
--- config
    location /rate { limit_rate 20k; deepinfer_pass echo; }
    location /after { limit_rate_after 1k; limit_rate 50k; deepinfer_pass echo; }
    location /sub {
        sub_filter_types *;
        sub_filter_once off;
        sub_filter hello bye;
        deepinfer_pass echo;
    }
    location /range { deepinfer_pass echo; }
--- timeout: 10
--- more_headers
Range: bytes=0-3
If-Modified-Since: Thu, 01 Jan 1970 00:00:00 GMT
--- request eval
[main::post('/rate', '@@repeat 100 hello', '"stream":true'),
 main::post('/after', '@@repeat 300 hello', '"stream":true'),
 main::post('/sub', '@@repeat 20 hello', '"stream":true'),
 main::post('/sub', '@@repeat 20 hello'),
 main::post('/range', '@@repeat 20 hello', '"stream":true'),
 main::post('/range', '@@repeat 20 hello')]
--- response_body_like eval
['(?:.*?hello){100}.*\[DONE\]', '(?:.*?hello){300}.*\[DONE\]',
 '(?:.*?bye){20}.*\[DONE\]', '(?:.*?bye){20}',
 '(?:.*?hello){20}.*\[DONE\]', '(?:.*?hello){20}']



=== TEST 12: limit_except, satisfy, deny
--- config
    location /a { limit_except GET { deny all; } deepinfer_pass echo; }
    location /b { limit_except POST { deny all; } deepinfer_pass echo; }
    location /c { deny all; deepinfer_pass echo; }
--- request eval
[main::post('/a', 'a'), main::post('/b', 'a'), "GET /b", main::post('/c', 'a')]
--- error_code eval
[403, 200, 403, 403]
--- response_body_like eval
['403', '"content":"a"', '403', '403']



=== TEST 13: two servers, one pool
--- http_config
    server {
        listen 127.0.0.1:$TEST_NGINX_RAND_PORT_1;
        location / { deepinfer_pass echo; }
    }
--- config
    location /x {
        proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1;
    }
    location /own { deepinfer_pass echo; }
--- request eval
[main::post('/x', 'a'), main::post('/own', 'b')]
--- response_body_like eval
['"content":"a"', '"content":"b"']



=== TEST 14: a location's own dialect, here one that has tools
--- config
    deepinfer_dialect qwen;
    location /qwen { deepinfer_pass echo; }
    location /chosen { deepinfer_pass $arg_pool; }
    location /own { deepinfer_pass echo; deepinfer_dialect chatml; }
    location /tokens { deepinfer_pass echo; deepinfer_api tokenize; }
--- request eval
my $tool = '"tools":[{"type":"function","function":{"name":"f"}}]';
[(map { main::post($_, 'a', $tool) } '/qwen', '/chosen?pool=echo', '/own'),
 main::post('/tokens', 'a', '"return_token_strs":true,' . $tool)]
--- error_code eval
[200, 200, 400, 200]
--- response_body_like eval
['"content":"a"', '"content":"a"', '"param":"tools"', '"T","o","o","l","s"']
