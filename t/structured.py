"""structured.py - many generations that are held to grammars, against a
running server; what comes is judged by others' code.

usage: structured.py URL MODEL [--n N] [--parallel N] [--temperature T]
                     [--max-tokens N] [--seed N] [--match PROGRAM]
                     [--fields JSON]

Asks URL/v1/chat/completions N times, in turn for each of 50 schemas, regular
expressions and grammars, every other time as a stream, with more FIELDS in
the request.  Each text that has ended by itself must be valid: by Python's
jsonschema and re, grammars by build/grammar-match.  Prints what was wrong,
then one line of counts for each kind and one for all; exits with 1 if
anything was wrong.
"""

import argparse
import concurrent.futures
import json
import re
import subprocess
import sys
import time
import urllib.request

from jsonschema import Draft202012Validator, FormatChecker

FORMATS = FormatChecker(["date", "ipv4", "ipv6", "uuid", "email"])


def obj(properties, required=None, **more):
    return {"type": "object", "properties": properties,
            "required": list(properties) if required is None else required,
            "additionalProperties": False, **more}


def arr(items, low, high, **more):
    return {"type": "array", "items": items, "minItems": low,
            "maxItems": high, **more}


STR = {"type": "string", "maxLength": 30}
INT = {"type": "integer", "minimum": -1000, "maximum": 1000}
NODE = obj({"value": INT, "left": {"anyOf": [{"$ref": "#/$defs/node"},
                                             {"type": "null"}]}}, ["value"])
STEP = obj({"explanation": STR, "output": STR})

SCHEMAS = {
    "integers": INT,
    "any object": {"type": "object", "maxProperties": 3},
    "person": obj({"name": STR, "age": {"type": "integer", "minimum": 0,
                                        "maximum": 130}}),
    "optional members": obj({"a": STR, "b": INT, "c": {"type": "boolean"}},
                            ["b"]),
    "no members": obj({}),
    "enum of texts": {"enum": ["red", "green", "blue", "bluish"]},
    "enum of many kinds": {"enum": [1, "1", None, True, [1], {"a": 1}, 1.5]},
    "const": {"const": {"a": [1, 2, {"b": "c"}]}},
    "list of integers": arr(INT, 2, 5),
    "list of objects": arr(obj({"x": INT, "y": INT}), 1, 3),
    "tuple": {"type": "array", "prefixItems": [STR, INT, {"type": "null"}],
              "items": False, "minItems": 3},
    "at least one that is 5": arr(INT, 1, 4, contains={"const": 5}),
    "lengths": {"type": "string", "minLength": 5, "maxLength": 12},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
    "pattern anywhere": {"type": "string", "pattern": "[0-9]{3}",
                         "maxLength": 20},
    "date": obj({"day": {"type": "string", "format": "date"}}),
    "uuid": {"type": "string", "format": "uuid"},
    "addresses": obj({"v4": {"type": "string", "format": "ipv4"},
                      "v6": {"type": "string", "format": "ipv6"}}),
    "email": {"type": "string", "format": "email", "maxLength": 40},
    "bounds": {"type": "integer", "exclusiveMinimum": 17,
               "exclusiveMaximum": 23},
    "multiples": {"type": "integer", "multipleOf": 7, "minimum": 0,
                  "maximum": 700},
    "numbers": {"type": "number", "minimum": -1.5, "maximum": 2.5},
    "list of types": {"type": ["integer", "boolean", "null"],
                      "minimum": 0, "maximum": 99},
    "anyOf": {"anyOf": [obj({"kind": {"const": "circle"}, "r": INT}),
                        obj({"kind": {"const": "box"}, "w": INT, "h": INT})]},
    "oneOf": {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 9},
                        {"enum": ["none", "all"]}]},
    "allOf": {"allOf": [{"type": "integer", "minimum": 10},
                        {"maximum": 40}, {"multipleOf": 5}]},
    "not": {"type": "string", "enum": ["a", "b", "c"], "not": {"const": "b"}},
    "if then else": obj({"us": {"type": "boolean"}, "zip": STR}, **{
        "if": {"properties": {"us": {"const": True}}},
        "then": {"properties": {"zip": {"pattern": "^[0-9]{5}$"}}},
        "else": {"properties": {"zip": {"pattern": "^[A-Z]{3}$"}}}}),
    "recursion": {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    "steps": {"$defs": {"Step": STEP}, **obj({
        "steps": arr({"$ref": "#/$defs/Step"}, 1, 2),
        "final_answer": STR})},
    "open map": {"type": "object", "additionalProperties": INT,
                 "minProperties": 1, "maxProperties": 3,
                 "propertyNames": {"pattern": "^[a-z]{1,8}$"}},
    "names by pattern": {"type": "object", "additionalProperties": False,
                         "patternProperties": {"^n_": INT, "^s_": STR},
                         "minProperties": 1, "maxProperties": 2},
}

REGEXES = {
    "date": r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])",
    "address": r"[a-z0-9._]{1,12}@[a-z0-9-]{1,12}\.[a-z]{2,6}",
    "bounded text": r'[^\n"]{10,60}',
    "table row": r"(\| [a-zA-Z0-9]{1,9} ){3}\|",
    "words": r"[A-Z][a-z]{1,9}( [a-z]{1,9}){2,6}[.!?]",
    "without case": r"(?i)(yes|no|perhaps)",
    "alternatives": r"(foo|foobar|bar){1,3}",
    "classes": r"[[:alpha:]]{2,5}-[[:digit:]]{2}",
    "accents": r"[a-zà-ÿ]{3,12}",
    "anchors": r"^(ab|cd){2,4}$",
    "floating": r"[+-]?(0|[1-9]\d{0,3})(\.\d{1,3})?([eE][+-]?\d{1,2})?",
}

