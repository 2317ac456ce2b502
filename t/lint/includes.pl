#!/usr/bin/env perl
# includes.pl FILE...: who may include whom.
#
# Dependencies run one way; a header that breaks this is a bug.  Each source
# file belongs to the first part below whose folder it lies in, and may
# include its own part, the parts and the libraries that are named there, and
# the C library.

use strict;
use warnings;

use File::Basename qw(dirname);
use File::Spec;

my $error_type = 'tokenizer/di_err.h';      # the one header that all share

# folder => [may include these of ours, and these libraries]
my @parts = (
    ['ngx_deepinfer/', ['tokenizer/', 'engine/ipc/'],
     [qw(ngx_ nginx hiredis)]],
    ['engine/ipc/', [], []],
    # Offline generation takes conversations, so the commands know dialects.
    ['engine/cmd/', ['engine/', 'kernels/', 'tokenizer/vocab/',
                     'tokenizer/grammar/', 'tokenizer/dialect/'],
     [qw(jansson)]],
    ['engine/', ['engine/', 'kernels/', 'tokenizer/vocab/',
                 'tokenizer/grammar/'],
     [qw(jansson hiredis openssl xxhash liburing ucp)]],
    ['kernels/', [], []],
    ['tokenizer/vocab/', ['tokenizer/grammar/'],
     [qw(pcre2 jansson openssl utf8proc)]],
    ['tokenizer/grammar/', ['tokenizer/vocab/'],
     [qw(pcre2 jansson openssl utf8proc)]],
    ['tokenizer/', ['tokenizer/'], [qw(pcre2 jansson openssl utf8proc)]],
);

# Libraries that are not the C library's or the compiler's.
my $foreign = qr{^(?:ngx_|nginx|jansson|pcre2|openssl/|utf8proc|xxhash|
                     hiredis|liburing|ucp/|cuda|zlib|glib)}x;
my $faults = 0;

sub fault {
    print STDERR "$_[0]\n";
    $faults++;
}

sub check_quoted {
    my ($file, $line, $part, $header) = @_;
    my ($folder, $ours) = @$part;
    my $beside = File::Spec->canonpath(dirname($file) . "/$header");

    1 while $beside =~ s{[^/]+/\.\./}{};
    my $path = -e $beside ? $beside : $header;
    return fault("$file:$line: $header does not exist") if !-e $path;
    return if $path eq $error_type;
    return if grep { index($path, $_) == 0 } $folder, @$ours;
    fault("$file:$line: $folder must not include $path");
}

sub check_system {
    my ($file, $line, $part, $header) = @_;
    my ($folder, undef, $libraries) = @$part;

    return if $header !~ $foreign;
    return if grep { index($header, $_) == 0 } @$libraries;
    fault("$file:$line: $folder must not include <$header>");
}

for my $file (@ARGV) {
    my ($part) = grep { index($file, $_->[0]) == 0 } @parts;
    next if !$part;

    open(my $fh, '<', $file) or die "cannot read $file: $!\n";
    while (<$fh>) {
        check_quoted($file, $., $part, $1) if /^\s*#\s*include\s+"([^"]+)"/;
        check_system($file, $., $part, $1) if /^\s*#\s*include\s+<([^>]+)>/;
    }
    close($fh);
}

exit($faults ? 1 : 0);
