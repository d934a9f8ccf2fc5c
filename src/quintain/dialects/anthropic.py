"""Anthropic Messages: content blocks in their order, system text apart, results in user messages.

Lost on the wire: where a system message stood (all go to `system`), reasoning without a signature
(the API refuses it), seeds, an empty text. Source: the Anthropic API reference, messages.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

from quintain.dialects.wire import (
    Request,
    a_list,
    arguments_object,
    call_of,
    clean,
    count,
    decode_base64,
    decode_content,
    decode_sampling,
    decode_tool,
    field,
    shown,
    with_unique_ids,
)
from quintain.messages import (
    FilePart,
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    Sampling,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from quintain.record import Json
from quintain.trajectory import Action, Finish, Usage

MAX_TOKENS = 4096
"""Sent where the sampling names no bound: the API asks for one."""

FINISH: dict[str, Finish] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "filtered",
}
FINISH_WIRE: dict[Finish, str] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "filtered": "refusal",
}


# --- messages -----------------------------------------------------------------------------------


def _encode_source(part: ImagePart | FilePart) -> dict[str, Json]:
    if part.data is None:
        return {"type": "url", "url": part.url}
    data = base64.b64encode(part.data).decode("ascii")
    return {"type": "base64", "media_type": part.media_type, "data": data}


def _encode_part(part: Part, signed: bool) -> dict[str, Json] | None:
    """One block; None where the format has no place for it."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text} if part.text else None
    if isinstance(part, ImagePart):
        return {"type": "image", "source": _encode_source(part)}
    if isinstance(part, FilePart):
        return {"type": "document", "title": part.name, "source": _encode_source(part)}
    if isinstance(part, ReasoningPart):
        if not part.text and part.signature:
            return {"type": "redacted_thinking", "data": part.signature}
        if part.signature is None and signed:
            return None
        return {"type": "thinking", "thinking": part.text, "signature": part.signature or ""}
    if isinstance(part, ToolCall):
        return {
            "type": "tool_use",
            "id": part.id,
            "name": part.name or "unknown",
            "input": arguments_object(part),
        }
    block: dict[str, Json] = {
        "type": "tool_result",
        "tool_use_id": part.call_id,
        "content": _encode_parts(part.content, signed),
    }
    if part.is_error:
        block["is_error"] = True
    return block


def _encode_parts(parts: Sequence[Part], signed: bool = True) -> list[dict[str, Json]]:
    blocks = [_encode_part(part, signed) for part in parts]
    return [block for block in blocks if block is not None]


def encode_messages(messages: Sequence[Message]) -> tuple[str, list[dict[str, Json]]]:
    """The system text, and the other messages; a tool message becomes a user's.

    Raises:
        ValueError: a message whose parts do not fit its role.
    """
    system: list[str] = []
    out: list[dict[str, Json]] = []
    for index, message in enumerate(messages):
        if message.role == "system":
            system.append(message.text)
            continue
        if (message.role == "tool") != bool(message.tool_results):
            raise ValueError(f"messages[{index}]: tool results stand in tool messages, alone")
        role = "assistant" if message.role == "assistant" else "user"
        out.append({"role": role, "content": _encode_parts(message.content)})
    return "\n\n".join(system), out


def _decode_source(block: dict[str, Json], where: str) -> dict[str, Json]:
    source = field(block, "source", dict, where)
    if source.get("type") == "url":
        return {"url": field(source, "url", str, f"{where}.source")}
    if source.get("type") == "text":
        text = field(source, "data", str, f"{where}.source")
        return {"data": text.encode("utf-8", "replace"), "media_type": "text/plain"}
    data = decode_base64(field(source, "data", str, f"{where}.source"), f"{where}.source.data")
    return {"data": data, "media_type": field(source, "media_type", str, f"{where}.source")}


def _decode_block(block: Json, where: str) -> Part:
    kind = field(block, "type", str, where)
    if kind == "text":
        return TextPart(text=clean(field(block, "text", str, where)))
    if kind == "image":
        return ImagePart(**_decode_source(block, where))
    if kind == "document":
        return FilePart(name=str(block.get("title") or "file"), **_decode_source(block, where))
    if kind == "thinking":
        signature = block.get("signature")
        return ReasoningPart(
            text=clean(field(block, "thinking", str, where)),
            signature=signature if isinstance(signature, str) and signature else None,
        )
    if kind == "redacted_thinking":
        return ReasoningPart(text="", signature=field(block, "data", str, where))
    if kind == "tool_use":
        return call_of(str(block.get("id") or ""), block.get("name"), block.get("input"))
    if kind == "tool_result":
        content = decode_content(block.get("content"), f"{where}.content", _decode_block)
        return ToolResult(
            call_id=field(block, "tool_use_id", str, where),
            name="",
            content=shown(content),
            is_error=bool(block.get("is_error")),
        )
    raise ValueError(f"{where}.type: {kind!r} is not supported")


