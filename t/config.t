# Configurations that must stop `nginx -t`, each with file, line and reason.

use strict;
use warnings;

use DI::Engine qw(echo);
use DI::Nginx;
use DI::Proc;
use IO::Uncompress::Gunzip qw(gunzip $GunzipError);
use POSIX ();
use Test::More;

my $model = $ENV{TEST_NGINX_DEEPINFER_MODEL};
my $engine = 'engine unix:' . DI::Engine->nth(1)->socket_path . ';';
my $nginx = DI::Nginx->start(server => '');
my $root = $nginx->root;

DI::Proc::spew("$root/text", 'this is not a model');
POSIX::mkfifo("$root/fifo", 0600) or die "mkfifo: $!\n";
DI::Proc::spew("$root/extra.conf", "alias included;\n");

# A folder as that of DeepSeek-V4.1, with a small vocabulary.
gunzip('t/data/tokenizer/small/tokenizer.json.gz' => \my $tokenizer)
    or die "$GunzipError\n";
mkdir("$root/$_") or die "mkdir: $!\n" for qw(v41 other);
DI::Proc::spew("$root/$_/tokenizer.json", $tokenizer) for qw(v41 other);
DI::Proc::spew("$root/v41/config.json", '{"model_type":"deepseek_v41"}');

# What nginx -t says of a configuration; (exit status, output).
sub try_conf {
    my ($http, $server) = @_;

    $nginx->configure(http => $http, server => $server // '');
    my $status = $nginx->command('-t');
    return ($status, DI::Proc::slurp("$root/logs/output.txt"));
}

sub pool {
    my ($inside, $name) = @_;

    return 'deepinfer_pool ' . ($name // 'one') . " {\n$inside\n}\n";
}

my $good = pool("model $model; $engine");

my @bad = (
    ['an unknown pool', $good, 'location / { deepinfer_pass two; }',
     'unknown pool "two"'],
    ['a pool after its use', '', 'location / { deepinfer_pass one; }',
     'unknown pool "one"'],
    ['an unknown api', $good, 'location / { deepinfer_api chatter; }',
     'unknown api "chatter"'],
    ['chat without a pool', $good, 'location / { deepinfer_api chat; }',
     '"deepinfer_api chat" needs "deepinfer_pass"'],
    ['a pool twice', $good . $good, '', 'duplicate model name "one"'],
    ['an alias that is a pool', $good . pool(
        "model $model; $engine alias one;", 'two'), '',
     'duplicate model name "one"'],
    ['an alias twice', pool("model $model; $engine alias a b a;"), '',
     'duplicate model name "a"'],
    ['a name that is no name', pool("model $model; $engine", '"a b"'), '',
     'invalid character in model name "a b"'],
    ['a name too long', pool("model $model; $engine", 'x' x 96), '',
     'must have 1 to 95 bytes'],
    ['no model', pool($engine), '', 'pool "one" has no "model"'],
    ['two models', pool("model $model; model $model; $engine"), '',
     '"model" directive is duplicate'],
    ['no engine', pool("model $model;"), '', 'pool "one" has no "engine"'],
    ['a model that is not there', pool("model /nowhere/x; $engine"), '',
     'model "/nowhere/x" of pool "one" cannot be read'],
    ['a model that is none', pool("model $root/text; $engine"), '',
     'cannot be used: '],
    ['a model that is a pipe', pool("model $root/fifo; $engine"), '',
     'is no regular file'],
    ['a folder without a tokenizer', pool("model $root/logs; $engine"), '',
     'cannot be used: '],
    ['a folder that does not tell its dialect',
     pool("model $root/other; $engine"), '', 'has no chat template'],
    ['an unknown dialect', pool("model $model; $engine dialect klingon;"),
     '', 'klingon'],
    ['a location\'s unknown dialect', $good,
     'location / { deepinfer_pass one; deepinfer_dialect klingon; }',
     '"deepinfer_dialect klingon" cannot be used with pool "one": unknown'],
    ['a dialect for which the vocabulary has no tokens', $good,
     'deepinfer_dialect deepseek-v4; location / { deepinfer_pass $arg_x; }',
     '"deepinfer_dialect deepseek-v4" cannot be used with pool "one": the voc'],
    ['two dialects', $good,
     'location / { deepinfer_dialect chatml; deepinfer_dialect qwen; }',
     '"deepinfer_dialect" directive is duplicate'],
    ['an engine over TCP', pool("model $model; engine 127.0.0.1:1;"), '',
     'invalid engine "127.0.0.1:1"'],
    ['an engine without a path', pool("model $model; engine unix:;"), '',
     'invalid engine "unix:"'],
    ['an engine twice', pool("model $model; $engine $engine"), '',
     'duplicate engine'],
    ['a socket path too long',
     pool("model $model; engine unix:/" . 'x' x 107 . ';'), '',
     'too long path'],
    ['a queue of nothing', pool("model $model; $engine queue 0;"), '',
     'invalid value "0" in "queue"'],
    ['a queue of letters', pool("model $model; $engine queue many;"), '',
     'invalid value "many" in "queue"'],
    ['an engine_timeout too short',
     pool("model $model; $engine engine_timeout 999ms;"), '',
     'invalid value "999ms" in "engine_timeout"'],
    ['an engine_timeout that is none',
     pool("model $model; $engine engine_timeout soon;"), '',
     'invalid value "soon" in "engine_timeout"'],
    ['two of them',
     pool("model $model; $engine engine_timeout 1s; engine_timeout 1s;"), '',
     '"engine_timeout" directive is duplicate'],
    ['an unknown directive in a pool', pool("model $model; $engine gpu 1;"),
     '', 'unknown directive "gpu"'],
    ['a pool\'s directive elsewhere', 'queue 5;', '',
     '"queue" directive is not allowed here'],
    ['a zone without a size', 'deepinfer_zone di;' . $good, '',
     'invalid zone "di"'],
    ['a zone too small', 'deepinfer_zone di:8k;' . $good, '', 'is too small'],
    ['two zones', 'deepinfer_zone a:1m; deepinfer_zone b:1m;' . $good, '',
     '"deepinfer_zone" directive is duplicate'],
    ['a grammar cache without a size', 'deepinfer_grammar_cache much;' . $good,
     '', 'invalid size "much"'],
    ['a grammar cache of nothing', 'deepinfer_grammar_cache 0;' . $good,
     '', 'invalid size "0"'],
    ['two grammar caches',
     'deepinfer_grammar_cache 1m; deepinfer_grammar_cache off;' . $good, '',
     '"deepinfer_grammar_cache" directive is duplicate'],
    ['an unknown limit of grammars', $good,
     'deepinfer_grammar_limits depth=5;',
     'invalid parameter "depth=5" of "deepinfer_grammar_limits"'],
    ['a limit of nothing', $good, 'deepinfer_grammar_limits memory=0;',
     'invalid parameter "memory=0" of "deepinfer_grammar_limits"'],
    ['work that is no number', $good, 'deepinfer_grammar_limits work=hard;',
     'invalid parameter "work=hard" of "deepinfer_grammar_limits"'],
    ['grammars larger than the channel takes', $good,
     'deepinfer_grammar_limits size=9m;',
     'invalid parameter "size=9m" of "deepinfer_grammar_limits"'],
    ['a limit twice', $good, 'deepinfer_grammar_limits work=9 work=9;',
     'invalid parameter "work=9" of "deepinfer_grammar_limits"'],
    ['white space of a third kind', $good, 'deepinfer_grammar_whitespace no;',
     'invalid value "no"'],
    ['a finish that is no flag', $good, 'deepinfer_grammar_finish yes;',
     'it must be "on" or "off"'],
    ['an unknown thread pool', $good,
     'location / { deepinfer_pass one; deepinfer_thread_pool many; }',
     'unknown thread pool "many"'],
    ['threads that are off, of a size', $good,
     'location / { deepinfer_pass one; deepinfer_thread_pool off 1k; }',
     'has a size although it is "off"'],
    ['a ping without a unit', $good, 'deepinfer_ping often;',
     '"deepinfer_ping" directive invalid value'],
    ['an api and an error page in one', $good,
     'location / { deepinfer_api models; deepinfer_error; }',
     '"deepinfer_error" directive conflicts with "deepinfer_api"'],
    ['an error page and an api in one', $good,
     'location / { deepinfer_error; deepinfer_api models; }',
     '"deepinfer_api" directive conflicts with "deepinfer_error"'],
    ['a pass and an error page in one', $good,
     'location / { deepinfer_pass one; deepinfer_error; }',
     '"deepinfer_error" directive conflicts with "deepinfer_pass"'],
    ['an error page and a pass in one', $good,
     'location / { deepinfer_error; deepinfer_pass one; }',
     '"deepinfer_pass" directive conflicts with "deepinfer_error"'],
    ['responses without a pool', $good,
     'location / { deepinfer_api responses; }',
     '"deepinfer_api responses" needs "deepinfer_pass"'],
    ['an unknown codec', $good, 'deepinfer_codec lax;',
     'invalid value "lax"'],
    ['a store of no size', $good . 'deepinfer_store size=0;', '',
     'invalid parameter "size=0" of "deepinfer_store"'],
    ['a store for no time', $good . 'deepinfer_store ttl=0;', '',
     'invalid parameter "ttl=0" of "deepinfer_store"'],
    ['two stores', $good . 'deepinfer_store size=1m; deepinfer_store ttl=1h;',
     '', '"deepinfer_store" directive is duplicate'],
    ['a redis of another kind', $good . 'deepinfer_redis 127.0.0.1 tls=on;',
     '', 'invalid parameter "tls=on" of "deepinfer_redis"'],
    ['a redis without a port number', $good . 'deepinfer_redis 127.0.0.1:x;',
     '', 'invalid port in deepinfer_redis "127.0.0.1:x"'],
    ['two of them', $good . 'deepinfer_redis 127.0.0.1; deepinfer_redis ::1;',
     '', '"deepinfer_redis" directive is duplicate'],
    ['two passes', $good,
     'location / { deepinfer_pass one; deepinfer_pass one; }',
     '"deepinfer_pass" directive is duplicate'],
);

for my $case (@bad) {
    my ($name, $http, $server, $reason) = @$case;
    my ($status, $output) = try_conf($http, $server);

    is($status, 1, "$name: refused");
    like($output, qr/\[emerg\].*\Q$reason\E.* in \S+:\d+$/m,
         "$name: with the reason");
}

my ($status, $output) = try_conf(<<"END", <<'END2');
    deepinfer_zone di:1m;
    deepinfer_pool one {
        model $model;
        $engine
        alias a b;
        include $root/extra.conf;
        queue 10;
        engine_timeout 30s;
        dialect chatml;
    }
    deepinfer_pool two { model $root/v41; $engine }
    deepinfer_pool three {
        model   $root/other/tokenizer.json;
        dialect deepseek-v4;
        $engine
    }
    deepinfer_ping 10s;
    deepinfer_buffer_size 32k;
    deepinfer_ignore_client_abort off;
    deepinfer_codec strict;
    deepinfer_grammar_cache 2m;
    deepinfer_grammar_limits memory=64m size=8m;
    deepinfer_grammar_whitespace compact;
    deepinfer_store size=4m ttl=1d;
    deepinfer_redis [::1]:6380 prefix=x: password=y db=2 timeout=1s;
END
    location /a { deepinfer_pass one; deepinfer_api chat; }
    location /b { deepinfer_pass $arg_pool; deepinfer_thread_pool off; }
    location /c { deepinfer_pass included; deepinfer_thread_pool default 1m; }
    location /d { deepinfer_api models; deepinfer_dialect klingon; }
    location /e { deepinfer_api health; limit_except GET { deny all; } }
    location /f { deepinfer_api metrics; }
    location @g { deepinfer_error; }
    location /h { deepinfer_pass one; deepinfer_api completions;
                  deepinfer_grammar_limits work=1000000;
                  deepinfer_grammar_whitespace flexible;
                  deepinfer_grammar_finish off; }
    location /i { deepinfer_pass one; deepinfer_api responses;
                  deepinfer_dialect qwen; }
    location /j { deepinfer_pass one; deepinfer_api messages; }
    location /k {
        deepinfer_pass  one;
        deepinfer_api   count_tokens;
        deepinfer_codec official;
    }
    location /l { deepinfer_pass one; deepinfer_api tokenize; }
    location /m { deepinfer_pass one; deepinfer_api detokenize; }
END2
is($status, 0, 'all directives together') or diag $output;

done_testing();
