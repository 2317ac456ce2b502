#!/usr/bin/env python3
"""mutate.py SEED N: how Recipe refuses bodies that are nearly right.

Bodies of render.jsonl.gz are changed in a place or three, and schemas are
drawn at random; the package deepseek-recipe 0.2.0 says what is wrong with
each.  One vector for every different error goes to standard output:

    for seed in 1 2 3; do ./mutate.py $seed 6000; done

mutated.jsonl.gz has these but for four, of the kinds that docs/codec.md
lists.
"""

import copy
import gzip
import json
import pathlib
import random
import sys

import deepseek_recipe as recipe

REQUESTS = {'chat': recipe.ChatCompletionRequest,
            'responses': recipe.ResponsesRequest,
            'messages': recipe.MessagesRequest}
VALUES = [None, True, False, 0, 1, -1, 1.5, 1e300, '', 'x', 'json', [], {},
          [1], {'a': 1}, 'auto', 'none', 'required', 2 ** 63, 2 ** 64, -5, 3.0]
KEYS = ['type', 'content', 'role', 'name', 'arguments', 'parameters', 'strict',
        'tools', 'tool_choice', 'text', 'input', 'schema', 'id', 'call_id',
        'description', 'properties', 'required', 'anyOf', 'items', 'enum',
        'additionalProperties', '$ref', 'format', 'pattern', 'minimum']
TYPES = ['object', 'string', 'number', 'integer', 'boolean', 'array', 'null']
KEYWORDS = {
    'description': ['d', 5], 'title': ['t'], 'const': [1, 'a', None, {}],
    'enum': [['a', 'b'], [1, 'a'], [], 5], 'pattern': ['^a$', '(', 5],
    'format': ['email', 'uuid', 'date', 'zzz', 1], 'minLength': [1, -1, 1.5],
    'minimum': [1, 1.5, 1e20, 'x'], 'multipleOf': [2, 0, -1],
    'exclusiveMinimum': [0, True], 'default': [1, 'x', 2.5],
    'uniqueItems': [True, 1], 'minProperties': [1, -1],
    '$ref': ['#/$defs/a', '#/zz', '#', 'http://x/y', 5, '#foo'],
    '$schema': ['http://json-schema.org/draft-07/schema#', 'foo', 5],
    '$id': ['x', 5, 'http://x/y#z'], '$anchor': ['foo', '1', 5, ''],
    '$vocabulary': [{'x': True}, 5], '$dynamicRef': ['#a', 5],
    'patternProperties': [{'a': {}}, {'(': {}}, 5],
    'dependentRequired': [{'a': ['b']}, {'a': ['b', 'b']}, {'a': 5}],
    'readOnly': [1], '$comment': ['c', 1], 'contentMediaType': [1],
}


def places(value, way=()):
    """Ways to all values in a value."""
    yield way
    if isinstance(value, (dict, list)):
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield from places(value[key], way + (key,))


def follow(value, way):
    for key in way:
        value = value[key]
    return value


def mutate(rnd, body):
    body = copy.deepcopy(body)
    for _ in range(rnd.choice([1, 1, 1, 2, 3])):
        ways = list(places(body))
        way = rnd.choice(ways)
        if not way:
            continue
        parent, key = follow(body, way[:-1]), way[-1]
        change = rnd.randrange(5)
        if change == 0:
            parent[key] = copy.deepcopy(rnd.choice(VALUES))
        elif change == 1:
            del parent[key]
        elif change == 2:
            parent[key] = copy.deepcopy(follow(body, rnd.choice(ways)))
        elif isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
        elif change == 3:
            parent[rnd.choice(KEYS)] = copy.deepcopy(rnd.choice(VALUES))
        else:
            parent[rnd.choice(KEYS)] = parent.pop(key)
    return body


def schema(rnd, depth):
    if depth == 0 or rnd.random() < .1:
        return rnd.choice([{}, True, {'type': rnd.choice(TYPES)},
                           {'type': rnd.choice(VALUES)}])
    kind = rnd.choice(TYPES + ['object', 'object'])
    s = {'type': kind if rnd.random() < .9 else rnd.sample(TYPES, 2)}
    if kind == 'object':
        s['properties'] = {rnd.choice('abcd'): schema(rnd, depth - 1)
                           for _ in range(rnd.randrange(4))}
        if rnd.random() < .6:
            s['required'] = rnd.choice([list(s['properties']), ['zz'],
                                        ['a', 'a'], rnd.choice(VALUES)])
        if rnd.random() < .4:
            s['additionalProperties'] = rnd.choice(
                [False, True, schema(rnd, depth - 1), rnd.choice(VALUES)])
    if kind == 'array' and rnd.random() < .9:
        s['items'] = schema(rnd, depth - 1)
    for _ in range(rnd.choice([0, 0, 1, 2])):
        key = rnd.choice(list(KEYWORDS))
        s[key] = rnd.choice(KEYWORDS[key])
    keys = list(s)
    rnd.shuffle(keys)
    return {key: s[key] for key in keys}


def schema_body(rnd):
    s, strict = schema(rnd, 3), rnd.choice([True, True, False, None])
    body = {'model': rnd.choice(['DeepSeek-V4.1-Flash', 'DeepSeek-V4-Pro'])}
    user = [{'role': 'user', 'content': 'q'}]
    form = {'name': 'n', 'schema': s, 'strict': strict}
    return rnd.choice([
        ('chat', {**body, 'messages': user, 'tools': [
            {'type': 'function', 'function': {
                'name': 'f', 'parameters': s, 'strict': strict}}]}),
        ('chat', {**body, 'messages': user, 'response_format': {
            'type': 'json_schema', 'json_schema': form}}),
        ('responses', {**body, 'input': 'q', 'text': {
            'format': {'type': 'json_schema', **form}}}),
        ('messages', {**body, 'max_tokens': 5, 'messages': user,
                      'tools': [{'name': 'f', 'input_schema': s}]}),
    ])


def refusal(api, text):
    """What the package says, None: it takes the body."""
    try:
        request = REQUESTS[api](text)
    except Exception as fault:
        return {'stage': 'parse', 'message': str(fault)}
    try:
        request.convert(recipe.ConversionOptions())
    except recipe.ConversionError as fault:
        return {'stage': 'convert', 'status': fault.status_code,
                'body': json.loads(fault.body)}
    return None


def main():
    seed, count = sys.argv[1], int(sys.argv[2])
    rnd = random.Random(seed)
    vectors = pathlib.Path(__file__).with_name('render.jsonl.gz')
    with gzip.open(vectors, 'rt') as lines:
        inputs = [json.loads(line)['input'] for line in lines]
    bodies = [(i['api'], i['body']) for i in inputs
              if 'body' in i and 'options' not in i]
    seen = set()

    for n in range(count):
        if n % 2:
            api, body = schema_body(rnd)
        else:
            api, body = rnd.choice(bodies)
            body = mutate(rnd, body)
        text = json.dumps(body, ensure_ascii=False)
        error = refusal(api, text)
        key = json.dumps(error)
        if error is None or key in seen or len(text) > 1500:
            continue
        seen.add(key)
        print(json.dumps({'name': f'mutated/{seed}/{n}',
                          'input': {'api': api, 'body_text': text},
                          'expected': {'error': error}}))


main()
