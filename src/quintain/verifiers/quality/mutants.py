"""Mutants of a reference solution, made by cosmic-ray's operators in this process.

The reference is the author's own code; it is parsed and rewritten here, never run. Swaps
of a comparison with one of identity (`==` with `is`) are left out, as what they do is chance; and
so is what compiles to the bytecode of the reference or of another mutant: no input can tell these.
"""

from __future__ import annotations

import difflib
import marshal
import random
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

from quintain.errors import ConfigError

_IDENTITY = re.compile(r"_(?!Is)[A-Za-z]+_Is(Not)?$|_Is(Not)?_(?!Is)[A-Za-z]+$")
"""Comparisons turned into one of identity, or out of it."""
_WITH_ARGUMENTS = ("VariableReplacer", "VariableInserter")


@dataclass(frozen=True, slots=True)
class Mutant:
    """The reference with one change."""

    code: str
    line: int
    """Of the reference, where the change is."""
    operator: str
    """Cosmic-ray's name of the change."""
    diff: str
    """The lines that differ, as a unified diff without context."""


def draw(reference: str, most: int, seed: int = 0) -> list[Mutant]:
    """A sample of the reference's mutants, spread evenly over its lines.

    Args:
        reference: source text that parses.
        most: size of the sample.
        seed: of the sample.

    Raises:
        ConfigError: cosmic-ray is not installed.
    """
    places = _places(reference)
    rng = random.Random(seed)
    rng.shuffle(places)
    turns: Counter[int] = Counter()
    order = []
    for place in places:
        turns[place[0]] += 1
        order.append((turns[place[0]], *place))
    order.sort(key=lambda each: each[0])
    seen = {_bytecode(reference)}
    found: list[Mutant] = []
    for _, line, operator, occurrence in order:
        if len(found) >= most:
            break
        code = _mutated(reference, operator, occurrence)
        compiled = _bytecode(code)
        if compiled is not None and compiled not in seen:
            seen.add(compiled)
            found.append(Mutant(code, line, operator, _diff(reference, code)))
    return found


def _library() -> Any:
    try:
        import cosmic_ray.ast
        import cosmic_ray.mutating
        import cosmic_ray.plugins
    except ImportError as error:
        raise ConfigError("mutants need cosmic-ray: pip install 'quintain[audit]'") from error
    return cosmic_ray


def _places(reference: str) -> list[tuple[int, str, int]]:
    """(line, operator, occurrence) of every change that there is."""
    library = _library()
    nodes = list(library.ast.ast_nodes(library.ast.get_ast(reference)))
    places = []
    for name in library.plugins.operator_names():
        if name.endswith(_WITH_ARGUMENTS) or _IDENTITY.search(name):
            continue
        operator = library.plugins.get_operator(name)()
        starts = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        places += [(start[0], name, number) for number, start in enumerate(starts)]
    return places


def _mutated(reference: str, operator: str, occurrence: int) -> str:
    library = _library()
    made = library.plugins.get_operator(operator)()
    # Told no change was made only for an occurrence that is not there.
    return str(library.mutating.mutate_code(reference, made, occurrence))


def _bytecode(code: str) -> bytes | None:
    """What it compiles to; None: it does not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return marshal.dumps(compile(code, "reference", "exec", dont_inherit=True))
    except (SyntaxError, ValueError):
        return None


def _diff(reference: str, code: str) -> str:
    lines = difflib.unified_diff(reference.splitlines(), code.splitlines(), lineterm="", n=0)
    return "\n".join(line for line in lines if not line.startswith(("---", "+++")))
