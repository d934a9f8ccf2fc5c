"""OpenAI responses: items and turns, there and back."""

from __future__ import annotations

import json
import re

import pytest
from conversations import conversations, samplings, tools
from hypothesis import given, settings

from quintain.dialects import openai_responses as wire
from quintain.messages import (
    Message,
    ReasoningPart,
    Sampling,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
    assistant,
    system,
    tool_results,
    user,
)
from quintain.record import canonical
from quintain.trajectory import Action, Usage


def through_json(value):
    return json.loads(json.dumps(value).encode())


def signed(messages):
    """The conversation with signatures as this format makes them."""
    return tuple(
        message.model_copy(
            update={
                "content": tuple(
                    part.model_copy(
                        update={"signature": canonical({"encrypted_content": part.signature})}
                    )
                    if isinstance(part, ReasoningPart) and part.signature
                    else part
                    for part in message.content
                )
            }
        )
        for message in messages
    )


@given(conversations(signatures=True), tools, samplings)
@settings(max_examples=60, deadline=None)
def test_requests_survive(messages, specs, sampling):
    messages = signed(messages)
    sampling = sampling.model_copy(update={"stop": (), "top_k": 0, "min_p": 0.0})
    body = wire.encode_request(messages, model="m", tools=specs, sampling=sampling)
    assert body["store"] is False
    read = wire.decode_request(through_json(body))
    assert (read.model, read.messages, read.tools) == ("m", messages, tuple(specs))
    assert read.sampling == sampling


@given(conversations(reasoning=False))
@settings(max_examples=60, deadline=None)
def test_responses_survive(messages):
    said = next(message for message in messages if message.role == "assistant")
    usage = Usage(calls=1, prompt_tokens=30, completion_tokens=5, cached_tokens=10)
    for finish in ("length", "filtered", "tool_calls" if said.tool_calls else "stop"):
        action = Action(message=said, finish=finish, usage=usage)
        assert wire.decode_response(through_json(wire.encode_response(action, model="m"))) == action


def test_what_a_request_looks_like():
    call = ToolCall(id="c", name="f", arguments={"a": 1})
    result = ToolResult(call_id="c", name="f", content=(TextPart(text="4"),))
    body = wire.encode_request(
        [system("S"), user("hi"), assistant("let me", call), tool_results(result)],
        model="m",
        tools=[ToolSpec(name="f", description="F.")],
        sampling=Sampling(max_tokens=5),
        encrypted_reasoning=True,
    )
    assert body == {
        "model": "m",
        "input": [
            {
                "type": "message",
                "role": "system",
                "content": [{"type": "input_text", "text": "S"}],
            },
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "message", "role": "assistant", "content": "let me"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "c", "output": "4"},
        ],
        "temperature": 1.0,
        "top_p": 1.0,
        "store": False,
        "tools": [
            {
                "type": "function",
                "name": "f",
                "description": "F.",
                "parameters": {"type": "object", "properties": {}},
                "strict": False,
            }
        ],
        "max_output_tokens": 5,
        "include": ["reasoning.encrypted_content"],
    }


def test_reasoning_is_sent_back_as_it_came():
    item = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "encrypted_content": "xyz",
    }
    action = wire.decode_response({"output": [item], "status": "completed"})
    assert action.message.reasoning == "hm"
    assert wire.encode_messages([action.message]) == [item]
    # Another server's signature means nothing here, and does no harm.
    foreign = Message(role="assistant", content=(ReasoningPart(text="hm", signature="EqQB"),))
    assert wire.encode_messages([foreign]) == [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    ]


def test_short_forms_and_instructions():
    read = wire.decode_request({"model": "m", "instructions": "S", "input": "hi"})
    assert read.messages == (system("S"), user("hi"))
    read = wire.decode_request({"model": "m", "input": [{"role": "developer", "content": "S"}]})
    assert read.messages == (system("S"),)


def test_an_assistants_items_in_a_row_are_one_turn():
    items = [
        {"type": "reasoning", "summary": []},
        {"role": "assistant", "content": "a"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"},
        {"type": "function_call", "call_id": "c", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"type": "function_call_output", "call_id": "c_1", "output": "2"},
        {"role": "assistant", "content": "b"},
    ]
    messages = wire.decode_messages(items)
    assert [message.role for message in messages] == ["assistant", "tool", "assistant"]
    first, second = messages[0].tool_calls
    assert (first.raw, first.error != "", second.id) == ("{", True, "c_1")
    assert [result.name for result in messages[1].tool_results] == ["f", "g"]
    out = wire.encode_response(Action(message=messages[0], finish="tool_calls"), model="m")
    assert out["output"][2]["arguments"] == "{"  # as it was written, for whoever answers it


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wire.decode_response({}), "response.output: expected list, got nothing"),
        (
            lambda: wire.decode_response({"output": [], "status": "failed", "error": "boom"}),
            "the server failed: 'boom'",
        ),
        (
            lambda: wire.decode_response({"output": [{"type": "web_search_call"}]}),
            "'web_search_call' is not supported",
        ),
        (
            lambda: wire.decode_request(
                {"model": "m", "input": "x", "previous_response_id": "resp_1"}
            ),
            "no state is kept here",
        ),
        (
            lambda: wire.decode_request({"model": "m", "input": [{"type": "item_reference"}]}),
            "input[0]: item_reference",
        ),
        (
            lambda: wire.decode_request(
                {"model": "m", "input": "x", "tools": [{"type": "web_search"}]}
            ),
            "'web_search' is not supported; function is",
        ),
        (
            lambda: wire.encode_request([user("x")], model="m", sampling=Sampling(stop=("a",))),
            "has no stop sequences",
        ),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
