#!/bin/bash
# sdk-venv.sh DIR: a Python environment in DIR/sdk with the official openai
# SDK, for t/sdk.t.
#
# The version is the newest, as it is for users.  The environment is renamed
# to its final name when it is complete, so one of that name is complete.

set -eu

dir=$1
[[ -x $dir/sdk/bin/python ]] && exit 0

mkdir -p "$dir"
log=$(mktemp)
trap 'rm -rf "$log" "$dir/sdk.new"' EXIT

echo "  VENV    $dir/sdk (openai)"
# As a module: the script pip would have the name before the renaming inside.
if ! { python3 -m venv "$dir/sdk.new" &&
       "$dir/sdk.new/bin/python" -m pip install --quiet --no-input \
           --disable-pip-version-check --only-binary :all: openai; } \
        > "$log" 2>&1; then
    tail -n 5 "$log" >&2
    echo "the openai SDK could not be installed" >&2
    exit 1
fi
mv "$dir/sdk.new" "$dir/sdk"
