# Documents against the sources: every directive, variable, option, field and
# metric is described, nothing else is, and what is shown works: nginx accepts
# its fragments, JSON is JSON, and commands for curl, Python and the engine
# run.
#
# Names are taken from the tables in the sources by their form, so a table
# that is written otherwise fails here ("... were found").

use strict;
use warnings;

use Cwd ();
use DI::Engine;
use DI::Nginx;
use DI::Proc;
use File::Basename qw(dirname);
use JSON::PP qw(decode_json);
use Test::More;

my $root = Cwd::abs_path(dirname(__FILE__) . '/..');

sub text_of {
    my (@paths) = @_;
    my $text = join '', map { DI::Proc::slurp($_) }
               map { glob("$root/$_") } @paths;

    return $text =~ s/\r//gr;
}

# Both lists hold the same names.
sub same {
    my ($name, $source, $document) = @_;
    my %in_source = map { $_ => 1 } @$source;
    my %in_document = map { $_ => 1 } @$document;

    cmp_ok(scalar keys %in_source, '>', 3, "$name: names were found");
    is(join(' ', grep { !$in_document{$_} } sort keys %in_source), '',
       "$name: none is missing in the documents");
    is(join(' ', grep { !$in_source{$_} } sort keys %in_document), '',
       "$name: none is invented there");
}

# ------------------------------------------------------------- directives --

my $module = text_of('ngx_deepinfer/*.c');
my $directives = text_of('docs/directives.md');

