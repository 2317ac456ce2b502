# Test::Nginx::Socket - run declarative tests against a real nginx.
#
# The format is that of Test::Nginx, so that a test file runs unchanged with
# either; this one needs nothing that a distribution does not package, and
# waits for events instead of sleeping.  A section that it does not know ends
# the file: a check must never pass because nobody looked at it.
#
# Flow of one block: configuration and files -> start nginx (Server) -> for
# each repetition, for each request: exchange (Client), response checks, log
# checks -> checks of the shutdown.

package Test::Nginx::Socket;

use strict;
use warnings;

use Test::Base -base;

use DI::Proc ();
use Digest::MD5 ();
use Digest::SHA ();
use List::Util ();
use POSIX ();
use Test::Nginx::Client ();
use Test::Nginx::Mock ();
use Test::Nginx::Server ();
use Time::HiRes qw(time);

our @EXPORT = qw(
    add_block_preprocessor add_cleanup_handler add_response_body_check
    bail_out check_accum_error_log env_to_nginx html_dir is_str log_level
    master_on master_process_enabled no_long_string no_root_location
    no_shuffle repeat_each run_tests server_port server_root timeout use_hup
    worker_connections workers
);

use constant LOG_PATIENCE => 0.5;   # seconds for an expected line to appear

# Every section that a block may have; any other name is an error.
my %known = map { $_ => 1 } qw(
    ONLY SKIP LAST

    config http_config main_config post_main_config server_name log_level
    user_files init must_die

    request pipelined_requests raw_request raw_request_middle_delay
    more_headers timeout abort ignore_response shutdown wait
    server_addr_for_client

    error_code error_code_like raw_response_headers_like
    raw_response_headers_unlike response_headers response_headers_like
    response_body response_body_like response_body_unlike
    response_body_filters

    access_log no_access_log error_log no_error_log grep_error_log
    grep_error_log_out shutdown_error_log no_shutdown_error_log

    tcp_listen tcp_reply tcp_reply_delay tcp_query tcp_query_len tcp_no_close

    todo skip_nginx skip_nginx2 skip_eval suppress_stderr no_check_leak
);

my %internal = map { $_ => 1 } qw(
    name description seq_num is_filtered blocks_object original_values
);

for my $mode (qw(TEST_NGINX_CHECK_LEAK TEST_NGINX_BENCHMARK)) {
    die "$mode is not supported by this runner\n" if $ENV{$mode};
}

my $server = Test::Nginx::Server->new;
my $repeat_each = 1;
my $shuffle = !$ENV{TEST_NGINX_NO_SHUFFLE};
my $default_timeout = $ENV{TEST_NGINX_TIMEOUT} // 3;
my $accumulate_log = 0;
my (@preprocessors, @cleanup_handlers, @body_checks);
my %rand_port;          # n of $TEST_NGINX_RAND_PORT_n => this block's port

# ------------------------------------------------------------- functions --

sub repeat_each      { @_ ? $repeat_each = $_[0] : $repeat_each }
sub no_shuffle       { $shuffle = 0 }
sub no_long_string   { 1 }      # failures always show whole strings
sub timeout          { @_ ? $default_timeout = $_[0] : $default_timeout }
sub log_level        { $server->{log_level} = $_[0] }
sub workers          { $server->{workers} = $_[0] }
sub master_on        { $server->{master} = 1 }
sub worker_connections { $server->{connections} = $_[0] }
sub no_root_location { $server->{root_location} = 0 }
sub env_to_nginx     { push @{ $server->{env} }, @_ }
sub use_hup          { $server->{hup} = 1 }
sub server_root      { $server->{root} }
sub html_dir         { $server->html_dir }
sub bail_out         { Test::More::BAIL_OUT(@_) }

sub master_process_enabled {
    return @_ ? $server->{master} = $_[0] : $server->{master};
}

sub server_port {
    $server->{port} = $server->{client_port} = $_[0] if @_;
    return $server->{port};
}

