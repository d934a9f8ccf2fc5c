"""OpenAI chat completions: nothing is lost on the way there and back, nothing bad goes unsaid."""

from __future__ import annotations

import json
import re

import pytest
from conversations import conversations, samplings, tools, words
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.dialects import openai_chat as wire
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
from quintain.trajectory import Action, TokenSpan, Usage


def through_json(value):
    return json.loads(json.dumps(value).encode())


@given(conversations())
@settings(max_examples=60, deadline=None)
def test_conversations_survive(messages):
    assert wire.decode_messages(through_json(wire.encode_messages(messages))) == messages


@given(conversations(), tools, samplings, st.integers(0, 2**63 - 1))
@settings(max_examples=60, deadline=None)
def test_requests_survive(messages, specs, sampling, seed):
    body = wire.encode_request(messages, model="m", tools=specs, sampling=sampling, seed=seed)
    read = wire.decode_request(through_json(body))
    assert (read.model, read.messages, read.tools) == ("m", messages, tuple(specs))
    assert read.sampling.model_copy(update={"seed": None}) == sampling
    assert read.sampling.seed == seed & 0x7FFFFFFF
    assert not read.stream
    assert not read.extra


@given(
    words,
    st.lists(st.tuples(st.integers(0, 10**5), st.floats(-50, 0)), max_size=5),
    st.sampled_from(["stop", "length", "filtered"]),
)
def test_responses_survive(text, sampled, finish):
    ids = tuple(token for token, _ in sampled)
    logprobs = tuple(value for _, value in sampled)
    span = TokenSpan(prompt_delta_ids=(5, 6, 7), token_ids=ids, logprobs=logprobs, policy_version=0)
    action = Action(
        message=Message(role="assistant", content=(ReasoningPart(text="hm"), TextPart(text=text))),
        tokens=(span,),
        finish=finish,
        usage=Usage(calls=1, prompt_tokens=3, completion_tokens=len(ids), cached_tokens=2),
    )
    body = through_json(wire.encode_response(action, model="m"))
    assert wire.decode_response(body) == action.model_copy(update={"tokens": ()})
    assert wire.decode_tokens(body) == ((5, 6, 7), ids, logprobs)
    # Ids are also read from tokens written as token_id:N, as older servers send them.
    del body["choices"][0]["token_ids"]
    assert wire.decode_tokens(body).token_ids == (ids or None)


def test_what_a_request_looks_like():
    body = wire.encode_request(
        [system("Be brief."), user("2+2?")],
        model="m",
        tools=[ToolSpec(name="add", description="Adds.")],
        sampling=Sampling(temperature=0.5, max_tokens=7, stop=("\n",)),
        seed=2**40 + 3,
    )
    assert body == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "2+2?"},
        ],
        "temperature": 0.5,
        "top_p": 1.0,
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "add",
                    "description": "Adds.",
                    "parameters": {"type": "object", "properties": {}},
                },
            }
        ],
        "max_tokens": 7,
        "stop": ["\n"],
        "seed": 3,
    }
    body = wire.encode_request(
        [user("x")],
        model="m",
        sampling=Sampling(max_tokens=7),
        token_ids=True,
        logprobs=True,
        max_tokens_field="max_completion_tokens",
    )
    assert body["return_token_ids"] is True
    assert body["logprobs"] is True
    assert body["top_k"] == -1  # or the model's own default would be used
    assert body["max_completion_tokens"] == 7
    assert "tools" not in body


def test_reasoning_goes_back_under_the_name_asked_for():
    said = Message(role="assistant", content=(ReasoningPart(text="hm"), TextPart(text="4")))
    assert wire.encode_messages([said])[0]["reasoning_content"] == "hm"
    assert wire.encode_messages([said], reasoning="reasoning")[0]["reasoning"] == "hm"
    assert wire.encode_messages([said], reasoning="")[0] == {"role": "assistant", "content": "4"}
    answer = {
        "choices": [{"message": {"content": "4", "reasoning": "hm"}, "finish_reason": "stop"}]
    }
    assert wire.decode_response(answer).message == said


