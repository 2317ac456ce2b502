"""sdk_v41.py - the official openai and anthropic SDKs against scripted output
of DeepSeek-V4.1, for t/sdk.t: reasoning, tool calls, round trips.

usage: sdk_v41.py URL

URL serves the model "v41", which plays the script in the last message of a
user or of a tool (t/echo/script.h): the ids that the model would write,
markers of reasoning and tool calls as their tokens.
"""

import json
import sys

import anthropic
import openai
from anthropic.types import Message
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

from sdk_check import known, run, test, whole

URL = sys.argv[1]
D = "\uff5cDSML\uff5c"

PLAIN = "@@raw Let me think.</think>Hello there!"
CALL = ("@@raw I need the weather.</think>I will look.\\n\\n"
        f"<{D} calls>\\n<{D} invoke name=\"get_weather\">\\n"
        f"<{D} parameter name=\"city\" string=\"true\">Paris</{D} parameter>"
        f"\\n<{D} parameter name=\"days\" string=\"false\">2</{D} parameter>"
        f"\\n</{D} invoke>\\n<{D} invoke name=\"get_time\">\\n"
        f"<{D} parameter name=\"zone\" string=\"true\">CET</{D} parameter>"
        f"\\n</{D} invoke>\\n</{D} calls>")
ARGUMENTS = [{"city": "Paris", "days": 2}, {"zone": "CET"}]
NAMES = ["get_weather", "get_time"]

SCHEMAS = {
    "get_weather": {"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}}},
    "get_time": {"type": "object",
                 "properties": {"zone": {"type": "string"}}},
}
CHAT_TOOLS = [{"type": "function", "function": {
    "name": n, "description": f"Does {n}.", "parameters": s}}
    for n, s in SCHEMAS.items()]
RESPONSE_TOOLS = [{"type": "function", "name": n, "description": f"Does {n}.",
                   "parameters": s, "strict": False}
                  for n, s in SCHEMAS.items()]
MESSAGE_TOOLS = [{"name": n, "description": f"Does {n}.", "input_schema": s}
                 for n, s in SCHEMAS.items()]

ours = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0,
                     timeout=300)
theirs = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0,
                             timeout=300)

# DeepSeek's own field of Chat Completions, which the SDK keeps as it comes
OWN = ("reasoning_content",)


def user(text):
    return [{"role": "user", "content": text}]


def chat(messages, **more):
    return whole(ours.chat.completions.create(
        model="v41", messages=messages, **more), ChatCompletion, OWN)


def message(messages, **more):
    return whole(theirs.messages.create(
        model="v41", max_tokens=500, messages=messages, **more), Message)


# documented fields of a response that the SDK's types don't have
ECHOED = ("content_filters", "frequency_penalty", "presence_penalty", "store")


def respond(input, **more):
    return whole(ours.responses.create(model="v41", input=input, **more),
                 Response, ECHOED)


# ---------------------------------------------------------------------- chat

@test
def reasoning_in_chat():
    c = chat(user(PLAIN)).choices[0]
    assert c.message.content == "Hello there!"
    assert c.message.reasoning_content == "Let me think."
    assert c.finish_reason == "stop"
    chunks = [whole(c, ChatCompletionChunk, OWN)
              for c in ours.chat.completions.create(
                  model="v41", messages=user(PLAIN), stream=True)]
    deltas = [c.choices[0].delta for c in chunks]
    assert "".join(d.content or "" for d in deltas) == "Hello there!"
    assert "".join(d.model_extra.get("reasoning_content") or ""
                   for d in deltas) == "Let me think."


@test
def no_thinking_in_chat():
    r = chat(user("@@raw Hello!"), reasoning_effort="none")
    assert r.choices[0].message.content == "Hello!"
    assert not r.choices[0].message.model_extra.get("reasoning_content")


