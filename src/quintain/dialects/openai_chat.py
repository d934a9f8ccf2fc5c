"""OpenAI chat completions, with what vLLM, SGLang, DeepSeek and OpenRouter add to them.

Lost on the wire, because the format has no place for it: where text stood between tool calls, a
reasoning signature, `ToolResult.is_error`, the media type of an image by link. Source: the OpenAI
API reference, chat/completions; vLLM's `ChatCompletionRequest` (`return_token_ids`, `top_k`) and
`reasoning`/`reasoning_content`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

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
    unique_ids,
)
from quintain.messages import (
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

ReasoningField = Literal["reasoning_content", "reasoning", ""]
"""Under which name reasoning is sent back; "": it is not."""

FINISH: dict[str, Finish] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "filtered",
}
FINISH_WIRE: dict[Finish, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "filtered": "content_filter",
}


class SampledTokens(NamedTuple):
    """The tokens of one answer, as the server reports them."""

    prompt_ids: tuple[int, ...] | None
    token_ids: tuple[int, ...] | None
    logprobs: tuple[float, ...] | None
    """Nats; None where not reported or not one a token."""


# --- messages -----------------------------------------------------------------------------------


def _encode_part(part: Shown) -> dict[str, Json]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, ImagePart):
        return {"type": "image_url", "image_url": {"url": image_url(part)}}
    return {"type": "file", "file": {"filename": part.name, "file_data": file_url(part)}}


def _encode_content(parts: Sequence[Shown]) -> Json:
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    return [_encode_part(part) for part in parts]


def _encode_assistant(
    message: Message, reasoning: ReasoningField, verbatim: bool
) -> dict[str, Json]:
    calls = message.tool_calls
    parts = shown(message.content)
    out: dict[str, Json] = {"role": "assistant"}
    out["content"] = _encode_content(parts) if parts or not calls else None
    if reasoning and message.reasoning:
        out[reasoning] = message.reasoning
    if calls:
        out["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name or "unknown",
                    "arguments": arguments_text(call, verbatim=verbatim),
                },
            }
            for call in calls
        ]
    return out


def encode_messages(
    messages: Sequence[Message], *, reasoning: ReasoningField = "reasoning_content"
) -> list[dict[str, Json]]:
    """The conversation as wire messages; a tool message becomes one message a result.

    Args:
        messages: the conversation.
        reasoning: under which name the assistant's reasoning is sent back.

    Raises:
        ValueError: a message whose parts do not fit its role.
    """
    out: list[dict[str, Json]] = []
    for index, message in enumerate(messages):
        if message.role == "assistant":
            if message.tool_results:
                raise ValueError(f"messages[{index}]: an assistant message holds a tool result")
            out.append(_encode_assistant(message, reasoning, verbatim=False))
        elif message.role == "tool":
            if len(message.tool_results) != len(message.content):
                raise ValueError(f"messages[{index}]: a tool message holds tool results only")
            out.extend(
                {
                    "role": "tool",
                    "tool_call_id": result.call_id,
                    "name": result.name,
                    "content": _encode_content(result.content),
                }
                for result in message.tool_results
            )
        else:
            parts = shown(message.content)
            if len(parts) != len(message.content):
                raise ValueError(
                    f"messages[{index}]: a {message.role} message holds text, images and files only"
                )
            out.append({"role": message.role, "content": _encode_content(parts)})
    return out


def _decode_part(part: Json, where: str) -> Part:
    kind = field(part, "type", str, where)
    if kind in ("text", "input_text", "output_text"):
        return TextPart(text=clean(field(part, "text", str, where)))
    if kind == "refusal":
        return TextPart(text=clean(field(part, "refusal", str, where)))
    if kind == "image_url":
        image = part.get("image_url")
        url = image if isinstance(image, str) else field(image, "url", str, f"{where}.image_url")
        return image_of(url)
    if kind == "file":
        file = field(part, "file", dict, where)
        return file_of(
            str(file.get("filename") or "file"), field(file, "file_data", str, f"{where}.file")
        )
    if kind == "thinking":
        thought = part.get("thinking")
        if isinstance(thought, list):
            thought = "".join(str(t.get("text", "")) for t in thought if isinstance(t, dict))
        return ReasoningPart(text=clean(str(thought or "")))
    raise ValueError(f"{where}.type: {kind!r} is not supported; text, image_url and file are")


def _decode_calls(message: dict[str, Json], where: str) -> list[ToolCall]:
    listed = a_list(message.get("tool_calls") or [], f"{where}.tool_calls")
    calls: list[ToolCall] = []
    for index, call in enumerate(listed):
        if not isinstance(call, dict):
            raise ValueError(f"{where}.tool_calls[{index}]: expected an object")
        function = call.get("function")
        if not isinstance(function, dict):
            custom = call.get("custom") if isinstance(call.get("custom"), dict) else {}
            function = {
                "name": (custom or {}).get("name"),
                "arguments": (custom or {}).get("input"),
            }
        calls.append(
            call_of(str(call.get("id") or ""), function.get("name"), function.get("arguments"))
        )
    legacy = message.get("function_call")
    if not calls and isinstance(legacy, dict):
        calls.append(call_of("", legacy.get("name"), legacy.get("arguments")))
    return unique_ids(calls)


def _decode_assistant(message: dict[str, Json], where: str) -> Message:
    parts: list[Part] = []
    thought = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(thought, str) and thought:
        parts.append(ReasoningPart(text=clean(thought)))
    parts.extend(decode_content(message.get("content"), f"{where}.content", _decode_part))
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal:
        parts.append(TextPart(text=clean(refusal)))
    parts.extend(_decode_calls(message, where))
    return Message(role="assistant", content=tuple(parts))


def decode_messages(messages: Json) -> tuple[Message, ...]:
    """Wire messages as a conversation; tool messages in a row become one.

    Raises:
        ValueError: not what the format says; the message names the place.
    """
    out: list[Message] = []
    names: dict[str, str] = {}
    results: list[ToolResult] = []
    for index, item in enumerate(a_list(messages, "messages")):
        where = f"messages[{index}]"
        role = field(item, "role", str, where)
        if role == "tool":
            call_id = field(item, "tool_call_id", str, where)
            content = decode_content(item.get("content"), f"{where}.content", _decode_part)
            results.append(
                ToolResult(
                    call_id=call_id,
                    name=str(item.get("name") or names.get(call_id, "")),
                    content=shown(content),
                )
            )
            continue
        if results:
            out.append(Message(role="tool", content=tuple(results)))
            results = []
        if role == "assistant":
            message = _decode_assistant(item, where)
            names.update({call.id: call.name for call in message.tool_calls})
            out.append(message)
        elif role in ("system", "developer", "user"):
            parts = decode_content(item.get("content"), f"{where}.content", _decode_part)
            wire_role: Literal["user", "system"] = "user" if role == "user" else "system"
            out.append(Message(role=wire_role, content=tuple(parts)))
        else:
            raise ValueError(f"{where}.role: {role!r} is not a role")
    if results:
        out.append(Message(role="tool", content=tuple(results)))
    return tuple(out)


# --- requests -----------------------------------------------------------------------------------


def encode_tools(tools: Sequence[ToolSpec]) -> list[dict[str, Json]]:
    """Tool specifications as wire tools."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
            },
        }
        for tool in tools
    ]