# Python's re has no POSIX classes.
PYTHON = {"classes": r"[^\W\d_]{2,5}-\d{2}"}

EBNFS = {
    "sum": 'root ::= num ("+" num){1,4} "=" num\nnum ::= [0-9]{1,3}',
    "list": 'root ::= "[" item ("," " "? item){0,5} "]"\n'
            'item ::= "a" | "bc" | [x-z]{2}',
    "nested": 'root ::= b\nb ::= "(" b ")" | "x" | "[" b "]"',
    "chess": 'root ::= ([1-9] ". " move " " move " "){1,3} "*"\n'
             'move ::= [NBRQK]? [a-h] [1-8] "+"?',
    "query": 'root ::= "SELECT " col (", " col){0,3} " FROM " [a-z]{2,8} '
             '(" WHERE " col " = " [0-9]{1,4})? ";"\ncol ::= [a-z]{1,6}',
    "lines": 'root ::= line{2,4}\nline ::= "- " [a-z ]{3,20} "\\n"',
    "escapes": r'root ::= "\x41" [\u00e0-\u00ff]{1,3} "\"" "\t"',
}


def constraints():
    for name, schema in SCHEMAS.items():
        yield "schema", name, schema, {"response_format": {
            "type": "json_schema", "json_schema": {
                "name": "it", "schema": schema}}}
    for name, regex in REGEXES.items():
        yield "regex", name, regex, {"guided_regex": regex}
    for name, ebnf in EBNFS.items():
        yield "ebnf", name, ebnf, {"guided_grammar": ebnf}


def events(response):
    for line in response:
        if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
            yield json.loads(line[6:])


def ask(o, i, kind, name, fields):
    """The text, or None if it was cut."""
    body = {"model": o.model, "temperature": o.temperature,
            "seed": o.seed + i, "max_tokens": o.max_tokens,
            "stream": i % 2 == 1, "messages": [{
                "role": "user", "content": f"Write {name} ({kind})."}],
            **o.fields, **fields}
    request = urllib.request.Request(o.url + "/v1/chat/completions",
                                     json.dumps(body).encode())
    text, reason = "", None

    with urllib.request.urlopen(request, timeout=300) as response:
        if body["stream"]:
            for event in events(response):
                if "error" in event:
                    raise ValueError(event["error"])
                for choice in event["choices"]:
                    text += choice["delta"].get("content") or ""
                    reason = choice["finish_reason"] or reason
        else:
            choice = json.load(response)["choices"][0]
            text = choice["message"]["content"]
            reason = choice["finish_reason"]
    return text if reason == "stop" else None


def fault(kind, name, what, text):
    """Why the text is wrong, or None."""
    if kind == "regex":
        fits = re.fullmatch(PYTHON.get(name, what), text)
        return None if fits else "does not match"
    try:
        value = json.loads(text)
    except ValueError as e:
        return str(e)
    validator = Draft202012Validator(what, format_checker=FORMATS)
    return next((e.message for e in validator.iter_errors(value)), None)


def match(program, pairs):
    """For each pair of an EBNF and a text, why it is wrong, or None."""
    lines = "".join(json.dumps({"ebnf": e, "text": t}) + "\n"
                    for e, t in pairs)
    out = subprocess.run([program], input=lines, capture_output=True,
                         text=True, check=True).stdout.splitlines()
    return [None if json.loads(line) == {"accept": True} else line
            for line in out]


def options():
    p = argparse.ArgumentParser()
    p.add_argument("url")
    p.add_argument("model")
    p.add_argument("--n", type=int, default=1000)
    p.add_argument("--parallel", type=int, default=8)
    p.add_argument("--temperature", type=float, default=1.5)
    p.add_argument("--max-tokens", type=int, default=200)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--match", default="build/grammar-match")
    p.add_argument("--fields", type=json.loads, default={})
    return p.parse_args()


def main():
    o = options()
    every = list(constraints())
    jobs = [(i, *every[i % len(every)]) for i in range(o.n)]
    counts = {k: {"valid": 0, "cut": 0, "wrong": 0} for k in
              ("schema", "regex", "ebnf")}
    ebnfs = []
    start = time.time()

    def count(kind, name, text, why):
        counts[kind]["wrong" if why else "valid"] += 1
        if why:
            print(f"wrong: {kind} {name!r}: {why}: {text!r}"[:400])

    def run(job):
        try:
            return ask(o, job[0], job[1], job[2], job[4]), None
        except Exception as e:
            return None, getattr(e, "read", lambda: repr(e))() or repr(e)

    with concurrent.futures.ThreadPoolExecutor(o.parallel) as pool:
        for (_, kind, name, what, _), (text, error) in zip(
                jobs, pool.map(run, jobs)):
            if error:
                count(kind, name, "", error)
            elif text is None:
                counts[kind]["cut"] += 1
            elif kind == "ebnf":
                ebnfs.append((name, what, text))
            else:
                count(kind, name, text, fault(kind, name, what, text))

    for (name, _, text), why in zip(ebnfs, match(
            o.match, [(what, text) for _, what, text in ebnfs])):
        count("ebnf", name, text, why)

    counts["all"] = {k: sum(c[k] for c in counts.values())
                     for k in ("valid", "cut", "wrong")}
    for kind, c in counts.items():
        print(f"{kind}: {c['valid']} valid, {c['cut']} cut by max_tokens, "
              f"{c['wrong']} wrong")
    print(f"{len(every)} constraints, {o.n} generations, "
          f"{time.time() - start:.1f} s")
    sys.exit(counts["all"]["wrong"] != 0)


main()