@test
def tools_in_chat():
    r = chat(user(CALL), tools=CHAT_TOOLS)
    (c,) = r.choices
    assert c.finish_reason == "tool_calls"
    assert c.message.content == "I will look."
    assert [t.function.name for t in c.message.tool_calls] == NAMES
    assert [json.loads(t.function.arguments)
            for t in c.message.tool_calls] == ARGUMENTS
    assert len({t.id for t in c.message.tool_calls}) == 2
    assert r.usage.completion_tokens_details.reasoning_tokens > 0

    back = user(CALL) + [c.message.to_dict()]
    back += [{"role": "tool", "tool_call_id": t.id, "content": "sunny"}
             for t in c.message.tool_calls]
    r = chat(back + user(PLAIN), tools=CHAT_TOOLS)
    assert r.choices[0].message.content == "Hello there!"


@test
def the_stream_helper_of_chat():
    with ours.chat.completions.stream(model="v41", messages=user(CALL),
                                      tools=CHAT_TOOLS) as s:
        kinds = {e.type for e in s}
        r = s.get_final_completion()
    calls = r.choices[0].message.tool_calls
    assert [c.function.name for c in calls] == NAMES
    assert [json.loads(c.function.arguments) for c in calls] == ARGUMENTS
    assert "tool_calls.function.arguments.done" in kinds, kinds


@test
def a_tool_that_is_not_allowed():
    r = chat(user(PLAIN), tools=CHAT_TOOLS, tool_choice="none")
    assert r.choices[0].message.content == "Hello there!"


# ----------------------------------------------------------------- responses

def check_items(r):
    kinds = [item.type for item in r.output]
    assert kinds == ["reasoning", "message", "function_call",
                     "function_call"], kinds
    assert r.output[0].content[0].text == "I need the weather."
    assert r.output_text == "I will look."
    calls = r.output[2:]
    assert [c.name for c in calls] == NAMES
    assert [json.loads(c.arguments) for c in calls] == ARGUMENTS
    return calls


@test
def tools_in_a_response():
    r = respond(CALL, tools=RESPONSE_TOOLS)
    calls = check_items(r)
    assert r.usage.output_tokens_details.reasoning_tokens > 0

    outputs = [{"type": "function_call_output", "call_id": c.call_id,
                "output": "sunny"} for c in calls]
    spelled = [{"role": "user", "content": CALL}]
    spelled += [item.to_dict() for item in r.output]
    a = respond(spelled + outputs + user(PLAIN), tools=RESPONSE_TOOLS)
    b = respond(outputs + user(PLAIN), tools=RESPONSE_TOOLS,
                previous_response_id=r.id)
    assert a.output_text == b.output_text == "Hello there!"
    assert a.usage.input_tokens == b.usage.input_tokens
    items = list(ours.responses.input_items.list(b.id, order="asc"))
    assert len(items) == 8, [i.type for i in items]
    for item in items:
        whole(item)


@test
def a_streamed_response():
    with ours.responses.stream(model="v41", input=CALL,
                               tools=RESPONSE_TOOLS) as s:
        # "name" is that of response.function_call_arguments.done
        events = [known(e, ECHOED + ("snapshot", "parsed", "name",
                                     "parsed_arguments")) for e in s]
        check_items(s.get_final_response())
    arguments = {}
    for e in events:
        if e.type == "response.function_call_arguments.delta":
            arguments.setdefault(e.output_index, []).append(e.delta)
    assert [json.loads("".join(a)) for a in arguments.values()] == ARGUMENTS
    reasoning = [e.delta for e in events
                 if e.type == "response.reasoning_text.delta"]
    assert "".join(reasoning) == "I need the weather."


# ------------------------------------------------------------------ messages

THINKING = {"type": "enabled", "budget_tokens": 1024}


def check_blocks(m):
    kinds = [b.type for b in m.content]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"], kinds
    assert m.content[0].thinking == "I need the weather."
    assert m.content[0].signature
    assert m.content[1].text == "I will look."
    uses = m.content[2:]
    assert [u.name for u in uses] == NAMES
    assert [u.input for u in uses] == ARGUMENTS
    assert m.stop_reason == "tool_use"
    return uses


