#!/usr/bin/env python3
"""make_prompts.py [--whole] TEMPLATES SEED N: prompts as models' own chat templates write them.

Conversations are drawn at random and rendered as Hugging Face's apply_chat_template() does it, by the templates of
models in the folder TEMPLATES: files NAME.jinja by the names of MODELS below. N vectors for each model go to standard
output; prompts.jsonl.gz is what `make_prompts.py TEMPLATES 1 30` writes, compressed. A vector names the dialect and
has the few words of the template that the dialect looks at; with --whole it has all of the template, to be recognised.

needs: jinja2
"""

import argparse
import datetime
import json
import pathlib
import random

import jinja2
import jinja2.sandbox

BOS = '<|begin_of_text|>'
R1_BOS = '<｜begin▁of▁sentence｜>'
NOW = datetime.datetime(2026, 3, 9, 12, tzinfo=datetime.timezone.utc)
IM = '<|im_start|> <tools></tools> <tool_call> <tool_response> '
# name: dialect, what it looks at in the template, bos_token, what the model can do (system: without a system message
# it needs the whole template)
MODELS = {
    'smollm2': ('chatml', '', '', 'prefix system'),
    'qwen2.5': ('qwen', IM + '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.'
                '<|im_end|>', '', 'tools prefix'),
    'qwq': ('qwen', IM + '\\n\\n# Tools <|im_start|>assistant\\n<think>\\n', '', 'tools think'),
    'qwen3': ('qwen', IM + 'enable_thinking last_query_index', '', 'tools think off prefix'),
    'qwen3-instruct-2507': ('qwen', IM, '', 'tools prefix'),
    'qwen3-thinking-2507': ('qwen', IM + 'last_query_index <|im_start|>assistant\\n<think>\\n', '', 'tools think prefix'),
    'llama3': ('llama3', '<|eot_id|>', BOS, 'prefix'),
    'llama3.1': ('llama3', 'ipython Cutting Knowledge Date', BOS, 'tools one prefix'),
    'llama3.2': ('llama3', 'ipython Cutting Knowledge Date strftime_now', BOS, 'tools one prefix'),
    'llama3.3': ('llama3', 'ipython Cutting Knowledge Date', BOS, 'tools one prefix'),
    'deepseek-r1': ('deepseek-r1', '', R1_BOS, 'think'),
}

TEXTS = ['', 'hi', 'What is 2 + 2?', ' leading', 'trailing \n', '\n\nlines\n', 'tab\there', '你好，世界', '👩‍👩‍👧 emoji',
         '\u00a0no-break\u3000', '\u2028sep\x1c', 'a "quoted" \\ word', '{"a": 1}', '{{ braces }} {% raw %}',
         "it's <b>&amp;</b>", 'cafe\u0301', '\u200bzero', 'x' * 70, '\r\ncrlf\r\n', '\x85next', '<tool_response> no',
         '[1, 2]', 'null', '\ufeffbom', '٣ digits', '𝒳\U0010ffff', '# Head\n\n- item\n', '\n']
SHORT = ['hi', 'What is 2 + 2?', ' leading', 'trailing \n', '你好，世界', 'a "quoted" \\ word', '{"a": 1}']
PREFIXES = ['Sure, here', '{"a": 1', '你好，', 'line\n\nline']
SCHEMAS = [
    {'type': 'object', 'properties': {}},
    {'type': 'object', 'properties': {'city': {'type': 'string', 'description': 'Where; "quoted" <b>'}},
     'required': ['city']},
    {'type': 'object', 'properties': {
        'when': {'type': 'object', 'properties': {'day': {'type': 'integer', 'minimum': 1, 'maximum': 31},
                                                  'zone': {'type': ['string', 'null'], 'default': None}},
                 'additionalProperties': False},
        'tags': {'type': 'array', 'items': {'enum': ['a', 'é', '中', 1, 2.5, True, None]}}}},
    {'required': [], 'properties': {'x': {'type': 'number', 'multipleOf': 0.1, 'maximum': 1e20}}, 'type': 'object'},
    {'type': 'object', 'properties': {'a': {'anyOf': [{'type': 'string', 'pattern': '^\\d+$'}, {'$ref': '#/$defs/n'}]}},
     '$defs': {'n': {'type': 'number', 'exclusiveMinimum': -1e-7}}},
]
ARGUMENTS = ['{}', '{"city": "Köln"}', '{"when":{"day":3,"zone":null},"tags":["a","中",1,2.50,true]}', '{"x":1e5}',
             '{"x":-0.0,"y":1E-7}', '{"a":"line\\nbreak \\u00e9 \\"q\\" /\\/"}',
             '{ "a" : [ ] , "b" : { } }', '{"s":"<tool>&\'"}', '{"u":"\\ud83d\\ude00\\u2028"}']
