"""OpenAI Responses: a flat list of items; what one assistant turn holds is several of them.

Lost on the wire: which of two assistant messages in a row an item came from, stop sequences (the
API has none, and they are refused here), seeds. Source: the OpenAI API reference, responses.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from quintain.dialects.wire import (
    Request,
    Shown,
    a_list,
    arguments_text,
    call_of,
    clean,
    count,
    decode_content,
    decode_sampling,
    decode_tool,
    field,
    file_of,
    file_url,
    image_of,
    image_url,
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
from quintain.record import Json, canonical
from quintain.trajectory import Action, Finish, Usage

Item = dict[str, Json]


# --- items --------------------------------------------------------------------------------------


def _encode_part(part: Shown) -> Item:
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, ImagePart):
        return {"type": "input_image", "image_url": image_url(part), "detail": "auto"}
    if part.data is None:
        return {"type": "input_file", "filename": part.name, "file_url": part.url}
    return {"type": "input_file", "filename": part.name, "file_data": file_url(part)}


def _encode_reasoning(part: ReasoningPart) -> Item:
    """A reasoning item; its id and encrypted content travel in the part's signature."""
    item: Item = {"type": "reasoning", "summary": []}
    if part.text:
        item["summary"] = [{"type": "summary_text", "text": part.text}]
    return item | _kept(part.signature)


def _kept(signature: str | None) -> Item:
    """What a signature made here holds; one of another server's means nothing to this format."""
    try:
        kept = json.loads(signature or "{}")
    except ValueError:
        return {}
    if not isinstance(kept, dict):
        return {}
    return {key: kept[key] for key in ("id", "encrypted_content") if key in kept}


def _encode_call(call: ToolCall, verbatim: bool) -> Item:
    return {
        "type": "function_call",
        "call_id": call.id,
        "name": call.name or "unknown",
        "arguments": arguments_text(call, verbatim=verbatim),
    }


def _encode_assistant(message: Message) -> list[Item]:
    """An assistant's turn as input: a message item for each text, which the format wants plain."""
    items: list[Item] = []
    for part in message.content:
        if isinstance(part, ReasoningPart):
            items.append(_encode_reasoning(part))
        elif isinstance(part, ToolCall):
            items.append(_encode_call(part, verbatim=False))
        elif isinstance(part, TextPart | ImagePart | FilePart):
            content = part.text if isinstance(part, TextPart) else [_encode_part(part)]
            items.append({"type": "message", "role": "assistant", "content": content})
        else:
            raise ValueError("an assistant message holds a tool result")
    return items


def _encode_output(message: Message, response_id: str) -> list[Item]:
    """An assistant's turn as a server's output, every item with id and status."""
    items: list[Item] = []
    for part in message.content:
        if isinstance(part, ReasoningPart):
            items.append(_encode_reasoning(part))
        elif isinstance(part, ToolCall):
            items.append(_encode_call(part, verbatim=True))
        elif isinstance(part, TextPart):
            block = {"type": "output_text", "text": part.text, "annotations": []}
            last = items[-1] if items else {}
            if last.get("type") == "message":
                last["content"].append(block)
            else:
                items.append({"type": "message", "role": "assistant", "content": [block]})
    for index, item in enumerate(items):
        item.setdefault("id", f"{response_id}_{index}")
        item["status"] = "completed"
    return items


def encode_messages(messages: Sequence[Message]) -> list[Item]:
    """The conversation as input items.

    Raises:
        ValueError: a message whose parts do not fit its role.
    """
    items: list[Item] = []
    for index, message in enumerate(messages):
        if message.role == "assistant":
            items += _encode_assistant(message)
            continue
        if message.role == "tool":
            if len(message.tool_results) != len(message.content):
                raise ValueError(f"messages[{index}]: a tool message holds tool results only")
            items += [_encode_result(result) for result in message.tool_results]
            continue
        parts = shown(message.content)
        if len(parts) != len(message.content):
            raise ValueError(
                f"messages[{index}]: a {message.role} message holds text, images and files only"
            )
        content = [_encode_part(part) for part in parts]
        items.append({"type": "message", "role": message.role, "content": content})
    return items


def _encode_result(result: ToolResult) -> Item:
    plain = len(result.content) == 1 and isinstance(result.content[0], TextPart)
    output = result.text if plain else [_encode_part(part) for part in result.content]
    return {"type": "function_call_output", "call_id": result.call_id, "output": output}


