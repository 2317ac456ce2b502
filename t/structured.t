# Structured output from a real model at temperature 1.5, which keeps to
# nothing by itself: every API, every kind of constraint, streams, choices,
# budgets, tools; and the schemas that other servers have tripped over.
#
# What the model says differs between CPUs and seeds ($STRUCTURED_SEED), so
# only what a grammar or a budget makes it say is checked.

use strict;
use warnings;

use DI::Client qw(decode_json encode_json http_get http_post);
use DI::Engine;
use DI::Nginx;
use DI::Proc;
use Test::More;
use Time::HiRes qw(time);

my $engine = DI::Engine->start(kind => 'model', args => [
    qw(--threads 1 --no-pin --kv-memory 256m --max-model-len 2048)]);
my ($true, $false) = (JSON::PP::true, JSON::PP::false);

my $nginx = DI::Nginx->start(workers => 1, http => <<"END", server => <<'END2');
    deepinfer_pool m {
        model  @{[$engine->model]};
        engine unix:@{[$engine->socket_path]};
    }
    deepinfer_pool tools {
        model   @{[$engine->model]};
        engine  unix:@{[$engine->socket_path]};
        dialect qwen;
        alias   t;
    }
    deepinfer_grammar_cache 8m;
END
        client_body_buffer_size 1m;
        location = /chat { deepinfer_pass m; }
        location = /completions {
            deepinfer_pass m;
            deepinfer_api  completions;
        }
        location = /responses { deepinfer_pass m; deepinfer_api responses; }
        location = /messages { deepinfer_pass m; deepinfer_api messages; }
        location = /tools/chat { deepinfer_pass tools; }
        location = /tools/responses {
            deepinfer_pass tools;
            deepinfer_api  responses;
        }
        location = /tools/messages {
            deepinfer_pass tools;
            deepinfer_api  messages;
        }
        location = /compact {
            deepinfer_pass m;
            deepinfer_grammar_whitespace compact;
        }
        location = /cut { deepinfer_pass m; deepinfer_grammar_finish off; }
        location = /metrics { deepinfer_api metrics; }
END2
my $port = $nginx->port;
my ($worker) = $nginx->workers;
my $seed = int($ENV{STRUCTURED_SEED} // rand 1_000_000);
diag("seeds from $seed");

sub post {
    my ($uri, %fields) = @_;

    return http_post($port, $uri, encode_json({
        model => $uri =~ /tools/ ? 't' : 'm', temperature => 1.5, %fields }));
}

sub user { return messages => [{ role => 'user', content => $_[0] }] }

sub chat {
    my ($uri, %fields) = @_;

    return post($uri, user('Tell me of Paris.'), max_tokens => 300,
                seed => $seed++, %fields);
}

# The only choice's text; what it ends by is checked, too.
sub text {
    my ($r, $reason) = @_;

    return "$r->{status}: $r->{body}" if $r->{status} != 200;
    my ($choice) = @{ $r->{json}{choices} };
    return "ended by $choice->{finish_reason}"
        if $choice->{finish_reason} ne ($reason // 'stop');
    return $choice->{message}{content} // $choice->{text};
}

# JSON in a text, which has characters, not bytes.
my $json = JSON::PP->new->allow_nonref;

sub json {
    my @value = eval { ($json->decode($_[0])) };

    return @value ? $value[0] : "no JSON: $_[0]";
}

sub is_object {
    my ($value, $name) = @_;

    is(ref $value, 'HASH', $name) or diag(explain($value));
}

sub json_schema {
    my ($schema, %more) = @_;

    return response_format => { type => 'json_schema', json_schema => {
        name => 'it', schema => $schema, %more } };
}

sub object {
    my ($properties, @more) = @_;

    return { type => 'object', properties => $properties, @more,
             required => [sort keys %$properties],
             additionalProperties => $false };
}

my $place = object({ city => { type => 'string', maxLength => 12 },
                     days => { type => 'integer', minimum => 1,
                               maximum => 7 } });
my @place = qw(city days);

sub is_place {
    my ($value, $name) = @_;

    ok(ref $value eq 'HASH' && join(' ', sort keys %$value) eq "@place"
       && length $value->{city} <= 12 && $value->{days} =~ /^[1-7](?:\.0)?$/,
       $name) or diag(explain($value));
}

# ------------------------------------------------------------ kinds, by chat

is_place(json(text(chat('/chat', json_schema($place)))), 'a schema');
is_place(json(text(chat('/chat', json_schema($place, strict => $true)))),
         'a strict schema');
is_place(json(text(chat('/chat', json_schema($place), temperature => 0))),
         'a schema at temperature 0');
my $text = text(chat('/compact', json_schema($place)));
is_place(json($text), 'a schema without white space');
(my $bare = $text) =~ s/"(?:[^"\\]|\\.)*"/""/g;
unlike($bare, qr/\s/, 'which has none outside its strings');
like(text(chat('/chat', guided_regex => '[a-f]{4}(-[0-9]{2}){2}')),
     qr/^[a-f]{4}(?:-[0-9]{2}){2}$/, 'a regular expression');
