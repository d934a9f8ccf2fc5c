r"""What the hidden cases of a task look like, and how a program's output is compared.

`Task.answer` of a task for the `tests` verifier is one of

    {"entry_point": "f", "cases": [{"input": [1, 2], "expected": 3}, …]}
    {"cases": [{"stdin": "1 2\n", "stdout": "3\n"}, …], "compare": "lines"}

with an optional `"tolerance": {"rel": 1e-9, "abs": 0.0}`. A case may have further right values in
`any_of`; `"unordered": true` lets a returned list be in any order; `checker` is the source of a
function `check(given, expected, output) -> bool` over bytes that decides instead of a comparison.
"""

from __future__ import annotations

import ast
import json
import keyword
import math
from collections import Counter
from typing import Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from quintain.errors import TaskError
from quintain.record import Json, Record
from quintain.task import Task
from quintain.verifiers.plain import NotPlain, Plain, equal, from_task, pack, to_task

Comparison = Literal["exact", "lines", "tokens", "float", "set", "multiset"]
"""How a standard output is compared:

- `exact`: the same bytes;
- `lines` (the default): the same lines, after CRLF became LF and blanks at line ends and blank
  lines at the end were dropped;
- `tokens`: the same words in order, white space apart;
- `float`: as tokens, numbers within the tolerance;
- `set`, `multiset`: the same lines in any order, without or with repetitions.
"""
MAX_UNORDERED = 2_000
"""Items of an unordered list that have no equal item and are paired one by one."""
FUNCTION_REL = 1e-9
"""Relative tolerance of floats that a function returns, where the task declares none."""


class Tolerance(Record):
    """How far two floats may be apart."""

    rel: float = Field(default=0.0, ge=0, lt=1)
    abs: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class FunctionCase(Record):
    """One call: positional arguments and what it must return."""

    input: list[Json]
    expected: Json
    any_of: tuple[Json, ...] = ()
    """Further values that are right."""


class StreamCase(Record):
    """One run of the program: what it reads and what it must print."""

    stdin: str
    stdout: str
    any_of: tuple[str, ...] = ()
    """Further outputs that are right."""


class Suite(Record):
    """The hidden cases of one task."""

    entry_point: str | None = None
    """The function to call; None: the code is a program, judged by its standard output."""
    cases: tuple[FunctionCase, ...] | tuple[StreamCase, ...] = Field(min_length=1)
    compare: Comparison = "lines"
    tolerance: Tolerance | None = None
    unordered: bool = False
    """Whether a list that a function returns may be in any order (its own items, not deeper)."""
    checker: str | None = None
    """Trusted Python source that defines `check(given, expected, output)` over bytes: a program's
    input and output, or a function's arguments and results as JSON in the notation of the task. It
    runs apart, in a clean room of its own, and must accept every expected value as output."""
    allow_empty: bool = False
    """Whether an expected standard output may be blank: a program that prints nothing meets it."""

    @field_validator("entry_point")
    @classmethod
    def _a_name(cls, value: str | None) -> str | None:
        if value is not None and (not value.isidentifier() or keyword.iskeyword(value)):
            raise ValueError(f"{value!r} is not the name of a function")
        return value

    @model_validator(mode="after")
    def _cases_fit(self) -> Suite:
        wanted = FunctionCase if self.entry_point is not None else StreamCase
        if not all(isinstance(case, wanted) for case in self.cases):
            raise ValueError(
                "with an entry_point every case has input and expected, "
                "without one every case has stdin and stdout"
            )
        if self.unordered and self.entry_point is None:
            raise ValueError("'unordered' is of functions; programs compare as 'multiset'")
        if self.checker is not None:
            self._check_checker()
        if self.compare == "float" and self.tolerance is None:
            raise ValueError("comparing as 'float' needs a tolerance")
        for number, case in enumerate(self.cases):
            if isinstance(case, FunctionCase):
                self._check_plain(number, case)
            elif isinstance(case, StreamCase) and not (case.stdout.strip() or self.allow_empty):
                raise ValueError(
                    f"case {number} expects no output, which a program that does nothing prints; "
                    "set allow_empty if it is meant"
                )
        return self

    def _check_plain(self, number: int, case: FunctionCase) -> None:
        for right in (case.expected, *case.any_of):
            try:
                pack(from_task(case.input))
                expected = from_task(right)
                pack(expected)
            except (NotPlain, TypeError, RecursionError) as error:
                raise ValueError(f"case {number}: {error}") from error
            if not equal(expected, expected):
                raise ValueError(f"case {number} expects a NaN, which nothing equals")
            if self.unordered and not isinstance(expected, list | tuple):
                raise ValueError(f"case {number} expects no list, but the suite is unordered")

    def _check_checker(self) -> None:
        if self.unordered or self.tolerance or any(case.any_of for case in self.cases):
            raise ValueError("a checker decides alone: no tolerance, unordered or any_of beside it")
        try:
            tree = ast.parse(self.checker or "")
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"the checker does not parse: {error}") from error
        if not any(isinstance(n, ast.FunctionDef) and n.name == "check" for n in tree.body):
            raise ValueError("the checker defines no function 'check'")

    @property
    def mode(self) -> Literal["function", "stdin"]:
        """How the code is run."""
        return "stdin" if self.entry_point is None else "function"

    @classmethod
    def of(cls, task: Task) -> Suite:
        """The suite in a task's answer.

        Raises:
            TaskError: there is none, it is empty, or a part of it is wrong.
        """
        if not isinstance(task.answer, dict):
            raise TaskError(
                f"task {task.id!r}: expected an answer with 'cases' (and 'entry_point' for a "
                f"function), got {type(task.answer).__name__}"
            )
        if not task.answer.get("cases"):
            raise TaskError(
                f"task {task.id!r}: the suite has no cases; an empty suite proves nothing"
            )
        try:
            return cls.model_validate(task.answer)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"] if not isinstance(part, type))
            raise TaskError(f"task {task.id!r}: answer {where}: {first['msg']}") from error