def _decode_part(part: Json, where: str) -> Shown:
    kind = field(part, "type", str, where)
    if kind in ("input_text", "output_text", "text"):
        return TextPart(text=clean(field(part, "text", str, where)))
    if kind == "refusal":
        return TextPart(text=clean(field(part, "refusal", str, where)))
    if kind == "input_image":
        return image_of(field(part, "image_url", str, where))
    if kind == "input_file":
        name = str(part.get("filename") or "file")
        if isinstance(part.get("file_url"), str):
            return FilePart(name=name, url=part["file_url"])
        return file_of(name, field(part, "file_data", str, where))
    raise ValueError(f"{where}.type: {kind!r} is not supported")


def _decode_reasoning(item: Item) -> ReasoningPart:
    said = [*(item.get("summary") or []), *(item.get("content") or [])]
    text = "".join(str(part.get("text") or "") for part in said if isinstance(part, dict))
    kept = {key: item[key] for key in ("id", "encrypted_content") if item.get(key)}
    return ReasoningPart(text=clean(text), signature=canonical(kept) if kept else None)


def _decode_assistant_item(item: Item, kind: str, where: str) -> list[Part]:
    if kind == "reasoning":
        return [_decode_reasoning(item)]
    if kind == "function_call":
        call_id = str(item.get("call_id") or item.get("id") or "")
        return [call_of(call_id, item.get("name"), item.get("arguments"))]
    if kind == "custom_tool_call":
        return [call_of(str(item.get("call_id") or ""), item.get("name"), item.get("input"))]
    return [*decode_content(item.get("content"), f"{where}.content", _decode_part)]


def _assistant(parts: list[Part]) -> Message:
    return Message(role="assistant", content=with_unique_ids(parts))


def decode_messages(items: Json) -> tuple[Message, ...]:
    """Items as a conversation; an assistant's items in a row become one message, results too.

    Raises:
        ValueError: not what the format says; the message names the place.
    """
    if isinstance(items, str):
        return (Message(role="user", content=(TextPart(text=clean(items)),)),)
    if not isinstance(items, list):
        raise ValueError(f"input: expected a string or a list, got {type(items).__name__}")
    out: list[Message] = []
    names: dict[str, str] = {}
    said: list[Part] = []
    results: list[ToolResult] = []

    def settle() -> None:
        if said:
            message = _assistant(said)
            names.update({call.id: call.name for call in message.tool_calls})
            out.append(message)
            said.clear()
        if results:
            out.append(Message(role="tool", content=tuple(results)))
            results.clear()

    for index, item in enumerate(items):
        where = f"input[{index}]"
        kind = "message" if isinstance(item, dict) and "type" not in item else ""
        kind = kind or field(item, "type", str, where)
        role = item.get("role") if kind == "message" else None
        if kind in ("reasoning", "function_call", "custom_tool_call") or role == "assistant":
            if results:
                settle()
            said.extend(_decode_assistant_item(item, kind, where))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            if said:
                settle()
            call_id = field(item, "call_id", str, where)
            content = decode_content(item.get("output"), f"{where}.output", _decode_part)
            results.append(
                ToolResult(call_id=call_id, name=names.get(call_id, ""), content=tuple(content))
            )
        elif kind == "message" and role in ("user", "system", "developer"):
            settle()
            wire_role: Literal["user", "system"] = "user" if role == "user" else "system"
            content = decode_content(item.get("content"), f"{where}.content", _decode_part)
            out.append(Message(role=wire_role, content=tuple(content)))
        else:
            raise ValueError(f"{where}: {kind} of role {role!r} is not supported")
    settle()
    return tuple(out)


# --- requests -----------------------------------------------------------------------------------