like(text(chat('/chat', guided_choice => ['yes', 'no', 'perhaps not'])),
     qr/^(?:yes|no|perhaps not)$/, 'a choice');
like(text(chat('/chat', guided_grammar =>
               "root ::= \"(\" root \")\" | [0-9]{1,2}")),
     qr/^(\((?1)\)|[0-9]{1,2})$/, 'a grammar that is no regular one');
is_object(json(text(chat('/chat', user('Some json.'), max_tokens => 400,
                         response_format => { type => 'json_object' }))),
          'JSON mode');

my $r = chat('/chat', json_schema($place), n => 4);
is_place(json($_->{message}{content}), "choice $_->{index} of four")
    for @{ $r->{json}{choices} };

# ---------------------------------------------------------- other surfaces

my @texts = map { $_->{text} } @{ post('/completions', max_tokens => 40,
    prompt => ['Paris is', 'Rome is', 'Oslo is'], n => 2, seed => $seed++,
    regex => '[a-z]{3,6}!')->{json}{choices} };
is(scalar(@texts), 6, 'three prompts with two choices each');
is(scalar(grep { /^[a-z]{3,6}!$/ } @texts), 6, 'all hold their expression');

my $client = DI::Client->connect(port => $port);
$client->request(POST => '/chat', { model => 'm', user('Paris?'),
    temperature => 1.5, stream => $true, max_tokens => 300, seed => $seed++,
    json_schema($place) });
is_place(json(DI::Client::stream_text(0, $client->read_events)), 'a stream');

my %format = (type => 'json_schema', name => 'it', schema => $place);
$r = post('/responses', input => 'Paris?', max_output_tokens => 300,
          text => { format => \%format });
is($r->{json}{status}, 'completed', 'a response is complete');
is_place(json($r->{json}{output}[0]{content}[0]{text}), 'and holds its format');
$client->request(POST => '/responses', { model => 'm', input => 'Paris?',
    temperature => 1.5, stream => $true, max_output_tokens => 300,
    text => { format => \%format } });
