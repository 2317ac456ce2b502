#!/usr/bin/env python3
"""odd.py: what Recipe makes of bodies at the edges, taken or refused.

Base64 and data: URLs of images, calls without results, found tools, schemas of draft 7, keywords of strict schemas:
what differed once between the package deepseek-recipe 0.2.0 and the codec. odd.jsonl.gz is what this writes to
standard output, compressed.
"""

import json

import deepseek_recipe as recipe

REQUESTS = {'chat': recipe.ChatCompletionRequest, 'responses': recipe.ResponsesRequest,
            'messages': recipe.MessagesRequest}
STAGES = {'None': None, 'ThinkingInitialStage.ReasoningStart': 'reasoning_start',
          'ThinkingInitialStage.ReasoningContinuation': 'reasoning_continuation',
          'ThinkingInitialStage.ContentContinuation': 'content_continuation'}
MODEL = {'model': 'DeepSeek-V4.1-Flash'}
USER = {'role': 'user', 'content': 'q'}

# ------------------------------------------------------------------- bodies

BASE64 = ['', 'A', 'AA', 'AAA', 'AAAA', 'AA==', 'AB==', 'AAA=', 'AAB=', 'AA=', 'A===', 'AA=A', 'AA==AA==', 'AAAA=',
          'AAAA====', '=', '==', '====', 'AA===', 'AAA==', 'AAAAA===', 'AAAA\n', 'AAAA\t', 'A A A A', 'AA\x0c==',
          'AA\x0b==', 'AA-_', '%41AAA', 'AA%3D%3D', 'AA%3D=', 'A%4', '%', 'AA#x', 'A#AA', 'AA%C3%A9', 'é', 'AAAA,AAAA']
URLS = ['data:image/png,abc', 'data:;base64,x', 'data:image/png;base64', 'data:image/png;BASE64,AAAA',
        'data:image/png; base64,AAAA', 'data:image/png;base64 ,AAAA', 'data: image/png;base64,AAAA',
        'data:image/png;x=y;base64,AAAA', 'data:image/png;;base64,AAAA', 'DATA:image/PNG;base64,AAAA',
        'data:text/plain;base64,x', 'data:image/png;base64;x=y,AAAA', 'x', 'http://x/y', 'ftp://x/y']
FILES = ['data:image/png;base64,x', 'data:image/png;base64,AAAA', 'data:text/plain;base64,x',
         'data:image/png;BASE64,AAAA', 'data:image/png;x=y;base64,AA', 'x']


def messages(*turns, **more):
    return 'messages', {**MODEL, 'max_tokens': 5, 'messages': list(turns), 'thinking': {'type': 'disabled'}, **more}


def responses(items, **more):
    return 'responses', {**MODEL, 'input': items, 'reasoning': {'effort': 'none'}, **more}


def images():
    def source(source, role='user', **more):
        return messages(USER, {'role': role, 'content': [{'type': 'image', 'source': source}]}, **more)

    for data in BASE64:
        yield source({'type': 'base64', 'media_type': 'image/png', 'data': data})
    for url in ['data:image/png;base64,' + data for data in BASE64] + URLS:
        yield 'chat', {**MODEL, 'messages': [{'role': 'user', 'content': [
            {'type': 'image_url', 'image_url': {'url': url}}]}]}
    for url in URLS:
        yield responses([{'role': 'user', 'content': [{'type': 'input_image', 'image_url': url}]}])
        yield source({'type': 'url', 'url': url})
    for data in FILES:
        yield 'chat', {**MODEL, 'messages': [{'role': 'user', 'content': [{'type': 'file', 'file_data': data}]}]}
    for model in ['DeepSeek-V4.1-Flash', 'DeepSeek-V4-Pro']:
        for data in ['x', 'AAAA']:
            yield source({'type': 'base64', 'media_type': 'image/jpg', 'data': data}, 'assistant', model=model)
        yield source({'type': 'url', 'url': 'image'}, 'assistant', model=model)
        yield source({'type': 'file', 'file_id': 'x'}, 'assistant', model=model)


def pairs():
    def use(*ids):
        return {'role': 'assistant', 'content': [{'type': 'tool_use', 'id': i, 'name': 'g', 'input': {}} for i in ids]}

    def results(*parts):
        return {'role': 'user', 'content': [
            {'type': 'text', 'text': 't'} if p == 't' else {'type': 'tool_result', 'tool_use_id': p, 'content': 'o'}
            for p in parts]}

    said = {'role': 'assistant', 'content': 'x'}
    for turns in [[], [USER], [results('1')], [results('1'), USER], [results('t', '1')], [results('1', 't')],
                  [results('2', 't', '1')], [said], [{'role': 'system', 'content': 'x'}], [results('1'), results('2')],
                  [results('1', '1')], [results('3')], [results('1'), said], [results('2', '1')]]:
        yield messages(USER, use('1', '2'), *turns)
    for call_id in [{}, {'call_id': None}, {'call_id': ''}]:
        yield responses([USER, {'type': 'function_call_output', 'output': 'o', **call_id}])


