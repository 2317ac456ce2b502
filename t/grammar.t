# Grammars from outside: the official tests of JSON Schema by grammar-match,
# and what that program answers to lines that are none of its own.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use Test::More;

my $t = abs_path(dirname(__FILE__));
my $engine = $ENV{TEST_DEEPINFER_ENGINE} // "$t/../build/deepinfer-engine";
my $match = dirname($engine) . '/grammar-match';

my $suite = "$t/data/grammar/draft2020-12.json.gz";
my $out = qx(python3 $t/grammar-suite.py $match $suite 2>&1);
is($?, 0, 'the official tests of draft 2020-12');
like($out, qr/^1094 instances: .* 0 wrong/m, 'none is judged wrong');
note($out);

sub answers {
    my ($lines) = @_;
    my $pid = open(my $in, '-|') // die "fork: $!\n";
    if ($pid == 0) {
        open(my $to, '|-', $match) or exit 127;
        print $to $lines;
        close($to);
        exit 0;
    }
    my @out = <$in>;
    close($in);
    chomp(@out);
    return @out;
}

my @got = answers(<<'LINES');
{"regex": "a+", "text": "aaa"}
not JSON
{"regex": "a+"}
{"text": "aaa"}
{"choice": ["yes", "no"], "text_base64": "bm8="}
{"choice": ["yes", "no"], "text_base64": "!"}
{"schema": {"type": "array"}, "text": "[1, 2]"}
{"schema": {"type": "array"}, "text": "[1, 2]", "whitespace": "flexible"}
{"schema": "{\"type\": \"null\"}", "text": "null"}
{"schema": {"properties": {"a": {"$ref": "http://x/"}}}, "text": "{}"}
LINES
is(scalar @got, 10, 'a line for each line');
is($got[0], '{"accept":true}', 'a regular expression');
like($got[1], qr/^\{"error":\{"keyword":"line"/, 'a line that is not JSON');
like($got[2], qr/"keyword":"text"/, 'a line without a text');
like($got[3], qr/"keyword":"line"/, 'a line without a grammar');
is($got[4], '{"accept":true}', 'a text in base64');
like($got[5], qr/"keyword":"text"/, 'base64 that is none');
is($got[6], '{"accept":false}', 'white space where it is compact');
is($got[7], '{"accept":true}', 'white space where it is flexible');
is($got[8], '{"accept":true}', 'a schema in a string');
like($got[9], qr/"keyword":"\$ref","path":"#\/properties\/a\/\$ref"/,
     'a reference to elsewhere');

done_testing();
