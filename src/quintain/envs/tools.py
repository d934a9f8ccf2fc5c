"""Tools: plain typed functions that a policy may call, and the shell.

A function's parameters become the JSON schema, its docstring the description. Parameters named
`sandbox`, `task`, `world` or `context` are filled in by the episode and hidden from the policy. A
synchronous function runs in a thread with a deadline, so that one that blocks stops nobody else;
an `async def` runs on the loop. What the policy did wrong a function tells by raising `ToolError`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import pydantic
from pydantic import BaseModel, ValidationError

from quintain.envs.signatures import INJECTED, arguments_model, explain, read_docstring
from quintain.errors import ConfigError, QuintainError
from quintain.messages import FilePart, ImagePart, TextPart, ToolCall, ToolResult, ToolSpec
from quintain.protocols import ExecResult, Tool, ToolContext
from quintain.record import Json
from quintain.threads import DeadlinePassed, in_thread

_Content = TextPart | ImagePart | FilePart
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
T = TypeVar("T")


class ToolError(Exception):
    """What the policy did wrong, in words for it to read; raised by a tool's function."""


class FunctionTool:
    """A Python function as a tool.

    Args:
        function: with annotated parameters; sync or async.
        name: None: the function's name.
        description: None: the docstring up to `Args:`.
        timeout_s: seconds that one call may take.
        inline: run a synchronous function on the event loop: only for one that never blocks.
        max_chars: a longer text is cut in its middle, and says so.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout_s: float = 60.0,
        inline: bool = False,
        max_chars: int = 100_000,
    ) -> None:
        self.function = function
        self.timeout_s = timeout_s
        self.max_chars = max_chars
        self._inline = inline
        self._async = inspect.iscoroutinefunction(function)
        tool_name = name or str(getattr(function, "__name__", type(function).__name__))
        if not _NAME.fullmatch(tool_name):
            raise ConfigError(
                f"a tool's name is made of letters, digits, _ and -, got {tool_name!r}: "
                "give one, as in tool(function, name='search')"
            )
        parameters = inspect.signature(function).parameters
        summary, parameter_docs = read_docstring(inspect.getdoc(function) or "", parameters)
        self._injected = tuple(p for p in parameters if p in INJECTED)
        self._names, self._model = arguments_model(tool_name, function, parameters, parameter_docs)
        try:
            schema = self._model.model_json_schema()
        except pydantic.errors.PydanticUserError as error:
            raise ConfigError(f"tool {tool_name!r}: {error}") from error
        schema.pop("title", None)
        for field in schema.get("properties", {}).values():
            field.pop("title", None)
        schema.setdefault("properties", {})
        self.spec = ToolSpec(
            name=tool_name,
            description=summary if description is None else description,
            parameters=schema,
        )

    @property
    def needs_sandbox(self) -> bool:
        """Whether the function asks for the sandbox."""
        return "sandbox" in self._injected

    def check(self, arguments: Mapping[str, Json]) -> str:
        """What is wrong with the arguments; empty when nothing is."""
        try:
            self._model.model_validate(dict(arguments))
        except ValidationError as error:
            return explain(error, self.spec)
        return ""

    async def call(self, call: ToolCall, context: ToolContext) -> ToolResult:
        """Calls the function; its exception becomes the result's text."""
        try:
            validated = self._model.model_validate(call.arguments)
        except ValidationError as error:
            return error_result(call, explain(error, self.spec))
        arguments = {name: getattr(validated, field) for field, name in self._names.items()}
        for name in self._injected:
            arguments[name] = context if name == "context" else getattr(context, name)
        try:
            value = await self._run(arguments)
        except QuintainError:
            raise
        except ToolError as error:
            return error_result(call, shortened(str(error), self.max_chars))
        except DeadlinePassed:
            context.event("tool.timeout", {"tool": call.name, "timeout_s": self.timeout_s})
            return error_result(call, f"{call.name} took longer than {self.timeout_s:g} s")
        except Exception as error:
            text = shortened(readable(f"{type(error).__name__}: {error}"), self.max_chars)
            context.event("tool.exception", {"tool": call.name, "error": text})
            return error_result(call, text)
        content = tuple(
            TextPart(text=shortened(part.text, self.max_chars))
            if isinstance(part, TextPart)
            else part
            for part in as_content(value)
        )
        return ToolResult(call_id=call.id, name=call.name, content=content)

    async def _run(self, arguments: dict[str, Any]) -> Any:
        if self._async:
            return await _before(self.timeout_s, self.function(**arguments))
        if self._inline:
            value = self.function(**arguments)
        else:
            value = await in_thread(lambda: self.function(**arguments), timeout_s=self.timeout_s)
        # A partial or a lambda of an `async def` does not look asynchronous until it is called.
        return await _before(self.timeout_s, value) if inspect.isawaitable(value) else value