def found():
    function = {'type': 'function', 'name': 'f', 'parameters': {'type': 'object'}}
    for tool in [function, {**function, 'strict': False, 'description': ''}, {**function, 'x': 5, 'description': None},
                 {'type': 'namespace', 'name': 'ns', 'tools': [function]},
                 {'type': 'namespace', 'name': 'ns', 'description': None, 'tools': [function]},
                 {'type': 'custom', 'name': 'apply_patch'},
                 {'type': 'custom', 'name': 'apply_patch', 'description': 'x', 'format': {'type': 'text'}},
                 {'type': 'namespace', 'name': 'ns', 'tools': []},
                 {'type': 'web_search'}, {'type': 'web_search', 'search_context_size': 'low'}]:
        yield responses([USER, {'type': 'tool_search_call', 'call_id': '1', 'execution': 'client', 'arguments': {}},
                         {'type': 'tool_search_output', 'call_id': '1', 'execution': 'client', 'tools': [tool]}],
                        tools=[{'type': 'tool_search', 'execution': 'client', 'parameters': {'type': 'object'}}])
    for execution in ['client', 'server', 'function', None]:
        yield responses('q', tools=[{'type': 'tool_search', 'execution': execution, 'parameters': {'type': 'object'}}])


DRAFT7 = {'$schema': 'http://json-schema.org/draft-07/schema#', 'type': 'object'}
LOOSE = [
    {'dependentRequired': {'a': ['b', 'b']}}, {'dependentRequired': {'a': 5}}, {'$anchor': '1'}, {'$dynamicRef': 5},
    {'$vocabulary': 5}, {'$id': 'http://x/y#z'}, {'$id': 5}, {'$defs': 5}, {'minContains': -1}, {'definitions': 5},
    {'properties': {'a': {'items': {'type': 5}}}}, {'properties': {'a': {'items': [True, {'minLength': -1}]}}},
    {'properties': {'a': {'items': []}}}, {'dependencies': {'a': ['b', 'b']}}, {'dependencies': {'a': {'type': 5}}},
    {'dependencies': {'a': ['b'], 'b': True}}, {'dependencies': 5}, {'additionalItems': 5}, {'required': ['a', 'a'],
    '$comment': 5}, {'$comment': 5, 'required': ['a', 'a']}, {'properties': {'a': {'$ref': '#/x', 'pattern': '('}},
    'x': {}}, {'minimum': 'x', 'description': 5}, {'deprecated': 5}, {'contentSchema': 5}, {'if': 5}, {'examples': 5},
]
OTHER = [{'type': ['array', 'object'], '$ref': 'http://x/y', '$id': 'x'}] + [{'type': 'object', **more} for more in [
    {'$ref': 'y', '$id': 'x'}, {'$ref': 'http://x/y', '$id': 'http://x/z'}, {'$ref': 'y', '$id': 'http://x/z'},
    {'$ref': 'y', '$id': 'http://x/z', '$defs': {'a': {'$id': 'y'}}}, {'$ref': 'y', '$defs': {'a': {'$id': 'y'}}},
    {'$ref': 'http://x/y', '$id': 'http://x/z', '$defs': {'a': {'$id': 'y'}}}, {'$ref': 'z', '$id': 'z'},
    {'$ref': 'y', '$id': 'http://x/z', '$defs': {'a': {'$id': 'http://x/y'}}}, {'$ref': 'urn:x'}, {'$ref': 'y#/b'},
    {'$ref': 'y#/b', '$id': 'http://x/a/'}, {'$ref': 'urn:x', '$id': 'urn:x'}, {'dependencies': {'a': ['b', 'b']}}]]
