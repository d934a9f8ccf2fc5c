r"""How tool calls are written as text, for models without a tool syntax of their own.

Two formats:

`tags`  `<calc>12+30</calc>`: the tool's name around its only string argument, taken as it is. A
        tool with other parameters takes a JSON object: `<move>{"x": 1}</move>`. Few tokens, and
        learned by a model of 135 M parameters from two examples. Results read `result: 42`,
        failures `error: …`. The model is told nothing by itself: examples belong to the prompt.
`json`  `<tool_call>{"name": "calc", "arguments": {"expression": "12+30"}}</tool_call>`: the Hermes
        convention, with the tools' schemas in the system message and results in
        `<tool_response>` (github.com/NousResearch/Hermes-Function-Calling).

Reading splits a text into parts that, written again, give the same text character by character:
calls keep what was sampled in `raw`, the text around them is not trimmed. A call that cannot be
read becomes a `ToolCall` with `error`, and the message says what is wrong with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Protocol

from quintain.errors import ConfigError
from quintain.messages import Message, Part, TextPart, ToolCall, ToolResult, ToolSpec
from quintain.record import Json


class ToolFormat(Protocol):
    """Writes calls and results as text, and finds the calls in sampled text."""

    name: str

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """What the system message says of the tools; empty: nothing."""
        ...

    def write_call(self, call: ToolCall) -> str:
        """A call as the model writes it."""
        ...

    def write_result(self, result: ToolResult) -> str:
        """A result as the model reads it."""
        ...

    def read(self, text: str, tools: Sequence[ToolSpec], turn: int = 0) -> tuple[Part, ...]:
        """The parts of a sampled text, in order; `turn` makes the calls' ids unique."""
        ...

    def write(self, message: Message) -> str:
        """A whole message as text."""
        ...


class _Writing:
    """What both formats share: a message is its parts one after the other."""

    def write_call(self, call: ToolCall) -> str:
        raise NotImplementedError

    def write_result(self, result: ToolResult) -> str:
        raise NotImplementedError

    def write(self, message: Message) -> str:
        """The message's parts as one text; results each on a line of their own.

        Raises:
            ConfigError: a part is an image or a file.
        """
        pieces: list[str] = []
        for part in message.content:
            if isinstance(part, ToolCall):
                pieces.append(part.raw or self.write_call(part))
            elif isinstance(part, ToolResult):
                pieces.append(("\n" if pieces else "") + self.write_result(part))
            elif part.type in ("text", "reasoning"):
                pieces.append(part.text)
            else:
                raise ConfigError(f"a local model reads text only, got a part of type {part.type}")
        return "".join(pieces)


def _properties(tool: ToolSpec) -> dict[str, Json]:
    return dict(tool.parameters.get("properties") or {})


def only_string(tool: ToolSpec) -> str:
    """The name of the tool's only parameter, when that is a string; else empty."""
    properties = _properties(tool)
    if len(properties) == 1:
        ((name, schema),) = properties.items()
        if isinstance(schema, dict) and schema.get("type", "string") == "string":
            return name
    return ""


def _check(tool: ToolSpec, arguments: Json) -> str:
    """What is wrong with the arguments' names; empty: nothing. Types are the episode's matter."""
    if not isinstance(arguments, dict):
        return f"the arguments of {tool.name} are a JSON object, got {type(arguments).__name__}"
    known = _properties(tool)
    missing = [name for name in tool.parameters.get("required", ()) if name not in arguments]
    if missing:
        return f"{tool.name} lacks the argument {', '.join(missing)}"
    unknown = [name for name in arguments if name not in known]
    if unknown and tool.parameters.get("additionalProperties", False) is False:
        return f"{tool.name} has no argument {', '.join(unknown)}; it takes {', '.join(known)}"
    return ""