DESCRIPTIONS = [None, 'Does it', 'Tells "more"\nin two lines', '天気']


def tools(rnd):
    made = []
    for i in range(rnd.choice([1, 1, 2, 3])):
        f = {'name': ['get_weather', 'f', 'Find-it_2'][i]}
        description = rnd.choice(DESCRIPTIONS)
        if description is not None:
            f['description'] = description
        f['parameters'] = rnd.choice(SCHEMAS)
        made.append({'type': 'function', 'function': f})
    return made


def calls(rnd, ids, most):
    made = []
    for _ in range(rnd.choice([1, 1, 1, 2, 3][:3 if most == 1 else 5])):
        ids.append(f'c{len(ids)}')
        made.append({'id': ids[-1], 'type': 'function', 'function': {
            'name': rnd.choice(['get_weather', 'f', 'Find-it_2']), 'arguments': rnd.choice(ARGUMENTS)}})
    return made


def assistant(rnd, text, can):
    m = {'role': 'assistant', 'content': text(rnd)}
    if 'think' in can and rnd.random() < .6:
        m['reasoning_content'] = rnd.choice(TEXTS)
    return m


def conversation(rnd, can):
    texts = rnd.choice([TEXTS, SHORT])
    text = lambda rnd: rnd.choice(texts)
    messages, ids = [], []
    if 'system' in can or rnd.random() < .5:
        messages.append({'role': 'system', 'content': text(rnd)})
    for turn in range(rnd.choice([1, 1, 2, 3, 5])):
        if turn and rnd.random() < .1:
            messages.append({'role': 'system', 'content': text(rnd)})
        messages.append({'role': 'user', 'content': text(rnd)})
        if rnd.random() < .1:
            messages.append({'role': 'user', 'content': text(rnd)})
        while 'tools' in can and rnd.random() < .4:
            m = assistant(rnd, text, can)
            if rnd.random() < .5:
                m['content'] = ''
            m['tool_calls'] = calls(rnd, ids, 1 if 'one' in can else 3)
            messages.append(m)
            for call in m['tool_calls']:
                messages.append({'role': 'tool', 'tool_call_id': call['id'], 'content': text(rnd)})
        if rnd.random() < .8:
            messages.append(assistant(rnd, text, can))
    if rnd.random() < .5:
        messages.append({'role': 'user', 'content': text(rnd)})
    if 'system' not in can and rnd.random() < .05:
        messages.insert(0, assistant(rnd, text, can))
    body = {'model': 'm', 'messages': messages}
    if 'prefix' in can and rnd.random() < .1:
        messages.append({'role': 'assistant', 'content': rnd.choice(PREFIXES), 'prefix': True})
    elif 'tools' in can and messages[0]['role'] != 'assistant' and rnd.random() < .6:
        body['tools'] = tools(rnd)
    if 'off' in can and rnd.random() < .4:
        body['reasoning_effort'] = 'none'
    return body


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                       extensions=['jinja2.ext.loopcontrols'])
    env.filters['tojson'] = tojson
    env.globals['raise_exception'] = raise_exception
    env.globals['strftime_now'] = NOW.strftime
    return env


def prompt(template, body, bos):
    """What the template makes of a Chat request, calls' arguments as values."""
    messages = json.loads(json.dumps(body['messages']))
    for m in messages:
        for call in m.get('tool_calls', []):
            call['function']['arguments'] = json.loads(call['function']['arguments'])
    extra = {'enable_thinking': False} if body.get('reasoning_effort') == 'none' else {}
    prefix = messages[-1].pop('prefix', False)
    text = template.render(messages=messages, tools=body.get('tools'), documents=None,
                           add_generation_prompt=not prefix, bos_token=bos, **extra)
    return text[:text.rindex(messages[-1]['content']) + len(messages[-1]['content'])] if prefix else text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--whole', action='store_true')
    parser.add_argument('templates', type=pathlib.Path)
    parser.add_argument('seed', type=int)
    parser.add_argument('count', type=int)
    args = parser.parse_args()
    env = environment()

    for name, (dialect, marks, bos, can) in MODELS.items():
        source = (args.templates / f'{name}.jinja').read_text()
        template = env.from_string(source)
        rnd = random.Random(f'{args.seed}/{name}')
        for n in range(args.count):
            body = conversation(rnd, set(can.split()) - ({'system'} if args.whole else set()))
            shown = {'template': source} if args.whole else {'dialect': dialect, 'template': marks}
            print(json.dumps({'name': f'{name}/{args.seed}/{n}', 'input': {**shown, 'now': int(NOW.timestamp()),
                                                                           'body': body},
                              'expected': {'prompt': prompt(template, body, bos)}}))


main()