sub check_accum_error_log   { $accumulate_log = 1 }
sub add_block_preprocessor  { push @preprocessors, @_ }
sub add_cleanup_handler     { push @cleanup_handlers, @_ }
sub add_response_body_check { push @body_checks, @_ }

sub is_str {
    my ($got, $want, $name) = @_;

    local $Test::Builder::Level = $Test::Builder::Level + 1;
    return like($got, $want, $name) if ref $want eq 'Regexp';
    return is($got, $want, $name);
}

sub run_tests {
    my @blocks = blocks();

    prepare($_) for @blocks;
    @blocks = List::Util::shuffle(@blocks) if $shuffle;
    run_block($_) for @blocks;

    $server->down;
    $server->remove_root if Test::Builder->new->is_passing;
}

DI::Proc::at_exit(sub {
    $_->() for @cleanup_handlers;
    $server->down;
});

# ------------------------------------------------------- block, validity --

# Preprocess and reject what could not be honoured, before anything runs.
sub prepare {
    my ($block) = @_;
    my $name = $block->name;

    $_->($block) for @preprocessors;

    my %seen;
    for my $section (@{ $block->_section_order }) {
        die "$name: section $section given twice\n" if $seen{$section}++;
    }
    for my $section (grep { !/^_/ && !$internal{$_} } keys %$block) {
        die "$name: unknown section $section\n" if !$known{$section};

        my $value = value($block, $section);
        die "$name: malformed section line \"$1\"\n"
            if defined $value && !ref $value && $value =~ /^(---\w.*)$/m;
    }

    reject_combinations($block);
}

sub reject_combinations {
    my ($block) = @_;
    my $name = $block->name;
    my @request = grep { has($block, $_) }
                  qw(request raw_request pipelined_requests);

    die "$name: no config section\n" if !has($block, 'config');
    die "$name: more than one of @request\n" if @request > 1;
    die "$name: no request section\n"
        if !@request && !has($block, 'must_die');

    for my $pair ([qw(response_headers response_headers_like)],
                  [qw(error_code error_code_like)])
    {
        die "$name: $pair->[0] and $pair->[1] exclude each other\n"
            if has($block, $pair->[0]) && has($block, $pair->[1]);
    }
    for my $pair ([qw(grep_error_log_out grep_error_log)],
                  [qw(grep_error_log grep_error_log_out)],
                  [qw(tcp_reply tcp_listen)], [qw(tcp_query tcp_listen)],
                  [qw(tcp_query_len tcp_listen)],
                  [qw(raw_request_middle_delay raw_request)])
    {
        die "$name: $pair->[0] without $pair->[1]\n"
            if has($block, $pair->[0]) && !has($block, $pair->[1]);
    }
}

sub has {
    my ($block, $section) = @_;

    return exists $block->{$section};
}