def decode_tools(tools: Json) -> tuple[ToolSpec, ...]:
    """Wire tools as specifications.

    Raises:
        ValueError: not what the format says.
    """
    out: list[ToolSpec] = []
    for index, tool in enumerate(a_list(tools, "tools")):
        function = field(tool, "function", dict, f"tools[{index}]")
        name = field(function, "name", str, f"tools[{index}].function")
        out.append(decode_tool(name, function.get("description"), function.get("parameters")))
    return tuple(out)


def encode_request(
    messages: Sequence[Message],
    *,
    model: str,
    tools: Sequence[ToolSpec] = (),
    sampling: Sampling | None = None,
    seed: int | None = None,
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens",
    reasoning: ReasoningField = "reasoning_content",
    token_ids: bool = False,
    logprobs: bool = False,
) -> dict[str, Json]:
    """The body of a request.

    Temperature and top-p are always sent: servers fill what is missing from the model's own
    defaults, and then sample otherwise than `sampling` says.

    Args:
        messages: the conversation.
        model: the server's name of the model.
        tools: what may be called.
        sampling: how to sample; None: all defaults.
        seed: of this call; the low 31 bits are sent, which every server takes.
        max_tokens_field: newer OpenAI models take `max_completion_tokens` only.
        reasoning: under which name reasoning is sent back.
        token_ids: ask for token ids, vLLM's way; top-k is then always sent too.
        logprobs: ask for log-probabilities of the sampled tokens.
    """
    sampling = sampling or Sampling()
    body: dict[str, Json] = {
        "model": model,
        "messages": encode_messages(messages, reasoning=reasoning),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if tools:
        body["tools"] = encode_tools(tools)
    if sampling.top_k or token_ids:
        body["top_k"] = sampling.top_k or -1
    if sampling.min_p:
        body["min_p"] = sampling.min_p
    if sampling.max_tokens is not None:
        body[max_tokens_field] = sampling.max_tokens
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if seed is not None:
        body["seed"] = seed & 0x7FFF_FFFF
    if token_ids:
        body["return_token_ids"] = True
    if logprobs:
        body["logprobs"] = True
        body["top_logprobs"] = 0
    return body


_REQUEST_FIELDS = frozenset(
    {
        "model",
        "messages",
        "tools",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "seed",
        "stream",
    }
)


def decode_request(body: Json) -> Request:
    """A request's body, read.

    Raises:
        ValueError: not what the format says; the message names the place.
    """
    model = field(body, "model", str, "body")
    stop = body.get("stop") or []
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    return Request(
        model=model,
        messages=decode_messages(body.get("messages")),
        tools=decode_tools(body.get("tools") or []),
        sampling=decode_sampling(
            body,
            top_k=max(0, body.get("top_k") or 0),
            min_p=body.get("min_p") or 0.0,
            max_tokens=limit,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            seed=body.get("seed"),
        ),
        stream=bool(body.get("stream")),
        extra={key: value for key, value in body.items() if key not in _REQUEST_FIELDS},
    )


# --- responses ----------------------------------------------------------------------------------


def encode_response(
    action: Action, *, model: str, response_id: str = "chatcmpl-0", created: int = 0
) -> dict[str, Json]:
    """An action as the server's answer; a malformed call goes out as it was written.

    Token ids and log-probabilities go out the way vLLM sends them, from the action's spans; with
    more than one span the prompt ids are those of the first.
    """
    choice: dict[str, Json] = {
        "index": 0,
        "message": _encode_assistant(action.message, "reasoning_content", verbatim=True),
        "finish_reason": FINISH_WIRE[action.finish],
        "logprobs": None,
    }
    usage = action.usage
    body: dict[str, Json] = {
        "id": response_id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [choice],
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        },
    }
    if action.tokens:
        ids = [token for span in action.tokens for token in span.token_ids]
        logprobs = [value for span in action.tokens for value in span.logprobs]
        body["prompt_token_ids"] = list(action.tokens[0].prompt_delta_ids)
        choice["token_ids"] = ids
        choice["logprobs"] = {
            "content": [
                {"token": f"token_id:{token}", "logprob": value, "bytes": None, "top_logprobs": []}
                for token, value in zip(ids, logprobs, strict=True)
            ]
        }
    return body


