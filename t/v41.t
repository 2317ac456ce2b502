# DeepSeek-V4.1 through nginx: the tiny trained checkpoint, as any other model.

use DI::Engine;
use DI::Proc ();
use Cwd ();
use JSON::PP ();

BEGIN {
    my $model = Cwd::abs_path('t/data/tiny-v41-fp8');

    DI::Engine->export_module;
    DI::Engine->start(kind => 'model', model => $model,
                      args => ['--exact', '--max-model-len', 2048,
                               '--kv-memory', '64m', '--max-seqs', 4]);

    # Another training of it: the same tensors, some bytes of each part differ.
    my $other = DI::Proc::tempdir();
    for my $name (qw(config.json tokenizer.json tokenizer_config.json
                     model.safetensors.index.json model.safetensors)) {
        my $data = DI::Proc::slurp("$model/$name");
        substr($data, length($data) - 50 * $_, 1) ^= "\1"
            for $name eq 'model.safetensors' ? 1 .. 50_000 : ();
        DI::Proc::spew("$other/$name", $data);
    }
    $ENV{TEST_NGINX_OTHER_MODEL} = $other;
}

use Test::Nginx::Socket 'no_plan';

our $Pool = <<'END';
    deepinfer_pool tiny {
        model   $TEST_NGINX_DEEPINFER_MODEL;
        engine  unix:$TEST_NGINX_DEEPINFER_SOCK;
    }
    deepinfer_pool other {
        model   $TEST_NGINX_OTHER_MODEL;
        engine  unix:$TEST_NGINX_DEEPINFER_SOCK;
    }
END

our $Chat = <<'END';
        location = /v1/chat/completions {
            deepinfer_pass tiny;
            deepinfer_api chat;
        }
        location = /other {
            deepinfer_pass other;
        }
END

add_block_preprocessor(sub {
    my ($block) = @_;

    $block->set_value(http_config => $::Pool);
    $block->set_value(config => $::Chat);
    $block->set_value(no_error_log => "[alert]\n[emerg]\n[crit]\n");
    $block->set_value(timeout => 60);
});

# What the reference makes of a prompt, as JSON has it.
sub golden {
    my ($prompt) = @_;

    open my $f, '<:raw', 't/data/tiny-v41-fp8/golden/greedy.json' or die $!;
    my $text = JSON::PP::decode_json(join '', <$f>)->{$prompt}{text};
    return JSON::PP->new->ascii->encode([$text]) =~ s/^\["|"\]$//gr;
}

log_level('notice');
no_long_string();
run_tests();

__DATA__

=== TEST 1: a chat without thinking, the golden's text
--- request
POST /v1/chat/completions
{"model":"tiny","messages":[{"role":"user","content":"What is a hacker?"}],"max_tokens":64,"temperature":0,"thinking":{"type":"disabled"}}
--- response_body_like eval
qr/\Q${\ substr(main::golden('chat'), 0, 100)}\E/



=== TEST 2: an engine with other weights than the pool's folder is refused
--- request
POST /other
{"model":"other","messages":[{"role":"user","content":"What is a hacker?"}],"max_tokens":4}
--- error_code: 503
--- response_body_like: engine_unavailable
--- error_log eval
qr/of pool "other" is not available: [^,]*another model/



=== TEST 3: reasoning comes apart from the answer
--- request
POST /v1/chat/completions
{"model":"tiny","messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":"Define kluge."}],"max_tokens":40,"temperature":0,"thinking":{"type":"enabled"}}
--- response_body_like: "content":"[^"<]+","reasoning_content":"The user asks about [^"<]+"



=== TEST 4: a call of a tool, which the grammar makes this small model write
--- request
POST /v1/chat/completions
{"model":"tiny","messages":[{"role":"system","content":"You can call tools."},{"role":"user","content":"Add 12 and 30."}],"max_tokens":200,"temperature":0,"thinking":{"type":"disabled"},"tool_choice":"required","tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"required":["a","b"],"additionalProperties":false}}}]}
--- response_body_like: "name":"add","arguments":"\{\\"a\\": ?-?\d+, ?\\"b\\": ?-?\d+\}".*"finish_reason":"tool_calls"



=== TEST 5: a call that nobody offered tools for is text, the golden's
--- request
POST /v1/chat/completions
{"model":"tiny","messages":[{"role":"system","content":"You can call tools."},{"role":"user","content":"Add 12 and 30."}],"max_tokens":64,"temperature":0,"thinking":{"type":"disabled"}}
--- response_body_like eval
my $text = main::golden('tool') =~ s/<\\uff5cend.*//r =~ s/^(?:\\n)*//r;
$text = JSON::PP->new->utf8->encode(JSON::PP::decode_json("[\"$text\"]"));
$text =~ s/^\["|"\]$//g;
qr/"content":"\Q$text\E"/