# A section's value, undef if absent.  Block's own accessors return an empty
# list then, which shifts the arguments of a call.
sub value {
    my ($block, $section) = @_;
    my ($value, @more) = @{ $block->{$section} // [] };

    die $block->name . ": section $section has more than one value\n"
        if @more;
    return $value;
}

# ------------------------------------------------------------ one block --

sub run_block {
    my ($block) = @_;

    if (my ($count, $reason) = must_skip($block)) {
        SKIP: { skip("$reason - " . $block->name, $count * $repeat_each) }
        return;
    }

    my $todo = value($block, 'todo');
    if (defined $todo) {
        my ($reason) = $todo =~ /\A\d+\s*:\s*(.+)/s
            or die $block->name . ": todo is not \"COUNT: reason\"\n";
        my $builder = Test::Builder->new;
        $builder->todo_start($reason);
        run_active($block);
        $builder->todo_end;
        return;
    }

    run_active($block);
}

sub run_active {
    my ($block) = @_;
    my $name = $block->name;

    eval_init($block) if has($block, 'init');

    %rand_port = ();
    $server->mark_logs;     # a late line of the last block is not this one's
    my $conf = $server->conf(
        (map { $_ => expand(value($block, $_) // '') }
         qw(config http_config main_config post_main_config)),
        server_name => value($block, 'server_name') // 'localhost',
        log_level   => value($block, 'log_level'),
    );
    my $status = $server->up($conf, user_files($block),
                             has($block, 'must_die'));

    if (has($block, 'must_die')) {
        check_death($block, $status);
    } else {
        start_failed($name) if $status != 0;
        run_requests($block, $_) for 0 .. $repeat_each - 1;
    }

    check_shutdown($block);
    keep_error_log($name);
    DI::Proc::release_port($_) for values %rand_port;
}

sub start_failed {
    my ($name) = @_;

    fail("$name - nginx starts");
    diag($server->output);
    diag($server->new_log('error')) if $server->{hup};
    die "$name: nginx does not start\n";
}

sub check_death {
    my ($block, $status) = @_;
    my $name = $block->name;
    my $code = value($block, 'must_die');

    $server->down;
    if (defined $code && $code =~ /\d/) {
        is($status, $code + 0, "$name - die as expected");
    } else {
        ok($status != 0, "$name - die as expected");
    }
    check_error_log($block);
}

# TEST_NGINX_ERROR_LOG collects the logs of all blocks.
sub keep_error_log {
    my ($name) = @_;
    my $path = $ENV{TEST_NGINX_ERROR_LOG} or return;

    open(my $fh, '>>', $path) or die "cannot write $path: $!\n";
    print $fh "=== $0 $name\n",
              DI::Proc::slurp($server->log_file('error'));
    close($fh);
}

sub eval_init {
    my ($block) = @_;
    my $code = value($block, 'init');

    eval "package main; $code; 1" or die $block->name . ": init: $@";
}

# `>>> name [mtime]` and content lines, or [[name => content], ...].
sub user_files {
    my ($block) = @_;
    my $spec = value($block, 'user_files') // return [];

    return [map { [@$_] } @$spec] if ref $spec;

    my (undef, @parts) = split /^>>>[ \t]*([^\n]*)\n/m, $spec;
    my @files;
    while (@parts) {
        my ($head, $content) = splice(@parts, 0, 2);
        my ($name, $mtime) = split ' ', $head;
        push @files, [$name, $content // '', touch_time($mtime)];
    }
    return \@files;
}

# Seconds of a time written as touch -t takes it: [[CC]YY]MMDDhhmm[.ss].
sub touch_time {
    my ($text) = @_;

    return if !defined $text;
    $text =~ /\A(\d\d)?(\d\d)?(\d\d)(\d\d)(\d\d)(\d\d)(?:\.(\d\d))?\z/
        or die "user_files: \"$text\" is not [[CC]YY]MMDDhhmm[.ss]\n";
    my ($century, $year) = defined $2 ? ($1, $2) : (undef, $1);
    my @rest = ($7 // 0, $6, $5, $4, $3 - 1);
    my $since_1900 = !defined $year ? (localtime)[5]
                     : defined $century ? $century * 100 + $year - 1900
                     : $year + ($year < 69 ? 100 : 0);

    return POSIX::mktime(@rest, $since_1900, 0, 0, -1);
}

# $TEST_NGINX_NAME and ${TEST_NGINX_NAME}.
sub expand {
    my ($text) = @_;
    my %builtin = (
        SERVER_PORT => $server->{port},
        CLIENT_PORT => $server->{client_port},
        PORT        => $server->{port},
        SERVER_ROOT => $server->{root},
        HTML_DIR    => $server->html_dir,
        LOAD_MODULES => $ENV{TEST_NGINX_LOAD_MODULES} // '',
    );

    $text =~ s{\$(?:TEST_NGINX_(\w+)|\{TEST_NGINX_(\w+)\})}{
        my $name = $1 // $2;
        $name =~ /\ARAND_PORT_([1-9]\d*)\z/
            ? ($rand_port{$1} //= DI::Proc::free_port())
            : $builtin{$name} // $ENV{"TEST_NGINX_$name"}
              // die "No environment TEST_NGINX_$name defined\n";
    }gex;
    return $text;
}

# -------------------------------------------------------- skip conditions --

# (count, reason) if this block is to be skipped.
sub must_skip {
    my ($block) = @_;

    for my $section (qw(skip_nginx skip_nginx2)) {
        my $rule = value($block, $section) // next;
        my ($count, $condition) = $rule =~ /\A\s*(\d+)\s*:\s*(.+?)\s*\z/s
            or die $block->name . ": $section is not \"COUNT: OP VERSION\"\n";
        return ($count, "nginx $condition")
            if version_matches($condition);
    }

    if (defined(my $rule = value($block, 'skip_eval'))) {
        my ($count, $code) = $rule =~ /\A\s*(\d+)\s*:\s*(.+)\z/s
            or die $block->name . ": skip_eval is not \"COUNT: CODE\"\n";
        my $value = eval "package main; $code";
        die $block->name . ": skip_eval: $@" if $@;
        return ($count, 'skip_eval') if $value;
    }

    return;
}

# "OP VERSION", several joined by `and` and `or` from left to right.
sub version_matches {
    my ($condition) = @_;
    my ($result, $join);

    for my $word (split /\s+(and|or)\s+/, $condition) {
        if ($word eq 'and' || $word eq 'or') {
            $join = $word;
            next;
        }
        my ($op, $want) = $word =~ /\A(<=|>=|<|>|==|=|!=)\s*(\d[\d.]*)\z/
            or die "\"$word\" does not compare nginx's version\n";
        my $one = compare($op, version_number($want));
        $result = !defined $result ? $one
                  : $join eq 'and' ? $result && $one : $result || $one;
    }

    return $result;
}

sub compare {
    my ($op, $want) = @_;
    my $have = nginx_version();

    return $have <  $want if $op eq '<';
    return $have <= $want if $op eq '<=';
    return $have >  $want if $op eq '>';
    return $have >= $want if $op eq '>=';
    return $have != $want if $op eq '!=';
    return $have == $want;
}

sub version_number {
    my ($major, $minor, $patch) = split /\./, $_[0];

    return $major * 1_000_000 + ($minor // 0) * 1_000 + ($patch // 0);
}

sub nginx_version {
    return $server->{version} //= do {
        my ($text) = `$server->{binary} -v 2>&1` =~ m{/(\d+\.\d+\.\d+)}
            or die "$server->{binary} -v shows no version\n";
        version_number($text);
    };
}

# --------------------------------------------------------------- requests --

# One repetition of the block's requests, each followed by its checks.
sub run_requests {
    my ($block, $repetition) = @_;
    my $i = 0;

    for my $exchange (exchanges($block)) {
        my $mock = start_mock($block);
        my $n = @{ $exchange->{heads} };
        my $result = Test::Nginx::Client::exchange(
            host     => value($block, 'server_addr_for_client') // '127.0.0.1',
            port     => $server->{client_port},
            timeout  => seconds(value($block, 'timeout') // $default_timeout),
            shutdown => scalar(shutdown_how($block)),
            %$exchange,
        );

        report_exchange($block, $result);
        DI::Proc::pause(seconds(value($block, 'wait'))) if has($block, 'wait');
        for my $k (0 .. $n - 1) {
            my $response = $result->{responses}[$k] // no_response();
            check_response($block, $response, $i + $k, $repetition);
        }
        check_mock($block, $mock) if $mock;
        check_logs($block, $repetition);
        $i += $n;
    }
}

# What goes over one connection each: { writes, heads }.
sub exchanges {
    my ($block) = @_;

    return raw_exchange($block) if has($block, 'raw_request');
    return pipelined_exchange($block) if has($block, 'pipelined_requests');

    my $request = value($block, 'request');
    my @list = ref $request eq 'ARRAY' ? @$request : $request;

    return map {
        my $headers = nth(value($block, 'more_headers'), $_) // '';
        one_exchange($list[$_], $headers, 'close');
    } 0 .. $#list;
}

sub one_exchange {
    my ($request, $headers, $connection) = @_;
    my $writes = Test::Nginx::Client::build($request, $headers, $connection);

    return { writes => $writes, heads => [is_head($writes->[0][0])] };
}

sub pipelined_exchange {
    my ($block) = @_;
    my @list = @{ value($block, 'pipelined_requests') };
    my (@heads, $bytes);

    for my $i (0 .. $#list) {
        my $one = one_exchange($list[$i],
                               nth(value($block, 'more_headers'), $i) // '',
                               $i < $#list ? 'keep-alive' : 'close');
        $bytes .= join '', map { $_->[0] } @{ $one->{writes} };
        push @heads, @{ $one->{heads} };
    }
    return { writes => [[$bytes, 0]], heads => \@heads };
}

sub raw_exchange {
    my ($block) = @_;
    my $raw = value($block, 'raw_request');
    my $delay = seconds(value($block, 'raw_request_middle_delay') // 0);
    my @pieces = ref $raw eq 'ARRAY' ? @$raw : $raw;
    my @writes = map { [$pieces[$_], $_ ? $delay : 0] } 0 .. $#pieces;

    return { writes => \@writes, heads => [is_head($pieces[0])] };
}

sub is_head {
    return $_[0] =~ /\AHEAD / ? 1 : 0;
}

# The value for request i: an array has one for each request.
sub nth {
    my ($value, $i) = @_;

    return ref $value eq 'ARRAY' ? $value->[$i] : $value;
}

sub seconds {
    my ($text) = @_;

    $text =~ /\A\s*(\d+(?:\.\d+)?|\.\d+)\s*(ms|s)?\s*\z/
        or die "\"$text\" is not a time\n";
    return ($2 // 's') eq 'ms' ? $1 / 1000 : $1;
}

sub shutdown_how {
    my ($block) = @_;

    return if !has($block, 'shutdown');
    return value($block, 'shutdown') =~ /(\d)/ ? $1 : 1;
}

sub no_response {
    return { status => '', head => '', headers => [], body => '',
             error => undef };
}

sub report_exchange {
    my ($block, $result) = @_;
    my $name = $block->name;

    if ($result->{timed_out} && !has($block, 'abort')) {
        fail("ERROR: client socket timed out - $name");
        return;
    }
    if ($result->{error}) {
        fail("ERROR: $result->{error} - $name");
        diag($server->new_log('error'));
        return;
    }
    for my $response ($result->{timed_out} ? () : @{ $result->{responses} }) {
        fail("$name - $response->{error}") if $response->{error};
    }
}

sub start_mock {
    my ($block) = @_;

    return if !has($block, 'tcp_listen');

    my $length = value($block, 'tcp_query_len');
    $length //= length value($block, 'tcp_query')
        if has($block, 'tcp_query') && !ref value($block, 'tcp_query');
    my $listen = expand(value($block, 'tcp_listen'));
    $listen =~ s/\s+\z//;

    return Test::Nginx::Mock->start(
        port     => $listen,
        reply    => value($block, 'tcp_reply'),
        delay    => seconds(value($block, 'tcp_reply_delay') // 0),
        length   => $length,
        no_close => has($block, 'tcp_no_close'),
    );
}

sub check_mock {
    my ($block, $mock) = @_;
    my $name = $block->name;
    my $query = $mock->finish(has($block, 'tcp_query')
                              || has($block, 'tcp_query_len'));

    is_str($query, value($block, 'tcp_query'), "$name - tcp_query ok")
        if has($block, 'tcp_query');
    is(length $query, value($block, 'tcp_query_len') + 0,
       "$name - tcp_query_len ok") if has($block, 'tcp_query_len');
}

# --------------------------------------------------------- response checks --

sub check_response {
    my ($block, $response, $i, $repetition) = @_;

    return if has($block, 'ignore_response');

    check_status($block, $response, $i);
    check_raw_headers($block, $response, $i);
    check_headers($block, $response, $i);
    check_body($block, $response, $i, $repetition);
}

sub check_status {
    my ($block, $response, $i) = @_;
    my $name = $block->name . ' - status code ok';

    if (has($block, 'error_code_like')) {
        my $like = nth(value($block, 'error_code_like'), $i) // '';
        like($response->{status}, pattern($like), $name);
        return;
    }

    my $want = nth(value($block, 'error_code') // 200, $i) // 200;
    $want =~ s/\s+\z//;
    is($response->{status}, $want, $name);
}

sub pattern {
    my ($text) = @_;

    return $text if ref $text eq 'Regexp';
    $text =~ s/\n\z//;
    return qr/$text/s;
}

# The pattern is taken as written, with the line end of a block section.
sub check_raw_headers {
    my ($block, $response, $i) = @_;
    my $name = $block->name;

    my $like = nth(value($block, 'raw_response_headers_like'), $i);
    like($response->{head}, ref $like ? $like : qr/$like/s,
         "$name - raw resp headers like") if defined $like;

    my $unlike = nth(value($block, 'raw_response_headers_unlike'), $i);
    unlike($response->{head}, ref $unlike ? $unlike : qr/$unlike/s,
           "$name - raw resp headers unlike") if defined $unlike;
}

sub check_headers {
    my ($block, $response, $i) = @_;
    my $name = $block->name;

    for my $section (qw(response_headers response_headers_like)) {
        my $lines = nth(value($block, $section), $i) // next;

        for my $line (grep { /\S/ } split /\n/, expand($lines)) {
            if ($line =~ /\A\s*!\s*(\S+)\s*\z/) {
                my $got = Test::Nginx::Client::header($response, $1);
                is($got, undef, "$name - header $1 absent");
                next;
            }

            my ($header, $want) = $line =~ /\A\s*([^:\s]+)\s*:\s*(.*?)\s*\z/
                or die "$name: \"$line\" is not \"Name: value\"\n";
            my $got = Test::Nginx::Client::header($response, $header);
            $section eq 'response_headers'
                ? is($got, $want, "$name - header $header ok")
                : like($got // '', qr/\A(?:$want)\z/s,
                       "$name - header $header like");
        }
    }
}

sub check_body {
    my ($block, $response, $i, $repetition) = @_;
    my $where = "(req $i, repeated $repetition)";
    my $name = $block->name;
    my $body = $response->{body};

    $body = filtered($body, $_) for body_filters($block);

    if (has($block, 'response_body')) {
        my $want = nth(value($block, 'response_body'), $i) // '';
        is_str($body, $want, "$name - response_body ok $where");
    }

    $_->($block, $body, $i, $repetition, 0) for @body_checks;

    if (has($block, 'response_body_like')) {
        my $like = nth(value($block, 'response_body_like'), $i) // '';
        like($body, pattern($like), "$name - response_body_like $where");
    }
    if (has($block, 'response_body_unlike')) {
        my $unlike = nth(value($block, 'response_body_unlike'), $i) // '';
        unlike($body, pattern($unlike),
               "$name - response_body_unlike $where");
    }
}

sub body_filters {
    my ($block) = @_;
    my $filters = value($block, 'response_body_filters') // return;

    return ref $filters eq 'ARRAY' ? @$filters
           : ref $filters ? $filters : split ' ', $filters;
}

sub filtered {
    my ($body, $filter) = @_;
    my %builtin = (
        uc         => sub { uc $_[0] },
        lc         => sub { lc $_[0] },
        length     => sub { length $_[0] },
        md5_hex    => \&Digest::MD5::md5_hex,
        sha1_hex   => \&Digest::SHA::sha1_hex,
        sha256_hex => \&Digest::SHA::sha256_hex,
    );

    return $filter->($body) if ref $filter eq 'CODE';

    my $code = $builtin{$filter} // main->can($filter)
        // die "unknown response_body_filters function $filter\n";
    return $code->($body);
}

# -------------------------------------------------------------- log checks --

sub check_logs {
    my ($block, $repetition) = @_;

    check_lines($block, 'access', 'access_log', 'no_access_log');
    check_grep($block, $repetition) if has($block, 'grep_error_log');
    check_error_log($block);

    if ($accumulate_log) {
        my $start = $server->{offset}{error};
        $server->mark_logs;
        $server->{offset}{error} = $start;
    } else {
        $server->mark_logs;
    }
}

sub check_error_log {
    my ($block) = @_;

    check_lines($block, 'error', 'error_log', 'no_error_log');
}

# One subtest for each pattern, wanted or unwanted.
sub check_lines {
    my ($block, $log, $wanted, $unwanted) = @_;
    my $name = $block->name;

    for my $pattern (patterns(value($block, $wanted))) {
        my $found = DI::Proc::wait_until(LOG_PATIENCE, sub {
            line_matches($server->new_log($log), $pattern);
        });
        ok($found, "$name - $log.log has a line like " . show($pattern))
            or diag("the log:\n", $server->new_log($log));
    }

    for my $pattern (patterns(value($block, $unwanted))) {
        my $line = line_matches($server->new_log($log), $pattern);
        ok(!$line, "$name - $log.log has no line like " . show($pattern))
            or diag("the line: $line");
    }
}

# A string is one literal for each of its lines.
sub patterns {
    my ($value) = @_;

    return if !defined $value;
    return map { patterns($_) } @$value if ref $value eq 'ARRAY';
    return $value if ref $value;
    return grep { /\S/ } split /\n/, $value;
}

sub line_matches {
    my ($text, $pattern) = @_;

    for my $line (split /^/, $text) {
        return $line if ref $pattern ? $line =~ $pattern
                                     : index($line, $pattern) >= 0;
    }
    return;
}

sub show {
    my ($pattern) = @_;
    my $text = "$pattern";

    $text =~ s/\s+/ /g;
    return "\"$text\"";
}

# All matches in the error log, one a line.
sub check_grep {
    my ($block, $repetition) = @_;
    my $grep = value($block, 'grep_error_log');
    my $want = nth(value($block, 'grep_error_log_out'), $repetition) // '';
    my $got;

    $grep =~ s/\n\z// if !ref $grep;
    $grep = quotemeta $grep if !ref $grep;
    $want .= "\n" if !ref $want && $want ne '' && $want !~ /\n\z/;

    DI::Proc::wait_until(LOG_PATIENCE, sub {
        my $log = $server->new_log('error');
        $got = '';
        $got .= "$&\n" while $log =~ /$grep/g;
        return ref $want ? $got =~ $want : $got eq $want;
    });
    is_str($got, $want, $block->name . ' - grep_error_log_out');
}

# Lines that nginx writes while it exits.
sub check_shutdown {
    my ($block) = @_;

    return if !has($block, 'shutdown_error_log')
              && !has($block, 'no_shutdown_error_log');

    SKIP: {
        if ($server->{hup}) {
            my $count = () = (patterns(value($block, 'shutdown_error_log')),
                              patterns(value($block, 'no_shutdown_error_log')));
            skip('nginx goes on in HUP mode', $count);
        }
        $server->down;
        check_lines($block, 'error', 'shutdown_error_log',
                    'no_shutdown_error_log');
    }
}

# ----------------------------------------------------------------- filter --

# Test::Base turns an error inside an `eval` section into its value; here it
# ends the file.
package Test::Nginx::Socket::Filter;

use parent -norequire, 'Test::Base::Filter';

BEGIN { require Test::Base::Filter; }

sub eval {
    my ($self, $code) = @_;
    my @value = CORE::eval("package main; $code");

    die "an eval section: $@" if $@;
    return @value;
}

1;
