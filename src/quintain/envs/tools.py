"""Tools: plain typed functions that a policy may call, and the shell.

A function's parameters become the JSON schema, its docstring the description. Parameters named
`sandbox`, `task`, `world` or `context` are filled in by the episode and hidden from the policy. A
synchronous function runs in a thread with a deadline, so that one that blocks stops nobody else;
an `async def` runs on the loop.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pydantic
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quintain.errors import ConfigError, QuintainError
from quintain.messages import FilePart, ImagePart, TextPart, ToolCall, ToolResult, ToolSpec
from quintain.protocols import ExecResult, Tool, ToolContext
from quintain.record import Json
from quintain.threads import in_thread

INJECTED = ("sandbox", "task", "world", "context")
"""Parameters that the episode fills in."""

_Content = TextPart | ImagePart | FilePart


class FunctionTool:
    """A Python function as a tool.

    Args:
        function: with annotated parameters; sync or async.
        name: None: the function's name.
        description: None: the docstring up to `Args:`.
        timeout_s: seconds that one call may take.
        inline: run a synchronous function on the event loop: only for one that never blocks.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout_s: float = 60.0,
        inline: bool = False,
    ) -> None:
        self.function = function
        self.timeout_s = timeout_s
        self._inline = inline
        self._async = inspect.iscoroutinefunction(function)
        tool_name = name or str(getattr(function, "__name__", type(function).__name__))
        summary, parameter_docs = _read_docstring(inspect.getdoc(function) or "")
        parameters = inspect.signature(function).parameters
        self._injected = tuple(p for p in parameters if p in INJECTED)
        self._model = _arguments_model(tool_name, function, parameters, parameter_docs)
        schema = self._model.model_json_schema()
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
            return _explain(error, self.spec)
        return ""

    async def call(self, call: ToolCall, context: ToolContext) -> ToolResult:
        """Calls the function; its exception becomes the result's text."""
        try:
            validated = self._model.model_validate(call.arguments)
        except ValidationError as error:
            return error_result(call, _explain(error, self.spec))
        arguments = {name: getattr(validated, name) for name in type(validated).model_fields}
        for name in self._injected:
            arguments[name] = context if name == "context" else getattr(context, name)
        try:
            value = await self._run(arguments)
        except QuintainError:
            raise
        except TimeoutError:
            context.event("tool.timeout", {"tool": call.name, "timeout_s": self.timeout_s})
            return error_result(call, f"{call.name} took longer than {self.timeout_s:g} s")
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            context.event("tool.exception", {"tool": call.name, "error": text})
            return error_result(call, text)
        return ToolResult(call_id=call.id, name=call.name, content=as_content(value))

    async def _run(self, arguments: dict[str, Any]) -> Any:
        if self._async:
            async with asyncio.timeout(self.timeout_s):
                return await self.function(**arguments)
        if self._inline:
            return self.function(**arguments)
        return await in_thread(lambda: self.function(**arguments), timeout_s=self.timeout_s)


def tool(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float = 60.0,
    inline: bool = False,
) -> Any:
    """Makes a function a tool; as a decorator, with or without arguments. See `FunctionTool`."""

    def make(wrapped: Callable[..., Any]) -> FunctionTool:
        return FunctionTool(
            wrapped, name=name, description=description, timeout_s=timeout_s, inline=inline
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
        call_id=call.id, name=call.name, content=(TextPart(text=text),), is_error=True
    )


def as_content(value: Any) -> tuple[_Content, ...]:
    """What a function returned, as parts: text as it is, anything else as JSON."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (TextPart(text=value),)
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
    return (TextPart(text=json.dumps(value, ensure_ascii=False, default=str)),)


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


def _arguments_model(
    name: str,
    function: Callable[..., Any],
    parameters: Mapping[str, inspect.Parameter],
    docs: Mapping[str, str],
) -> type[BaseModel]:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError:
        hints = {}
    fields: dict[str, Any] = {}
    for key, parameter in parameters.items():
        if key in INJECTED:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(f"tool {name!r}: *args and **kwargs cannot be described to a policy")
        hint = hints.get(key, Any if parameter.annotation is parameter.empty else None)
        if hint is None:
            raise ConfigError(f"tool {name!r}: cannot resolve the annotation of {key!r}")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[key] = (hint, Field(default, description=docs.get(key)))
    try:
        return pydantic.create_model(
            name, __config__=ConfigDict(extra="forbid", protected_namespaces=()), **fields
        )
    except pydantic.errors.PydanticUserError as error:
        raise ConfigError(f"tool {name!r}: {error}") from error


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description before `Args:`, and what it says of each parameter (google style)."""
    summary, _, rest = text.partition("Args:")
    docs: dict[str, str] = {}
    current = ""
    for line in rest.splitlines():
        if re.match(r"^(Returns|Raises|Yields|Examples?):", line.strip()):
            break
        named = re.match(r"^\s{2,}(\w+)(?:\s*\([^)]*\))?:\s*(.*)$", line)
        if named:
            current = named.group(1)
            docs[current] = named.group(2).strip()
        elif current and line.strip():
            docs[current] += " " + line.strip()
    return re.split(r"\n\s*(?:Returns|Raises):", summary)[0].strip(), docs


def _explain(error: ValidationError, spec: ToolSpec) -> str:
    problems = "; ".join(
        f"{'.'.join(str(part) for part in item['loc']) or 'arguments'}: {item['msg']}"
        for item in error.errors(include_url=False)
    )
    wanted = json.dumps(spec.parameters.get("properties", {}), ensure_ascii=False)
    required = ", ".join(spec.parameters.get("required", [])) or "none"
    return f"wrong arguments for {spec.name}: {problems}. Expected {wanted}; required: {required}."


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


shell = FunctionTool(_shell, name="shell", timeout_s=3600.0)
"""`shell(command)`: a command in the sandbox."""
python = FunctionTool(_python, name="python", timeout_s=3600.0)
"""`python(code)`: a Python program in the sandbox."""
