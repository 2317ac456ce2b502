#!/usr/bin/env python3
"""The official JSON-Schema-Test-Suite against grammar-match.

usage: grammar-suite.py [-v] GRAMMAR-MATCH FOLDER|FILE.json.gz

FOLDER holds a draft's files (tests/draft2020-12), FILE.json.gz the
same in one; format.json and content.json are left out, as they test
annotations.  Each instance is asked as compact JSON, with properties in any
order.  Prints how many are judged right, wrong, or are refused by name; exits
with 0 if at least 75 % are right and under 1 % wrong.
"""

import gzip
import json
import os
import subprocess
import sys

LEFT_OUT = {"format.json", "content.json"}


def files(path):
    if not os.path.isdir(path):
        with gzip.open(path, "rt", encoding="utf-8") as f:
            yield from json.load(f)["files"].items()
        return
    for name in sorted(os.listdir(path)):
        if name.endswith(".json") and name not in LEFT_OUT:
            with open(os.path.join(path, name), encoding="utf-8") as f:
                yield name, json.load(f)


def cases(path):
    for name, groups in files(path):
        for group in groups:
            for test in group["tests"]:
                where = "%s: %s: %s" % (name, group["description"],
                                        test["description"])
                yield where, group["schema"], test


def main():
    args = [a for a in sys.argv[1:] if a != "-v"]
    if len(args) != 2:
        sys.exit(__doc__)
    all_cases = list(cases(args[1]))
    lines = "".join(json.dumps({
        "schema": schema, "any_order": True,
        "text": json.dumps(test["data"], separators=(",", ":"))}) + "\n"
        for _, schema, test in all_cases)
    out = subprocess.run([args[0]], input=lines, stdout=subprocess.PIPE,
                         text=True, check=True).stdout.splitlines()
    if len(out) != len(all_cases):
        sys.exit("%d answers to %d lines" % (len(out), len(all_cases)))

    right = wrong = refused = 0
    for (where, _, test), line in zip(all_cases, out):
        answer = json.loads(line)
        if "error" in answer:
            refused += 1
            note = "refused: %(keyword)s %(path)s: %(message)s" \
                % answer["error"]
        elif answer["accept"] == test["valid"]:
            right += 1
            continue
        else:
            wrong += 1
            note = "WRONG: valid is %s" % test["valid"]
        if "-v" in sys.argv:
            print(where, "-", note)

    n = len(all_cases)
    print("%d instances: %d right (%.1f %%), %d wrong (%.1f %%), "
          "%d refused (%.1f %%)" % (n, right, 100 * right / n, wrong,
                                    100 * wrong / n, refused,
                                    100 * refused / n))
    return 0 if right >= 0.75 * n and wrong < 0.01 * n else 1


sys.exit(main())
