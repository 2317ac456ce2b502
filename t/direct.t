# Events of a stream that go past nginx's body filters, and those that may
# not: each location's log tells which way they were sent.

use strict;
use warnings;

use DI::Client qw(http_post stream_text);
use DI::Engine qw(echo);
use DI::Nginx;
use DI::Proc;
use Test::More;
use Time::HiRes qw(sleep time);

my $engine = DI::Engine->nth(1);
my $small = DI::Proc::free_port();

# What a location says beside deepinfer_pass, and whether its streams are
# direct.
my @locations = (
    [plain   => '', 1],
    [headers => 'add_header X-A b; expires -1; charset utf-8;
                 userid on; gzip on;', 1],
    [trailer => 'add_trailer X-Late yes;', 1],
    [mirror  => 'mirror /none;', 1],
    [sub     => 'sub_filter_types *; sub_filter_once off;
                 sub_filter hello bye;', 0, 'bye'],
    [gzip    => 'gzip on; gzip_types *; gzip_min_length 1;', 0, undef,
     'Accept-Encoding' => 'gzip'],
    [recode  => 'charset koi8-r; source_charset utf-8; charset_types *;
                 override_charset on;', 0],
    [ssi     => 'ssi on; ssi_types *;', 0],
    [after   => 'add_after_body /none; addition_types *;', 0],
    [rate    => 'limit_rate 100k;', 0],
    [unframed => 'chunked_transfer_encoding off;', 0],
);

my $nginx = DI::Nginx->start(
    workers => 1, http => <<"END", server => <<"END2" . join('', map {
    charset_map koi8-r utf-8 { E1 D090; }
    deepinfer_pool echo {
        model  $ENV{TEST_NGINX_DEEPINFER_MODEL};
        engine unix:@{[$engine->socket_path]};
    }
END
        listen 127.0.0.1:$small sndbuf=16k;
        location = /none { return 204; }
END2
    "location = /$_->[0] { deepinfer_pass echo; $_->[1]\n"
    . "error_log logs/$_->[0].log debug; }\n" } @locations));
my $port = $nginx->port;
my $debug = qx{@{[DI::Nginx::binary()]} -V 2>&1} =~ /--with-debug/;

sub script {
    return { model => 'echo', stream => JSON::PP::true,
             messages => [{ role => 'user', content => $_[0] }] };
}

# How often the location's log has a line like this.
sub logged {
    my ($location, $pattern) = @_;

    return scalar(() = DI::Proc::slurp($nginx->root . "/logs/$location.log")
                       =~ /$pattern/g);
}

ok(DI::Proc::eventually(sub {
    my $r = script('a');
    delete $r->{stream};
    http_post($port, '/unframed', $r)->{status} == 200;
}), 'serves');

for (@locations) {
    my ($location, undef, $direct, $word, @headers) = @$_;
    my $client = DI::Client->connect(port => $port);

    $client->request('POST', "/$location",
                     script("\@\@every 5\n\@\@repeat 20 hello"), @headers);
    my $text = $client->read_body;
    if (@headers) {
        SKIP: {
            eval { require IO::Uncompress::Gunzip; 1 }
                or skip('no Gunzip', 1);
            my $plain;
            IO::Uncompress::Gunzip::gunzip(\$text => \$plain);
            is(scalar(() = $plain =~ /"hello"/g), 20, "$location: the text");
        }
    } else {
        $word //= 'hello';
        is(scalar(() = $text =~ /^data: .*"$word"/mg), 20,
           "$location: the text");
    }
    SKIP: {
        skip('nginx has no debug log', 1) if !$debug;
        my $sent = logged($location, qr/ send: fd:/);
        ok($direct ? $sent > 0 : $sent == 0,
           "$location: " . ($direct ? 'past the filters' : 'by the filters'))
            or diag("$sent times");
    }
}

# One that is slow: what the socket does not take follows, and nothing else
# is sent before.  Where the worker is kept waiting, so many events are sent at
# once that they go by the filters: then once more.
my $events = 600;
my $from;

sub slow_client {
    my $client = DI::Client->connect(port => $small, rcvbuf => 16384);

    $from = length $engine->log;
    $client->request('POST', '/plain',
                     script("\@\@every 1\n\@\@repeat $events hello"));
    ok(DI::Proc::eventually(sub {
        substr($engine->log, $from) =~ /pause|finish/;
    }), 'a slow client is waited for');
    my @got = $client->read_events;
    is(stream_text(0, @got), 'hello' x $events, 'it gets every token');
    is($got[-1]{data}, '[DONE]', 'and the end');
    ok($client->done, 'with its framing');
    return logged('plain', qr/ send: fd:\d+ (\d+) of (?!\g1\n)/)
           + logged('plain', qr/ send\(\) not ready/);
}

for my $round (1 .. 10) {
    last if slow_client() || !$debug;
    fail('a socket that does not take all at once') if $round == 10;
}

# A client that goes.
for my $how (qw(close rst)) {
    $from = length $engine->log;
    my $client = DI::Client->connect(port => $port);
    $client->request('POST', '/plain',
                     script("\@\@every 1\n\@\@repeat 100000 hello"));
    $client->read_event for 1 .. 3;
    $client->$how;
    ok(DI::Proc::eventually(sub {
        substr($engine->log, $from) =~ /cancel/;
    }), "$how cancels");
}

# A module that isn't nginx's sees all that its filter would see.
sub build_foreign {
    my ($dir) = @_;
    my ($module) = split ' ', $ENV{TEST_NGINX_LOAD_MODULES} // '';
    my $build = ($module // '') =~ s{[^/]*\z}{nginx}r;
    my $src = $ENV{NGINX_SRC} // '/usr/share/nginx/src';
    my ($includes) = DI::Proc::slurp("$build/Makefile")
                     =~ /^ALL_INCS = (.*?[^\\])\n/ms or return;

    open(my $file, '>', "$dir/foreign.c") or die "open: $!\n";
    print $file <<'END';
#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>

static ngx_http_output_body_filter_pt  next;

static ngx_int_t
filter(ngx_http_request_t *r, ngx_chain_t *in)
{
    for (ngx_chain_t *cl = in; cl; cl = cl->next) {
        ngx_log_error(NGX_LOG_NOTICE, r->connection->log, 0,
                      "foreign %O", ngx_buf_size(cl->buf));
    }

    return next(r, in);
}

static ngx_int_t
init(ngx_conf_t *cf)
{
    next = ngx_http_top_body_filter;
    ngx_http_top_body_filter = filter;

    return NGX_OK;
}

static ngx_http_module_t  ctx = { .postconfiguration = init };

ngx_module_t  ngx_http_foreign_module = {
    NGX_MODULE_V1, &ctx, NULL, NGX_HTTP_MODULE,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NGX_MODULE_V1_PADDING
};

ngx_module_t  *ngx_modules[] = { &ngx_http_foreign_module, NULL };
char          *ngx_module_names[] = { "ngx_http_foreign_module", NULL };
char          *ngx_module_order[] = { NULL };
END
    close($file);

    my @includes = map { '-I' . (m{^/} ? $_ : "$src/$_") }
                   $includes =~ /-I (\S+)/g;
    return system("cc -std=gnu17 -fPIC -shared @includes -o $dir/foreign.so"
                  . " $dir/foreign.c >$dir/foreign.log 2>&1") == 0
           ? "$dir/foreign.so" : undef;
}

SKIP: {
    my $foreign = build_foreign(DI::Proc::tempdir())
        // skip('no headers of this nginx, or no compiler', 2);
    my $other = DI::Nginx->start(
        workers => 1, main => "load_module $foreign;\n", http => <<"END",
    deepinfer_pool echo {
        model  $ENV{TEST_NGINX_DEEPINFER_MODEL};
        engine unix:@{[$engine->socket_path]};
    }
END
        server => "location = /foreign { deepinfer_pass echo; }\n");
    my $client = DI::Client->connect(port => $other->port);

    $client->request('POST', '/foreign',
                     script("\@\@every 5\n\@\@repeat 20 hello"));
    my $length = length $client->read_body;
    my $seen = 0;
    $seen += $_ for $other->log =~ / foreign (\d+)/g;
    cmp_ok($length, '>', 20 * 100, 'a stream through a filter of others');
    is($seen, $length, 'which sees all of it');
}

unlike($nginx->log, qr/\[(?:alert|crit|emerg)\]/, 'nothing alarming');
done_testing();