my ($done) = grep { ($_->{event} // '') eq 'response.output_text.done' }
             $client->read_events;
is_place(json(decode_json($done->{data})->{text}), 'a stream of Responses');

$r = post('/messages', user('Paris?'), max_tokens => 300, output_config => {
          format => { type => 'json_schema', schema => $place } });
is_place(json($r->{json}{content}[0]{text}), "Messages' output_config");

# ------------------------------------------------------------------ budgets

$r = chat('/chat', json_schema($place), max_tokens => 3);
is($r->{json}{choices}[0]{finish_reason}, 'length',
   'a budget that no end fits in is a cut');
for my $budget (25, 30, 40, 60) {
    is_place(json(text(chat('/chat', json_schema($place),
                            max_tokens => $budget))),
             "a budget of $budget tokens has an end in time");
}

# The model would end here only where nothing else is left to it.
my %endless = (logit_bias => { 0 => -100, 2 => -100 }, max_tokens => 20);
my @ends = map { chat($_->[0], regex => $_->[1], %endless)
                 ->{json}{choices}[0]{finish_reason} }
           ['/chat', '[a-z]{900}'], ['/cut', '[a-z]{900}'],
           ['/chat', '[a-z]{1,900}'], ['/cut', '[a-z]{1,900}'];
is("@ends", 'length length stop length', 'and only where it is wanted');

# -------------------------------------------------------------------- tools

my @tools = ({ name => 'weather', parameters => $place },
             { name => 'route', parameters => object({
                   to => { enum => ['Oslo', 'Rome'] } }) });

sub call_of {
    my ($r) = @_;

    return "$r->{status}: $r->{body}" if $r->{status} != 200;
    my ($call) = @{ $r->{json}{choices}[0]{message}{tool_calls} // [] };
    return $call ? [$call->{function}{name},
                    json($call->{function}{arguments})] : $r->{body};
}

my @functions = map { { type => 'function',
                        function => { %$_, strict => $true } } } @tools;
for (1 .. 4) {
    my $call = call_of(chat('/tools/chat', tools => \@functions,
                            tool_choice => 'required'));

    if (ref $call && $call->[0] eq 'weather') {
        is_place($call->[1], 'a forced call');
    } else {
        ok(ref $call && $call->[0] eq 'route'
           && $call->[1]{to} =~ /^(?:Oslo|Rome)$/, 'a forced call')
            or diag(explain($call));
    }
}
is(call_of(chat('/tools/chat', tools => \@functions, tool_choice => {
       type => 'function', function => { name => 'route' } }))->[0], 'route',
   'a named tool is the one that is called');
is(call_of(chat('/tools/chat', tool_choice => 'required', tools => [{
       type => 'function', function => { name => 'plain', parameters => {
           type => 'object', properties => { a => { const => 1 } },
           required => ['a'], additionalProperties => $false } } }]))
       ->[0], 'plain', 'a forced call of a tool that is not strict');

$r = post('/tools/responses', input => 'Rome?', max_output_tokens => 300,
          tools => [map { { type => 'function', strict => $true, %$_ } }
                    @tools], tool_choice => 'required');
my ($item) = grep { $_->{type} eq 'function_call' } @{ $r->{json}{output} };
like($item->{name}, qr/^(?:weather|route)$/, 'Responses: a forced call');
is(ref json($item->{arguments}), 'HASH', 'with arguments');

$r = post('/tools/messages', user('Rome?'), max_tokens => 300,
          tool_choice => { type => 'tool', name => 'weather' },
          tools => [map { { name => $_->{name}, strict => $true,
                            input_schema => $_->{parameters} } } @tools]);
($item) = grep { $_->{type} eq 'tool_use' } @{ $r->{json}{content} };
is_place($item->{input}, 'Messages: a named tool');

# ------------------------------------- what other servers have tripped over

is_object(json(text(chat('/chat', json_schema({ type => 'object' })))),
          '{"type": "object"} is any object');
unlike(json(text(chat('/chat', guided_json => $_))) // 'null', qr/^no JSON/,
       encode_json($_) . ' is any value') for {}, $true;

# References, arrays of references.
my $math = json(text(chat('/chat', json_schema({
    '$defs' => { Step => object({
        explanation => { type => 'string', maxLength => 15 },
        output => { type => 'string', maxLength => 9 } }) },
    %{ object({ steps => { type => 'array', minItems => 1, maxItems => 2,
                           items => { '$ref' => '#/$defs/Step' } },
                final_answer => { type => 'string', maxLength => 9 } }) },
}))));
ok(ref $math eq 'HASH' && @{ $math->{steps} } >= 1
   && !grep({ join(' ', sort keys %$_) ne 'explanation output' }
            @{ $math->{steps} }), 'an array of references')
    or diag(explain($math));

# An escape that is none elsewhere.
is(json(text(chat('/chat', json_schema({ type => 'string',
       pattern => '^hello there\\!$' })))), 'hello there!',
   'a pattern with an escaped mark');
for my $bad ('^+[a-z]$', '^{2}x$', '(?<=x)*', 'a\\1') {
    $r = chat('/chat', json_schema({ type => 'string', pattern => $bad }));
    is($r->{status}, 400, "the pattern $bad");
    is($r->{json}{error}{param}, 'response_format.json_schema.schema',
       'is a fault of the schema');
}
$r = chat('/chat', json_schema({ properties => { a => {
          pattern => '(?<=x)y' } } }));
like($r->{json}{error}{message}, qr/pattern.*\/a.*look-?|look-?.*\/a/,
     'one that is well-formed is named, with its path');

# 100 tools, 300 KB: while they are compiled, a stream goes on.
my @many = map { my $n = $_; { type => 'function', function => {
    name => "tool_$n", strict => $true, description => 'What it does. ' x 20,
    parameters => object({ map { ("argument_${n}_$_" => {
        type => (qw(string integer boolean number))[$_ % 4],
        description => 'What it is for, at some length. ' x 6 }) }
        1 .. 10 }) } } } 1 .. 100;
my $body = encode_json({ model => 't', user('Rome?'), tools => \@many,
                         tool_choice => 'required', max_tokens => 4 });
cmp_ok(length $body, '>', 250_000, '100 tools');
$client->request(POST => '/chat', { model => 'm', user('Count.'),
    stream => $true, max_tokens => 1500, ignore_eos => $true });
$client->read_event;
my $other = DI::Client->connect(port => $port);
my ($head, $worst, $start) = (undef, 0, time);
$other->request(POST => '/tools/chat', $body);
while (!($head = $other->read_head(0.001))) {
    my $before = time;

    $client->read_event or last;
    $worst = time - $before if time - $before > $worst;
}
$head //= $other->read_head;
my $took = time - $start;
diag(sprintf('100 tools were answered in %.2f s, worst gap of a stream %.2f s',
             $took, $worst));
is($head && $head->{status}, 400, 'do not fit this model');
like($other->read_body, qr/context_length_exceeded/, 'but are no bad grammar');
cmp_ok($worst, '<', 2 > $took / 2 ? 2 : $took / 2, 'and the stream went on');
$client->close;

# ------------------------------------------------------------------- the end

http_get($port, '/metrics')->{body}
    =~ /^deepinfer_grammar_cache_hits_total (\d+)$/m;
cmp_ok($1, '>', 8, 'what was asked before was found in the cache');
is_deeply([$nginx->workers], [$worker], 'the worker is the first one');
ok($engine->alive, 'and the engine lives');
is(join("\n", $nginx->complaints), '', 'nothing wrong in the error log');

done_testing();
