"""Are two results of a query the same: typed cells, rows in order or as a multiset."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from quintain.record import Json
from quintain.verifiers.matching import assignment

FLOAT_REL = 1e-9
"""Relative tolerance of floats where none is declared: sums come in any order."""
MATCHED_ROWS = 200
"""Rows that differ in floats only are paired by a largest matching up to so many, else sorted."""
Cell = Any
"""None, bool, int, float, Decimal, str, bytes, `Other`, or a list or dict of these."""


@dataclass(frozen=True, slots=True)
class Other:
    """A value of another type (a date, an interval), as its text."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class ResultSet:
    """What a query gave."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @classmethod
    def read(cls, outcome: dict[str, Json]) -> ResultSet:
        """From what `query_runner` wrote.

        Raises:
            ValueError: it did not write that.
        """
        try:
            rows = tuple(tuple(_value(cell, 0) for cell in row) for row in outcome["rows"])
            return cls(tuple(str(name) for name in outcome["columns"]), rows)
        except (KeyError, TypeError, InvalidOperation, OverflowError) as error:
            raise ValueError(f"an unreadable result: {error!r}") from error

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[Json]]) -> ResultSet:
        """From rows as a task's JSON writes them; `{"$bytes": "hex"}` for bytes."""
        return cls((), tuple(tuple(_plain(cell) for cell in row) for row in rows))


def _plain(cell: Json) -> Cell:
    if isinstance(cell, dict) and set(cell) == {"$bytes"}:
        return bytes.fromhex(cell["$bytes"])
    return cell


def _value(cell: Json, depth: int) -> Cell:
    if cell is None or isinstance(cell, bool | str):
        return cell
    if depth > 20:
        raise ValueError("a value is nested too deeply")
    ((tag, inside),) = cell.items()
    match tag:
        case "i":
            return int(inside)
        case "f":
            return float.fromhex(inside)
        case "n":
            return Decimal(inside)
        case "b":
            return bytes.fromhex(inside)
        case "l":
            return [_value(item, depth + 1) for item in inside]
        case "m":
            return {str(key): _value(item, depth + 1) for key, item in inside}
        case "o":
            return Other(*map(str, inside))
    raise ValueError(f"unknown tag {tag!r}")


def difference(
    expected: ResultSet,
    found: ResultSet,
    *,
    ordered: bool = False,
    names: bool = False,
    rel: float = FLOAT_REL,
    absolute: float = 0.0,
) -> str:
    """Why two results are not the same; empty when they are.

    Columns go by their place. Numbers are equal by value, floats within the tolerance; NULL equals
    NULL only, a text no number, true not 1; NaN equals nothing.

    Args:
        expected: the right one.
        found: the one in question.
        ordered: whether the order of the rows counts; else they are a multiset.
        names: whether the columns' names count, letter case apart.
        rel: relative tolerance of floats.
        absolute: absolute tolerance of floats.
    """
    if len(expected.rows) != len(found.rows):
        return f"{len(found.rows)} rows, expected {len(expected.rows)}"
    widths = {len(row) for row in found.rows} or {len(found.columns)}
    right = {len(row) for row in expected.rows} or {len(expected.columns)}
    if widths != right:
        return f"{max(widths)} columns, expected {max(right)}"
    if names and [n.casefold() for n in expected.columns] != [n.casefold() for n in found.columns]:
        return f"columns {', '.join(found.columns)[:200]}"

    def same(one: Sequence[Cell], other: Sequence[Cell]) -> bool:
        return all(cells_equal(a, b, rel, absolute) for a, b in zip(one, other, strict=True))

    if ordered:
        pairs = zip(expected.rows, found.rows, strict=True)
        wrong = next((n for n, pair in enumerate(pairs) if not same(*pair)), None)
        return "" if wrong is None else f"row {wrong} differs"
    loose = {
        place
        for row in (*expected.rows, *found.rows)
        for place, cell in enumerate(row)
        if isinstance(cell, float | list | dict)
    }
    left, other = _grouped(expected, loose), _grouped(found, loose)
    for key, rows in left.items():
        if len(other[key]) != len(rows):
            return "rows differ"
    for key, rows in left.items():
        if len(rows) <= MATCHED_ROWS:
            paired = len(assignment([[same(a, b) for b in other[key]] for a in rows])) == len(rows)
        else:
            both = zip(sorted(rows, key=_floats), sorted(other[key], key=_floats), strict=True)
            paired = all(same(a, b) for a, b in both)
        if not paired:
            return "rows differ"
    return ""


def cells_equal(one: Cell, other: Cell, rel: float, absolute: float) -> bool:
    """Whether two cells are the same: see `difference`."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(
            cells_equal(a, b, rel, absolute) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            cells_equal(item, other[key], rel, absolute) for key, item in one.items()
        )
    if not (_number(one) and _number(other)):
        return type(one) is type(other) and bool(one == other)
    if not (isinstance(one, float) or isinstance(other, float)):
        return bool(one == other)
    try:
        a, b = float(one), float(other)
    except OverflowError:
        return False
    if not (math.isfinite(a) and math.isfinite(b)):
        return a == b
    return math.isclose(a, b, rel_tol=rel, abs_tol=absolute)


def _number(cell: Cell) -> bool:
    return isinstance(cell, int | float | Decimal) and not isinstance(cell, bool)


def _grouped(result: ResultSet, loose: set[int]) -> defaultdict[Any, list[tuple[Cell, ...]]]:
    """Rows by everything in them that has no tolerance; `loose` are the columns that have."""
    groups: defaultdict[Any, list[tuple[Cell, ...]]] = defaultdict(list)
    for row in result.rows:
        groups[tuple(_key(cell, place in loose) for place, cell in enumerate(row))].append(row)
    return groups


def _key(cell: Cell, loose: bool) -> Any:
    """A hashable that cells share which may be equal."""
    if isinstance(cell, list | dict):
        return (type(cell).__name__, len(cell))
    if _number(cell):
        return ("number", None if loose else cell)
    return (type(cell).__name__, cell)


def _floats(row: Sequence[Cell]) -> list[tuple[int, float, str]]:
    return [
        (0, float(cell), "") if _number(cell) and abs(cell) < 2**1000 else (1, 0.0, repr(cell))
        for cell in row
    ]
