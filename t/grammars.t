# What becomes of a grammar between the client and the engine: compiling in a
# thread, once for all who want it; the cache; its limits; bombs; errors.  The
# echo engine follows the grammar and fails where its script breaks it.

use strict;
use warnings;

use DI::Client qw(encode_json http_get http_post);
use DI::Engine qw(echo echo);
use DI::Nginx;
use DI::Proc;
use Test::More;
use Time::HiRes qw(sleep time);

my ($one, $two) = map { DI::Engine->nth($_) } 1, 2;

sub http {
    my ($cache) = @_;

    return <<"END";
    deepinfer_grammar_cache $cache;
    deepinfer_pool echo {
        model  @{[$one->model]};
        engine unix:@{[$one->socket_path]};
    }
    deepinfer_pool pair {
        model  @{[$one->model]};
        engine unix:@{[$one->socket_path]};
        engine unix:@{[$two->socket_path]};
    }
END
}

my $server = <<'END';
        client_max_body_size 8m;
        client_body_buffer_size 8m;
        location = /chat { deepinfer_pass echo; }
        location = /pair { deepinfer_pass pair; }
        location = /completions {
            deepinfer_pass echo;
            deepinfer_api completions;
        }
        location = /responses {
            deepinfer_pass echo;
            deepinfer_api responses;
        }
        location = /messages {
            deepinfer_pass echo;
            deepinfer_api messages;
        }
        location = /compact {
            deepinfer_pass echo;
            deepinfer_grammar_whitespace compact;
        }
        location = /cut {
            deepinfer_pass echo;
            deepinfer_grammar_finish off;
        }
        location = /small {
            deepinfer_pass echo;
            deepinfer_grammar_limits work=20000 size=64k memory=1m;
        }
        location = /inline {
            deepinfer_pass echo;
            deepinfer_thread_pool off;
        }
        location = /tools {
            deepinfer_pass echo;
            deepinfer_dialect qwen;
        }
        location = /metrics { deepinfer_api metrics; }
END

my $nginx = DI::Nginx->start(
    workers => 1, http => http('2m'),
    server => $server);
my $port = $nginx->port;
my ($worker) = $nginx->workers;

sub metric {
    my ($name) = @_;

    http_get($port, '/metrics')->{body}
        =~ /^deepinfer_grammar_$name (\S+)$/m or die "no metric $name\n";
    return $1;
}

# What a request changed in some metrics.
sub changes {
    my ($code, @names) = @_;
    my @before = map { metric($_) } @names;

    $code->();
    return [map { metric($names[$_]) - $before[$_] } 0 .. $#names];
}

sub body {
    my ($script, %more) = @_;

    return { model => $more{model} // 'echo', messages => [
             { role => 'user', content => $script }], %more };
}

sub ask {
    my ($uri, $script, %more) = @_;

    return http_post($port, $uri, encode_json(body($script, %more)));
}

sub json_schema {
    my ($schema) = @_;

    return response_format => { type => 'json_schema', json_schema => {
                                name => 'test', schema => $schema } };
}

sub object {
    my ($name) = @_;

    return json_schema({ type => 'object', required => [$name],
                         properties => { $name => { type => 'integer' } } });
}

my @cache = qw(cache_hits_total cache_misses_total compiles_total
               refused_total);

# ----------------------------------------------------------------- the engine

my $r = ask('/chat', '@@say {"a": 5}', object('a'));
is($r->{status}, 200, 'an answer that holds its schema');
is($r->{json}{choices}[0]{message}{content}, '{"a": 5}', 'comes whole');
$r = ask('/chat', '@@say {"a": "five"}', object('a'));
is($r->{status}, 500, 'the engine got the grammar: it fails on another one');

