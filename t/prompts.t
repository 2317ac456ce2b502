# Completions with several prompts: all at once, in order in the answer, and
# as many as the engine's queue takes.

use strict;
use warnings;

use DI::Client qw(decode_json encode_json http_post);
use DI::Engine;
use DI::Nginx;
use DI::Proc;
use Test::More;
use Time::HiRes qw(time);

my $echo = DI::Engine->start(kind => 'echo');
my $model = DI::Engine->start(kind => 'model', args => [
    '--max-seqs', 2, '--queue', 2, '--max-model-len', 256, '--threads', 1]);

my $nginx = DI::Nginx->start(workers => 1, http => <<"END", server => <<'END2');
    deepinfer_pool echo {
        model  @{[$echo->model]};
        engine unix:@{[$echo->socket_path]};
    }
    deepinfer_pool small {
        model  @{[$model->model]};
        engine unix:@{[$model->socket_path]};
    }
END
        location = /echo { deepinfer_pass echo; deepinfer_api completions; }
        location = /small { deepinfer_pass small; deepinfer_api completions; }
        location = /metrics { deepinfer_api metrics; }
END2
my $port = $nginx->port;

sub ask {
    my ($pool, $prompts, %more) = @_;

    return http_post($port, "/$pool", encode_json({
                     model => $pool, prompt => $prompts, %more }));
}

sub texts { return join('|', map { $_->{text} } @{ $_[0]{json}{choices} }) }

# ---------------------------------------------------------------- side by side

my $start = time;
my $r = ask(echo => ["\@\@first 2000\n\@\@say one",
                     "\@\@first 1800\n\@\@say two",
                     "\@\@cached 3\n\@\@first 1900\n\@\@say three"]);
my $took = time - $start;
is($r->{status}, 200, 'three prompts');
is(texts($r), 'one|two|three', 'come back in their order');
is_deeply([map { $_->{index} } @{ $r->{json}{choices} }], [0, 1, 2],
          'with their indexes');
cmp_ok($took, '<', 3.7, 'and did not wait for each other');
my $usage = $r->{json}{usage};
my $alone = 0;
$alone += ask(echo => $_)->{json}{usage}{prompt_tokens}
    for "\@\@first 1\n\@\@say one", "\@\@first 1\n\@\@say two";
cmp_ok($usage->{prompt_tokens}, '>', $alone, 'prompt tokens are summed');
is($usage->{prompt_tokens_details}{cached_tokens}, 3, 'and cached ones');

# A stream has the choices as they come: the second prompt ends first.
my $client = DI::Client->connect(port => $port);
$client->request(POST => '/echo', {
    model => 'echo', n => 2, stream => JSON::PP::true,
    prompt => ["\@\@say a\n\@\@wait 400\n\@\@say b", "\@\@say c"] });
my (%text, @ended);
for my $event ($client->read_events) {
    next if $event->{data} eq '[DONE]';
    for my $choice (@{ decode_json($event->{data})->{choices} }) {
        $text{$choice->{index}} .= $choice->{text};
        push @ended, $choice->{index} if defined $choice->{finish_reason};
    }
}
is_deeply(\%text, { 0 => 'ab', 1 => 'ab', 2 => 'c', 3 => 'c' },
          'a stream has the text of each choice');
is_deeply([map { $_ < 2 ? 'first' : 'second' } @ended],
          ['second', 'second', 'first', 'first'], 'as they come');

# ----------------------------------------------------------------- full queues

# A prompt that the engine has no room for waits for another one to end.
my $log = length $echo->log;
$r = ask(echo => ["\@\@first 300\n\@\@say a", "\@\@reject queue_full 2 1"]);
is($r->{status}, 429, 'a queue that stays full is an error in the end');
is($r->{json}{error}{code}, 'queue_full', 'which says so');
is(scalar(() = substr($echo->log, $log) =~ /^submit /mg), 3,
   'but the prompt was tried again when the other one had ended');

my @prompts = map { "Count to $_:" } 1 .. 9;
my %eight = (max_tokens => 8, temperature => 0, ignore_eos => JSON::PP::true);
$r = ask(small => \@prompts, %eight);
is($r->{status}, 200, 'nine prompts for an engine that takes four at a time');
is(texts($r),
   join('|', map { texts(ask(small => $_, %eight)) } @prompts),
   'say the same as one by one');
is($r->{json}{usage}{completion_tokens}, 72, 'completion tokens are summed');

# ---------------------------------------------------------------------- errors

$r = ask(echo => ["\@\@first 5000\n\@\@say a", "\@\@finish error"]);
is($r->{status}, 500, 'one that fails ends them all');
ok(DI::Proc::eventually(sub { $echo->log =~ /^cancel /m }),
   'the engine is told to drop the others');

$r = ask(echo => ["\@\@say a\n\@\@first 200", "\@\@die"]);
is($r->{status}, 503, 'an engine that dies is an error');
unlike($nginx->log, qr/\[(?:alert|crit|emerg)\]/,
       'nothing is wrong in the log');

done_testing();
