"""sdk_apis.py - Responses, Messages and Completions through the official
openai and anthropic SDKs, for t/sdk.t.

usage: sdk_apis.py URL MODEL

URL serves MODEL, a real one, under all APIs.
"""

import sys

import anthropic
import openai
from anthropic.types import Message, MessageTokensCount, ModelInfo
from openai.types import Completion
from openai.types.responses import Response

from sdk_check import FULL, known, middle, run, test, whole

URL, MODEL = sys.argv[1:]
ASK = "Name three colours."
GREEDY = {"temperature": 0, **FULL}      # fields that this SDK has not

ours = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0,
                     timeout=300)
theirs = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0,
                             timeout=300)


# documented fields of a response that the SDK's types don't have
ECHOED = ("content_filters", "frequency_penalty", "presence_penalty", "store")


def respond(input=ASK, **more):
    return whole(ours.responses.create(**{
        "model": MODEL, "input": input, "temperature": 0,
        "max_output_tokens": 12, "extra_body": FULL, **more}), Response,
        ECHOED)


def say(content=ASK, **more):
    return whole(theirs.messages.create(**{
        "model": MODEL, "max_tokens": 12, "extra_body": GREEDY,
        "messages": [{"role": "user", "content": content}], **more}), Message)


def complete(prompt="The capital of France is", **more):
    return whole(ours.completions.create(**{
        "model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 6,
        "extra_body": FULL, **more}), Completion)


# ----------------------------------------------------------------- responses

@test
def a_response():
    r = respond()
    assert r.id.startswith("resp_") and r.object == "response"
    assert r.status in ("completed", "incomplete")
    assert r.output_text
    u = r.usage
    assert u.input_tokens > 0 and 0 < u.output_tokens <= 12
    assert u.total_tokens == u.input_tokens + u.output_tokens


@test
def a_streamed_response():
    # the helper takes an answer that was cut for a failure: a regular
    # expression makes this one end by itself
    ask = {"max_output_tokens": 300,
           "extra_body": {"guided_regex": "[A-Za-z, ]{20,60}[.]"}}
    with ours.responses.stream(model=MODEL, input=ASK, temperature=0,
                               **ask) as s:
        events = [known(e, ("snapshot", "parsed") + ECHOED) for e in s]
        final = s.get_final_response()
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert final.output_text == respond(**ask).output_text
    deltas = [e.delta for e in events
              if e.type == "response.output_text.delta"]
    assert "".join(deltas) == final.output_text


@test
def raw_events_of_a_response():
    events = list(ours.responses.create(
        model=MODEL, input=ASK, temperature=0, max_output_tokens=12,
        extra_body=FULL, stream=True))
    names = [whole(e, allow=ECHOED).type for e in events]
    assert names[:2] == ["response.created", "response.in_progress"], names
    assert names[-1] in ("response.completed", "response.incomplete")
    assert events[-1].response.output_text == respond().output_text


@test
def a_stored_response():
    r = respond()
    again = whole(ours.responses.retrieve(r.id), Response, ECHOED)
    assert again.to_dict() == r.to_dict()
    items = ours.responses.input_items.list(r.id, order="asc")
    (item,) = [whole(i) for i in items]
    assert item.role == "user" and item.content[0].text == ASK
    ours.responses.delete(r.id)
    try:
        ours.responses.retrieve(r.id)
    except openai.NotFoundError:
        return
    raise AssertionError("it is still there")


@test
def a_response_that_goes_on():
    one = respond()
    two = respond("And one more.", previous_response_id=one.id)
    assert two.previous_response_id == one.id
    spelled = respond([
        {"role": "user", "content": ASK},
        {"role": "assistant", "content": one.output_text},
        {"role": "user", "content": "And one more."}])
    assert two.output_text == spelled.output_text
    assert two.usage.input_tokens == spelled.usage.input_tokens
    items = list(ours.responses.input_items.list(two.id, limit=1,
                                                 order="asc"))
    assert [i.role for i in items] == ["user", "assistant", "user"]
    for item in items:
        whole(item)


@test
def no_previous_response():
    try:
        respond(previous_response_id="resp_none")
    except openai.BadRequestError as e:
        assert e.code == "previous_response_not_found"
        assert e.param == "previous_response_id"
        return
    raise AssertionError("it was found")


@test
def instructions_of_a_response():
    a = respond(instructions="You are brief.")
    b = respond([{"role": "system", "content": "You are brief."},
                 {"role": "user", "content": ASK}])
    assert a.output_text == b.output_text


# ------------------------------------------------------------------ messages

