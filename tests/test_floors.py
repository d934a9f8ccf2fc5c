"""Imports go down only; folders of one shelf never import each other."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "quintain"

GROUND = {"errors", "record", "messages", "verdict", "task", "trajectory"}
WAIST = {
    "protocols", "registry", "config", "statistics", "batch", "dialects", "store", "threads",
}  # fmt: skip
SHELVES = [
    {"sandbox", "verifiers", "policies", "envs", "harness", "viewer"},
    {"rollouts"},
    {"audits", "benchmarks", "contamination"},
    {"evals", "training"},
]
TOP = ["loop", "interop", "__init__", "cli", "testing"]


def _floor(unit: str) -> int:
    if unit in GROUND:
        return 0
    if unit in WAIST:
        return 1
    for number, shelf in enumerate(SHELVES, start=2):
        if unit in shelf:
            return number
    assert unit in TOP, f"{unit} has no floor: give it one in the design and here"
    return 2 + len(SHELVES) + TOP.index(unit)


def _unit(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py") if first.endswith(".py") else first


@cache
def _files() -> tuple[Path, ...]:
    return tuple(sorted(SOURCE.rglob("*.py")))


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file, the module first."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def _imports(path: Path) -> list[tuple[int, str]]:
    """(line, module) of every import, TYPE_CHECKING and function bodies included."""
    found: list[tuple[int, str]] = []
    package = ("quintain", *path.relative_to(SOURCE).parts[:-1])
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join((*package[: len(package) - node.level + 1], base)).rstrip(".")
            if base == "quintain":
                found += [(node.lineno, f"quintain.{alias.name}") for alias in node.names]
            else:
                found.append((node.lineno, base))
    return found


def _quintain_unit(module: str) -> str | None:
    parts = module.split(".")
    if parts[0] != "quintain":
        return None
    if len(parts) == 1 or parts[1].startswith("__version"):
        return "__init__"
    known = {_unit(path) for path in _files()}
    return parts[1] if parts[1] in known else "__init__"


def test_every_import_goes_down() -> None:
    wrong: list[str] = []
    for path in _files():
        unit = _unit(path)
        floor = _floor(unit)
        for line, module in _imports(path):
            other = _quintain_unit(module)
            if other is None or other == unit:
                continue
            below = _floor(other)
            sideways = below == floor and floor >= 2
            # The face's version string may be read from anywhere.
            if other == "__init__" and module == "quintain.__version__":
                continue
            if below > floor or sideways:
                wrong.append(f"{path.relative_to(SOURCE)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_ground_has_no_io_and_only_pydantic() -> None:
    allowed = {
        "__future__", "collections", "contextlib", "datetime", "enum", "hashlib", "ipaddress",
        "json", "math", "pydantic", "quintain", "types", "typing",
    }  # fmt: skip
    for unit in GROUND:
        for line, module in _imports(SOURCE / f"{unit}.py"):
            assert module.split(".")[0] in allowed, f"{unit}.py:{line} imports {module}"


def test_ground_and_waist_have_no_circles() -> None:
    units = GROUND | WAIST
    edges: dict[str, set[str]] = {unit: set() for unit in units}
    for path in _files():
        if (unit := _unit(path)) in units:
            for _, module in _imports(path):
                other = _quintain_unit(module)
                if other in units and other != unit:
                    edges[unit].add(other)
    visiting: list[str] = []
    done: set[str] = set()

    def visit(unit: str) -> None:
        assert unit not in visiting, f"a circle: {' -> '.join([*visiting, unit])}"
        if unit in done:
            return
        visiting.append(unit)
        for other in sorted(edges[unit]):
            visit(other)
        visiting.pop()
        done.add(unit)

    for unit in sorted(units):
        visit(unit)


def test_only_the_registry_imports_by_name() -> None:
    for path in _files():
        if path == SOURCE / "registry.py":
            continue
        for line, module in _imports(path):
            # importlib.util/resources/metadata look things up; they load no code of ours.
            assert module not in {"importlib", "importlib.machinery"}, f"{path}:{line}"
        names = {node.id for node in _nodes(path) if isinstance(node, ast.Name)}
        assert "__import__" not in names, path


def test_every_module_says_what_it_is() -> None:
    for path in _files():
        tree = _nodes(path)[0]
        assert isinstance(tree, ast.Module)
        assert not tree.body or ast.get_docstring(tree), f"{path} has no docstring"


def test_no_room_without_a_name() -> None:
    bad = {"utils", "util", "common", "helpers", "base", "manager", "misc"}
    for path in _files():
        assert path.stem not in bad, path
