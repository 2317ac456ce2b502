# Mixed load on a real model, with clients that leave, engines that are killed
# and reloads: nothing may be lost, nothing may be left.
#
# SOAK_SECONDS is how long it lasts (60; `make soak` takes half an hour).  Two
# engines serve one pool; the first lives through it all, the second is
# killed again and again.  Clients are processes of their own.  Each answer to
# a known request must be what it was at the beginning, when it was alone:
# that an engine is busy, what its cache holds and where a request went change
# no token.

use strict;
use warnings;

use DI::Client qw(http_get decode_json);
use DI::Engine;
use DI::Nginx;
use DI::Proc;
use List::Util qw(sum0);
use Test::More;
use Time::HiRes qw(time);

# Seconds that anything may take on a machine that others overload: what is
# looked for is loss and leaks, not slowness.
use constant PATIENCE => 180;

my $seconds = $ENV{SOAK_SECONDS} // 60;
my $clients = 6;
my $seed = $ENV{SOAK_SEED} // time % 1_000_000;

my $kv_mib = 128;
my @args = ('--threads', 1, '--no-pin', '--kv-memory', "${kv_mib}m",
            '--max-model-len', 2048, '--queue', 64);
my @engine = map { DI::Engine->start(kind => 'model', args => \@args) } 1, 2;

my $pool = join "\n", map { 'engine unix:' . $_->socket_path . ';' } @engine;
my $nginx = DI::Nginx->start(
    workers => 2,
    http    => "deepinfer_pool m { model $ENV{TEST_NGINX_DEEPINFER_MODEL};\n"
               . "$pool }",
    server  => <<'END',
        location = /v1/chat/completions {
            deepinfer_pass m;
            deepinfer_api chat;
        }
        location = /metrics { deepinfer_api metrics; }
        location = /health { deepinfer_api health; }
END
);
my $uri = '/v1/chat/completions';

# Requests whose answers are known once they were asked.
my $long = join ' ', map { "Item $_ costs $_ coins." } 1 .. 90;
my @known = map { {
    model => 'm', max_tokens => 24, seed => 7, %$_,
} } (
    { temperature => 0, messages => [user('Name three colours.')] },
    { temperature => 0, messages => [user("$long What does item 7 cost?")] },
    { temperature => 0, messages => [user("$long What does item 9 cost?")] },
    { temperature => 1, messages => [user('Tell me about the sea.')] },
    { temperature => 0.7, top_p => 0.9, top_k => 40, n => 2,
      messages => [user('Write a line of a poem.')] },
    { temperature => 0, stop => ['.'], presence_penalty => 0.5,
      messages => [user('What is nginx?')] },
);

sub user { { role => 'user', content => $_[0] } }

sub post {
    my ($body) = @_;
    my $c = DI::Client->connect(port => $nginx->port);

    $c->request('POST', $uri, $body, Connection => 'close');
    return $c->response(PATIENCE);
}

# The texts of all choices.
sub texts {
    my ($json) = @_;

    return join "\0", map { $_->{message}{content} }
           sort { $a->{index} <=> $b->{index} } @{ $json->{choices} };
}

ok(DI::Proc::wait_until(PATIENCE, sub {
    http_get($nginx->port, '/health')->{status} == 200;
}), 'healthy');
my @answer = map { texts(post($_)->{json}) } @known;
is(scalar(grep { length } @answer), scalar @known, 'known answers');

# --------------------------------------------------------------- clients --

# What a client may do; each returns a word for the count, or dies.

sub whole {
    my ($i) = @_;
    my $r = post($known[$i]);

    return 'shed' if refused($r->{status}, $r->{headers});
    die "status $r->{status}: $r->{body}\n" if $r->{status} != 200;
    die "another answer to $i\n" if texts($r->{json}) ne $answer[$i];
    return 'whole';
}

# Refusals that a client is asked to come back from.
sub refused {
    my ($status, $headers) = @_;

    return 0 if $status != 429 && $status != 503;
    die "$status without Retry-After\n" if !$headers->{'retry-after'};
    return 1;
}

sub open_stream {
    my ($i, %arg) = @_;
    my $c = DI::Client->connect(port => $nginx->port, %arg);

    $c->request('POST', $uri, { %{ $known[$i] }, stream => \1 },
                Connection => 'close');
    my $head = $c->read_head(PATIENCE) // die "no response\n";
    return (undef, 'shed') if refused($head->{status}, $head->{headers});
    die "status $head->{status}\n" if $head->{status} != 200;
    return $c;
}

