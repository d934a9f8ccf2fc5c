"""Anthropic messages: there and back, and what cannot be said in them."""

from __future__ import annotations

import json
import re

import pytest
from conversations import conversations, samplings, tools
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.dialects import anthropic as wire
from quintain.messages import (
    Message,
    ReasoningPart,
    Sampling,
    TextPart,
    ToolCall,
    ToolResult,
    assistant,
    system,
    tool_results,
    user,
)
from quintain.trajectory import Action, Usage


def through_json(value):
    return json.loads(json.dumps(value).encode())


def test_what_the_api_cannot_do_is_refused():
    with pytest.raises(ValueError, match="min-p"):
        wire.encode_request([user("x")], model="m", sampling=Sampling(min_p=0.1))


@given(conversations(signatures=True), tools, samplings)
@settings(max_examples=60, deadline=None)
def test_requests_survive(messages, specs, sampling):
    sampling = sampling.model_copy(update={"min_p": 0.0})
    body = wire.encode_request(messages, model="m", tools=specs, sampling=sampling)
    read = wire.decode_request(through_json(body))
    assert (read.model, read.messages, read.tools) == ("m", messages, tuple(specs))
    bound = sampling.max_tokens or wire.MAX_TOKENS
    assert read.sampling == sampling.model_copy(update={"max_tokens": bound})
    assert not read.extra


@given(conversations(signatures=True), st.sampled_from(["stop", "length", "filtered"]))
@settings(max_examples=60, deadline=None)
def test_responses_survive(messages, finish):
    said = next(message for message in messages if message.role == "assistant")
    if said.tool_calls:
        finish = "tool_calls"
    usage = Usage(calls=1, prompt_tokens=30, completion_tokens=5, cached_tokens=10)
    action = Action(message=said, finish=finish, usage=usage)
    assert wire.decode_response(through_json(wire.encode_response(action, model="m"))) == action


def test_what_a_request_looks_like():
    call = ToolCall(id="c", name="f", arguments={"a": 1})
    result = ToolResult(call_id="c", name="f", content=(TextPart(text="no"),), is_error=True)
    body = wire.encode_request(
        [system("One."), user("hi"), system("Two."), assistant("", call), tool_results(result)],
        model="m",
        sampling=Sampling(stop=("END",)),
    )
    assert body == {
        "model": "m",
        "system": "One.\n\nTwo.",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "c",
                        "content": [{"type": "text", "text": "no"}],
                        "is_error": True,
                    }
                ],
            },
        ],
        "max_tokens": wire.MAX_TOKENS,
        "temperature": 1.0,
        "stop_sequences": ["END"],
    }
    assert wire.decode_request(body).messages[-1] == tool_results(result)


def test_results_and_text_in_one_message_are_taken_apart():
    body = {
        "model": "m",
        "system": [{"type": "text", "text": "S"}],
        "messages": [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f"}]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c", "content": "4"},
                    {"type": "text", "text": "go on"},
                ],
            },
        ],
    }
    messages = wire.decode_request(body).messages
    assert [message.role for message in messages] == ["system", "assistant", "tool", "user"]
    assert messages[2].tool_results[0].name == "f"
    assert messages[3].text == "go on"


def test_reasoning_without_a_signature_is_not_sent_back():
    said = Message(role="assistant", content=(ReasoningPart(text="hm"), TextPart(text="4")))
    (sent,) = wire.encode_messages([said])[1]
    assert [block["type"] for block in sent["content"]] == ["text"]
    # But a client is shown it.
    shown = wire.encode_response(Action(message=said), model="m")["content"]
    assert shown[0] == {"type": "thinking", "thinking": "hm", "signature": ""}
    hidden = Message(role="assistant", content=(ReasoningPart(text="", signature="xx"),))
    (sent,) = wire.encode_messages([hidden])[1]
    assert sent["content"] == [{"type": "redacted_thinking", "data": "xx"}]


def test_malformed_calls_and_odd_answers():
    body = {
        "content": [
            {"type": "tool_use", "id": "a", "name": "f", "input": [1]},
            {"type": "tool_use", "id": "a", "name": "g", "input": {}},
        ],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 5, "cache_creation_input_tokens": 7, "output_tokens": 2},
    }
    action = wire.decode_response(body)
    first, second = action.message.tool_calls
    assert "must be a JSON object, got an array" in first.error
    assert (first.id, second.id) == ("a", "a_1")
    assert action.finish == "tool_calls"
    assert action.usage.prompt_tokens == 12
    (sent,) = wire.encode_messages([action.message])[1]
    assert sent["content"][0]["input"] == {"malformed": "[1]"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "response.content: expected list, got nothing"),
        ({"content": [{"type": "audio"}]}, "'audio' is not supported"),
        ({"content": [{"type": "text"}]}, "response.content[0].text: expected str, got nothing"),
    ],
)
def test_answers_that_are_none(body, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        wire.decode_response(body)


def test_requests_that_are_none():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "?"}}
    for messages, message in [
        ("hi", "messages: expected a list"),
        ([{"role": "system", "content": "x"}], "'system' is not a role"),
        ([{"role": "user", "content": 5}], "messages[0].content: expected a string or a list"),
        ([{"role": "user", "content": [image]}], "expected base64 data"),
    ]:
        with pytest.raises(ValueError, match=re.escape(message)):
            wire.decode_request({"model": "m", "messages": messages})
    result = ToolResult(call_id="c", name="f", content=())
    with pytest.raises(ValueError, match="tool results stand in tool messages"):
        wire.encode_messages([Message(role="user", content=(result,))])
