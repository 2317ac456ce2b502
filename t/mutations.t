# Rich bodies of every API, each value in them replaced by each of many others,
# or left out: whatever comes of it is an answer or an error that says why, in
# the API's own shape, and the worker lives.

use strict;
use warnings;

use DI::Client qw(decode_json encode_json http_get);
use DI::Engine;
use DI::Nginx;
use DI::Proc;
use File::Basename qw(dirname);
use IO::Uncompress::Gunzip qw(gunzip $GunzipError);
use JSON::PP ();
use Test::More;

my ($true, $false) = (JSON::PP::true, JSON::PP::false);

# DeepSeek-V4.1's spelling, which has tools and reasoning, in a small
# vocabulary.
my $model = DI::Proc::tempdir();
gunzip(dirname(__FILE__) . '/data/tokenizer/small/tokenizer.json.gz'
       => \my $tokenizer) or die "$GunzipError\n";
DI::Proc::spew("$model/tokenizer.json", $tokenizer);
DI::Proc::spew("$model/config.json", '{"model_type":"deepseek_v41"}');
my $engine = DI::Engine->start(kind => 'echo', model => $model);

my $nginx = DI::Nginx->start(workers => 1, level => 'notice',
                             http => <<"END", server => <<'END2');
    keepalive_requests 1000000;
    deepinfer_pool m {
        model  $model;
        engine unix:@{[$engine->socket_path]};
    }
END
    location = /chat { deepinfer_pass m; }
    location = /official {
        deepinfer_pass m;
        deepinfer_codec official;
    }
    location /v1/responses { deepinfer_pass m; deepinfer_api responses; }
    location = /messages { deepinfer_pass m; deepinfer_api messages; }
    location = /count { deepinfer_pass m; deepinfer_api count_tokens; }
    location = /completions { deepinfer_pass m; deepinfer_api completions; }
    location = /tokenize { deepinfer_pass m; deepinfer_api tokenize; }
    location = /detokenize { deepinfer_pass m; deepinfer_api detokenize; }
    location = /health { deepinfer_api health; }
END2
my $port = $nginx->port;
my ($worker) = $nginx->workers;
ok(DI::Proc::wait_until(10, sub {
    http_get($port, '/health')->{status} == 200;
}), 'healthy');

# ----------------------------------------------------------------- bodies --

my $schema = { type => 'object', properties => { a => { type => 'string' } },
               required => ['a'] };
my %sampling = (model => 'm', temperature => 0.5, top_p => 0.9, top_k => 3,
                min_p => 0.1, repetition_penalty => 1.1, seed => 7,
                min_tokens => 1, ignore_eos => $false, stop_token_ids => [5]);
my %openai = (%sampling, presence_penalty => 0.5, frequency_penalty => -0.5,
              user => 'u', stream => $false);
my %both = (%openai, max_tokens => 9, n => 2, stop => ['END', "\n\n"],
            logit_bias => { 5 => 1, 6 => -1 });
my $call = { id => 'c1', type => 'function',
             function => { name => 'f', arguments => '{"a":"b"}' } };
my @uses = ({ type => 'tool_use', id => 't1', name => 'f',
              input => { a => 'b' } });
my %messages = (%sampling, max_tokens => 9, stop_sequences => ['END'],
    system => [{ type => 'text', text => 's',
                 cache_control => { type => 'ephemeral' } }],
    metadata => { user_id => 'u' }, stream => $false,
    thinking => { type => 'enabled', budget_tokens => 1024,
                  display => 'omitted' },
    tools => [{ name => 'f', description => 'd', input_schema => $schema,
                allowed_callers => ['direct'] }],
    tool_choice => { type => 'auto', disable_parallel_tool_use => $true },
    messages => [
        { role => 'user', content => 'q' },
        { role => 'assistant', content => [
            { type => 'thinking', thinking => 'r', signature => 's' },
            { type => 'text', text => 't' }, @uses ] },
        { role => 'user', content => [
            { type => 'tool_result', tool_use_id => 't1', is_error => $true,
              content => [{ type => 'text', text => 'x' }] },
            { type => 'text', text => 'more' } ] },
    ]);