my %surfaces = (
    'response_format regex' => ['/chat', response_format =>
        { type => 'regex', regex => '[a-c]+' }],
    'guided_regex'   => ['/chat', guided_regex => '[a-c]+'],
    'guided_choice'  => ['/chat', guided_choice => ['abc', 'abd']],
    'guided_grammar' => ['/chat', guided_grammar => 'root ::= "ab" [a-z]'],
    'structured_outputs' => ['/chat', structured_outputs =>
        { regex => 'abc|d' }],
    'regex'          => ['/chat', regex => '[a-c]+'],
    'ebnf'           => ['/chat', ebnf => 'root ::= x+  x ::= [abc]'],
    'Completions'    => ['/completions', prompt => "\@\@say abc",
                         guided_regex => '[a-c]+'],
    'Messages'       => ['/messages', max_tokens => 9, regex => '[a-c]+'],
);
for my $name (sort keys %surfaces) {
    my ($uri, %fields) = @{ $surfaces{$name} };
    my $other = { %fields };

    $other->{prompt} = "\@\@say xyz" if $fields{prompt};
    my @ask = map { my $f = $_; my $b = body("\@\@say $f->[0]", %{ $f->[1] });
                    delete $b->{messages} if $f->[1]{prompt};
                    http_post($port, $uri, encode_json($b))->{status} }
              ['abc', \%fields], ['xyz', $other];
    is("@ask", '200 500', "$name holds the answer");
}
is(http_post($port, '/responses', encode_json({
       model => 'echo', input => $_->[0], text => { format => {
           type => 'json_schema', name => 'x', schema => {
               type => 'object', required => ['a'] } } } }))->{status},
   $_->[1], "Responses' text.format: $_->[0]")
    for ['@@say {"a":1}', 200], ['@@say {"b":1}', 500];

# ------------------------------------------------------------------ the cache

is_deeply(changes(sub { ask('/chat', '@@say {"b":1}', object('b')) }, @cache),
          [0, 1, 1, 0], 'a new schema is compiled');
is_deeply(changes(sub { ask('/chat', '@@say {"b":1}', object('b')) }, @cache),
          [1, 0, 0, 0], 'the next request finds it');
is_deeply(changes(sub { ask('/chat', 'x', guided_regex => '(?<=a)b') }, @cache),
          [0, 1, 1, 1], 'what is refused is compiled once');
is_deeply(changes(sub { ask('/chat', 'x', guided_regex => '(?<=a)b') }, @cache),
          [1, 0, 0, 0], 'the reason is kept, too');
is(scalar(() = $nginx->log
          =~ /\[info\].*a grammar is refused: look-?\w* in guided_regex/g), 2,
   'and the log has it');
is_deeply(changes(sub { ask('/compact', '@@say {"b":1}', object('b')) },
                  @cache), [0, 1, 1, 0], 'other white space, another grammar');
is_deeply(changes(sub { ask('/chat', 'hello') }, @cache), [0, 0, 0, 0],
          'a request without a grammar asks nothing of it');

$nginx->reload;
is_deeply(changes(sub { ask('/chat', '@@say {"b":1}', object('b')) }, @cache),
          [1, 0, 0, 0], 'a reload forgets nothing');
($worker) = $nginx->workers;

# A few KB compiled each, in a cache of 2 MB.
my $changes = changes(sub {
    for my $n (1 .. 800) {
        ask('/chat', '@@say {}', json_schema({ properties => { map {
            ("p${n}_$_" => { enum => ["a$n$_", "b$n$_"] }) } 1 .. 10 } }));
    }
}, 'cache_evictions_total');
cmp_ok($changes->[0], '>', 0, 'the least used ones make room');
cmp_ok(metric('cache_bytes'), '<=', 2 * 1024 * 1024, 'within the bound');
cmp_ok(metric('cache_entries'), '>', 9, 'for many');

# What was compiled, found or refused leaves nothing behind in the worker.
sub rss {
    my ($kb) = DI::Proc::slurp("/proc/$worker/status") =~ /VmRSS:\s+(\d+)/;
    return $kb;
}

sub wave {
    my ($from) = @_;

    for my $n ($from .. $from + 199) {
        ask('/chat', '@@say {"b":1}', object('b'));
        ask('/chat', '@@say aaaa', guided_regex => "a{4}|b{$n}");
        ask('/chat', 'x', guided_regex => "(?<=a)b{$n}");
    }
}

wave(1);
my $rss = rss();
wave(201);
wave(401);
cmp_ok(rss(), '<', $rss + 1000, 'memory of the worker stays flat');

# ---------------------------------------------------------------- coalescing

# Takes long enough to compile for others to come meanwhile.  $end tells one
# from another.
sub slow {
    my ($end) = @_;

    return guided_regex => "(a|b)*a(a|b){12}$end";
}

sub slow_text { return 'a' x 13 . $_[0] }

my @clients = map { DI::Client->connect(port => $port) } 1 .. 8;
my $text = encode_json(body('@@say ' . slow_text('x'), slow('x')));
$changes = changes(sub {
    $_->request(POST => '/chat', $text) for @clients;
    is(join(' ', map { $_->response->{status} } @clients),
       join(' ', (200) x 8), 'eight requests with one grammar are answered');
}, qw(compiles_total cache_misses_total cache_hits_total));
is($changes->[0], 1, 'it was compiled once');
is($changes->[1] + $changes->[2], 8, 'each had looked for it');