def answer_with(arguments, name="add", call_id="c1"):
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {
        "choices": [
            {"message": {"role": "assistant", "content": None, "tool_calls": [call]},
             "finish_reason": "stop"}
        ]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ('{"a": 1', "not valid JSON"),
        ("[1, 2]", "must be a JSON object, got an array"),
        ('"text"', "must be a JSON object, got a string"),
        ("3", "must be a JSON object, got a number"),
        ("true", "must be a JSON object, got a boolean"),
        ("null", "must be a JSON object, got null"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": 1} extra', "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "not valid JSON"),
    ],
)
def test_malformed_arguments_are_kept_and_explained(arguments, error):
    action = wire.decode_response(answer_with(arguments))
    (call,) = action.message.tool_calls
    assert action.finish == "tool_calls"  # the server said "stop"
    assert error in call.error
    assert call.raw == arguments
    assert call.arguments == {}
    # The conversation that holds it can be sent on: servers parse the arguments again.
    sent = wire.encode_messages([action.message])[0]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"malformed": arguments}
    # And whoever is to answer the call sees it as it was written.
    out = wire.encode_response(action, model="m")
    assert out["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == arguments


def test_calls_that_are_odd_but_readable():
    (call,) = wire.decode_response(answer_with({"a": 1})).message.tool_calls
    assert call == ToolCall(id="c1", name="add", arguments={"a": 1})
    (call,) = wire.decode_response(answer_with("")).message.tool_calls
    assert call == ToolCall(id="c1", name="add")
    (call,) = wire.decode_response(answer_with("{}", name=None)).message.tool_calls
    assert call.error == "the call names no tool"
    legacy = {"choices": [{"message": {"function_call": {"name": "f", "arguments": "{}"}},
                           "finish_reason": "function_call"}]}  # fmt: skip
    assert wire.decode_response(legacy).message.tool_calls == (ToolCall(id="call_0", name="f"),)
    custom = {"choices": [{"message": {"tool_calls": [
        {"id": "c", "type": "custom", "custom": {"name": "f", "input": "text"}}]}}]}  # fmt: skip
    (call,) = wire.decode_response(custom).message.tool_calls
    assert (call.raw, "not valid JSON" in call.error) == ("text", True)


def test_ids_are_made_unique():
    body = answer_with("{}")
    message = body["choices"][0]["message"]
    message["tool_calls"] = [*message["tool_calls"] * 2, {"function": {"name": "g"}}]
    ids = [call.id for call in wire.decode_response(body).message.tool_calls]
    assert len(set(ids)) == 3
    assert all(ids)


def test_lone_surrogates_cannot_break_storage():
    action = wire.decode_response(json.loads(json.dumps(answer_with('{"a": "\\ud800"}'))))
    assert action.message.tool_calls[0].arguments == {"a": "�"}
    body = json.loads('{"choices": [{"message": {"content": "x\\udfffy"}}]}')
    assert wire.decode_response(body).message.text == "x�y"
    Action.model_validate_json(action.model_dump_json())


def test_parts_in_a_list_refusals_and_filters():
    body = {"choices": [{"message": {"content": [{"type": "thinking", "thinking": [
        {"type": "text", "text": "hm"}]}, {"type": "text", "text": "4"}]},
        "finish_reason": "content_filter"}]}  # fmt: skip
    action = wire.decode_response(body)
    assert (action.message.reasoning, action.message.text, action.finish) == ("hm", "4", "filtered")
    refused = {"choices": [{"message": {"content": None, "refusal": "No."}}]}
    assert wire.decode_response(refused).message.text == "No."


def test_usage_and_cost():
    usage = wire.decode_usage(
        {
            "prompt_tokens": 10,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 8},
            "cost": 0.25,
        }
    )
    assert usage == Usage(
        calls=1, prompt_tokens=10, completion_tokens=5, cached_tokens=8, cost_usd=0.25
    )
    assert wire.decode_usage(None) == Usage(calls=1)
    assert wire.decode_usage({"prompt_tokens": None, "prompt_tokens_details": None}).calls == 1


def test_tokens_that_do_not_add_up_are_not_used():
    def body(ids, content):
        return {"prompt_token_ids": [1], "choices": [{"token_ids": ids, "logprobs": content}]}

    good = [{"token": "a", "logprob": -0.5}]
    assert wire.decode_tokens(body([1], {"content": good})) == ((1,), (1,), (-0.5,))
    assert wire.decode_tokens(body([1, 2], {"content": good})).logprobs is None
    assert wire.decode_tokens(body(None, {"content": good})).token_ids is None
    assert wire.decode_tokens(body([1], None)).logprobs is None
    assert wire.decode_tokens(body([True], None)).token_ids is None
    infinite = [{"token": "a", "logprob": float("-inf")}]
    assert wire.decode_tokens(body([1], {"content": infinite})).logprobs is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "response.choices: expected list, got nothing"),
        ([], "response: expected an object, got list"),
        ({"choices": []}, "expected one choice, got none"),
        ({"choices": [3]}, "response.choices[0]: expected an object"),
        ({"choices": [{"text": "x"}]}, "response.choices[0].message: expected dict, got nothing"),
        ({"choices": [{"message": {"content": 5}}]}, "expected a string or a list, got int"),
        ({"choices": [{"message": {"tool_calls": "x"}}]}, "tool_calls: expected a list"),
        ({"choices": [{"message": {"tool_calls": [7]}}]}, "tool_calls[0]: expected an object"),
    ],
)
def test_answers_that_are_none(body, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        wire.decode_response(body)


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ("hi", "messages: expected a list"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "robot", "content": "x"}], "'robot' is not a role"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        (
            [{"role": "user", "content": [{"type": "input_audio"}]}],
            "'input_audio' is not supported",
        ),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": "data:x,y"}]}],
            "data:<type>;base64",
        ),
    ],
)
def test_requests_that_are_none(messages, place):
    with pytest.raises(ValueError, match=re.escape(place)):
        wire.decode_request({"model": "m", "messages": messages})


def test_parts_must_fit_the_role():
    result = ToolResult(call_id="c", name="f", content=(TextPart(text="x"),))
    for bad, message in [
        (Message(role="user", content=(result,)), "a user message holds text"),
        (Message(role="assistant", content=(result,)), "an assistant message holds a tool result"),
        (Message(role="tool", content="plain"), "a tool message holds tool results only"),
    ]:
        with pytest.raises(ValueError, match=message):
            wire.encode_messages([bad])


def test_tool_results_take_the_name_of_their_call():
    sent = wire.encode_messages(
        [assistant("", ToolCall(id="c", name="add")),
         tool_results(ToolResult(call_id="c", name="add", content=()))]
    )  # fmt: skip
    del sent[1]["name"]
    assert wire.decode_messages(sent)[1].tool_results[0].name == "add"
