# The released DeepSeek-V4.1-Flash itself, but for its weights: the published
# configuration, names, shapes and sizes, in files of holes.  `inspect` opens
# it as `serve` would; its figures are the published ones.

use strict;
use warnings;

use Cwd qw(abs_path);
use DI::Proc;
use File::Basename qw(dirname);
use JSON::PP;
use Test::More;

my $t = abs_path(dirname(__FILE__));
my $engine = $ENV{TEST_DEEPINFER_ENGINE} // "$t/../build/deepinfer-engine";
my $dir = DI::Proc::tempdir();
my $model = "$dir/flash";

sub output_of {
    my (@command) = @_;

    open(my $fh, '-|', @command) or die "$command[0]: $!\n";
    local $/;
    my $text = <$fh> // '';
    close($fh);
    is($?, 0, "$command[0] $command[1]: status");
    return $text;
}

my $made = decode_json(output_of("$t/bench/make_v41.py", 'hollow', $model));
is($made->{tensors}, 96_085, 'tensors, as published');
is($made->{bytes}, 510_286_023_000, 'bytes, as published');

# Disks that don't know of holes would have filled up before this.
my ($used) = output_of('du', '-sk', $model) =~ /^(\d+)/;
cmp_ok($used, '<', 200_000, 'the files are holes');

my @limits = ('--max-model-len', 65536, '--kv-memory', '100m');
my $text = output_of($engine, 'inspect', '--log-level', 'error', @limits,
                     $model);
my $tensors = 0;
$tensors += $1 while $text =~ /^(?:BF16|F32|F8\w+|I8) +in file +(\d+)/mg;
is($tensors, 96_085, 'inspect: tensors');
like($text, qr/^KV cache +890 bytes a token/m, 'inspect: KV bytes a token');

my $found = decode_json(output_of($engine, 'inspect', '--log-level', 'error',
                                  '--json', @limits, $model));
my $bytes = 0;
$bytes += $_ for values %{ $found->{file_bytes_by_type} };
is($bytes, 510_286_023_000, 'inspect: bytes');
is($found->{kv_bytes_per_token}, 890, 'inspect: KV bytes a token, JSON');
# Rings and pairs, and what pads a slot to whole records.
is($found->{state_bytes}, 3_042_336 + 86_016 + 576, 'inspect: a state');
is($found->{drafts}, 5, 'inspect: drafts');
is($found->{layers}, 40, 'inspect: layers');

done_testing();
