# The official openai and anthropic SDKs against a real model (t/sdk.py,
# t/sdk_apis.py, t/sdk_structured.py) and against scripted output of
# DeepSeek-V4.1 (t/sdk_v41.py).
#
# `make test` installs the SDKs into the cache folder (t/sdk-venv.sh);
# $TEST_DEEPINFER_SDK_PYTHON names another interpreter that has them.

use strict;
use warnings;

use Cwd ();
use DI::Client qw(http_get);
use DI::Engine;
use DI::Nginx;
use DI::Proc;
use File::Basename qw(dirname);
use IO::Uncompress::Gunzip qw(gunzip $GunzipError);
use Test::More;

my $cache = $ENV{XDG_CACHE_HOME} // "$ENV{HOME}/.cache";
my $python = $ENV{TEST_DEEPINFER_SDK_PYTHON}
             // "$cache/ngx_deepinfer/sdk/bin/python";
my $here = Cwd::abs_path(dirname(__FILE__));

plan(skip_all => "no SDKs at $python (make test installs them)")
    if system("$python -c 'import openai, anthropic' 2> /dev/null") != 0;

# DeepSeek-V4.1's own spelling, in a small vocabulary
my $v41 = DI::Proc::tempdir();
gunzip("$here/data/tokenizer/small/tokenizer.json.gz" => \my $tokenizer)
    or die "$GunzipError\n";
DI::Proc::spew("$v41/tokenizer.json", $tokenizer);
DI::Proc::spew("$v41/config.json", '{"model_type":"deepseek_v41"}');
chmod(0755, $v41);
my $script = DI::Engine->start(kind => 'echo', model => $v41)->socket_path;

my $engine = DI::Engine->start(kind => 'model', args => [
    qw(--threads 1 --no-pin --kv-memory 256m --max-model-len 1024)
]);
my $model = $engine->model;
my $socket = $engine->socket_path;

my $nginx = DI::Nginx->start(http => <<"END", server => <<'END2');
    deepinfer_pool m {
        model   $model;
        engine  unix:$socket;
        alias   gpt-4o;
    }
    deepinfer_pool away {
        model   $model;
        engine  unix:$socket.none;
    }
    deepinfer_pool v41 {
        model   $v41;
        engine  unix:$script;
    }
END
    error_page 401 404 413 429 500 502 503 504 @error;
    location @error { deepinfer_error; }

    location = /v1/chat/completions {
        deepinfer_pass m;
        deepinfer_api chat;
    }
    location = /v1/away/chat/completions {
        deepinfer_pass away;
        deepinfer_api chat;
    }
    location = /v1/locked/chat/completions {
        if ($http_authorization != "Bearer right") { return 401; }
        deepinfer_pass m;
        deepinfer_api chat;
    }
    location /v1/responses {
        deepinfer_pass m;
        deepinfer_api responses;
    }
    location = /v1/completions {
        deepinfer_pass m;
        deepinfer_api completions;
    }
    location = /v1/messages { deepinfer_pass m; deepinfer_api messages; }
    location = /v1/messages/count_tokens {
        deepinfer_pass m;
        deepinfer_api count_tokens;
    }
    location = /tokenize { deepinfer_pass m; deepinfer_api tokenize; }

    location /tools/ {
        location = /tools/v1/chat/completions {
            deepinfer_pass m;
            deepinfer_api chat;
            deepinfer_dialect qwen;
        }
        location /tools/v1/responses {
            deepinfer_pass m;
            deepinfer_api responses;
            deepinfer_dialect qwen;
        }
        location = /tools/v1/messages {
            deepinfer_pass m;
            deepinfer_api messages;
            deepinfer_dialect qwen;
        }
    }

    location = /v41/v1/chat/completions { deepinfer_pass v41; }
    location /v41/v1/responses {
        deepinfer_pass v41;
        deepinfer_api responses;
    }
    location = /v41/v1/messages {
        deepinfer_pass v41;
        deepinfer_api messages;
    }
    location = /v41/v1/messages/count_tokens {
        deepinfer_pass v41;
        deepinfer_api count_tokens;
    }
    location /v1/models { deepinfer_api models; }
    location = /health { deepinfer_pass m; deepinfer_api health; }
    location = /v41/health { deepinfer_pass v41; deepinfer_api health; }
END2

for my $uri ('/health', '/v41/health') {
    ok(DI::Proc::eventually(sub {
        http_get($nginx->port, $uri)->{status} == 200;
    }), "$uri: healthy");
}

# Warnings of Python are errors: an unknown field or a deprecated use shows.
sub run_script {
    my ($name, @args) = @_;
    my $root = $nginx->root;
    my $status;
    my $pid = DI::Proc::spawn(
        name => $name,
        cmd  => ['/bin/sh', '-c', 'exec "$@" 2> "$0"', "$root/sdk.err",
                 $python, '-B', '-W', 'error', "$here/$name", @args],
        out  => "$root/sdk.out",
    );

    DI::Proc::wait_until(1200, sub {
        defined($status = DI::Proc::status_of($pid));
    });
    is($status, 0, "$name ended well");
    is(DI::Proc::slurp("$root/sdk.err"), '', "$name: nothing on stderr");

    my @lines = split /\n/, DI::Proc::slurp("$root/sdk.out");
    cmp_ok(scalar @lines, '>=', 10, "$name: tests were run");
    for my $line (@lines) {
        my ($ok, $what) = $line =~ /^(ok|not ok) (.*)/;

        is($ok // $line, 'ok', "$name: " . ($what // 'a result'));
    }
}

my $url = 'http://127.0.0.1:' . $nginx->port;
run_script('sdk.py', "$url/v1");
run_script('sdk_apis.py', $url, 'm');
run_script('sdk_structured.py', $url, "$url/tools", 'm');
run_script('sdk_v41.py', "$url/v41");

is(join("\n", $nginx->complaints), '', 'nothing wrong in the error log');

done_testing();
