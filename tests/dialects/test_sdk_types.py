"""What is sent and answered passes the types of the vendors' own packages, where those are here."""

from __future__ import annotations

import json

import pytest
from pydantic import TypeAdapter

from quintain.dialects import anthropic as anthropic_wire
from quintain.dialects import openai_chat, openai_responses
from quintain.messages import (
    FilePart,
    ImagePart,
    Message,
    ReasoningPart,
    Sampling,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
    system,
    tool_results,
    user,
)
from quintain.trajectory import Action, TokenSpan, Usage

SIGNED = ReasoningPart(text="hm", signature='{"encrypted_content":"e","id":"rs_1"}')
TALK = (
    system("S"),
    user(
        "hi",
        ImagePart(data=b"x"),
        FilePart(name="a.pdf", data=b"y", media_type="application/pdf"),
    ),
    Message(
        role="assistant",
        content=(SIGNED, TextPart(text="t"), ToolCall(id="c", name="f", arguments={"a": 1})),
    ),
    tool_results(ToolResult(call_id="c", name="f", content=(TextPart(text="4"),))),
    user("go on"),
)
TOOLS = (ToolSpec(name="f", description="F.", parameters={"type": "object", "properties": {}}),)
SPAN = TokenSpan(prompt_delta_ids=(1,), token_ids=(2, 3), logprobs=(-0.1, -0.2), policy_version=0)
ACTION = Action(
    message=TALK[2],
    finish="tool_calls",
    tokens=(SPAN,),
    usage=Usage(calls=1, prompt_tokens=5, completion_tokens=2, cached_tokens=1),
)
SAMPLING = Sampling(max_tokens=5)


def passes(kind, value):
    TypeAdapter(kind).validate_python(json.loads(json.dumps(value)))


def test_openai_chat():
    pytest.importorskip("openai", reason="the openai package is not installed")
    from openai.types.chat import ChatCompletion
    from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming

    passes(ChatCompletion, openai_chat.encode_response(ACTION, model="m"))
    body = openai_chat.encode_request(TALK, model="m", tools=TOOLS, sampling=SAMPLING, seed=1)
    passes(CompletionCreateParamsNonStreaming, body)


def test_openai_responses():
    pytest.importorskip("openai", reason="the openai package is not installed")
    from openai.types.responses import Response
    from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

    passes(Response, openai_responses.encode_response(ACTION, model="m"))
    body = openai_responses.encode_request(TALK, model="m", tools=TOOLS, sampling=SAMPLING)
    passes(ResponseCreateParamsNonStreaming, body)


def test_anthropic():
    pytest.importorskip("anthropic", reason="the anthropic package is not installed")
    from anthropic.types import Message as AnthropicMessage
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming

    passes(AnthropicMessage, anthropic_wire.encode_response(ACTION, model="m"))
    body = anthropic_wire.encode_request(TALK, model="m", tools=TOOLS, sampling=SAMPLING)
    passes(MessageCreateParamsNonStreaming, body)


async def test_the_openai_client_talks_to_the_test_server():
    """The server that the other tests use is one that the vendor's client accepts."""
    pytest.importorskip("openai", reason="the openai package is not installed")
    from openai import AsyncOpenAI

    from openai_server import OpenAIServer

    async with OpenAIServer(ACTION) as server:
        client = AsyncOpenAI(base_url=server.base_url, api_key="x")
        done = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}]
        )
        await client.close()
    choice = done.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls[0].function.arguments == '{"a": 1}'
    assert [entry.logprob for entry in choice.logprobs.content] == [-0.1, -0.2]