STRICT = [
    {'b': {'description': 'd', 'const': None, 'type': 'null'}}, {'b': {'description': 'd', 'type': ['number', 'null']}},
    {'b': {'type': 'boolean', 'description': 'd'}}, {'b': {'type': 'null', 'description': 5}},
    {'b': {'type': 'number', 'exclusiveMinimum': True, 'default': 'x'}},
    {'b': {'type': 'number', 'default': 'x', 'exclusiveMinimum': True}},
    {'b': {'type': 'integer', 'minimum': 1.5, 'description': 5}}, {'b': {'type': 'array', 'description': 5}},
    {'b': {'type': 'array', 'items': {'type': 'array'}, 'description': 5}},
    {'b': {'type': 'string', 'pattern': 5, 'format': 'x'}}, {'b': {'format': 'x', 'type': 'string', 'pattern': 5}},
    {'b': {'type': 'object', 'required': 5, 'properties': 5, 'description': 5}},
    {'b': {'type': 'object', 'properties': {'c': {'type': 'string', 'enum': [1]}}, 'description': 5}},
    {'b': {'type': 'object', 'additionalProperties': {}, 'required': 5}},
]


def schemas():
    for schema in [{**DRAFT7, **more} for more in LOOSE] + [{**more, 'type': 'object'} for more in LOOSE] + OTHER:
        yield messages(USER, tools=[{'name': 'f', 'input_schema': schema}])
    for properties in STRICT:
        yield 'chat', {**MODEL, 'messages': [USER], 'response_format': {'type': 'json_schema', 'json_schema': {
            'name': 'n', 'strict': True, 'schema': {'type': 'object', 'properties': properties}}}}


# ----------------------------------------------------------------- expected

def image(s):
    kind = 'data_url' if s.kind == 'data_url' else 'url'
    return {'kind': s.kind, 'detail': s.detail, 'path': s.path, kind: getattr(s, kind)}


def tool(t):
    return {'name': t.name, 'description': t.description, 'parameters': t.parameters, 'strict': t.strict,
            'defer_loading': t.defer_loading}


def message(m):
    shown = {'role': m.role, 'content': m.content}
    if m.reasoning_content is not None:
        shown['reasoning_content'] = m.reasoning_content
    if m.tool_calls:
        shown['tool_calls'] = [{'id': c.id, 'name': c.name, 'arguments': c.arguments} for c in m.tool_calls]
    if m.tool_call_id is not None:
        shown['tool_call_id'] = m.tool_call_id
    if m.prefix:
        shown['prefix'] = True
    if m.role == 'system' and m.tools:
        shown['tools'] = [tool(t) for t in m.tools]
    if m.image_sources:
        shown['images'] = [image(s) for s in m.image_sources]
    return shown


def conversation(c):
    shown = {'messages': [message(m) for m in c.messages], 'thinking_mode': c.thinking_mode,
             'tools': [tool(t) for t in c.tools], 'tool_choice': c.tool_choice,
             'reasoning_effort': c.reasoning_effort, 'response_format': c.response_format}
    if c.response_format == 'json_schema':
        shown['response_schema'] = c.response_schema
    return shown


def expected(api, text):
    try:
        request = REQUESTS[api](text)
    except Exception as fault:
        return {'error': {'stage': 'parse', 'message': str(fault)}}
    try:
        c = request.convert(recipe.ConversionOptions())
    except recipe.ConversionError as fault:
        return {'error': {'stage': 'convert', 'status': fault.status_code, 'body': json.loads(fault.body)}}
    v4 = c.model_version == recipe.ModelVersion.DeepseekV4Pro
    prompt = (recipe.DeepseekV4Encoding if v4 else recipe.DeepseekV41Encoding)().render_conversation(c.conversation)
    o, p = c.inference_options, c.parsing_options
    constraint = o.output_constraint
    return {
        'encoding': 'v4' if v4 else 'v4.1', 'prompt': prompt.prompt,
        'special_ranges': [list(r) for r in prompt.special_ranges],
        'images': [image(s) for s in prompt.image_sources], 'conversation': conversation(c.conversation),
        'inference': {'max_tokens': o.max_tokens, 'temperature': o.temperature, 'top_p': o.top_p,
                      'logprobs': o.logprobs, 'top_logprobs': o.top_logprobs, 'seed': o.seed,
                      'output_constraint': constraint and {'kind': constraint.kind, 'schema': constraint.schema}},
        'parsing': {'parse_tool_calls': p.parse_tool_calls, 'starts_in_tool_calls': p.starts_in_tool_calls,
                    'parse_json_output': p.parse_json_output,
                    'thinking_initial_stage': STAGES[str(p.thinking_initial_stage)],
                    'stop_sequences': list(p.stop_sequences)},
        'stream': c.stream}


def main():
    for kind in [images, pairs, found, schemas]:
        for n, (api, body) in enumerate(kind()):
            text = json.dumps(body, ensure_ascii=False)
            print(json.dumps({'name': f'odd/{kind.__name__}/{n}', 'input': {'api': api, 'body_text': text},
                              'expected': expected(api, text)}))


if __name__ == '__main__':
    main()