def decode_messages(system: Json, messages: Json) -> tuple[Message, ...]:
    """The conversation; results in a user's message become a tool message before the rest of it.

    Raises:
        ValueError: not what the format says; the message names the place.
    """
    out: list[Message] = []
    head = decode_content(system, "system", _decode_block)
    if head:
        out.append(Message(role="system", content=tuple(head)))
    names: dict[str, str] = {}
    for index, item in enumerate(a_list(messages, "messages")):
        where = f"messages[{index}]"
        role = field(item, "role", str, where)
        parts = decode_content(item.get("content"), f"{where}.content", _decode_block)
        if role == "assistant":
            message = Message(role="assistant", content=with_unique_ids(parts))
            names.update({call.id: call.name for call in message.tool_calls})
            out.append(message)
            continue
        if role != "user":
            raise ValueError(f"{where}.role: {role!r} is not a role; 'user' and 'assistant' are")
        results = [
            part.model_copy(update={"name": names.get(part.call_id, "")})
            for part in parts
            if isinstance(part, ToolResult)
        ]
        rest = tuple(part for part in parts if not isinstance(part, ToolResult))
        if results:
            out.append(Message(role="tool", content=tuple(results)))
        if rest or not results:
            out.append(Message(role="user", content=rest))
    return tuple(out)


# --- requests -----------------------------------------------------------------------------------


def encode_request(
    messages: Sequence[Message],
    *,
    model: str,
    tools: Sequence[ToolSpec] = (),
    sampling: Sampling | None = None,
) -> dict[str, Json]:
    """The body of a request; the API knows no seed.

    Args:
        messages: the conversation.
        model: the server's name of the model.
        tools: what may be called.
        sampling: how to sample; None: all defaults.

    Raises:
        ValueError: min-p, which the API does not have.
    """
    sampling = sampling or Sampling()
    if sampling.min_p:
        raise ValueError("the Messages API has no min-p; leave Sampling.min_p at 0")
    system, rest = encode_messages(messages)
    body: dict[str, Json] = {
        "model": model,
        "messages": rest,
        "max_tokens": sampling.max_tokens or MAX_TOKENS,
        "temperature": sampling.temperature,
    }
    if system:
        body["system"] = system
    if tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
            for tool in tools
        ]
    # Newer models refuse temperature and top_p together: an idle one is left out.
    if sampling.top_p != 1.0:
        body["top_p"] = sampling.top_p
    if sampling.top_k:
        body["top_k"] = sampling.top_k
    if sampling.stop:
        body["stop_sequences"] = list(sampling.stop)
    return body


def _decode_tools(tools: Json) -> tuple[ToolSpec, ...]:
    return tuple(
        decode_tool(
            field(tool, "name", str, f"tools[{index}]"),
            tool.get("description"),
            tool.get("input_schema"),
        )
        for index, tool in enumerate(a_list(tools, "tools"))
    )


_REQUEST_FIELDS = frozenset(
    {
        "model",
        "messages",
        "system",
        "tools",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "stop_sequences",
        "stream",
    }
)


def decode_request(body: Json) -> Request:
    """A request's body, read.

    Raises:
        ValueError: not what the format says; the message names the place.
    """
    model = field(body, "model", str, "body")
    return Request(
        model=model,
        messages=decode_messages(body.get("system"), body.get("messages")),
        tools=_decode_tools(body.get("tools") or []),
        sampling=decode_sampling(
            body,
            top_k=body.get("top_k") or 0,
            max_tokens=body.get("max_tokens"),
            stop=tuple(body.get("stop_sequences") or ()),
        ),
        stream=bool(body.get("stream")),
        extra={key: value for key, value in body.items() if key not in _REQUEST_FIELDS},
    )


# --- responses ----------------------------------------------------------------------------------


def encode_response(action: Action, *, model: str, response_id: str = "msg_0") -> dict[str, Json]:
    """An action as the server's answer; a malformed call goes out under `malformed`."""
    usage = action.usage
    return {
        "id": response_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": _encode_parts(action.message.content, signed=False),
        "stop_reason": FINISH_WIRE[action.finish],
        "stop_sequence": None,
        "usage": {
            "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens),
            "cache_read_input_tokens": usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": usage.completion_tokens,
        },
    }


def decode_response(body: Json) -> Action:
    """The server's answer as an action, without cost.

    Raises:
        ValueError: not what the format says; the message names the place.
    """
    blocks = field(body, "content", list, "response")
    parts = [_decode_block(block, f"response.content[{i}]") for i, block in enumerate(blocks)]
    message = Message(role="assistant", content=with_unique_ids(parts))
    finish = FINISH.get(str(body.get("stop_reason")), "stop")
    if finish == "stop" and message.tool_calls:
        finish = "tool_calls"
    usage = body.get("usage") if isinstance(body.get("usage"), dict) else {}
    assert isinstance(usage, dict)
    cached = count(usage.get("cache_read_input_tokens"))
    written = count(usage.get("cache_creation_input_tokens"))
    return Action(
        message=message,
        finish=finish,
        usage=Usage(
            calls=1,
            prompt_tokens=count(usage.get("input_tokens")) + cached + written,
            completion_tokens=count(usage.get("output_tokens")),
            cached_tokens=cached,
        ),
    )