async def _before(timeout_s: float, awaitable: Awaitable[T]) -> T:
    """Awaits with a deadline that cannot be taken for a `TimeoutError` of the awaited's own."""
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            return await awaitable
    except TimeoutError as error:
        if deadline.expired():
            raise DeadlinePassed(f"no result within {timeout_s} s") from error
        raise


def tool(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float = 60.0,
    inline: bool = False,
    max_chars: int = 100_000,
) -> Any:
    """Makes a function a tool; as a decorator, with or without arguments. See `FunctionTool`."""

    def make(wrapped: Callable[..., Any]) -> FunctionTool:
        return FunctionTool(
            wrapped,
            name=name,
            description=description,
            timeout_s=timeout_s,
            inline=inline,
            max_chars=max_chars,
        )

    return make if function is None else make(function)


def as_tools(tools: Sequence[Tool | Callable[..., Any]]) -> tuple[Tool, ...]:
    """Tools as they are, functions made tools.

    Raises:
        ConfigError: two of them have one name, or one is neither.
    """
    out: list[Tool] = []
    for given in tools:
        if isinstance(given, Tool):
            out.append(given)
        elif callable(given):
            out.append(FunctionTool(given))
        else:
            raise ConfigError(f"a tool is a function or a Tool, got {given!r}")
    names = [item.spec.name for item in out]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two tools are named {name!r}")
    return tuple(out)


def error_result(call: ToolCall, text: str) -> ToolResult:
    """The result of a call that did not work, saying why."""
    return ToolResult(
        call_id=call.id, name=call.name, content=(TextPart(text=readable(text)),), is_error=True
    )


def shortened(text: str, max_chars: int) -> str:
    """The text, or its beginning and its end with a note of what was left out between."""
    if len(text) <= max_chars:
        return text
    head, tail = max_chars - max_chars // 2, max_chars // 2
    note = f"\n[... {len(text) - max_chars} characters left out ...]\n"
    return text[:head] + note + text[len(text) - tail :]


def readable(text: str) -> str:
    """The text with half surrogate pairs, which no encoding can carry, replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")


def as_content(value: Any) -> tuple[_Content, ...]:
    """What a function returned, as parts: text as it is, anything else as JSON."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (TextPart(text=readable(value)),)
    if isinstance(value, TextPart | ImagePart | FilePart):
        return (value,)
    if isinstance(value, ExecResult):
        return (TextPart(text=describe_exec(value)),)
    if isinstance(value, list | tuple) and value:
        parts = tuple(item for item in value if isinstance(item, TextPart | ImagePart | FilePart))
        if len(parts) == len(value):
            return parts
    if isinstance(value, BaseModel):
        return (TextPart(text=value.model_dump_json()),)
    return (TextPart(text=readable(json.dumps(value, ensure_ascii=False, default=str))),)


def describe_exec(result: ExecResult) -> str:
    """A command's result as the policy reads it: output, then what went wrong."""
    parts = []
    if result.stdout:
        parts.append(result.text)
    if result.stderr:
        parts.append(f"[stderr]\n{result.error_text}")
    if result.truncated:
        parts.append("[output cut at the limit]")
    if result.killed:
        parts.append(f"[killed: {result.killed} limit]")
    elif result.exit_code != 0:
        parts.append(f"[exit code {result.exit_code}]")
    return "\n".join(part.rstrip("\n") for part in parts)


async def _shell(command: str, sandbox: Any, timeout_s: float | None = None) -> ExecResult:  # noqa: D417
    """Runs a command in a shell inside the sandbox and returns its output.

    Args:
        command: what `sh -c` runs.
        timeout_s: seconds after which it is killed.
    """
    result: ExecResult = await sandbox.exec(["/bin/sh", "-c", command], timeout_s=timeout_s)
    return result


async def _python(code: str, sandbox: Any, timeout_s: float | None = None) -> ExecResult:  # noqa: D417
    """Runs a Python program inside the sandbox and returns what it prints.

    Args:
        code: the program.
        timeout_s: seconds after which it is killed.
    """
    result: ExecResult = await sandbox.exec(["python3", "-"], stdin=code, timeout_s=timeout_s)
    return result


shell = FunctionTool(_shell, name="shell", timeout_s=3600.0, max_chars=30_000)
"""`shell(command)`: a command in the sandbox."""
python = FunctionTool(_python, name="python", timeout_s=3600.0, max_chars=30_000)
"""`python(code)`: a Python program in the sandbox."""
