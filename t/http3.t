# HTTP/3: streams come as they are made, and a client that goes is noticed
# while nothing is written.  For an nginx that has it and a Python that has
# aioquic (t/http3.py); Debian 12's nginx, 1.22, has not.

use strict;
use warnings;

use Cwd ();
use DI::Engine;
use DI::Nginx;
use DI::Proc;
use File::Basename qw(dirname);
use Test::More;

my $cache = $ENV{XDG_CACHE_HOME} // "$ENV{HOME}/.cache";
my $python = $ENV{TEST_DEEPINFER_SDK_PYTHON}
             // "$cache/ngx_deepinfer/sdk/bin/python";
my $here = Cwd::abs_path(dirname(__FILE__));

plan(skip_all => 'nginx has no HTTP/3')
    if qx(@{[DI::Nginx::binary()]} -V 2>&1) !~ /--with-http_v3_module/;
plan(skip_all => "no aioquic at $python (pip install aioquic)")
    if system("$python -c 'import aioquic' 2> /dev/null") != 0;

my $root = DI::Proc::tempdir();
my $port = DI::Proc::free_port();
system("openssl req -x509 -newkey rsa:2048 -nodes -batch -subj /CN=localhost"
       . " -days 2 -keyout $root/key.pem -out $root/cert.pem"
       . " > $root/openssl.log 2>&1") == 0
    or plan(skip_all => 'no openssl to make a certificate with');

DI::Engine::export_module();
my $engine = DI::Engine->start(kind => 'echo');
my $nginx = DI::Nginx->start(http => <<"END", server => <<"END2");
    deepinfer_pool echo {
        model  @{[$engine->model]};
        engine unix:@{[$engine->socket_path]};
    }
END
        listen 127.0.0.1:$port quic;
        ssl_certificate     $root/cert.pem;
        ssl_certificate_key $root/key.pem;
        deepinfer_ping      1h;
        location = /v1/chat/completions { deepinfer_pass echo; }
END2

# A client that sends a script and writes what it sees to a file.
sub client {
    my ($what, $script) = @_;
    my $out = "$root/$what.txt";

    return ($out, DI::Proc::spawn(
        name => 'http3.py', out => $out,
        cmd  => [$python, "$here/http3.py", $port, $what, $script]));
}

my ($out, $pid) = client('read', "\@\@every 20\n\@\@repeat 20 hello");
ok(DI::Proc::eventually(sub { defined DI::Proc::status_of($pid) }),
   'a client of HTTP/3 reads a stream');
my @lines = grep { length } split /\n/, DI::Proc::slurp($out);
is($lines[0], '200', 'its status');
is(scalar(grep { /"content":"hello"/ } @lines), 20, 'every token');
is($lines[-1], 'data: [DONE]', 'and its end');

($out, $pid) = client('leave', "\@\@say some\n\@\@stall");
ok(DI::Proc::eventually(sub { DI::Proc::slurp($out) =~ /^left$/m }),
   'a client leaves a stream and keeps its connection');
ok(DI::Proc::eventually(sub { $engine->log =~ /cancel conn/ }),
   'the engine is told')
    or diag $nginx->log;
DI::Proc::stop($pid, TERM => 5);

is(join("\n", $nginx->complaints), '', 'nothing else in the log');
done_testing();
