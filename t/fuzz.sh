#!/bin/bash
# fuzz.sh SECONDS PROGRAM...: run each fuzzer from its kept corpus.
#
# t/data/fuzz/NAME is where a fuzzer begins and stays as it is; what it finds
# on the way goes to build-fuzz/corpus/NAME, a crash to build-fuzz/crash-NAME.

set -u

cd "$(dirname "$0")/.."
seconds=$1
shift
failed=()

for program in "$@"; do
    name=$(basename "$program")
    corpus=build-fuzz/corpus/$name
    log=build-fuzz/$name.log
    seeds=()
    [[ -d t/data/fuzz/$name ]] && seeds=("t/data/fuzz/$name")
    dict=()
    [[ -f t/data/fuzz/$name.dict ]] && dict=("-dict=t/data/fuzz/$name.dict")
    mkdir -p "$corpus"

    if "$program" -max_total_time="$seconds" -rss_limit_mb=4096 -timeout=10 \
            -print_final_stats=1 -artifact_prefix="build-fuzz/crash-$name-" \
            "${dict[@]+"${dict[@]}"}" "$corpus" \
            "${seeds[@]+"${seeds[@]}"}" > "$log" 2>&1; then
        printf '  %-8s%-16s%12s runs%8s a second\n' ok "$name" \
            "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
            "$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")"
    else
        failed+=("$name")
        printf '  %-8s%-16s%s\n' FAILED "$name" "$log"
        tail -n 40 "$log"
    fi
done

[[ ${#failed[@]} -eq 0 ]] || { echo "FAILED: ${failed[*]}"; exit 1; }