def values_agree(suite: Suite, case: FunctionCase, answer: Plain) -> bool:
    """Whether a function's answer is a right value, within the suite's tolerance."""
    tolerance = suite.tolerance or Tolerance(rel=FUNCTION_REL)
    for right in (case.expected, *case.any_of):
        expected = from_task(right)
        if suite.unordered:
            agree = _same_items(expected, answer, tolerance)
        else:
            agree = equal(expected, answer, rel=tolerance.rel, absolute=tolerance.abs)
        if agree:
            return True
    return False


def _same_items(expected: Plain, answer: Plain, tolerance: Tolerance) -> bool:
    """Whether two lists hold the same items, each as often."""
    kinds = (tuple,) if isinstance(expected, tuple) else (list, tuple)
    if type(answer) not in kinds or len(expected) != len(answer):
        return False
    wanted, given = Counter(map(_key, expected)), Counter(map(_key, answer))
    left = _beyond(expected, given)
    right = _beyond(answer, wanted)
    if {type(item) for item in (*left, *right)} <= {int, float}:
        # In order of size, if any pairing is close enough then this one is.
        left, right = sorted(left), sorted(right)
        pairs = zip(left, right, strict=True)
        return all(equal(a, b, rel=tolerance.rel, absolute=tolerance.abs) for a, b in pairs)
    if len(left) > MAX_UNORDERED:
        return False
    for item in left:
        found = next(
            (
                place
                for place, other in enumerate(right)
                if equal(item, other, rel=tolerance.rel, absolute=tolerance.abs)
            ),
            None,
        )
        if found is None:
            return False
        del right[found]
    return True


def _key(item: Plain) -> str:
    return repr(item)


def _beyond(items: Plain, others: Counter[str]) -> list[Plain]:
    """The items that are not among the others, as often as they are not."""
    left = Counter(others)
    out = []
    for item in items:
        key = _key(item)
        if left[key] > 0:
            left[key] -= 1
        else:
            out.append(item)
    return out


def checked_bytes(case: FunctionCase | StreamCase, output: Plain) -> tuple[bytes, bytes, bytes]:
    """What a checker gets: input, expected and output.

    Raises:
        NotPlain: the output has no notation.
    """
    if isinstance(case, StreamCase):
        return case.stdin.encode(), case.stdout.encode(), output
    texts = (json.dumps(case.input), json.dumps(case.expected), json.dumps(to_task(output)))
    given, expected, said = (text.encode() for text in texts)
    return given, expected, said


def outputs_agree(suite: Suite, case: StreamCase, output: bytes) -> bool:
    """Whether a program's output is a right one, as the suite compares."""
    return any(_agrees(suite, right, output) for right in (case.stdout, *case.any_of))


def _agrees(suite: Suite, expected: str, output: bytes) -> bool:
    if suite.compare == "exact":
        return output == expected.encode()
    try:
        text = output.decode()
    except UnicodeDecodeError:
        return False
    match suite.compare:
        case "lines":
            return _lines(text) == _lines(expected)
        case "tokens":
            return text.split() == expected.split()
        case "set":
            return set(_lines(text)) == set(_lines(expected))
        case "multiset":
            return Counter(_lines(text)) == Counter(_lines(expected))
        case _:
            return _close_tokens(suite.tolerance or Tolerance(), expected.split(), text.split())


def _lines(text: str) -> list[str]:
    lines = [line.rstrip(" \t\r") for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _close_tokens(tolerance: Tolerance, expected: list[str], found: list[str]) -> bool:
    if len(expected) != len(found):
        return False
    return all(
        one == other or _close(tolerance, one, other)
        for one, other in zip(expected, found, strict=True)
    )


def _close(tolerance: Tolerance, one: str, other: str) -> bool:
    try:
        wanted, given = float(one), float(other)
    except ValueError:
        return False
    if not (math.isfinite(wanted) and math.isfinite(given)):
        return False
    return math.isclose(wanted, given, rel_tol=tolerance.rel, abs_tol=tolerance.abs)
