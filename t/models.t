# The list of models, the health check, metrics, and what methods they take.

use DI::Engine 'echo';
use Test::Nginx::Socket 'no_plan';

our $Pools = <<'END';
    deepinfer_pool echo {
        model   $TEST_NGINX_DEEPINFER_MODEL;
        engine  unix:$TEST_NGINX_DEEPINFER_SOCK;
        alias   default org/name;
    }

    deepinfer_pool away {
        model   $TEST_NGINX_DEEPINFER_MODEL;
        engine  unix:$TEST_NGINX_SERVER_ROOT/none.sock;
    }
END

our $Locations = <<'END';
        location /v1/models {
            deepinfer_api models;
        }

        location = /health/echo {
            deepinfer_pass echo;
            deepinfer_api health;
        }

        location = /health/away {
            deepinfer_pass away;
            deepinfer_api health;
        }

        location = /health {
            deepinfer_api health;
        }

        location = /metrics {
            deepinfer_api metrics;
        }

        location = /v1/chat/completions {
            deepinfer_pass echo;
            deepinfer_api chat;
        }
END

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(http_config => $::Pools);
    $block->set_value(config => $::Locations);
    $block->set_value(no_error_log => "[alert]\n[emerg]\n");
});

# A worker connects to its engines when it starts; a chat waits for that.
our $First = <<'END';
POST /v1/chat/completions
{"model":"echo","messages":[{"role":"user","content":"hello world"}]}
END

log_level('notice');
no_long_string();
run_tests();

__DATA__

=== TEST 1: all names that requests may use
--- request
GET /v1/models
--- response_headers
Content-Type: application/json
--- response_body_like eval
my $rest = qr/"object":"model","created":\d+,"owned_by":"ngx_deepinfer"/;
qr/^\{"object":"list","data":\[\{"id":"echo",$rest\},\{"id":"default",$rest\},\{"id":"org\/name",$rest\},\{"id":"away",$rest\}\]\}$/



=== TEST 2: one model, an alias with a slash, none
--- request eval
["GET /v1/models/echo", "GET /v1/models/org/name", "GET /v1/models/other",
 "GET /v1/modelsecho", "GET /v1/models-old/v1/models/echo"]
--- error_code eval
[200, 200, 404, 200, 200]
--- response_body_like eval
['^\{"id":"echo","object":"model",', '^\{"id":"org/name","object":"model",',
 '^\{"error":\{"message":"The model `other` does not exist\.",.*"code":"model_not_found"\}\}$',
 '^\{"object":"list"', '^\{"id":"echo","object":"model",']



=== TEST 3: HEAD has the headers and no body
--- request
HEAD /v1/models
--- response_headers_like
Content-Length: [1-9]\d*
--- response_body:



=== TEST 4: other methods are refused by name
--- request eval
["POST /v1/models\n{}", "DELETE /v1/models/echo", "GET /v1/chat/completions"]
--- error_code eval
[405, 405, 405]
--- response_headers eval
["Allow: GET, HEAD", "Allow: GET, HEAD", "Allow: POST"]
--- response_body_like eval
[('^\{"error":\{"message":".*","type":"invalid_request_error",') x 3]



=== TEST 5: health of a pool with an engine
--- request eval
[$::First, "GET /health/echo"]
--- response_body_like eval
['"finish_reason":"stop"',
 '^\{"status":"ok","pools":\[\{"model":"echo","engines":1,"up":1\}\]\}$']



=== TEST 6: health of a pool without
--- request
GET /health/away
--- error_code: 503
--- response_headers
Retry-After: 1
--- response_body: {"status":"unavailable","pools":[{"model":"away","engines":1,"up":0}]}



=== TEST 7: health of all is that of the worst
--- request eval
[$::First, "GET /health"]
--- error_code eval
[200, 503]
--- response_body_like eval
['"finish_reason":"stop"', '"model":"echo","engines":1,"up":1\},\{"model":"away","engines":1,"up":0\}']



=== TEST 8: metrics count a request and its tokens
--- request eval
[$::First, "GET /metrics"]
--- response_headers_like eval
["Content-Type: application/json", "Content-Type: text/plain; version=0\.0\.4.*"]
--- response_body_like eval
['"finish_reason":"stop"',
 '\ndeepinfer_requests_total\{model="echo",code="200"\} 1\n']



=== TEST 9: every metric has a type, every line its form
--- request
GET /metrics
--- response_body_like eval
qr/\A(?:\# HELP (\w+) [^\n]+\n\# TYPE \1 (?:counter|gauge|histogram)\n(?:\1(?:_bucket|_sum|_count)?(?:\{[^}\n]*\})? [0-9.e+-]+\n)*)+\z/
