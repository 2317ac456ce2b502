#!/bin/bash
# unit.sh PROGRAM...: run unit tests, a line with its time for each.
#
# A test that fails shows its output at once; at the end all failures and the
# tests that were skipped, with their reasons, are named again.

set -u

failed=()
skips=()

for program in "$@"; do
    name=$(basename "$program")
    begin=${EPOCHREALTIME/[.,]/}         # a comma in some locales
    output=$(timeout -k 5 "${UNIT_TIMEOUT:-900}" "$program" 2>&1)
    status=$?
    ms=$(((${EPOCHREALTIME/[.,]/} - begin) / 1000))

    while IFS= read -r line; do
        [[ $line == SKIP* ]] && skips+=("$name: ${line#SKIP }")
    done <<< "$output"

    if [[ $status -eq 0 ]]; then
        printf '  %-8s%-20s%8d ms  %s\n' ok "$name" "$ms" \
            "$(grep -E 'checks? passed' <<< "$output" | tail -n 1 |
               sed 's/^[^:]*: //')"
    else
        failed+=("$name")
        printf '  %-8s%-20s%8d ms  status %d\n' FAILED "$name" "$ms" "$status"
        sed 's/^/          /' <<< "$output" | tail -n "${UNIT_LINES:-60}"
    fi
done

for skip in "${skips[@]+"${skips[@]}"}"; do
    echo "  SKIP    $skip"
done
echo "unit tests: $(($# - ${#failed[@]})) of $# passed," \
     "${#skips[@]} parts skipped"
if [[ ${#failed[@]} -gt 0 ]]; then
    echo "FAILED: ${failed[*]}"
    exit 1
fi
