"""sdk_structured.py - structured output through the official openai and
anthropic SDKs, whose helpers parse what comes into types, for t/sdk.t.

usage: sdk_structured.py URL URL_TOOLS MODEL

URL serves MODEL, a real one, under all APIs; URL_TOOLS does in a dialect that
spells tools.  At temperature 1.5 a small model keeps to nothing by itself.
"""

import json
import sys
from enum import Enum
from typing import List, Optional

import anthropic
import openai
from pydantic import BaseModel, Field

from sdk_check import run, test

URL, URL_TOOLS, MODEL = sys.argv[1:]
WILD = {"temperature": 1.5}


class Unit(str, Enum):
    celsius = "celsius"
    fahrenheit = "fahrenheit"


class Weather(BaseModel):
    """The weather at a place."""
    city: str = Field(max_length=12)
    unit: Unit
    days: int = Field(ge=1, le=7)


class Step(BaseModel):
    explanation: str = Field(max_length=15)
    output: str = Field(max_length=8)


class MathReasoning(BaseModel):
    steps: List[Step] = Field(max_length=2)
    final_answer: Optional[str] = Field(max_length=8)


class Reading(BaseModel):
    """Without bounds: Anthropic's SDK takes those out of a schema."""
    unit: Unit
    sunny: bool


def clients(url):
    return (openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0,
                          timeout=300),
            anthropic.Anthropic(base_url=url, api_key="none", max_retries=0,
                                timeout=300))


ours, theirs = clients(URL)
our_tools, their_tools = clients(URL_TOOLS)

ASK = {"model": MODEL, **WILD, "seed": 7, "max_tokens": 300,
       "messages": [{"role": "user", "content": "Solve 8x + 7 = -23."}]}
SAY = {"model": MODEL, "max_tokens": 300, "extra_body": WILD,
       "messages": [{"role": "user", "content": "How is it in Paris?"}]}


def schema_of(model):
    """As strict mode of OpenAI wants it."""
    return {"type": "object", "additionalProperties": False,
            **{k: v for k, v in model.model_json_schema().items()
               if k != "title"}}


def tool(strict=True):
    return {"type": "function", "function": {
        "name": "get_weather", "description": "Weather.", "strict": strict,
        "parameters": schema_of(Weather)}}


# --------------------------------------------------------------------- openai

@test
def chat_parses_to_a_model():
    c = ours.chat.completions.parse(**ASK, response_format=MathReasoning)
    (choice,) = c.choices
    assert choice.finish_reason == "stop", choice.finish_reason
    assert isinstance(choice.message.parsed, MathReasoning)
    assert len(choice.message.parsed.steps) <= 2


@test
def every_choice_parses():
    c = ours.chat.completions.parse(**ASK, n=4, response_format=Weather)
    assert len(c.choices) == 4
    for choice in c.choices:
        assert 1 <= choice.message.parsed.days <= 7


@test
def a_stream_of_chat_parses():
    with ours.chat.completions.stream(**ASK, response_format=Weather) as s:
        kinds = {event.type for event in s}
        final = s.get_final_completion()
    assert "content.delta" in kinds and "content.done" in kinds, kinds
    assert isinstance(final.choices[0].message.parsed, Weather)


@test
def a_response_parses():
    r = ours.responses.parse(model=MODEL, input="How is it in Paris?",
                             temperature=1.5, max_output_tokens=300,
                             text_format=Weather)
    assert r.status == "completed", r.incomplete_details
    assert isinstance(r.output_parsed, Weather)


@test
def a_stream_of_responses_parses():
    with ours.responses.stream(model=MODEL, input="How is it in Paris?",
                               temperature=1.5, max_output_tokens=300,
                               text_format=Weather) as s:
        for event in s:
            pass
        r = s.get_final_response()
    assert isinstance(r.output_parsed, Weather)


@test
def json_mode():
    c = ours.chat.completions.create(**{**ASK, "messages": [
        {"role": "user", "content": "Some json, please."}]},
        response_format={"type": "json_object"})
    if c.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(c.choices[0].message.content), dict)


@test
def extensions_go_in_extra_body():
    c = ours.chat.completions.create(**ASK, extra_body={
        "structured_outputs": {"choice": ["positive", "negative"]}})
    assert c.choices[0].message.content in ("positive", "negative")
    c = ours.completions.create(model=MODEL, prompt=["A", "B"], **WILD,
                                max_tokens=20, extra_body={
                                    "guided_regex": "[0-9]{3}"})
    for choice in c.choices:
        assert len(choice.text) == 3 and choice.text.isdigit(), choice.text


@test
def what_can_not_be_held_is_a_bad_request():
    try:
        ours.chat.completions.create(**ASK, response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": {
                "type": "array", "uniqueItems": True}}})
    except openai.BadRequestError as e:
        assert e.param == "response_format.json_schema.schema", e.param
        assert "uniqueItems" in e.message, e.message
        return
    raise AssertionError("no exception")


@test
def a_forced_call_has_strict_arguments():
    c = our_tools.chat.completions.create(**ASK, tools=[tool()],
                                          tool_choice="required")
    (choice,) = c.choices
    assert choice.finish_reason == "tool_calls", choice.finish_reason
    for call in choice.message.tool_calls:
        assert call.function.name == "get_weather"
        Weather.model_validate_json(call.function.arguments)


@test
def a_named_tool_is_the_one_that_is_called():
    other = {"type": "function", "function": {
        "name": "other", "parameters": {"type": "object"}}}
    r = our_tools.responses.create(
        model=MODEL, input="How is it in Paris?", temperature=1.5,
        max_output_tokens=300, tools=[{"type": "function", **t["function"]}
                                      for t in (other, tool())],
        tool_choice={"type": "function", "name": "get_weather"})
    calls = [o for o in r.output if o.type == "function_call"]
    assert calls and all(c.name == "get_weather" for c in calls), r.output
    Weather.model_validate_json(calls[0].arguments)


# ------------------------------------------------------------------ anthropic

@test
def a_message_parses():
    m = theirs.messages.parse(**SAY, output_format=Reading)
    assert m.stop_reason == "end_turn", m.stop_reason
    assert isinstance(m.parsed_output, Reading)


@test
def a_forced_tool_use_has_its_input():
    m = their_tools.messages.create(
        **SAY, tool_choice={"type": "any"}, tools=[{
            "name": "get_weather", "description": "Weather.", "strict": True,
            "input_schema": schema_of(Weather)}])
    assert m.stop_reason == "tool_use", m.stop_reason
    uses = [b for b in m.content if b.type == "tool_use"]
    assert uses
    for use in uses:
        Weather.model_validate(use.input)


@test
def a_stream_of_a_forced_tool_use():
    with their_tools.messages.stream(
            **SAY, tool_choice={"type": "tool", "name": "get_weather"},
            tools=[{"name": "get_weather", "strict": True,
                    "input_schema": schema_of(Weather)}]) as s:
        for event in s:
            pass
        m = s.get_final_message()
    (use,) = [b for b in m.content if b.type == "tool_use"][:1]
    Weather.model_validate(use.input)


run()