# name => [contexts], in the words of the document
my %command;
while ($module =~ /\{\s*ngx_string\("(\w+)"\),\s*(NGX_\w+(?:\|NGX_\w+)*),/g) {
    my ($name, $flags) = ($1, $2);
    my @contexts;

    for (['NGX_HTTP_DEEPINFER_POOL_CONF', 'deepinfer_pool'],
         ['NGX_HTTP_MAIN_CONF', 'http'], ['NGX_HTTP_SRV_CONF', 'server'],
         ['NGX_HTTP_LOC_CONF', 'location'],
         ['NGX_HTTP_LIF_CONF', 'if in location'])
    {
        push @contexts, $_->[1] if $flags =~ /\b$_->[0]\b/;
    }
    $command{$name} = \@contexts;
}

my %section;
while ($directives =~ /^### (\w+)\n(.*?)(?=^##|\z)/msg) {
    $section{$1} = $2;
}
same('directives', [keys %command], [keys %section]);

for my $name (sort keys %command) {
    my $text = $section{$name} // next;
    my ($syntax) = $text =~ /^\| Syntax \| `(\w+)\b/m;
    my ($contexts) = $text =~ /^\| Context \| (.*) \|$/m;

    is($syntax, $name, "$name: has its syntax");
    like($text, qr/^\| Default \| \S/m, "$name: has a default");
    is($contexts, join(', ', map { "`$_`" } @{ $command{$name} }),
       "$name: has its contexts");
}

# Defaults that are plain values.
my %default = (
    deepinfer_ping        => $module =~ /conf->ping, prev->ping, (\d+)000\)/
                             ? "$1s" : '',
    deepinfer_buffer_size => $module =~ /prev->buffer_size, (\d+) \* 1024\)/
                             ? "$1k" : '',
    deepinfer_thread_pool => $module =~ /prev->thread_size, (\d+) \* 1024\)/
                             ? "default $1k" : '',
    deepinfer_ignore_client_abort
                          => $module =~ /prev->ignore_client_abort, 0\)/
                             ? 'off' : '',
    queue                 => $module =~ /value\(pool->queue, (\d+)\)/
                             ? $1 : '',
);
for my $name (sort keys %default) {
    my ($said) = $section{$name} =~ /^\| Default \| `$name (.*);` \|$/m;

    is($said, $default{$name}, "$name: the default is the module's");
}

# Messages of wrong values: what stands between quotes in the document's
# tables of errors is in the sources.
my $strings = text_of('ngx_deepinfer/*.c', 'tokenizer/*/*.c')
              =~ s/"\s*\n\s*"//gr;
$strings =~ s/\\"/"/g;
for my $row ($directives =~ /^\| (`.*`[^|]*) \| .* \|$/mg) {
    for my $quoted ($row =~ /`([^`]+)`/g) {
        next if $quoted =~ /^[\$\w-]+$/ || $quoted =~ /^unknown thread pool/;

        # "..." and single words stand for what is filled in
        my $want = join '.*?', map { quotemeta }
                   split /\.\.\.|<\S+>|: known are.*|one of.*|at least \d+/,
                   $quoted =~ s/\\\|/|/gr;
        ok($strings =~ /$want/, "the sources can say: $quoted");
    }
}

my @variables = $module =~ /ngx_string\("(deepinfer_\w+)"\), NULL,/g;
same('variables', \@variables,
     [$directives =~ /^\| `\$(deepinfer_\w+)` \|/mg]);

# -------------------------------------------------------- engine's options --

my $options = text_of('engine/cmd/options.c');
my $engine = text_of('docs/engine.md');
my $man = text_of('docs/man/deepinfer-engine.8');

my @options = $options =~ /^    \{ "([\w-]+)", (?:NULL|"[^"]*"), /mg;
same('options of deepinfer-engine', \@options,
     [$engine =~ /^\| `--([\w-]+)(?: [^`]*)?` \|/mg]);
same('options in the manual', [grep { $_ ne 'help' } @options],
     [grep { $_ ne 'help' } $man =~ /Fl Fl ([\w-]+)/g]);

# A help text that ends in "; N" says the default.
while ($options =~ /^    \{ "([\w-]+)", [^{}]*?"[^"]*; (\d+)" \},/mg) {
    my ($name, $default) = ($1, $2);
    my ($said) = $engine =~ /^\| `--$name(?: [^`]*)?` \| `?(\w+)/m;

    is($said, $default, "--$name: the default is that of the help");
}

my @commands = $options =~ /\[DI_CMD_\w+\] = \{ "(\w+)"/g;
same('commands', \@commands, [$engine =~ /^\| \[(\w+)\]\(#\1\) \|/mg]);
for my $command (@commands) {
    like($engine, qr/^## $command$/m, "$command has a section");
    like($man, qr/\.It Cm $command\b/, "$command is in the manual");
}

# ---------------------------------------------------------------- the API --

my $api = text_of('docs/api.md');

# Fields of sampling say by which APIs they are known (C is Chat); those of
# the conversation are Chat's own.
my ($params) = text_of('tokenizer/api/params.c')
    =~ /\} fields\[\] = \{(.*?)^\};/ms;
my ($body) = text_of('tokenizer/api/chat_shape.c')
    =~ /^static const di_member_t members\[\] = \{(.*?)^\};/ms;
my %fields = map { $_ => 1 }
    ($params // '') =~ /\bF\("(\w+)", (?:ALL|[A-Z| ]*\bC\b[A-Z| ]*), \w+\)/g,
    ($body // '') =~ /\{ "(\w+)", [^,]+, (?!OFFICIAL)[^,]+, [^}]+ \}/g;
my $constrain = text_of('tokenizer/api/constrain.c');
for my $reader (qw(di_rq_constraint_field grammar_options)) {
    my ($list) = $constrain
        =~ /^$reader\(di_rq_t.*?fields\[\] = \{(.*?)^    \};/ms;
    $fields{$_} = 1 for ($list // '') =~ /\{ "(\w+)", \w+ \}/g;
}
my @fields = keys %fields;
my ($chapters) = $api =~ /^### Fields that are honoured\n(.*?)^### Messages/ms;
my @described = map { /`([a-z_]+)[`.]/g } $chapters =~ /^\| (`[^|]*) \|/mg;
@described = grep { !/^(?:text|output_\w+)$/ } @described;     # of other APIs
same('fields of a chat request', \@fields, \@described);

my @metrics = $module
    =~ /"(deepinfer_\w+?(?:_total|_seconds|_blocks|_entries|_bytes))"/g;
push @metrics, $module =~ /FIGURE\("(\w+)"/g, $module =~ /\# TYPE (\w+) /g;
same('metrics', \@metrics, [$api =~ /^\| `(deepinfer_\w+)` \|/mg]);

my $codes = text_of('tokenizer/api/*.c', 'ngx_deepinfer/*.c');
my ($errors) = $api =~ /^## Errors\n(.*?)^## \w/ms;
for my $code ($errors =~ /`([a-z_]+)`/g) {
    next if $code =~ /^(?:param|code|null|limit_req|worker_shutdown_timeout)$/;
    ok($codes =~ /"\Q$code\E"/, "the sources have the error $code");
}

# ------------------------------------------------------------ configuration --

my $model = "$root/t/data/echo.gguf";
DI::Engine::export_module();
my $nginx = DI::Nginx->start(server => '');
my $port = DI::Proc::free_port();

# A fragment is taken for what it holds: parts of http {}, or of server {}.
sub wrap {
    my ($fragment) = @_;
    my $pools = "deepinfer_pool default { model $model; engine unix:/x; }\n"
                . join '', map {
                      "deepinfer_pool $_ { model $model; engine unix:/x; }\n"
                  } qw(small large);
    my $maps = "map \$http_x_client \$api_client { default x; }\n";

    $pools = '' if $fragment =~ /deepinfer_pool/;
    $maps = '' if $fragment =~ /\$api_client \{/;

    # what needs files that a test has not
    $fragment =~ s{model +/\S+;}{model $model;}g;
    $fragment =~ s/^.*ssl_certificate.*\n//mg;
    $fragment =~ s/listen (?:443 ssl http2|8080);//g;

    my ($http, $server) = ($fragment, '');
    if ($fragment !~ /^\s*server \{/m) {
        my $at = $fragment =~ /^\s*(?:location|error_page)\b/m ? $-[0]
                 : length $fragment;
        ($http, $server) = (substr($fragment, 0, $at),
                            substr($fragment, $at));
    }
    $http =~ s/server \{/server { listen 127.0.0.1:$port;/g;
    return "$pools$maps$http\n server {\n listen 127.0.0.1:$port;\n"
           . "server_name other;\n$server\n}\n";
}

my $tried = 0;
for my $path (sort glob("$root/docs/*.md"), "$root/README.md") {
    my $n = 0;
    my ($name) = $path =~ m{([^/]+)$};

    next if $name eq 'design.md';       # shows what is planned, too
    for my $fragment (DI::Proc::slurp($path) =~ /^```nginx\n(.*?)^```/msg) {
        $n++;
        $tried++;
        $nginx->configure(conf => wrap($fragment), server => '');
        is($nginx->command('-t'), 0, "$name: nginx accepts fragment $n")
            or diag $fragment,
                    DI::Proc::slurp($nginx->root . '/logs/output.txt');
    }
}
cmp_ok($tried, '>', 5, 'fragments were found');

# --------------------------------------------------------------- examples --

# Blocks of a language in the documents, [name, text] each; design.md shows
# what is planned, too.
sub blocks {
    my ($language) = @_;
    my @blocks;

    for my $path (sort glob("$root/docs/*.md"), "$root/README.md") {
        my ($name) = $path =~ m{([^/]+)$};

        next if $name eq 'design.md';
        push @blocks, map { [$name, $_] }
                      DI::Proc::slurp($path) =~ /^```$language\n(.*?)^```/msg;
    }
    cmp_ok(scalar @blocks, '>', 0, "there are examples of $language");
    return @blocks;
}

# Run a script of bash or Python; what it says goes to a file.
my $dir = DI::Proc::tempdir();
sub runs {
    my ($name, $text, @command) = @_;

    DI::Proc::spew("$dir/script", $text);
    my $pid = DI::Proc::spawn(name => 'example', out => "$dir/output",
                              cmd => [@command, "$dir/script"]);
    DI::Proc::wait_until(300, sub { defined DI::Proc::status_of($pid) });
    is(DI::Proc::status_of($pid), 0, "$name works")
        or diag $text, DI::Proc::slurp("$dir/output");
    DI::Proc::forget($pid);
}

for my $block (blocks('json')) {
    ok(eval { decode_json($block->[1]) }, "$block->[0]: JSON is JSON")
        or diag $block->[1];
}

# conf/nginx.conf before an engine, on another port and with other paths
my $engine_of_curl = DI::Engine->start(kind => 'echo');
my $example = text_of('conf/nginx.conf') =~ s/^.*?\nhttp \{\n(.*)\}\n\z/$1/sr;
$example =~ s{model +/\S+;}{model @{[$engine_of_curl->model]};};
$example =~ s{unix:\S+;}{unix:@{[$engine_of_curl->socket_path]};};
$example =~ s{^\s*access_log /.*\n}{}mg;
$example =~ s{listen 8080;}{listen 127.0.0.1:$port;};
my $served = DI::Nginx->start(
    main => "thread_pool default threads=2;\n", conf => $example);
DI::Proc::eventually(sub {
    system("curl -sf 127.0.0.1:$port/health > $dir/output") == 0;
});

# A command for curl ends where its quotes do.
my $asked = 0;
for my $block (blocks('sh')) {
    my ($name, $text) = @$block;

    while ($text =~ /^(curl (?:[^\n']|'[^']*')*)$/mg) {
        my $command = $1 =~ s/localhost:8080/127.0.0.1:$port/gr;

        runs("$name: " . ($command =~ /^(.{1,50})/)[0],
             $command =~ s/^curl/curl -sS --fail-with-body/r, 'bash');
        $asked++;
    }
}
cmp_ok($asked, '>', 5, 'commands for curl were found');

my $cache = $ENV{XDG_CACHE_HOME} // "$ENV{HOME}/.cache";
my $python = $ENV{TEST_DEEPINFER_SDK_PYTHON}
             // "$cache/ngx_deepinfer/sdk/bin/python";
SKIP: {
    skip 'no SDKs for the examples in Python', 1
        if system("$python -c 'import openai' 2> /dev/null") != 0;
    runs("$_->[0]: the example in Python",
         $_->[1] =~ s/localhost:8080/127.0.0.1:$port/r, $python)
        for blocks('python');
}

# Commands of the engine, in a folder with a model.gguf; no more runs of the
# benchmark than one.  `serve` is what all other tests start.
my $model_file = $ENV{TEST_DEEPINFER_MODEL}
                 // (glob("$cache/ngx_deepinfer/*.gguf"))[0];
SKIP: {
    skip 'no model for the examples of the engine', 1
        if !defined $model_file || !-r $model_file;
    symlink(Cwd::abs_path($model_file), "$dir/model.gguf");
    for my $block (blocks('sh')) {
        my ($name, $text) = @$block;
        my ($command) = $text =~
            /((?:deepinfer-engine (?!serve|@)|build\/grammar-match)\S*)/;

        next if !defined $command || $text =~ /systemctl|grammar-suite/;
        $text =~ s/^(deepinfer-engine bench.*)/$1 --repeat 1/m;
        $text =~ s/^make .*\n//mg;
        runs("$name: $command", "set -e\ncd $dir\nPATH=$root/build:\$PATH\n"
                                . $text =~ s{ build/}{ }gr, 'bash');
    }
}

# Links between documents lead somewhere.
for my $path (sort glob("$root/docs/*.md"), "$root/README.md") {
    my ($name) = $path =~ m{([^/]+)$};

    for my $link (DI::Proc::slurp($path) =~ /\]\(([^)\s]+)\)/g) {
        my ($file, $anchor) = $link =~ /^([^#]*)#?(.*)$/;

        next if $file =~ /^https?:/;
        my $target = $file eq '' ? $path : dirname($path) . "/$file";
        ok(-f $target, "$name: $link is there") or next;
        next if $anchor eq '';
        my @anchors = map { s/[^\w -]//gr =~ s/ /-/gr =~ tr/A-Z/a-z/r }
                      DI::Proc::slurp($target) =~ /^#+ (.*)$/mg;
        ok((grep { $_ eq $anchor } @anchors), "$name: $link is a heading");
    }
}

done_testing();
