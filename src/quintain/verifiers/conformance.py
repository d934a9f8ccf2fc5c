"""From a stub to a module that type-checks only if another module satisfies the stub.

Every function of the stub becomes a protocol with that signature, to which the submission's
function is assigned; every class a protocol with its members, which the submission's class must
meet, and one for its constructor. Names of the stub's classes mean the submission's classes.
"""

from __future__ import annotations

import ast
import re
from copy import deepcopy

SUBMISSION = "submission"
_KEPT = (ast.Import, ast.ImportFrom)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class BadStub(ValueError):
    """The stub cannot be used, and why."""


def conformance(stub: str) -> str:
    """The text of the checking module.

    Args:
        stub: functions (also overloaded), classes with methods, properties and annotated
            attributes, annotated variables, imports and type variables.

    Raises:
        BadStub: it is none, promises nothing, or holds something else.
    """
    try:
        module = ast.parse(stub)
    except (SyntaxError, ValueError) as error:
        raise BadStub(f"the stub is not Python: {error}") from error
    names = [node.name for node in module.body if isinstance(node, ast.ClassDef)]
    head = ["from __future__ import annotations", "from typing import Protocol as _Protocol",
            f"import {SUBMISSION} as _submission"]  # fmt: skip
    head += [f"from {SUBMISSION} import {name} as {name}" for name in names]
    body: list[str] = []
    functions: dict[str, list[_Function]] = {}
    for node in module.body:
        if isinstance(node, _KEPT) or _type_variable(node):
            if not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
                head.append(ast.unparse(node))
        elif isinstance(node, _Function):
            functions.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.ClassDef):
            body += _class(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name, kind = node.target.id, ast.unparse(node.annotation)
            body.append(f"_is_{name}: {kind} = _submission.{name}")
        elif not _docstring(node):
            raise BadStub(f"line {node.lineno}: a stub holds no {type(node).__name__}")
    for name, variants in functions.items():
        body += _callable(f"_Like_{name}", variants)
        body.append(f"_is_{name}: _Like_{name} = _submission.{name}")
    if not body:
        raise BadStub("the stub promises nothing")
    return "\n".join([*head, "", *body, ""])


def _docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _type_variable(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).rpartition(".")[2] in ("TypeVar", "ParamSpec", "NewType")
    )


def _callable(title: str, variants: list[_Function]) -> list[str]:
    """A protocol of a callable with these signatures."""
    lines = [f"class {title}(_Protocol):"]
    for variant in variants:
        for decorator in variant.decorator_list:
            if ast.unparse(decorator).rpartition(".")[2] != "overload":
                raise BadStub(f"{variant.name}: a decorator that is not overload")
        called = _bodiless(variant)
        called.name = "__call__"
        first = ast.arg("_self")
        called.args.posonlyargs.insert(0, first)
        lines += _indented(ast.unparse(called))
    return lines


def _class(node: ast.ClassDef) -> list[str]:
    if node.keywords or node.decorator_list:
        raise BadStub(f"class {node.name}: neither decorators nor keywords")
    like, lines, inits = f"_Like_{node.name}", [], []
    for member in node.body:
        if isinstance(member, _Function) and member.name == "__init__":
            inits.append(member)
        elif isinstance(member, _Function | ast.AnnAssign):
            bare = _bodiless(member) if isinstance(member, _Function) else member
            lines += _indented(ast.unparse(bare))
        elif not _docstring(member) and not isinstance(member, ast.Pass):
            raise BadStub(f"class {node.name}: a stub holds no {type(member).__name__}")
    text = [f"class {like}(_Protocol):", *(lines or ["    pass"])]
    text += [f"def _is_{node.name}(given: {node.name}) -> {like}:", "    return given"]
    for base in node.bases:
        kind = ast.unparse(base)
        text += [f"def _is_{node.name}_base(given: {node.name}) -> {kind}:", "    return given"]
    for number, init in enumerate(inits):
        made = _bodiless(init)
        made.args.args = made.args.args[1:]
        made.returns = ast.Name(node.name)
        text += _callable(f"_Make_{node.name}_{number}", [made])
        text.append(f"_makes_{node.name}_{number}: _Make_{node.name}_{number} = {node.name}")
    return text


def _bodiless(function: _Function) -> _Function:
    made = deepcopy(function)
    made.body = [ast.Expr(ast.Constant(...))]
    return made


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()]


# --- what a submission must not hold --------------------------------------------------------------

_COMMENT = re.compile(r"#[^\n\r]*?(?:type|mypy|pyright|pyre|coding)\s*[:=]", re.IGNORECASE)
_NAMES = frozenset(
    ("Any", "cast", "no_type_check", "no_type_check_decorator", "TYPE_CHECKING", "MYPY", "PY2",
     "PY3", "platform", "version_info", "reveal_type", "__getattr__", "eval", "exec", "globals",
     "setattr", "delattr", "vars")
)  # fmt: skip


def smuggled(code: str) -> str:
    """What in a submission would switch the checker off or aside; empty when nothing does.

    Comments that configure checkers (a text that looks like one counts), names that lose types or
    make the checker see another program than the one that runs, and starred imports.
    """
    if found := _COMMENT.search(code):
        return f"a comment that configures: {found.group()[:60]!r}"
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"not Python: {type(error).__name__}"
    for node in ast.walk(tree):
        for name in _named(node):
            if name in _NAMES:
                return f"line {getattr(node, 'lineno', '?')}: {name} is not allowed"
            if name == "*":
                return f"line {getattr(node, 'lineno', '?')}: a starred import is not allowed"
    return ""


def _named(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.ImportFrom | ast.Import):
        return [alias.name.rpartition(".")[2] or alias.name for alias in node.names]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        # A quoted annotation is a name, too.
        return [word for word in re.findall(r"\w+", node.value) if word == "Any"]
    return []
