#!/bin/bash
# lint.sh: what a compiler does not check.  CLANG and MODULE come from make.

set -u

cd "$(dirname "$0")/.."
failed=()

check() {
    local name=$1
    shift
    if "$@"; then
        printf '  %-8s%s\n' ok "$name"
    else
        printf '  %-8s%s\n' FAILED "$name"
        failed+=("$name")
    fi
}

sources() {
    git ls-files -co --exclude-standard -- "$@"
}

# ------------------------------------------------------------------ checks --

includes() {
    # shellcheck disable=SC2046
    perl t/lint/includes.pl $(sources '*.c' '*.h' '*.cu')
}

# nginx loads modules into one namespace with everything else, so the module
# shows the linker what exports.map names and nothing more.
exports() {
    diff <(sed -n '/global:/,/local:/p' ngx_deepinfer/exports.map |
           grep -o '[A-Za-z_][A-Za-z0-9_]*;' | tr -d ';' | sort) \
         <(nm -D --defined-only "$MODULE" | awk '{ print $3 }' | sort)
}

# 80 columns, no tabs but in makefiles, no blanks at the end of a line.  What
# follows __DATA__ is requests and answers, as long as they are.
layout() {
    local files faults

    mapfile -t files < <(sources '*.c' '*.h' '*.cu' '*.pm' '*.t' '*.pl' '*.sh')
    faults=$(perl -CSD -ne '
        chomp;
        $data = 1 if /^__DATA__$/;
        next if $data;
        print "$ARGV:$.: ", length, " columns\n" if length > 80;
        print "$ARGV:$.: a tab\n" if /\t/;
        print "$ARGV:$.: blanks at the end\n" if /[ \t]$/;
    } continue {
        if (eof) {
            $data = 0;
            close ARGV;
        }
    ' "${files[@]}") || return 1
    [[ -z $faults ]] && return
    head -n 40 <<< "$faults"
    return 1
}

clang_build() {
    mkdir -p build-clang
    make --no-print-directory -j"$(nproc)" BUILD=build-clang CC="$CLANG" \
        build-clang/deepinfer-engine build-clang/echo-engine \
        > build-clang/log 2>&1 && return
    tail -n 30 build-clang/log
    return 1
}

# Advice only: it takes impossible paths for faults, so each is to be read.
static_analysis() {
    # shellcheck disable=SC2046
    cppcheck --quiet --std=c11 --language=c --template=gcc -j "$(nproc)" \
        --enable=warning,portability --inline-suppr \
        --suppress=missingInclude --suppress=missingIncludeSystem -I . \
        $(sources 'engine/*.c' 'tokenizer/*.c' 'kernels/*.c')
}

perl_compiles() {
    local file status=0

    for file in $(sources 't/lib/*.pm'); do
        perl -It/lib -c "$file" 2>&1 | grep -v 'syntax OK$' && status=1
    done
    return $status
}

check 'direction of includes' includes
check 'exported symbols' exports
check 'layout of lines' layout
check 'perl' perl_compiles
check "build with $CLANG" clang_build
check 'cppcheck (advice only)' static_analysis

[[ ${#failed[@]} -eq 0 ]] || exit 1
