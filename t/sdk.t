# The official openai SDK against a real model: t/sdk.py says what is tried.
#
# `make test` installs the SDK into the cache folder (t/sdk-venv.sh);
# $TEST_DEEPINFER_SDK_PYTHON names another interpreter that has it.

use strict;
use warnings;

use Cwd ();
use DI::Client qw(http_get);
use DI::Engine;
use DI::Nginx;
use DI::Proc;
use File::Basename qw(dirname);
use Test::More;

my $cache = $ENV{XDG_CACHE_HOME} // "$ENV{HOME}/.cache";
my $python = $ENV{TEST_DEEPINFER_SDK_PYTHON}
             // "$cache/ngx_deepinfer/sdk/bin/python";
my $script = Cwd::abs_path(dirname(__FILE__)) . '/sdk.py';

plan(skip_all => "no openai SDK at $python (make test installs it)")
    if !-x $python;

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
    location /v1/models { deepinfer_api models; }
    location = /health { deepinfer_pass m; deepinfer_api health; }
END2

ok(DI::Proc::wait_until(20, sub {
    http_get($nginx->port, '/health')->{status} == 200;
}), 'healthy');

# Warnings of Python are errors: an unknown field or a deprecated use shows.
my $root = $nginx->root;
my $pid = DI::Proc::spawn(
    name => 'sdk.py',
    cmd  => ['/bin/sh', '-c', 'exec "$0" -W error "$1" "$2" 2> "$3"',
             $python, $script, 'http://127.0.0.1:' . $nginx->port . '/v1',
             "$root/sdk.err"],
    out  => "$root/sdk.out",
);
my $status;
DI::Proc::wait_until(300, sub {
    defined($status = DI::Proc::status_of($pid));
});
is($status, 0, 'the script ended well');
is(DI::Proc::slurp("$root/sdk.err"), '', 'nothing on stderr');

my @lines = split /\n/, DI::Proc::slurp("$root/sdk.out");
cmp_ok(scalar @lines, '>=', 10, 'tests were run');
for my $line (@lines) {
    my ($ok, $name) = $line =~ /^(ok|not ok) (.*)/;

    is($ok // $line, 'ok', $name // 'a result');
}
is(join("\n", $nginx->complaints), '', 'nothing wrong in the error log');

done_testing();
