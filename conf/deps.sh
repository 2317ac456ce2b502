#!/bin/bash
# deps.sh PACKAGE...: install the Debian packages that are missing, if any.

set -eu

missing=()
for package in "$@"; do
    status=$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null) ||
        status=
    [[ $status == ii* ]] || missing+=("$package")
done

[[ ${#missing[@]} -eq 0 ]] && exit 0

if ! command -v apt-get > /dev/null; then
    echo "These Debian packages, or what your system calls them, are needed:" \
         "${missing[*]}" >&2
    # Whoever has them under other names goes on.
    command -v cc > /dev/null && command -v nginx > /dev/null
    exit
fi

as_root=()
if [[ $EUID -ne 0 ]]; then
    command -v sudo > /dev/null || {
        echo "Packages are missing, and this is not root and has no sudo:" \
             "apt-get install ${missing[*]}" >&2
        exit 1
    }
    as_root=(sudo)
fi

echo "  APT     ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT

apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@" \
        > "$log" 2>&1
}

# The lists of a fresh image are empty or stale.
if ! { apt update &&
       apt install --no-install-recommends "${missing[@]}"; }; then
    tail -n 20 "$log" >&2
    echo "apt-get could not install: ${missing[*]}" >&2
    exit 1
fi
