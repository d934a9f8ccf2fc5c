"""What a policy is told of a function: its parameters as a schema, its docstring, its mistakes."""

from __future__ import annotations

import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import pydantic
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quintain.errors import ConfigError
from quintain.messages import ToolSpec

INJECTED = ("sandbox", "task", "world", "context")
"""Parameters that the episode fills in."""


def arguments_model(
    name: str,
    function: Callable[..., Any],
    parameters: Mapping[str, inspect.Parameter],
    docs: Mapping[str, str],
) -> tuple[dict[str, str], type[BaseModel]]:
    """A model of the arguments, and from its fields to the parameters they stand for.

    Fields are numbered and the parameters are their aliases, so that a parameter may be named
    `_x`, `json` or `model_config`.
    """
    names: dict[str, str] = {}
    fields: dict[str, Any] = {}
    for key, parameter in parameters.items():
        if key in INJECTED:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(f"tool {name!r}: *args and **kwargs cannot be described to a policy")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(f"tool {name!r}: {key!r} is positional-only; policies name arguments")
        default = ... if parameter.default is parameter.empty else parameter.default
        field = f"p{len(names)}"
        names[field] = key
        fields[field] = (
            _hint(name, function, parameter),
            Field(default, alias=key, description=docs.get(key)),
        )
    try:
        model = pydantic.create_model(
            name, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False), **fields
        )
    except pydantic.errors.PydanticUserError as error:
        raise ConfigError(f"tool {name!r}: {error}") from error
    return names, model


def _hint(name: str, function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The parameter's type; one at a time, so that an injected one may be known to checkers only.

    Raises:
        ConfigError: its annotation is a string that cannot be resolved.
    """
    if parameter.annotation is parameter.empty:
        return Any
    plain = inspect.unwrap(function)
    while isinstance(plain, functools.partial):
        plain = plain.func
    plain = getattr(plain, "__func__", plain if hasattr(plain, "__globals__") else None)
    plain = plain or type(function).__call__
    carrier = types.new_class("_Carrier")
    carrier.__annotations__ = {"it": parameter.annotation}
    try:
        local = inspect.getclosurevars(plain).nonlocals if inspect.isfunction(plain) else {}
        hints = typing.get_type_hints(
            carrier, getattr(plain, "__globals__", {}), dict(local), include_extras=True
        )
    except Exception as error:
        raise ConfigError(
            f"tool {name!r}: cannot resolve the annotation {parameter.annotation!r} of "
            f"{parameter.name!r}: {error}"
        ) from error
    return hints["it"]


def read_docstring(
    text: str, parameters: Mapping[str, inspect.Parameter]
) -> tuple[str, dict[str, str]]:
    """The description before `Args:`, and what it says of each parameter (google style)."""
    parts = re.split(r"^Args:[ \t]*$", text, maxsplit=1, flags=re.MULTILINE)
    docs: dict[str, str] = {}
    current = ""
    for line in parts[1].splitlines() if len(parts) == 2 else ():
        if line.strip() and not line[0].isspace():
            break
        named = re.match(r"^\s+\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)$", line)
        if named and named.group(1) in parameters:
            current = named.group(1)
            docs[current] = named.group(2).strip()
        elif current and line.strip():
            docs[current] += " " + line.strip()
    return re.split(r"^(?:Returns|Raises|Yields|Examples?):", parts[0], flags=re.M)[0].strip(), docs


def explain(error: ValidationError, spec: ToolSpec) -> str:
    """What is wrong with the arguments of a call, and what was expected."""
    problems = "; ".join(
        f"{'.'.join(str(part) for part in item['loc']) or 'arguments'}: {item['msg']}"
        for item in error.errors(include_url=False)
    )
    wanted = json.dumps(spec.parameters.get("properties", {}), ensure_ascii=False)
    required = ", ".join(spec.parameters.get("required", [])) or "none"
    return f"wrong arguments for {spec.name}: {problems}. Expected {wanted}; required: {required}."