sub stream {
    my ($i, $pause) = @_;
    my ($c, $shed) = open_stream($i, $pause ? (rcvbuf => 4096) : ());
    my (@text, $last);

    return $shed if $shed;
    while (my $event = $c->read_event(PATIENCE)) {
        DI::Proc::pause($pause) if $pause;
        $last = $event->{data} // next;
        next if $last eq '[DONE]';
        my $chunk = decode_json($last);
        return 'error event' if $chunk->{error};
        $text[$_->{index}] .= $_->{delta}{content} // ''
            for @{ $chunk->{choices} };
    }
    die "the stream was cut\n" if !$c->done || ($last // '') ne '[DONE]';
    die "another stream of $i\n" if join("\0", @text) ne $answer[$i];
    return 'stream';
}

sub leave {
    my ($i) = @_;
    my ($c, $shed) = open_stream($i);

    return $shed if $shed;
    for (1 .. rand(8)) {
        $c->read_event(PATIENCE) or last;
    }
    rand() < 0.5 ? $c->rst : $c->close;
    return 'left';
}

sub leave_early {
    my ($i) = @_;
    my $c = DI::Client->connect(port => $nginx->port);

    $c->request('POST', $uri, $known[$i]);
    DI::Proc::pause(rand(0.2));
    $c->rst;
    return 'left early';
}

sub nonsense {
    my $r = post('{"model":"m","messages":[{');

    die "status $r->{status} for nonsense\n" if $r->{status} != 400;
    return 'nonsense';
}

sub one_turn {
    my $i = int rand @known;
    my $dice = rand;

    return $dice < 0.30 ? whole($i)
           : $dice < 0.60 ? stream($i)
           : $dice < 0.70 ? stream($i, 0.02)
           : $dice < 0.85 ? leave($i)
           : $dice < 0.95 ? leave_early($i)
           : nonsense();
}

# Until a file says stop; then the counts go to another one.
my $dir = DI::Proc::tempdir();

sub client {
    my ($id) = @_;
    my (%count, @trouble);

    srand($seed + $id);
    while (!-e "$dir/stop") {
        my $word = eval { one_turn() };
        $count{$word}++ if defined $word;
        push @trouble, $@ if !defined $word;
    }
    DI::Proc::spew("$dir/$id", join '', map({ "$_\t$count{$_}\n" }
                                            sort keys %count),
                   map { "TROUBLE\t$_" } @trouble);
}

# ------------------------------------------------------------ the minutes --

# Both engines tell, and nothing runs, waits or holds a block.
sub idle {
    my $text = http_get($nginx->port, '/metrics')->{body};
    my @held = $text =~ /^deepinfer_(?:engine_running|engine_waiting|
                         kv_blocks)\{(?![^}]*state="(?:cached|free)")[^}]*\}
                         [ ]([0-9.]+)$/mgx;

    return @held == 6 && sum0(@held) == 0;
}

# Descriptors and resident memory of everything that lives on.
sub holdings {
    my %rss = map { ("worker $_" => rss_kb($_)) } $nginx->workers;
    my %fds = map { ("worker $_" => fds($_)) } $nginx->workers;

    $rss{'engine 1'} = $engine[0]->rss_kb;
    $fds{'engine 1'} = $engine[0]->fd_count;
    return { rss => \%rss, fds => \%fds };
}

sub rss_kb {
    return DI::Proc::slurp("/proc/$_[0]/status") =~ /^VmRSS:\s+(\d+)/m
           ? $1 : 0;
}

sub fds { return scalar(() = glob("/proc/$_[0]/fd/*")) }

diag("$seconds s, $clients clients, SOAK_SEED=$seed");
my $started = time;
my @pids = map {
    my $id = $_;
    DI::Proc::fork_child("client $id", sub { client($id) });
} 1 .. $clients;

# First half: kills and reloads.  Second half: kills alone, so that the same
# workers can be compared at its two ends.
my ($kills, $reloads, $before) = (0, 0, undef);

while ((my $gone = time - $started) < $seconds) {
    DI::Proc::pause(2 + rand(3));
    $engine[1]->kill_with('KILL');
    $kills++;
    DI::Proc::pause(rand(1));
    $engine[1]->run;
    if ($gone < $seconds / 2) {
        $nginx->reload;
        $reloads++;
    } elsif (!$before) {
        $before = holdings();
    }
}

DI::Proc::spew("$dir/stop", '');
ok(DI::Proc::wait_until(PATIENCE, sub { !grep { DI::Proc::alive($_) } @pids }),
   'the clients come to an end');

my (%count, @trouble);
for my $id (1 .. $clients) {
    for my $line (split /\n/, DI::Proc::slurp("$dir/$id")) {
        my ($word, $value) = split /\t/, $line, 2;
        $word eq 'TROUBLE' ? push @trouble, $value
                           : ($count{$word} += $value);
    }
}
diag("$kills kills, $reloads reloads; ",
     join ', ', map { "$_: $count{$_}" } sort keys %count);

is_deeply(\@trouble, [], 'no client met what it must not meet');
cmp_ok($count{whole} // 0, '>', 0, 'whole answers came');
cmp_ok($count{stream} // 0, '>', 0, 'streams came');

# -------------------------------------------------------------- afterwards --

ok(DI::Proc::wait_until(PATIENCE, \&idle),
   'no sequence runs or waits, no block is held')
    or diag(http_get($nginx->port, '/metrics')->{body});
is(texts(post($known[0])->{json}), $answer[0],
   'and it answers as ever');

# A worker may have been between two connections to the killed engine when it
# was looked at first: that is 4 descriptors.  An engine touches its KV memory
# as it needs it; a short run may not have touched all by half time.
my $after = holdings();
for my $who (sort keys %{ $before->{fds} }) {
    cmp_ok($after->{fds}{$who} // 1e9, '<=', $before->{fds}{$who} + 6,
           "descriptors of $who");
    my $growth = ($after->{rss}{$who} // 1e9) - $before->{rss}{$who};
    my $kv = $who =~ /engine/ && $seconds < 600 ? $kv_mib * 1024 : 0;
    cmp_ok($growth, '<=', 4096 + $before->{rss}{$who} / 20 + $kv,
           "memory of $who: $growth kB more");
}

my @odd = grep { !/engine .* is (?:gone|connected)/ } $nginx->complaints;
is_deeply(\@odd, [], 'nginx has nothing to complain of');
ok($engine[0]->alive, 'the first engine lived through it');
is($nginx->stop(30), 1, 'nginx leaves in time');
is($_->stop, 0, 'an engine drains') for @engine;

done_testing();
