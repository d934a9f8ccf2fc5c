"""What every wire format needs: data addresses, arguments of calls, readable text.

What a model writes is never trusted to be well formed: arguments that are not a JSON object become
a `ToolCall` with `raw` and `error`, lone surrogates become U+FFFD, and nothing here raises for it.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from quintain.messages import (
    FilePart,
    ImagePart,
    Message,
    Part,
    Sampling,
    TextPart,
    ToolCall,
    ToolSpec,
)
from quintain.record import Json

MALFORMED = "malformed"
"""The one argument under which a call that could not be read is sent back: servers parse the
arguments of earlier calls and refuse the whole conversation otherwise."""

Shown = TextPart | ImagePart | FilePart
"""What may stand in every message, and in a tool's result."""
P = TypeVar("P")

_DATA_URL = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),(.*)", re.DOTALL)
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a client, read."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    sampling: Sampling
    stream: bool
    extra: Mapping[str, Json]
    """Fields that have no place above, as they came."""


def data_url(data: bytes, media_type: str) -> str:
    """The bytes as a base64 `data:` address."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode('ascii')}"


def decode_base64(text: str, where: str) -> bytes:
    """The bytes behind base64 text.

    Raises:
        ValueError: it is not base64; the message says where.
    """
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{where}: expected base64 data: {error}") from error


def split_data_url(url: str) -> tuple[bytes, str] | None:
    """Bytes and media type of a base64 `data:` address; None for any other address.

    Raises:
        ValueError: a `data:` address that is not base64.
    """
    if not url.startswith("data:"):
        return None
    match = _DATA_URL.fullmatch(url)
    if match is None or not match[2].endswith(";base64"):
        raise ValueError(f"expected 'data:<type>;base64,<data>', got {url[:60]!r}…")
    return decode_base64(match[3], "data address"), match[1] or "application/octet-stream"


def image_url(part: ImagePart) -> str:
    """An image as one address."""
    return part.url if part.data is None else data_url(part.data, part.media_type)  # type: ignore[return-value]


def image_of(url: str) -> ImagePart:
    """The image behind an address; of one by link the media type is not known."""
    inline = split_data_url(url)
    if inline is None:
        return ImagePart(url=url)
    return ImagePart(data=inline[0], media_type=inline[1])


def file_url(part: FilePart) -> str:
    """A file as one address."""
    return part.url if part.data is None else data_url(part.data, part.media_type)  # type: ignore[return-value]


def file_of(name: str, url: str) -> FilePart:
    """The file behind an address; of one by link the media type is not known."""
    inline = split_data_url(url)
    if inline is None:
        return FilePart(name=name, url=url)
    return FilePart(name=name, data=inline[0], media_type=inline[1])


def clean(text: str) -> str:
    """The text with lone surrogates (which no UTF-8 can hold) replaced by U+FFFD."""
    return text if text.isascii() else _SURROGATES.sub("�", text)


def clean_json(value: Json) -> Json:
    """A JSON value with every string cleaned."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [clean_json(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): clean_json(item) for key, item in value.items()}
    return value


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


def parse_arguments(raw: str) -> tuple[dict[str, Json], str]:
    """The arguments of a call, and what is wrong with them ("" when nothing is).

    Nothing at all counts as no arguments.
    """
    if not raw.strip():
        return {}, ""
    try:
        value = json.loads(raw, parse_constant=_no_constant)
    except RecursionError:
        return {}, "the arguments are nested too deeply"
    except ValueError as error:
        return {}, f"the arguments are not valid JSON: {error}"
    if not isinstance(value, dict):
        return {}, f"the arguments must be a JSON object, got {_kind(value)}"
    return clean_json(value), ""