class Tags(_Writing):
    """`<calc>12+30</calc>`."""

    name = "tags"

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """Nothing: the prompt's examples show the calls."""
        return ""

    def write_call(self, call: ToolCall) -> str:
        """A single string argument bare, anything else as a JSON object."""
        values = list(call.arguments.values())
        bare = len(values) == 1 and isinstance(values[0], str)
        inside = values[0] if bare else json.dumps(call.arguments, ensure_ascii=False)
        return f"<{call.name}>{inside}</{call.name}>"

    def write_result(self, result: ToolResult) -> str:
        """`result: …` or `error: …`."""
        return f"{'error' if result.is_error else 'result'}: {result.text}"

    def read(self, text: str, tools: Sequence[ToolSpec], turn: int = 0) -> tuple[Part, ...]:
        """Calls are the outermost pairs of tags with a tool's name, or an opened tag alone."""
        if not tools:
            return (TextPart(text=text),) if text else ()
        names = "|".join(re.escape(tool.name) for tool in tools)
        parts: list[Part] = []
        start = 0
        by_name = {tool.name: tool for tool in tools}
        for found in re.finditer(rf"<({names})>(.*?)(?:</\1>|\Z)", text, re.DOTALL):
            if found.start() > start:
                parts.append(TextPart(text=text[start : found.start()]))
            parts.append(
                self._call(by_name[found[1]], found[2], found[0], f"call_{turn}_{len(parts)}")
            )
            start = found.end()
        if start < len(text):
            parts.append(TextPart(text=text[start:]))
        return tuple(parts)

    def _call(self, tool: ToolSpec, inside: str, raw: str, call_id: str) -> ToolCall:
        argument = only_string(tool)
        arguments: Json = {argument: inside} if argument else None
        error = ""
        if not raw.endswith(f"</{tool.name}>"):
            error = f"the call <{tool.name}> is never closed with </{tool.name}>"
        elif not argument:
            try:
                arguments = json.loads(inside) if inside.strip() else {}
                error = _check(tool, arguments)
            except ValueError as fault:
                error = f"<{tool.name}> takes a JSON object of its arguments: {fault}"
        return ToolCall(
            id=call_id,
            name=tool.name,
            arguments=arguments if isinstance(arguments, dict) and not error else {},
            raw=raw,
            error=error,
        )


class JsonCalls(_Writing):
    """`<tool_call>{"name": "calc", "arguments": {"expression": "12+30"}}</tool_call>`."""

    name = "json"

    def describe(self, tools: Sequence[ToolSpec]) -> str:
        """The schemas, and how to call."""
        if not tools:
            return ""
        listed = "\n".join(
            json.dumps({"type": "function", "function": tool.model_dump()}, ensure_ascii=False)
            for tool in tools
        )
        return (
            "You may call these functions:\n<tools>\n" + listed + "\n</tools>\n"
            "To call one, write a JSON object inside tags:\n"
            '<tool_call>{"name": <function name>, "arguments": <object>}</tool_call>'
        )

    def write_call(self, call: ToolCall) -> str:
        """One JSON object inside the tags."""
        written = {"name": call.name, "arguments": call.arguments}
        return f"<tool_call>{json.dumps(written, ensure_ascii=False)}</tool_call>"

    def write_result(self, result: ToolResult) -> str:
        """The text inside `<tool_response>`."""
        text = f"error: {result.text}" if result.is_error else result.text
        return f"<tool_response>\n{text}\n</tool_response>"

    def read(self, text: str, tools: Sequence[ToolSpec], turn: int = 0) -> tuple[Part, ...]:
        """Calls are what stands inside the tags; an opened tag alone is a malformed call."""
        parts: list[Part] = []
        start = 0
        by_name = {tool.name: tool for tool in tools}
        for found in re.finditer(r"<tool_call>(.*?)(</tool_call>|\Z)", text, re.DOTALL):
            if found.start() > start:
                parts.append(TextPart(text=text[start : found.start()]))
            parts.append(
                self._call(by_name, found[1], bool(found[2]), found[0], f"call_{turn}_{len(parts)}")
            )
            start = found.end()
        if start < len(text):
            parts.append(TextPart(text=text[start:]))
        return tuple(parts)

    def _call(
        self, tools: dict[str, ToolSpec], inside: str, closed: bool, raw: str, call_id: str
    ) -> ToolCall:
        name, arguments, error = "", {}, ""
        try:
            written = json.loads(inside)
        except ValueError as fault:
            written, error = None, f"a call holds one JSON object: {fault}"
        if not error and not isinstance(written, dict):
            error = f"a call holds one JSON object, got {type(written).__name__}"
        if not error:
            name, arguments = str(written.get("name", "")), written.get("arguments", {})
            if name not in tools:
                error = f"there is no function {name!r}; there are {', '.join(tools) or 'none'}"
            else:
                error = _check(tools[name], arguments)
        if not closed:
            error = "the call is never closed with </tool_call>"
        return ToolCall(
            id=call_id,
            name=name,
            arguments=arguments if isinstance(arguments, dict) and not error else {},
            raw=raw,
            error=error,
        )


def tool_format(name: str) -> ToolFormat:
    """The format of that name.

    Raises:
        ConfigError: there is none.
    """
    if name == "tags":
        return Tags()
    if name == "json":
        return JsonCalls()
    raise ConfigError(f"tool_format is 'tags' or 'json', got {name!r}")
