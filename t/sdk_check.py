"""sdk_check.py - what the scripts that drive official SDKs share.

A test is a function under @test; run() prints "ok NAME" or "not ok NAME:
reason" for each.  whole() checks an object against the SDK's own type,
strictly: the SDKs build objects without checking them.

What a model says differs between CPUs.  A test of its text compares answers
with each other, and what it needs of an answer's length it asks for: FULL
makes it as long as max_tokens says.
"""

import sys
import traceback

FULL = {"ignore_eos": True}

tests = []


def test(fn):
    tests.append(fn)
    return fn


def unknown_fields(obj, path=""):
    """Paths of what the server sent and the SDK's types don't know."""
    if isinstance(obj, list):
        return [p for i, x in enumerate(obj)
                for p in unknown_fields(x, f"{path}[{i}]")]
    if not hasattr(type(obj), "model_fields"):
        return []
    found = [f"{path}.{k}" for k in (obj.model_extra or {})]
    for name in type(obj).model_fields:
        found += unknown_fields(getattr(obj, name, None), f"{path}.{name}")
    return found


def known(obj, allow=()):
    """Nothing in obj is unknown but what ends with a name in `allow`."""
    unknown = [p for p in unknown_fields(obj)
               if p.rsplit(".", 1)[-1] not in allow]
    assert unknown == [], unknown
    return obj


def whole(obj, kind=None, allow=()):
    """obj is of this type, nothing is missing, nothing unknown.  Not for what
    an SDK's helpers have made: their types don't pass their own check."""
    kind = kind or type(obj)
    assert isinstance(obj, kind), type(obj)
    type(obj).model_validate_json(obj.to_json(), strict=True)
    return known(obj, allow)


def middle(text):
    """A few characters from inside a text, to stop at."""
    assert len(text) >= 6, text
    return text[len(text) // 2:][:3]


def run():
    for fn in tests:
        name = fn.__name__.replace("_", " ")
        try:
            fn()
            print(f"ok {name}", flush=True)
        except Exception as e:
            at = traceback.extract_tb(e.__traceback__)
            where = next(f for f in reversed(at) if f.filename != __file__
                         and "site-packages" not in f.filename)
            reason = f"{type(e).__name__}: {e}"
            print(f"not ok {name}: line {where.lineno}: {where.line}: "
                  + " ".join(reason.split())[:600], flush=True)
    sys.stdout.flush()