@test
def tools_in_a_message():
    m = message(user(CALL), tools=MESSAGE_TOOLS, thinking=THINKING)
    uses = check_blocks(m)
    back = user(CALL)
    back += [{"role": "assistant",
              "content": [b.to_dict() for b in m.content]}]
    back += [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": uses[0].id,
         "content": "sunny"},
        {"type": "tool_result", "tool_use_id": uses[1].id, "is_error": True,
         "content": [{"type": "text", "text": "no clock"}]},
        {"type": "text", "text": PLAIN}]}]
    m = message(back, tools=MESSAGE_TOOLS, thinking=THINKING)
    assert m.content[-1].text.endswith("Hello there!"), m.content
    n = theirs.messages.count_tokens(model="v41", messages=back,
                                     tools=MESSAGE_TOOLS, thinking=THINKING)
    assert n.input_tokens \
        == m.usage.input_tokens + m.usage.cache_read_input_tokens


@test
def a_streamed_message():
    with theirs.messages.stream(
            model="v41", max_tokens=500, messages=user(CALL),
            tools=MESSAGE_TOOLS, thinking=THINKING) as s:
        kinds = {e.type for e in s}
        check_blocks(whole(s.get_final_message(), allow=("parsed_output",)))
    assert {"thinking", "text", "input_json", "signature"} <= kinds, kinds


@test
def raw_events_are_of_the_sdks_types():
    # strictly, one by one; those allowed are sent by the APIs themselves
    n = 0
    for e in ours.chat.completions.create(
            model="v41", messages=user(CALL), tools=CHAT_TOOLS, stream=True,
            logprobs=True, top_logprobs=2, n=2,
            stream_options={"include_usage": True}):
        whole(e, ChatCompletionChunk, OWN)
        n += 1
    for e in ours.responses.create(
            model="v41", input=CALL, tools=RESPONSE_TOOLS, stream=True,
            top_logprobs=2):
        whole(e, allow=ECHOED + ("name", "bytes"))
        n += 1
    for e in theirs.messages.create(
            model="v41", max_tokens=500, messages=user(CALL),
            tools=MESSAGE_TOOLS, thinking=THINKING, stream=True):
        whole(e, allow=("service_tier",))
        n += 1
    assert n > 100, n


@test
def omitted_thinking():
    hidden = dict(THINKING, display="omitted")
    m = message(user(PLAIN), thinking=hidden)
    assert [b.type for b in m.content] == ["thinking", "text"]
    assert m.content[0].thinking == "" and m.content[0].signature
    assert m.content[1].text == "Hello there!"
    with theirs.messages.stream(model="v41", max_tokens=500, thinking=hidden,
                                messages=user(PLAIN)) as s:
        kinds = {e.type for e in s}
        final = s.get_final_message()
    assert "thinking" not in kinds and "signature" in kinds, kinds
    assert final.content[0].thinking == ""
    assert final.usage.output_tokens == m.usage.output_tokens
    assert 0 < m.usage.output_tokens_details.thinking_tokens \
        == final.usage.output_tokens_details.thinking_tokens \
        < m.usage.output_tokens


@test
def cut_by_max_tokens():
    m = whole(theirs.messages.create(model="v41", max_tokens=6,
                                     messages=user(PLAIN)))
    assert m.stop_reason == "max_tokens"
    assert m.usage.output_tokens == 6
    assert 0 < m.usage.output_tokens_details.thinking_tokens <= 6


@test
def an_error_in_the_middle():
    broken = "@@raw a</think>b\n@@wait 100\n@@finish error"
    try:
        with theirs.messages.stream(model="v41", max_tokens=500,
                                    messages=user(broken)) as s:
            for _ in s:
                pass
    except anthropic.APIStatusError as e:
        assert e.body["error"]["type"] == "api_error", e.body
    else:
        raise AssertionError("no exception")
    try:
        for _ in ours.chat.completions.create(
                model="v41", messages=user(broken), stream=True):
            pass
    except openai.APIError as e:
        assert e.code == "engine_error", e.body
    else:
        raise AssertionError("no exception")


run()
ours.close()
theirs.close()
