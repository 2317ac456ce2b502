# Many generations at temperature 1.5 over 50 schemas, regular expressions and
# grammars (t/structured.py), judged by Python's jsonschema and re: with and
# without jumps over forced text, with and without drafts.
#
# $STRUCTURED_N is the number of generations for each (50; `make structured`
# has 1,000), $STRUCTURED_SEED the first one's seed (1).  Python needs
# jsonschema (t/sdk-venv.sh).

use strict;
use warnings;

use Cwd ();
use DI::Engine;
use DI::Nginx;
use DI::Proc;
use Test::More;

my $n = $ENV{STRUCTURED_N} // 50;
my $seed = $ENV{STRUCTURED_SEED} // 1;
my $cache = $ENV{XDG_CACHE_HOME} // "$ENV{HOME}/.cache";
my $python = $ENV{TEST_DEEPINFER_SDK_PYTHON}
             // "$cache/ngx_deepinfer/sdk/bin/python";

plan(skip_all => "no jsonschema at $python (make test installs it)")
    if system("$python -c 'import jsonschema' 2> /dev/null") != 0;

my $tiny = Cwd::abs_path('t/data/tiny-v41-fp8');
my @tiny = (model => $tiny, fields => '{"thinking": {"type": "disabled"}}');
my @engines = (
    { name => 'SmolLM2' },
    { name => 'SmolLM2 without jumps', args => ['--no-jump-forward'] },
    { name => 'tiny DeepSeek-V4.1 with drafts', @tiny },
    { name => 'tiny DeepSeek-V4.1 without drafts or jumps', @tiny,
      args => ['--drafts', 'off', '--no-jump-forward'] },
);

for my $e (@engines) {
    my $engine = DI::Engine->start(
        kind => 'model', ($e->{model} ? (model => $e->{model}) : ()),
        args => [qw(--kv-memory 256m --max-model-len 1024 --no-pin),
                 @{ $e->{args} // [] }]);
    my $nginx = DI::Nginx->start(workers => 1, http => <<"END",
    deepinfer_pool m {
        model  @{[$engine->model]};
        engine unix:@{[$engine->socket_path]};
    }
END
        server => 'location / { deepinfer_pass m; }');
    my $out = $nginx->root . '/out';
    my $status;
    my $pid = DI::Proc::spawn(name => 'structured.py', out => $out, cmd => [
        $python, 't/structured.py', 'http://127.0.0.1:' . $nginx->port, 'm',
        '--n', $n, '--seed', $seed, '--max-tokens', 120,
        '--fields', $e->{fields} // '{}']);

    DI::Proc::wait_until(60 + 5 * $n, sub {
        defined($status = DI::Proc::status_of($pid));
    });
    diag("$e->{name}:\n" . DI::Proc::slurp($out));
    is($status, 0, "$e->{name}: what has ended is valid");
    like(DI::Proc::slurp($out), qr/^all: [1-9]\d* valid, \d+ cut/m,
         "$e->{name}: some has");
    is(join("\n", $nginx->complaints), '',
       "$e->{name}: nothing wrong in the error log");
    $nginx->stop;
    $engine->stop;
}

done_testing();
