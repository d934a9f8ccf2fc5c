"""Plug-ins: short name -> "module:Class", lazily imported; the only user of importlib.

`Registry.get(name)` looks in (1) the built-in table, (2) the entry-point group
`quintain.<table>`, and (3) takes any `"my.module:Class"` verbatim. Nothing is imported before it
is asked for, and registering needs no decorator.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any

from quintain.errors import RegistryError


def load(target: str) -> Any:
    """Imports `"module:attribute"`.

    Raises:
        RegistryError: the module or the attribute cannot be imported, and why.
    """
    module_name, _, attribute = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise RegistryError(f"cannot load {target!r}: {error}") from error
    return found


def load_file(path: str | Path, attribute: str) -> Any:
    """Imports an attribute of a Python file, as if the file were run from its own folder.

    The folder goes to the front of `sys.path`, so that files beside it can be imported, here and
    in worker processes.

    Raises:
        RegistryError: the file or the attribute is not there, or running the file failed; the
            message names the line.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise RegistryError(f"no such file: {path}")
    name, folder = file.stem, file.parent
    if name == "__init__":
        name, folder = folder.name, folder.parent
    loaded = sys.modules.get(name)
    if loaded is not None and Path(getattr(loaded, "__file__", None) or "").resolve() != file:
        raise RegistryError(
            f"{path}: a module {name!r} is loaded already from elsewhere; rename the file"
        )
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(name)
    except Exception as error:
        lines = [
            f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)
        ]
        line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None
        where = line or (lines[-1] if lines else "?")
        raise RegistryError(f"{path}, line {where}: {type(error).__name__}: {error}") from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        known = [name for name in vars(module) if not name.startswith("_")]
        near = difflib.get_close_matches(attribute, known, n=3, cutoff=0.4) or known[:10]
        raise RegistryError(
            f"{path} has no {attribute!r}; it has: {', '.join(near) or 'nothing'}"
        ) from error


class Registry:
    """One table of plug-ins.

    Args:
        table: its name; the entry-point group is `quintain.<table>`.
        builtin: short name to `"module:attribute"`.
        one: what one of them is called; None: the table's name without its s.
    """

    def __init__(self, table: str, builtin: dict[str, str], one: str | None = None) -> None:
        self.table = table
        self.one = one or table.removesuffix("s")
        self.builtin = dict(builtin)

    def _entry_points(self) -> dict[str, str]:
        from importlib import metadata  # slow to import, and only misses need it

        return {
            point.name: point.value
            for point in metadata.entry_points(group=f"quintain.{self.table}")
        }

    def names(self) -> list[str]:
        """All short names, sorted."""
        return sorted({**self._entry_points(), **self.builtin})

    def target(self, name: str) -> str:
        """The `"module:attribute"` behind a name.

        Raises:
            RegistryError: no such name; the nearest known names are listed.
        """
        if name in self.builtin:
            return self.builtin[name]
        if ":" in name and "/" not in name:
            return name
        points = self._entry_points()
        if name in points:
            return points[name]
        known = self.names()
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(known)}"
        raise RegistryError(f"no {self.one} named {name!r}; {hint} (or give 'my.module:attribute')")

    def summary(self, name: str) -> str:
        """The first line of a plug-in's docstring, read from its source without running it.

        Only the module's package is imported; empty where there is no source or no docstring.
        """
        module_name, _, attribute = self.target(name).partition(":")
        try:
            spec = importlib.util.find_spec(module_name)
            text = Path(spec.origin).read_text("utf-8") if spec and spec.origin else ""
            body: list[ast.stmt] = ast.parse(text).body
        except (ImportError, OSError, ValueError, SyntaxError):
            return ""
        for node in body:
            named = getattr(node, "name", "")
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                alias = next((a for a in node.names if (a.asname or a.name) == attribute), None)
                if alias is not None:
                    table = Registry(self.table, {name: f"{node.module}:{alias.name}"})
                    return table.summary(name)
            if named == attribute and isinstance(node, ast.ClassDef | ast.FunctionDef):
                return (ast.get_docstring(node) or "").partition("\n")[0]
        return ""

    def get(self, name: str) -> Any:
        """The class or function behind a name, imported now.

        Raises:
            RegistryError: unknown, or its import failed.
        """
        return load(self.target(name))