def encode_request(
    messages: Sequence[Message],
    *,
    model: str,
    tools: Sequence[ToolSpec] = (),
    sampling: Sampling | None = None,
    encrypted_reasoning: bool = False,
) -> dict[str, Json]:
    """The body of a request; the server is asked to keep nothing.

    Args:
        messages: the conversation.
        model: the server's name of the model.
        tools: what may be called.
        sampling: how to sample; None: all defaults.
        encrypted_reasoning: ask for reasoning that can be sent back.

    Raises:
        ValueError: stop sequences or min-p, which the API does not have.
    """
    sampling = sampling or Sampling()
    if sampling.stop:
        raise ValueError("the Responses API has no stop sequences; leave Sampling.stop empty")
    if sampling.min_p:
        raise ValueError("the Responses API has no min-p; leave Sampling.min_p at 0")
    body: dict[str, Json] = {
        "model": model,
        "input": encode_messages(messages),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "store": False,
    }
    if tools:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": False,
            }
            for tool in tools
        ]
    if sampling.max_tokens is not None:
        body["max_output_tokens"] = sampling.max_tokens
    if encrypted_reasoning:
        body["include"] = ["reasoning.encrypted_content"]
    return body


def _decode_tools(tools: Json) -> tuple[ToolSpec, ...]:
    out: list[ToolSpec] = []
    for index, tool in enumerate(a_list(tools, "tools")):
        where = f"tools[{index}]"
        if field(tool, "type", str, where) != "function":
            raise ValueError(f"{where}.type: {tool['type']!r} is not supported; function is")
        name = field(tool, "name", str, where)
        out.append(decode_tool(name, tool.get("description"), tool.get("parameters")))
    return tuple(out)


_REQUEST_FIELDS = frozenset(
    {
        "model",
        "input",
        "instructions",
        "tools",
        "temperature",
        "top_p",
        "max_output_tokens",
        "store",
        "stream",
    }
)


def decode_request(body: Json) -> Request:
    """A request's body, read; `instructions` become the first system message.

    Raises:
        ValueError: not what the format says, or it leans on state that a server would keep
            (`previous_response_id`).
    """
    model = field(body, "model", str, "body")
    if body.get("previous_response_id"):
        raise ValueError(
            "body.previous_response_id: no state is kept here; send the whole conversation"
        )
    messages = decode_messages(body.get("input"))
    if body.get("instructions"):
        instructions = field(body, "instructions", str, "body")
        head = Message(role="system", content=(TextPart(text=clean(instructions)),))
        messages = (head, *messages)
    return Request(
        model=model,
        messages=messages,
        tools=_decode_tools(body.get("tools") or []),
        sampling=decode_sampling(body, max_tokens=body.get("max_output_tokens")),
        stream=bool(body.get("stream")),
        extra={key: value for key, value in body.items() if key not in _REQUEST_FIELDS},
    )


# --- responses ----------------------------------------------------------------------------------


def encode_response(
    action: Action, *, model: str, response_id: str = "resp_0", created: int = 0
) -> dict[str, Json]:
    """An action as the server's answer; a malformed call goes out as it was written."""
    usage = action.usage
    reason = {"length": "max_output_tokens", "filtered": "content_filter"}.get(action.finish)
    return {
        "id": response_id,
        "object": "response",
        "created_at": created,
        "model": model,
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "output": _encode_output(action.message, response_id),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": usage.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        },
    }


def decode_response(body: Json) -> Action:
    """The server's answer as an action, without cost.

    Raises:
        ValueError: not what the format says, or the server says that it failed.
    """
    items = field(body, "output", list, "response")
    if body.get("status") == "failed":
        raise ValueError(f"the server failed: {body.get('error')!r}")
    parts: list[Part] = []
    for index, item in enumerate(items):
        kind = field(item, "type", str, f"response.output[{index}]")
        if kind not in ("message", "reasoning", "function_call", "custom_tool_call"):
            raise ValueError(f"response.output[{index}].type: {kind!r} is not supported")
        parts += _decode_assistant_item(item, kind, f"response.output[{index}]")
    message = _assistant(parts)
    details = body.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    finish: Finish = "tool_calls" if message.tool_calls else "stop"
    if reason is not None:
        finish = "filtered" if reason == "content_filter" else "length"
    return Action(message=message, finish=finish, usage=_decode_usage(body.get("usage")))


def _decode_usage(usage: Json) -> Usage:
    if not isinstance(usage, dict):
        return Usage(calls=1)
    details = usage.get("input_tokens_details")
    return Usage(
        calls=1,
        prompt_tokens=count(usage.get("input_tokens")),
        completion_tokens=count(usage.get("output_tokens")),
        cached_tokens=count(details.get("cached_tokens")) if isinstance(details, dict) else 0,
    )
