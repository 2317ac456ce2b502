#!/bin/bash
# sdk-venv.sh DIR: a Python environment in DIR/sdk with the official openai
# and anthropic SDKs, for t/sdk.t, and jsonschema, for t/structured-many.t.
#
# The versions are the newest, as they are for users.  The environment is
# renamed to its final name when it is complete; one from before that lacks
# one of them is replaced.

set -eu

dir=$1
"$dir/sdk/bin/python" -c 'import openai, anthropic, jsonschema' \
    2> /dev/null && exit 0

mkdir -p "$dir"
log=$(mktemp)
trap 'rm -rf "$log" "$dir/sdk.new"' EXIT

echo "  VENV    $dir/sdk (openai, anthropic, jsonschema)"
# As a module: the script pip would have the name before the renaming inside.
if ! { python3 -m venv "$dir/sdk.new" &&
       "$dir/sdk.new/bin/python" -m pip install --quiet --no-input \
           --disable-pip-version-check --only-binary :all: \
           openai anthropic jsonschema; } > "$log" 2>&1; then
    tail -n 5 "$log" >&2
    echo "the SDKs could not be installed" >&2
    exit 1
fi
rm -rf "$dir/sdk"
mv "$dir/sdk.new" "$dir/sdk"