environments = Registry(
    "environments",
    {
        "arithmetic": "quintain.envs.arithmetic:environment",
        "python": "quintain.envs.python:environment",
        "calculator": "quintain.envs.calculator:environment",
        "calculator-hard": "quintain.envs.calculator:hard",
        "terminal": "quintain.envs.terminal:environment",
        "heavy-tail": "quintain.envs.heavy_tail:environment",
    },
)
verifiers = Registry(
    "verifiers",
    {
        "function": "quintain.verifiers.function:as_verifier",
        "answer": "quintain.verifiers.answer:Answer",
        "tests": "quintain.verifiers.tests:Tests",
        "service": "quintain.verifiers.service:Service",
        "types": "quintain.verifiers.types:Types",
        "terminal": "quintain.verifiers.terminal:Terminal",
        "similarity": "quintain.verifiers.rules:Similarity",
        "rules": "quintain.verifiers.rules:Rules",
        "smt": "quintain.verifiers.smt:Smt",
        "lean": "quintain.verifiers.proof_lean:Lean",
        "proof": "quintain.verifiers.proof:Proof",
        "flag": "quintain.verifiers.flag:Flag",
        "unseen_data": "quintain.verifiers.unseen:UnseenData",
        "server": "quintain.verifiers.server_state:Server",
        "database": "quintain.verifiers.database:Database",
        "world": "quintain.verifiers.state:World",
        "files": "quintain.verifiers.state:Files",
        "pairwise": "quintain.verifiers.pairwise:Pairwise",
        "judge": "quintain.verifiers.judge:Judge",
        "sql": "quintain.verifiers.sql:Sql",
        "calls": "quintain.verifiers.calls:Calls",
    },
)
sandboxes = Registry(
    "sandboxes",
    {
        "native": "quintain.sandbox.native:NativeBackend",
        "docker": "quintain.sandbox.engines.engine:DockerBackend",
        "podman": "quintain.sandbox.engines.engine:PodmanBackend",
        "runc": "quintain.sandbox.engines.oci:RuncBackend",
        "crun": "quintain.sandbox.engines.oci:CrunBackend",
        "gvisor": "quintain.sandbox.engines.oci:GvisorBackend",
        "microvm": "quintain.sandbox.microvm.backend:MicrovmBackend",
        "weak": "quintain.sandbox.weak:WeakBackend",
        "firecracker": "quintain.sandbox.microvm.firecracker.backend:FirecrackerBackend",
        "ray": "quintain.sandbox.ray:RayBackend",
    },
    one="sandbox",
)
policies = Registry(
    "policies",
    {
        "chat": "quintain.policies.chat:Chat",
        "scripted": "quintain.policies.scripted:Scripted",
        "replay": "quintain.policies.replay:Replay",
        "local": "quintain.policies.local:Local",
        "smollm2": "quintain.policies.local:smollm2",
        "tiny": "quintain.policies.local:tiny",
        "vllm": "quintain.policies.vllm:vllm",
    },
    one="policy",
)
benchmarks = Registry("benchmarks", {})
harnesses = Registry("harnesses", {"loop": "quintain.harness.loop:Loop"}, one="harness")
algorithms = Registry(
    "algorithms",
    {
        "grpo": "quintain.training.algorithms:grpo",
        "grpo-original": "quintain.training.algorithms:grpo_original",
        "dr_grpo": "quintain.training.algorithms:dr_grpo",
        "rloo": "quintain.training.algorithms:rloo",
        "dapo": "quintain.training.algorithms:dapo",
        "gspo": "quintain.training.algorithms:gspo",
        "cispo": "quintain.training.algorithms:cispo",
        "ppo": "quintain.training.algorithms:ppo",
    },
)
samplers = Registry(
    "samplers",
    {
        "uniform": "quintain.training.sampler:Uniform",
        "band": "quintain.training.sampler:Band",
        "curriculum": "quintain.training.sampler:Curriculum",
    },
)
TABLES = {
    table.table: table
    for table in (
        environments,
        verifiers,
        sandboxes,
        policies,
        harnesses,
        benchmarks,
        algorithms,
        samplers,
    )
}
