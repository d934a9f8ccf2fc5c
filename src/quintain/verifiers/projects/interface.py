"""What of a solution the tests may use: stubs, as type checkers read them, made into a plain table.

A stub names functions, classes and values of one module. What it says of results decides what may
come back: plain data always; an object only where the annotation names a class of the interface,
an iterator only where it says so. So a function that is to return a list cannot return an object
that equals every list.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from typing import Any

ITERATORS = {"Iterator", "Iterable", "Generator"}


class BadInterface(ValueError):
    """A stub that cannot be used; the message names the module and the line."""


def parse_interface(stubs: Mapping[str, str]) -> dict[str, Any]:
    """Module to its table, for `room_tests`.

    Raises:
        BadInterface: a stub does not parse, names nothing, or holds something that has no meaning
            here.
    """
    trees: dict[str, ast.Module] = {}
    for module, text in stubs.items():
        if not all(part.isidentifier() for part in module.split(".")):
            raise BadInterface(f"{module!r} is not the name of a module")
        try:
            trees[module] = ast.parse(text)
        except (SyntaxError, ValueError) as error:
            raise BadInterface(f"the stub of {module} does not parse: {error}") from error
    classes = {
        f"{module}:{node.name}"
        for module, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    return {module: _module(module, tree, classes) for module, tree in trees.items()}


def classes_of(interface: Mapping[str, Any]) -> list[str]:
    """Every declared class, as `module:name`."""
    return [f"{module}:{name}" for module, table in interface.items() for name in table["classes"]]


def _module(module: str, tree: ast.Module, classes: set[str]) -> dict[str, Any]:
    table: dict[str, Any] = {"functions": {}, "classes": {}, "values": {}}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            table["functions"][node.name] = _function(node, module, classes)
        elif isinstance(node, ast.ClassDef):
            table["classes"][node.name] = _class(node, module, classes)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            table["values"][node.target.id] = _result(node.annotation, module, classes)
        elif not isinstance(node, ast.Import | ast.ImportFrom) and not _documents(node):
            raise BadInterface(
                f"the stub of {module}, line {node.lineno}: a stub holds functions, classes and "
                "annotated names"
            )
    if not any(table.values()):
        raise BadInterface(f"the stub of {module} declares nothing")
    return table


def _documents(node: ast.stmt) -> bool:
    """A docstring, `...` or `pass`."""
    return isinstance(node, ast.Pass) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def _class(node: ast.ClassDef, module: str, classes: set[str]) -> dict[str, Any]:
    table: dict[str, Any] = {"bases": [], "exception": "", "methods": {}, "values": {}}
    for base in node.bases:
        name = ast.unparse(base)
        known = getattr(builtins, name, None)
        where = _known(name, module, classes)
        if where:
            table["bases"].append(where)
        elif isinstance(known, type) and issubclass(known, Exception):
            table["exception"] = name
        elif name not in ("object", "Protocol", "NamedTuple"):
            raise BadInterface(
                f"the stub of {module}, line {node.lineno}: the base {name} is neither a class of "
                "the interface nor a built-in exception"
            )
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            made = _function(item, module, classes | {f"{module}:Self"})
            made["results"] = [
                f"{module}:{node.name}" if where == f"{module}:Self" else where
                for where in made["results"]
            ]
            marks = {ast.unparse(mark).rpartition(".")[2] for mark in item.decorator_list}
            if "property" in marks:
                table["values"][item.name] = made
            elif not marks & {"setter", "overload"}:
                made["of_class"] = bool(marks & {"classmethod", "staticmethod"})
                table["methods"][item.name] = made
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            table["values"][item.target.id] = _result(item.annotation, module, classes)
        elif not _documents(item):
            raise BadInterface(
                f"the stub of {module}, line {item.lineno}: a class holds methods and annotated "
                "names"
            )
    return table


def _function(
    node: ast.FunctionDef | ast.AsyncFunctionDef, module: str, classes: set[str]
) -> dict[str, Any]:
    found = _result(node.returns, module, classes)
    return {**found, "async": isinstance(node, ast.AsyncFunctionDef)}


def _result(annotation: ast.expr | None, module: str, classes: set[str]) -> dict[str, Any]:
    """Which objects a result may be or hold."""
    names: set[str] = set()
    iterates = False
    parts = list(ast.walk(annotation)) if annotation is not None else []
    for part in parts:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            try:
                parts += list(ast.walk(ast.parse(part.value, mode="eval")))
            except (SyntaxError, ValueError) as error:
                raise BadInterface(f"the stub of {module}: {part.value!r}: {error}") from error
        if isinstance(part, ast.Name | ast.Attribute):
            name = ast.unparse(part)
            iterates |= name.rpartition(".")[2] in ITERATORS
            where = _known(name, module, classes)
            if where:
                names.add(where)
    return {"results": sorted(names), "iterator": iterates}


def _known(name: str, module: str, classes: set[str]) -> str:
    """The declared class that a name means in a module; or empty."""
    place, _, last = name.rpartition(".")
    if f"{place or module}:{last}" in classes:
        return f"{place or module}:{last}"
    elsewhere = [where for where in classes if where.endswith(f":{last}")]
    return elsewhere[0] if not place and len(elsewhere) == 1 else ""