my %chat = (%both, logprobs => $true, top_logprobs => 2,
    parallel_tool_calls => $true, tool_choice => 'auto',
    reasoning_effort => 'high', thinking => { type => 'enabled' },
    response_format => { type => 'text' },
    tools => [{ type => 'function', function => {
                    name => 'f', description => 'd', parameters => $schema } },
              { type => 'custom', custom => {
                    name => 'c', format => { type => 'text' } } }],
    messages => [
        { role => 'developer', content => 'd', name => 'n' },
        { role => 'user', content => [{ type => 'text', text => 'q' }] },
        { role => 'assistant', content => 'a', reasoning_content => 'r',
          tool_calls => [$call] },
        { role => 'tool', tool_call_id => 'c1', content => 'x' },
        { role => 'user', content => 'q' },
    ]);

my @bodies = (
    ['/chat', \%chat],
    ['/chat', { model => 'm', messages => [{ role => 'user', content => 'q' }],
        max_tokens => 9, stream => $true,
        stream_options => { include_usage => $true },
        response_format => { type => 'json_schema', json_schema => {
            name => 'n', strict => $true, schema => $schema } },
        grammar_options => { any_order => $true, best_effort => $true,
                             whitespace => 'compact' } }],
    ['/chat', { model => 'm', max_tokens => 9,
        messages => [{ role => 'user', content => 'q' }],
        structured_outputs => { regex => '[a-c]+' } }],
    (map { ['/chat', { model => 'm', max_tokens => 9, %$_,
                       messages => [{ role => 'user', content => 'q' }] }] }
        { guided_choice => ['a', 'b'] }, { guided_regex => '[a-c]+' },
        { guided_grammar => 'root ::= "a"' }, { guided_json => $schema },
        { response_format => { type => 'regex', regex => 'a*' } },
        { tools => [$chat{tools}[0]], tool_choice => {
            type => 'function', function => { name => 'f' } } },
        { tools => $chat{tools}, tool_choice => {
            type => 'allowed_tools', allowed_tools => {
                mode => 'required', tools => [
                    { type => 'function', function => { name => 'f' } }] } } }),
    ['/messages', { model => 'm', max_tokens => 9,
        messages => [{ role => 'user', content => 'q' }],
        output_config => { effort => 'low', format => {
            type => 'json_schema', schema => $schema } } }],
    ['/v1/responses', { model => 'm', max_output_tokens => 9, input => 'q',
        stream => $true, text => { format => {
            type => 'json_schema', name => 'n', strict => $true,
            schema => $schema } } }],
    ['/official', { %chat{qw(model messages temperature top_p max_tokens seed
                             stop tool_choice thinking reasoning_effort)},
                    tools => [$chat{tools}[0]] }],
    ['/v1/responses', { %openai, max_output_tokens => 9, store => $true,
        previous_response_id => undef, instructions => 'i',
        metadata => { k => 'v' }, top_logprobs => 1,
        include => ['message.output_text.logprobs'],
        text => { format => { type => 'text' }, verbosity => 'medium' },
        reasoning => { effort => 'high', summary => 'auto' },
        tools => [{ type => 'function', name => 'f', parameters => $schema,
                    strict => $false },
                  { type => 'namespace', name => 'ns', tools => [
                    { type => 'function', name => 'g',
                      parameters => $schema }] }],
        input => [
            { type => 'message', role => 'user', content => 'q' },
            { type => 'reasoning', id => 'r1', summary => [], content => [
                { type => 'reasoning_text', text => 'r' }] },
            { type => 'function_call', call_id => 'c1', name => 'f',
              arguments => '{"a":"b"}' },
            { type => 'function_call_output', call_id => 'c1', output => [
                { type => 'input_text', text => 'x' }] },
            { role => 'user', content => [
                { type => 'input_text', text => 'q' }] },
        ] }],
    ['/messages', \%messages],
    ['/count', \%messages],
    ['/completions', { %both, prompt => ['a', 'b'], echo => $true,
                       logprobs => 2, best_of => 2 }],
    ['/completions', { model => 'm', max_tokens => 2,
                       prompt => [[5, 6], [7]] }],
    ['/tokenize', { model => 'm', prompt => 'a b', add_special_tokens => $true,
                    return_token_strs => $true }],
    ['/tokenize', { model => 'm', messages => $chat{messages},
                    tools => $chat{tools} }],
    ['/detokenize', { model => 'm', tokens => [5, 6] }],
);

