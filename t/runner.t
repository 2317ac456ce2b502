# The runner under test is the project's own, t/lib/Test/Nginx, whatever else
# is on the path: its blocks that must pass, those that must fail and in how
# many subtests, what it must refuse to run, and what it must not leave over.

use strict;
use warnings;

use Cwd qw(abs_path);
use DI::Proc;
use File::Basename qw(dirname);
use File::Copy qw(copy);
use Test::More;
use Time::HiRes qw(time);

my $t = abs_path(dirname(__FILE__));
my $dir = DI::Proc::tempdir();

# Children run in the scratch directory, plain nginx, a port and a root each.
chdir($dir) or die "chdir $dir: $!\n";
delete @ENV{grep { /^TEST_NGINX_/ && $_ ne 'TEST_NGINX_BINARY' } keys %ENV};
$ENV{TEST_NGINX_RANDOMIZE} = 1;

for my $name (qw(good mutations)) {
    copy("$t/data/runner/$name.t.txt", "$dir/$name.t") or die "copy: $!\n";
}

sub write_test {
    my ($name, $text) = @_;

    open(my $fh, '>', "$dir/$name.t") or die "cannot write $name: $!\n";
    print $fh "use Test::Nginx::Socket 'no_plan';\nrun_tests();\n",
              "__DATA__\n\n$text";
    close($fh);
}

sub start_test {
    my ($name, %env) = @_;

    return DI::Proc::spawn(name => $name, env => \%env,
                           cmd => [$^X, "-I$t/lib", "$dir/$name.t"],
                           out => "$dir/$name.out");
}

# (exit status, output)
sub run_test {
    my ($name, %env) = @_;
    my $pid = start_test($name, %env);

    DI::Proc::wait_until(120, sub { defined DI::Proc::status_of($pid) });
    return (DI::Proc::status_of($pid) >> 8, output($name));
}

sub output {
    my ($name) = @_;

    open(my $fh, '<', "$dir/$name.out") or return '';
    local $/;
    return readline($fh) // '';
}