@test
def a_message():
    m = say()
    assert m.id.startswith("msg_") and m.role == "assistant"
    assert m.content[0].text
    assert m.stop_reason in ("end_turn", "max_tokens")
    assert m.usage.input_tokens > 0 and 0 < m.usage.output_tokens <= 12


@test
def a_streamed_message():
    with theirs.messages.stream(
            model=MODEL, max_tokens=12, extra_body=GREEDY,
            messages=[{"role": "user", "content": ASK}]) as s:
        text = "".join(s.text_stream)
        final = whole(s.get_final_message())
    assert text == final.content[0].text == say().content[0].text
    assert final.usage.output_tokens == say().usage.output_tokens


@test
def a_stop_sequence():
    text = say().content[0].text
    stop = middle(text)
    m = say(stop_sequences=[stop])
    assert m.content[0].text == text[:text.index(stop)]
    assert m.stop_reason == "stop_sequence" and m.stop_sequence == stop


@test
def count_tokens():
    body = {"model": MODEL, "system": "You are brief.", "messages": [
        {"role": "user", "content": ASK},
        {"role": "assistant", "content": "Red."},
        {"role": "user", "content": [{"type": "text", "text": "More."}]}]}
    n = whole(theirs.messages.count_tokens(**body), MessageTokensCount)
    u = theirs.messages.create(max_tokens=2, **body).usage
    assert n.input_tokens == u.input_tokens + u.cache_read_input_tokens


@test
def the_same_answer_everywhere():
    chat = ours.chat.completions.create(
        model=MODEL, temperature=0, max_tokens=12, extra_body=FULL,
        messages=[{"role": "user", "content": ASK}])
    assert chat.choices[0].message.content == respond().output_text \
        == say().content[0].text


@test
def models_of_anthropic():
    page = theirs.models.list()
    assert MODEL in [whole(m, ModelInfo).id for m in page]
    assert whole(theirs.models.retrieve(MODEL), ModelInfo).id == MODEL


@test
def errors_of_anthropic():
    try:
        theirs.messages.create(model="none", max_tokens=1,
                               messages=[{"role": "user", "content": "a"}])
    except anthropic.NotFoundError as e:
        assert e.body["error"]["type"] == "not_found_error", e.body
        assert e.request_id
    else:
        raise AssertionError("no exception")
    try:
        say(max_tokens=0)
    except anthropic.BadRequestError as e:
        assert e.body["error"]["type"] == "invalid_request_error"
        assert "max_tokens" in e.body["error"]["message"]
    else:
        raise AssertionError("no exception")


# --------------------------------------------------------------- completions

@test
def a_completion():
    c = complete()
    assert c.id.startswith("cmpl-") and c.object == "text_completion"
    assert c.choices[0].text and c.choices[0].finish_reason == "length"
    assert c.usage.completion_tokens == 6


@test
def a_streamed_completion():
    chunks = list(ours.completions.create(
        model=MODEL, prompt="The capital of France is", temperature=0,
        max_tokens=6, extra_body=FULL, stream=True,
        stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks[:-1]) \
        == complete().choices[0].text
    assert chunks[-1].usage.completion_tokens == 6


@test
def several_prompts():
    c = complete(["The capital of France is", "One, two, three,"], n=2)
    assert [x.index for x in c.choices] == [0, 1, 2, 3]
    assert c.choices[0].text == complete().choices[0].text
    assert c.choices[2].text == complete("One, two, three,").choices[0].text


@test
def echo_with_logprobs():
    c = ours.completions.create(
        model=MODEL, prompt="The capital of France is", temperature=0,
        max_tokens=3, extra_body=FULL, echo=True, logprobs=2)
    choice = c.choices[0]
    assert choice.text.startswith("The capital of France is")
    assert "".join(choice.logprobs.tokens) == choice.text
    assert choice.logprobs.token_logprobs[0] is None
    assert all(p <= 0 for p in choice.logprobs.token_logprobs[1:])
    # greedy: what was said is the most probable token
    for token, top in list(zip(choice.logprobs.tokens,
                               choice.logprobs.top_logprobs))[-3:]:
        assert max(top, key=top.get) == token
    for at, token in zip(choice.logprobs.text_offset, choice.logprobs.tokens):
        assert choice.text[at:at + len(token)] == token


@test
def token_ids():
    ids = ours.post("/../tokenize", cast_to=object, body={
        "prompt": "The capital of France is"})["tokens"]
    assert complete(ids).choices[0].text == complete().choices[0].text


run()
ours.close()
theirs.close()
