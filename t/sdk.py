"""sdk.py - the official openai SDK against a server, for t/sdk.t.

usage: sdk.py BASE_URL

Prints "ok NAME" or "not ok NAME: reason" for each test.  BASE_URL serves the
model "m", also known as "gpt-4o", and the model "away" that has no engine;
BASE_URL + "/locked" wants a key.  Every object that a call returns is checked
against the SDK's own type, strictly: nothing missing, nothing unknown.
"""

import asyncio
import sys

import openai
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from sdk_check import FULL, middle, run, test, whole

URL = sys.argv[1]
ASK = {"model": "m", "temperature": 0, "max_tokens": 12,
       "messages": [{"role": "system", "content": "You are brief."},
                    {"role": "user", "content": "Name three colours."}]}

client = openai.OpenAI(base_url=URL, api_key="none", max_retries=0,
                       timeout=300)

def create(**more):
    return whole(client.chat.completions.create(**{**ASK, **more}),
                 ChatCompletion)


def stream(**more):
    with client.chat.completions.create(**{**ASK, "stream": True,
                                           **more}) as s:
        return [whole(chunk, ChatCompletionChunk) for chunk in s]


def text_of(chunks, index=0):
    return "".join(c.delta.content or "" for chunk in chunks
                   for c in chunk.choices if c.index == index)


def raises(kind, fn, status, code, param=None):
    try:
        fn()
    except openai.APIStatusError as e:
        assert type(e) is kind, type(e)
        assert e.status_code == status, e.status_code
        assert e.code == code and e.param == param, (e.code, e.param)
        assert e.type, e.body
        assert e.request_id, "no x-request-id"
        assert isinstance(e.body, dict) and e.body["message"], e.body
        return e
    raise AssertionError("no exception")


@test
def one_body():
    r = create()
    assert r.id.startswith("chatcmpl-") and r.model == "m"
    assert r._request_id
    (choice,) = r.choices
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    u = r.usage
    assert u.prompt_tokens > 0 and 0 < u.completion_tokens <= 12
    assert u.total_tokens == u.prompt_tokens + u.completion_tokens
    assert u.prompt_tokens_details.cached_tokens >= 0


@test
def the_stream_says_the_same():
    chunks = stream()
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({c.id for c in chunks}) == 1
    assert text_of(chunks) == create().choices[0].message.content
    reasons = [c.choices[0].finish_reason for c in chunks]
    assert reasons[-1] in ("stop", "length")
    assert not any(reasons[:-1])
    assert all(c.usage is None for c in chunks)