# Those who wait may leave; the compilation goes on for the next one.
$text = encode_json(body('@@say ' . slow_text('y'), slow('y')));
my $before = metric('compiles_total');
$changes = changes(sub {
    my @gone = map { DI::Client->connect(port => $port) } 1 .. 3;
    $_->request(POST => '/chat', $text) for @gone;
    sleep(0.005);
    $_->rst for @gone;
    DI::Proc::eventually(sub { metric('compiles_total') > $before });
    $r = http_post($port, '/chat', $text);
}, 'compiles_total');
is($r->{status}, 200, 'after clients that left while it was compiled');
is($changes->[0], 1, 'it is there');
is_deeply([$nginx->workers], [$worker], 'and the worker has survived');

# --------------------------------------------------------------------- options

is(ask('/compact', '@@say {"a":1}', object('a'))->{status}, 200,
   'compact: no white space');
is(ask('/compact', '@@say {"a": 1}', object('a'))->{status}, 500,
   'compact: a blank is not allowed');
is(ask('/compact', '@@say {"a": 1}', object('a'), grammar_options =>
       { whitespace => 'flexible' })->{status}, 200,
   'but for a request that wants it');

my $from = length $one->log;
ask('/chat', '@@say {"a":1}', object('a'));
ask('/cut', '@@say {"a":1}', object('a'));
my @flags = substr($one->log, $from) =~ /^submit .* flags=(\d+)/mg;
is_deeply([map { $_ & 16 } @flags], [16, 0],
          'the engine is told whether to finish in time');

$r = ask('/small', 'x', slow('z'));
is($r->{status}, 400, 'a location with small limits');
like($r->{json}{error}{message}, qr/takes too (?:long|much)/, 'says so');
is(ask('/small', '@@say {"a":1}', object('a'))->{status}, 200,
   'and takes small ones');
is(ask('/inline', '@@say ' . slow_text('w'), slow('w'))->{status}, 200,
   'without a thread pool it is compiled in place');
is(ask('/inline', 'x', guided_regex => 'a{9,1}')->{status}, 400,
   'and refused in place');

my $schema = { type => 'array', items => { type => 'integer' },
            uniqueItems => JSON::PP::true, maxItems => 3 };
$r = ask('/chat', '@@say [1,2]', json_schema($schema));
is($r->{status}, 400, 'a keyword that is not held');
is($r->{json}{error}{param}, 'response_format.json_schema.schema',
   'names the field');
like($r->{json}{error}{message}, qr/uniqueItems.*#\/uniqueItems/,
     'the keyword and its path');
$r = ask('/chat', '@@say [1,2]', json_schema($schema),
         grammar_options => { best_effort => JSON::PP::true });
is($r->{status}, 200, 'is left out where the request allows it');
$r = ask('/chat', '@@say [1,2,3,4]', json_schema($schema),
         grammar_options => { best_effort => JSON::PP::true });
is($r->{status}, 500, 'and all else is held');

# -------------------------------------------------------------- other engines

# Each engine refuses what it gets: both were given the grammar.
$from = length $two->log;
$r = ask('/pair', '@@reject queue_full 1 1', object('a'), model => 'pair');
is($r->{status}, 429, 'a request that moved to another engine');
my $size = qr/^submit .* grammar=([1-9]\d+)/m;
my ($first) = ($one->log =~ /.*$size/s);
my ($second) = (substr($two->log, $from) =~ $size);
is($second, $first, 'took its grammar along');

my $b = { model => 'echo', prompt => ['@@say a', '@@say b', '@@say a'],
          n => 2, regex => '[ab]' };
$from = length $one->log;
is(http_post($port, '/completions', encode_json($b))->{status}, 200,
   'prompts that run side by side');
is(scalar(() = substr($one->log, $from) =~ /$size/g), 3,
   'all have their grammar');

# ----------------------------------------------------------------- many tools

my @tools = map { my $n = $_; { type => 'function', function => {
    name => "tool_$n", strict => JSON::PP::true,
    description => 'What it does. ' x 8,
    parameters => { type => 'object', additionalProperties => JSON::PP::false,
                    properties => { map { ("argument_${n}_$_" => {
        type => (qw(string integer boolean number))[$_ % 4],
        description => 'What it is for, at length. ' x 3 }) } 1 .. 11 },
                    required => ["argument_${n}_1"] } } } } 1 .. 58;