# -------------------------------------------------------------- mutations --

my @others = map { JSON::PP->new->allow_nonref->decode($_) }
    'null', 'true', '0', '-1', '1.5', '9223372036854775808', '""', '"x"',
    '"' . 'long ' x 500 . '"', '[]', '[null]', '["x"]', '[5]', '{}',
    '{"type":"x"}', '{"a":{}}', '[' x 50 . ']' x 50;

# Call back with each place of a tree: how to set it, and how to leave it out.
sub places {
    my ($v, $path, $found) = @_;
    my @members = ref $v eq 'HASH'  ? map { ["$path.$_", \$v->{$_}, $_] }
                                      sort keys %$v
                : ref $v eq 'ARRAY' ? map { ["$path\[$_]", \$v->[$_]] }
                                      0 .. $#$v
                : ();

    for my $m (@members) {
        my ($at, $slot, $key) = @$m;

        $found->($at, $slot, defined $key ? sub { delete $v->{$key} } : undef,
                 defined $key ? sub { $v->{$key} = shift } : undef);
        places($$slot, $at, $found);
    }
}

my $client = DI::Client->connect(port => $port);
my ($n, %status, @wrong) = (0);

sub try {
    my ($uri, $body, $what) = @_;
    my $r;

    $n++;
    $client = DI::Client->connect(port => $port) if $client->eof;
    $client->request('POST', $uri, $body);
    $r = eval { $client->response(20) };
    if (!$r || !$r->{status}) {
        push @wrong, "$uri $what: no answer";
        $client = DI::Client->connect(port => $port);
        return;
    }
    @$client{qw(head done body left)} = (undef, 0, '', 0);
    $status{$r->{status}}++;
    return if $r->{status} == 200;

    # the echo engine answers what no grammar allows
    my $error = (eval { decode_json($r->{body}) } // {})->{error};
    return if ref $error eq 'HASH' && length($error->{message} // '')
              && ($r->{status} =~ /^40[04]$/
                  || ($error->{code} // '') eq 'engine_error'
                  || $error->{message} =~ /engine failed/);
    push @wrong, "$uri $what: $r->{status} $r->{body}";
}

for (@bodies) {
    my ($uri, $body) = @$_;
    my $copy = decode_json(encode_json($body));

    try($uri, $copy, 'as it is');
    places($copy, '', sub {
        my ($at, $slot, $without, $put_back) = @_;
        my $was = $$slot;

        for my $i (0 .. $#others) {
            $$slot = $others[$i];
            try($uri, $copy, "$at = other $i");
        }
        $$slot = $was;
        return if !$without;

        my $kept = $without->();
        try($uri, $copy, "without $at");
        $put_back->($kept);
    });
}

cmp_ok($n, '>', 4000, "$n requests");
is(join("\n", @wrong), '', 'each was answered, or told why not');
cmp_ok($status{200} // 0, '>', $n / 20, 'some are fine');
cmp_ok($status{400} // 0, '>', $n / 4, 'many are refused');
is(join(' ', $nginx->workers), $worker, 'the worker lives');
ok($engine->alive, 'and the engine');
ok($nginx->stop, 'nginx leaves when asked');
is(join("\n", $nginx->complaints), '', 'nothing wrong in the error log');

done_testing();
