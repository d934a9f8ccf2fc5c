"""The candidate's side: its modules, and who calls them by name; sent into its sandbox as text.

It runs behind `room_values`, in an interpreter that holds the candidate's code and nothing of the
tests. Everything in here belongs to the candidate as soon as its code is imported; the other side
takes its answers for what they are: claims about values.
"""

from __future__ import annotations

import asyncio
import inspect
import resource
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quintain.verifiers.projects.room_values import NotPlain, decode, encode, from_line, to_line

KEPT: list[Any] = []
CLASSES: list[str] = []
"""Declared classes, as `module:name`."""
CPU_S = [0.0]


def start(line: str) -> str:
    """Sets import paths and imports the declared modules; what they raise, in words."""
    job = from_line(line)
    sys.path[:0] = job["paths"]
    CPU_S[0] = job["cpu_s"]
    CLASSES.extend(job["classes"])
    limit_cpu()
    for name in job["modules"]:
        try:
            exec(f"import {name}", {})
        except BaseException as error:
            return to_line({"failed": f"{name}: {type(error).__name__}: {error}"[:2000]})
    return to_line({})


def limit_cpu() -> None:
    """Allows one call its CPU seconds from here on."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + CPU_S[0]) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def declared() -> list[tuple[str, type]]:
    """The declared classes that there are."""
    found = []
    for where in CLASSES:
        module, _, name = where.partition(":")
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type):
            found.append((where, kind))
    return found


def class_of(value: Any) -> str:
    """The declared class nearest to a value's own; or empty."""
    known = {kind: where for where, kind in reversed(declared())}
    for kind in type(value).__mro__:
        if kind in known:
            return known[kind]
    return "iterator" if hasattr(value, "__next__") else ""


def keep(value: Any) -> Any:
    """A number for what is not plain."""
    kind = class_of(value)
    if not kind and hasattr(value, "__iter__"):
        value, kind = iter(value), "iterator"
    if not kind:
        raise NotPlain(f"a {type(value).__name__} is neither plain data nor of a declared class")
    KEPT.append(value)
    return {"o": [len(KEPT) - 1, kind]}


def kept(inside: Any) -> Any:
    """What a number stands for."""
    return KEPT[inside[0]]


def refuse(value: Any) -> Any:
    """For arguments: what was changed in place and is not plain is not told."""
    raise NotPlain(type(value).__name__)


def target_of(request: dict[str, Any]) -> Any:
    """The function, class, method or value that a request names."""
    target = sys.modules[request["module"]] if "module" in request else KEPT[request["object"]]
    for name in request["path"]:
        target = getattr(target, name)
    return target


def changed(before: list[Any], arguments: list[Any]) -> list[Any]:
    """Lists, dicts, sets and byte arrays among the arguments that the call changed in place."""
    out = []
    for number, (packed, value) in enumerate(zip(before, arguments, strict=True)):
        if type(value) in (list, dict, set, bytearray):
            try:
                now = encode(value, refuse)
            except NotPlain:
                continue
            if now != packed:
                out.append([number, now])
    return out


def told(error: BaseException) -> dict[str, Any]:
    """An exception: its built-in and declared classes, and its arguments where they are plain."""
    known = {kind: where for where, kind in reversed(declared())}
    kinds = []
    for kind in type(error).__mro__:
        if kind in known:
            kinds.append(known[kind])
        elif kind.__module__ == "builtins":
            kinds.append(f"builtins:{kind.__name__}")
    try:
        arguments = [encode(item, refuse) for item in error.args]
    except NotPlain:
        arguments = [str(error)]
    return {"raised": kinds, "args": arguments, "text": str(error)[:2000]}


def answer(line: str) -> str:
    """One request: a call, or the value of an attribute."""
    limit_cpu()
    try:
        request = from_line(line)
        target = target_of(request)
        if request["do"] == "get":
            return to_line({"value": encode(target, keep)})
        if request["do"] == "set":
            setattr(target, request["name"], decode(request["value"], kept))
            return to_line({"value": None})
        arguments = [decode(item, kept) for item in request["args"]]
        named = {name: decode(item, kept) for name, item in request["named"].items()}
        result = target(*arguments, **named)
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        value = encode(result, keep)
        return to_line({"value": value, "changed": changed(request["args"], arguments)})
    except BaseException as error:
        return to_line(told(error))