def _choice(body: Json) -> dict[str, Json]:
    choices = field(body, "choices", list, "response")
    if not choices:
        raise ValueError("response.choices: expected one choice, got none")
    if not isinstance(choices[0], dict):
        raise ValueError("response.choices[0]: expected an object")
    return choices[0]


def decode_response(body: Json) -> Action:
    """The server's answer as an action, without tokens (see `decode_tokens`) and without cost.

    Raises:
        ValueError: not what the format says; the message names the place.
    """
    choice = _choice(body)
    message = _decode_assistant(
        field(choice, "message", dict, "response.choices[0]"), "response.choices[0].message"
    )
    finish = FINISH.get(str(choice.get("finish_reason")), "stop")
    if finish == "stop" and message.tool_calls:
        finish = "tool_calls"  # some servers say "stop" here
    return Action(message=message, finish=finish, usage=decode_usage(body.get("usage")))


def decode_usage(usage: Json) -> Usage:
    """Token counts of one call; a `cost` that the server reports is taken as USD."""
    if not isinstance(usage, dict):
        return Usage(calls=1)
    details = usage.get("prompt_tokens_details")
    cost = usage.get("cost")
    return Usage(
        calls=1,
        prompt_tokens=count(usage.get("prompt_tokens")),
        completion_tokens=count(usage.get("completion_tokens")),
        cached_tokens=count(details.get("cached_tokens")) if isinstance(details, dict) else 0,
        cost_usd=float(cost) if isinstance(cost, int | float) and cost > 0 else 0.0,
    )


def _ids(value: Json) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        return None
    return tuple(value)


def decode_tokens(body: Mapping[str, Json]) -> SampledTokens:
    """Token ids and log-probabilities of an answer, where the server gives them.

    Ids come from `prompt_token_ids` and `choices[0].token_ids`, or from tokens written
    `token_id:N`; they are never made from text.
    """
    choice = _choice(body)
    ids = _ids(choice.get("token_ids"))
    prompt = _ids(body.get("prompt_token_ids")) or _ids(choice.get("prompt_token_ids"))
    reported = choice.get("logprobs")
    content = reported.get("content") if isinstance(reported, dict) else None
    logprobs: list[float] | None = None
    if isinstance(content, list):
        logprobs = []
        written: list[int] = []
        for entry in content:
            value = entry.get("logprob") if isinstance(entry, dict) else None
            if not isinstance(value, int | float) or not math.isfinite(value):
                return SampledTokens(prompt, ids, None)
            logprobs.append(float(value))
            head, _, number = str(entry.get("token", "")).partition("token_id:")
            if not head and number.isdigit():
                written.append(int(number))
        if ids is None and content and len(written) == len(content):
            ids = tuple(written)
    if ids is not None and logprobs is not None and len(ids) != len(logprobs):
        logprobs = None
    return SampledTokens(prompt, ids, None if logprobs is None else tuple(logprobs))