sub failures {
    return grep { /^not ok/ && !/# TODO/ } split /\n/, $_[0];
}

# Every nginx whose root is in the scratch directory.
sub nginx_left {
    return grep { (readlink("/proc/$_/exe") // '') =~ /nginx/ } users($dir);
}

sub users { return DI::Proc::users_of($_[0]) }

subtest 'blocks that must pass' => sub {
    for my $mode ('', 'TEST_NGINX_USE_HUP', 'TEST_NGINX_MASTER_PROCESS',
                  'TEST_NGINX_POSTPONE_OUTPUT')
    {
        my $began = time;
        my ($status, $out) = run_test('good', $mode ? ($mode => 1) : ());

        is($status, 0, "exit status ($mode)");
        is_deeply([failures($out)], [], "no failed subtest ($mode)");
        cmp_ok(scalar(() = $out =~ /^(?:not )?ok/mg), '>=', 95,
               "all subtests ran ($mode)");
        note(sprintf('%.2f s for 35 blocks', time - $began));
    }
};

subtest 'blocks that must fail' => sub {
    my ($status, $out) = run_test('mutations');
    my (%want, %got);

    open(my $fh, '<', "$dir/mutations.t") or die "mutations: $!\n";
    while (<$fh>) {
        $want{$1} = $2 if /^=== MUTATION (\d+): .* \[(\d+)\]$/;
    }
    $got{$_}++ for map { /MUTATION (\d+):/ } failures($out);

    cmp_ok(scalar(keys %want), '>=', 25, 'enough of them');
    is_deeply(\%got, \%want, 'each in as many subtests as it says');
    isnt($status, 0, 'exit status');
};

subtest 'files that must not run' => sub {
    my $plain = "--- config\n--- request\nGET /\n";
    my @case = (
        ['unknown section', "--- config\n--- request\nGET /\n--- respons_body\n"
                            . "x\n", qr/unknown section respons_body/],
        ['section given twice', "$plain--- request\nGET /a\n",
         qr/section request given twice/],
        ['misspelt section line', "$plain---error_code: 200\n",
         qr/malformed section line "---error_code: 200"/],
        ['no config', "--- request\nGET /\n", qr/no config section/],
        ['no request', "--- config\n", qr/no request section/],
        ['two kinds of request', "$plain--- raw_request\nx\n",
         qr/more than one of request raw_request/],
        ['a section that nobody would look at',
         "$plain--- response_headers\nA: 1\n--- response_headers_like\nA: 1\n",
         qr/exclude each other/],
        ['half of a pair', "$plain--- grep_error_log_out\nx\n",
         qr/grep_error_log_out without grep_error_log/],
        ['error in an eval', "$plain--- response_body eval\nno_such()\n",
         qr/an eval section: Undefined subroutine/],
        ['list where one value belongs',
         "--- config\n--- request lines\nGET /a\nGET /b\n",
         qr/section request has more than one value/],
        ['environment not set', "--- config\nset \$a \$TEST_NGINX_NONE;\n"
                                . "--- request\nGET /\n",
         qr/No environment TEST_NGINX_NONE defined/],
        ['nginx does not start', "--- config\nno_such_directive;\n"
                                 . "--- request\nGET /\n",
         qr/unknown directive "no_such_directive"/],
    );

    for my $case (@case) {
        my ($name, $text, $message) = @$case;
        write_test('bad', "=== TEST 1: bad\n$text");
        my ($status, $out) = run_test('bad');

        isnt($status, 0, "$name: exit status");
        like($out, $message, "$name: message");
        unlike($out, qr/^ok/m, "$name: nothing passed");
    }
};

subtest 'in parallel' => sub {
    copy("$dir/good.t", "$dir/good2.t");
    my $out = `prove -I$t/lib -j2 $dir/good.t $dir/good2.t 2>&1`;

    is($?, 0, 'exit status') or diag($out);
    like($out, qr/^Result: PASS/m, 'result');
};

subtest 'nothing is left over' => sub {
    my $slow = <<'END';
=== TEST 1: waits
--- config
    location = /t { proxy_pass http://127.0.0.1:$TEST_NGINX_RAND_PORT_1; }
--- tcp_listen: $TEST_NGINX_RAND_PORT_1
--- tcp_reply:
--- tcp_no_close
--- request
GET /t
--- timeout: 60
END

    # It may be on its way when the test ends: here it takes a second from its
    # becoming a daemon to its pid file.
    DI::Proc::spew("$dir/late", <<'END');
#!/bin/sh
setsid sh -c 'sleep 1; echo $$ > "$0/logs/nginx.pid"; exec sleep 600' "$2" \
    3>> "$6" &
END
    chmod(0755, "$dir/late");
    for my $signal (qw(TERM KILL)) {
        write_test('late', $slow);
        my $pid = start_test('late', TEST_NGINX_BINARY => "$dir/late");
        ok(DI::Proc::eventually(sub { users("$dir/t") }),
           'a server is starting');
        kill($signal, $pid);
        ok(DI::Proc::eventually(sub { !users("$dir/t") }),
           "and is gone after SIG$signal");
        DI::Proc::stop($pid, TERM => 2);
    }

    for my $signal (qw(INT TERM HUP KILL)) {
        for my $master (0, 1) {
            write_test('slow', $slow);
            my $pid = start_test('slow', $master
                                 ? (TEST_NGINX_MASTER_PROCESS => 1) : ());
            ok(DI::Proc::eventually(sub { nginx_left() }),
               "nginx runs (master: $master)");
            kill($signal, $pid);
            ok(DI::Proc::eventually(sub { !nginx_left() }),
               "and is gone after SIG$signal");
            DI::Proc::stop($pid, TERM => 2);
        }
    }

    write_test('dies', "=== TEST 1: dies\n--- config\n--- request\nGET /\n"
                       . "--- error_code: 200\n--- error_log eval\n"
                       . "[sub {}]\n--- wait: never\n");
    my ($status) = run_test('dies');
    isnt($status, 0, 'a die in the middle: exit status');
    ok(DI::Proc::eventually(sub { !nginx_left() }), 'no nginx after it');
};

done_testing();