@test
def usage_in_a_stream():
    chunks = stream(stream_options={"include_usage": True})
    assert all(c.usage is None for c in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens \
        == create().usage.completion_tokens


@test
def two_choices():
    r = create(n=2, temperature=1, seed=5)
    assert [c.index for c in r.choices] == [0, 1]
    chunks = stream(n=2, temperature=1, seed=5)
    for c in r.choices:
        assert text_of(chunks, c.index) == c.message.content


@test
def logprobs():
    r = create(logprobs=True, top_logprobs=3)
    entries = r.choices[0].logprobs.content
    said = b"".join(bytes(e.bytes) for e in entries)
    assert said.decode() == r.choices[0].message.content
    for e in entries:
        assert e.logprob <= 0 and len(e.top_logprobs) == 3
        # greedy: the token said is the most probable one
        assert e.top_logprobs[0].token == e.token
        assert e.top_logprobs[0].logprob == e.logprob
    chunks = stream(logprobs=True, top_logprobs=3)
    streamed = [e for c in chunks if c.choices[0].logprobs
                for e in c.choices[0].logprobs.content]
    assert streamed == entries


@test
def a_top_p_of_zero():
    greedy = create().choices[0].message.content
    assert create(temperature=1.5, top_p=0).choices[0].message.content \
        == greedy


@test
def a_stop_string():
    text = create(extra_body=FULL).choices[0].message.content
    stop = middle(text)
    r = create(stop=[stop], extra_body=FULL)
    assert r.choices[0].message.content == text[:text.index(stop)]
    assert r.choices[0].finish_reason == "stop"
    assert text_of(stream(stop=stop, extra_body=FULL)) \
        == text[:text.index(stop)]


@test
def max_completion_tokens():
    r = create(max_tokens=openai.omit, max_completion_tokens=3,
               extra_body=FULL)
    assert r.usage.completion_tokens == 3
    assert r.choices[0].finish_reason == "length"


@test
def extra_body():
    r = create(extra_body={"top_k": 1, "min_p": 0.1, "ignore_eos": True},
               temperature=1, max_tokens=5)
    assert r.usage.completion_tokens == 5


@test
def a_stream_that_is_left():
    s = client.chat.completions.create(**{**ASK, "stream": True,
                                          "max_tokens": 200})
    next(iter(s))
    s.close()


@test
def the_stream_helper():
    # it takes an answer that was cut by max_tokens for a failure
    stop = middle(create(extra_body=FULL).choices[0].message.content)
    ask = {"stop": stop, "extra_body": FULL}
    with client.chat.completions.stream(**{**ASK, **ask}) as s:
        kinds = {event.type for event in s}
        r = s.get_final_completion()
    assert "content.delta" in kinds
    assert r.choices[0].message.content \
        == create(**ask).choices[0].message.content


@test
def models():
    names = [whole(m, Model).id for m in client.models.list()]
    assert names == ["m", "gpt-4o", "away", "v41"], names
    assert whole(client.models.retrieve("gpt-4o"), Model).id == "gpt-4o"
    raises(openai.NotFoundError, lambda: client.models.retrieve("none"),
           404, "model_not_found", "model")


@test
def errors():
    raises(openai.NotFoundError, lambda: create(model="none"),
           404, "model_not_found", "model")
    raises(openai.BadRequestError, lambda: create(temperature=3),
           400, "decimal_above_max_value", "temperature")
    raises(openai.BadRequestError, lambda: stream(n=0),
           400, "integer_below_min_value", "n")
    raises(openai.BadRequestError, lambda: create(messages=[]),
           400, "empty_array", "messages")
    raises(openai.BadRequestError, lambda: create(messages=[
        {"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:,"}}]}]),
        400, "unsupported_content", "messages[0].content[0]")
    e = raises(openai.BadRequestError, lambda: create(messages=[
        {"role": "user", "content": "word " * 3000}]),
        400, "context_length_exceeded", "messages")
    assert "1024" in e.message, e.message


@test
def a_model_without_an_engine():
    away = openai.OpenAI(base_url=URL + "/away", api_key="none",
                         max_retries=0, timeout=300)
    e = raises(openai.InternalServerError,
               lambda: away.chat.completions.create(
                   **{**ASK, "model": "away"}),
               503, "engine_unavailable")
    assert e.response.headers["retry-after"] == "1"


@test
def keys():
    locked = openai.OpenAI(base_url=URL + "/locked", api_key="wrong",
                           max_retries=0, timeout=300)
    raises(openai.AuthenticationError,
           lambda: locked.chat.completions.create(**ASK),
           401, "invalid_api_key")
    r = locked.with_options(api_key="right").chat.completions.create(**ASK)
    whole(r, ChatCompletion)


@test
def async_client():
    async def ask(c, seed):
        s = await c.chat.completions.create(**{**ASK, "stream": True,
                                               "temperature": 1,
                                               "seed": seed})
        return text_of([whole(chunk, ChatCompletionChunk)
                        async for chunk in s])

    async def run():
        async with openai.AsyncOpenAI(base_url=URL, api_key="none",
                                      max_retries=0, timeout=300) as c:
            r = whole(await c.chat.completions.create(**ASK), ChatCompletion)
            texts = await asyncio.gather(*(ask(c, i) for i in range(4)))
        return r, texts

    r, texts = asyncio.run(run())
    assert r.choices[0].message.content \
        == create().choices[0].message.content
    # seeds are honoured in whatever company they come
    for seed, text in enumerate(texts):
        assert text == create(temperature=1, seed=seed) \
            .choices[0].message.content


run()
client.close()