sub call {
    my ($n, $value) = @_;

    return encode_json(body(qq(\@\@say <tool_call>\\n{"name": "tool_$n", )
        . qq("arguments": {"argument_${n}_1": $value}}\\n</tool_call>),
        tools => \@tools, tool_choice => 'required'));
}

cmp_ok(length call(7, 5), '>', 97_000, '58 tools of 11 arguments each');
my $start = time;
$r = http_post($port, '/tools', call(57, 5));
diag(sprintf('58 tools took %.2f s', time - $start));
is($r->{status}, 200, 'are a grammar');
is($r->{json}{choices}[0]{message}{tool_calls}[0]{function}{name}, 'tool_57',
   'by which one is called');
is(http_post($port, '/tools', call(57, '"five"'))->{status}, 500,
   'with the arguments that it has');

# ----------------------------------------------------------------------- bombs

my $deep = { type => 'string' };
$deep = { type => 'array', items => $deep } for 1 .. 50;
my %doubling = map { ("d$_" => { allOf => [map { { '$ref' => $_ } }
                     ('#/$defs/d' . ($_ + 1)) x 2] }) } 0 .. 30;
my $text_deep = '{"type":"array","items":' x 5000 . '{}' . '}' x 5000;
my %bombs = (
    'a huge repetition' => [guided_regex => 'a{1,100000}'],
    'nested repetitions' => [guided_regex => '((a{1,999}){1,999}){1,999}'],
    'an exponential expression' => [guided_regex => '(a|b)*a(a|b){40}'],
    '60,000 parentheses' => [guided_regex => '(' x 60000 . ')' x 60000],
    'an anchor repeated' => [guided_regex => '^+[a-z]$'],
    'a repeated anchor' => [guided_regex => '^{2}x$'],
    'look-behind' => [guided_regex => '(?<=x)*'],
    'a huge enumeration' => [json_schema({ enum => [map {
        join('', map { chr(97 + int rand 26) } 1 .. 40) } 1 .. 40_000] })],
    'doubling references' => [json_schema({ '$ref' => '#/$defs/d0', '$defs' =>
        { %doubling, d31 => { type => 'string', minLength => 2 } } })],
    'a huge length' => [json_schema({ type => 'string', minLength => 9**9 })],
    'rules without an end' => [guided_grammar => 'root ::= "a" root'],
    'rules that are not there' => [guided_grammar => 'root ::= nothing'],
    'a schema nested 5,000 deep' => \$text_deep,
);

# A stream says that the worker goes on meanwhile.
my $stream = DI::Client->connect(port => $port);
$stream->request(POST => '/chat', body("\@\@every 20\n\@\@repeat 8000 a",
                                       stream => JSON::PP::true,
                                       max_tokens => 8000));
$stream->read_event;
my ($worst, $longest) = (0, 0);
for my $name (sort keys %bombs) {
    my $bomb = $bombs{$name};
    my $client = DI::Client->connect(port => $port);
    $text = ref $bomb eq 'ARRAY' ? encode_json(body('x', @$bomb))
        : '{"model":"echo","messages":[{"role":"user","content":"x"}],'
          . qq("guided_json":$$bomb});
    $start = time;
    $client->request(POST => '/chat', $text);
    my $head;
    while (!($head = $client->read_head(0.001))) {
        my $before = time;
        $stream->read_event or last;
        $worst = time - $before if time - $before > $worst;
    }
    $head //= $client->read_head;
    $longest = time - $start if time - $start > $longest;
    is($head && $head->{status}, 400, "$name is refused");
}
cmp_ok($worst, '<', 0.5 > $longest / 2 ? 0.5 : $longest / 2,
       'while a stream goes on');
is_deeply([$nginx->workers], [$worker], 'and the worker is the same');
$stream->close;

is(ask('/chat', '@@say [[]]', json_schema($deep))->{status}, 200,
   'what is merely deep is held');

unlike($nginx->log, qr/\[(?:alert|crit|emerg)\]/,
       'nothing is wrong in the log');

# ---------------------------------------------------------- other settings

$nginx->configure(http => http('off'),
                  server => $server);
$nginx->reload;
is_deeply(changes(sub { ask('/chat', '@@say {"z":1}', object('z')) for 1, 2 },
                  qw(compiles_total cache_hits_total)), [2, 0],
          'a cache that is off keeps nothing');

done_testing();