def _kind(value: Json) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def call_of(call_id: str, name: Json, arguments: Json) -> ToolCall:
    """A tool call as the model wrote it; what cannot be read is kept and explained.

    Args:
        call_id: never empty.
        name: should be a string.
        arguments: JSON text, or an object.
    """
    problem = "" if isinstance(name, str) and name else "the call names no tool"
    written = clean(name) if isinstance(name, str) else ""
    if isinstance(arguments, dict):
        return ToolCall(id=call_id, name=written, arguments=clean_json(arguments), error=problem)
    if arguments is None:
        arguments = ""
    raw = clean(arguments if isinstance(arguments, str) else json.dumps(arguments))
    parsed, wrong = parse_arguments(raw)
    error = "; ".join(text for text in (problem, wrong) if text)
    return ToolCall(
        id=call_id, name=written, arguments=parsed, raw=raw if error else "", error=error
    )


def arguments_object(call: ToolCall) -> dict[str, Json]:
    """The arguments as an object that any server can read back; see `MALFORMED`."""
    if call.error and not call.arguments:
        return {MALFORMED: call.raw} if call.raw else {}
    return call.arguments


def arguments_text(call: ToolCall, *, verbatim: bool) -> str:
    """The arguments as JSON text.

    Args:
        call: any call.
        verbatim: a malformed call as it was written (for whoever has to answer it), instead of
            wrapped (for a server that has to read it back).
    """
    if verbatim and call.error and call.raw:
        return call.raw
    return json.dumps(arguments_object(call), ensure_ascii=False)


def shown(parts: Sequence[Part]) -> tuple[Shown, ...]:
    """Those of the parts that are text, images or files."""
    return tuple(part for part in parts if isinstance(part, TextPart | ImagePart | FilePart))


def decode_content(
    content: Json, where: str, decode: Callable[[Json, str], P]
) -> list[P | TextPart]:
    """Content that may be missing, one text, or a list of parts.

    Args:
        content: as it came.
        where: its place, for messages of errors.
        decode: reads one part, given its place.

    Raises:
        ValueError: it is neither, or a part is not what the format says.
    """
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [TextPart(text=clean(content))]
    if isinstance(content, list):
        return [decode(part, f"{where}[{i}]") for i, part in enumerate(content)]
    raise ValueError(f"{where}: expected a string or a list, got {type(content).__name__}")


def a_list(value: Json, where: str) -> list[Json]:
    """The value, which must be a list.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, list):
        raise ValueError(f"{where}: expected a list, got {type(value).__name__}")
    return value


def decode_tool(name: Json, description: Json, parameters: Json) -> ToolSpec:
    """A tool whose description and parameters may be missing."""
    more = {"parameters": parameters} if isinstance(parameters, dict) else {}
    return ToolSpec(name=name, description=str(description or ""), **more)


def decode_sampling(body: Mapping[str, Json], **more: Json) -> Sampling:
    """The sampling of a request: temperature and top-p default to 1 where missing or null."""
    temperature, top_p = body.get("temperature"), body.get("top_p")
    return Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        **more,
    )


def with_unique_ids(parts: Sequence[Part]) -> tuple[Part, ...]:
    """The parts, with the ids of calls made different where they are not."""
    calls = iter(unique_ids([part for part in parts if isinstance(part, ToolCall)]))
    return tuple(next(calls) if isinstance(part, ToolCall) else part for part in parts)


def unique_ids(calls: list[ToolCall]) -> list[ToolCall]:
    """The calls with empty or repeated ids replaced, so that each can be answered."""
    seen: set[str] = set()
    out: list[ToolCall] = []
    for index, call in enumerate(calls):
        name = call.id or f"call_{index}"
        suffix = 0
        unique = name
        while unique in seen:
            suffix += 1
            unique = f"{name}_{suffix}"
        seen.add(unique)
        out.append(call if unique == call.id else call.model_copy(update={"id": unique}))
    return out


def field(value: Json, key: str, kind: type, where: str) -> Json:
    """A field of an object, checked.

    Raises:
        ValueError: `value` is no object, or lacks the field, or it is of another type.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected an object, got {type(value).__name__}")
    found = value.get(key)
    if not isinstance(found, kind):
        got = "nothing" if key not in value else type(found).__name__
        raise ValueError(f"{where}.{key}: expected {kind.__name__}, got {got}")
    return found


def count(value: Json) -> int:
    """A token count that may be missing or null."""
    return value if isinstance(value, int) and value > 0 else 0
