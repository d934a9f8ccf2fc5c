r"""What the hidden cases of a task look like, and how a program's output is compared.

`Task.answer` of a task for the `tests` verifier is one of

    {"entry_point": "f", "cases": [{"input": [1, 2], "expected": 3}, …]}
    {"cases": [{"stdin": "1 2\n", "stdout": "3\n"}, …], "compare": "lines"}

with an optional `"tolerance": {"rel": 1e-9, "abs": 0.0}`.
"""

from __future__ import annotations

import keyword
import math
from collections import Counter
from typing import Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from quintain.errors import TaskError
from quintain.record import Json, Record
from quintain.task import Task
from quintain.verifiers.plain import NotPlain, Plain, equal, from_task, pack

Comparison = Literal["exact", "lines", "tokens", "float", "set", "multiset"]
"""How a standard output is compared:

- `exact`: the same bytes;
- `lines` (the default): the same lines, after CRLF became LF and blanks at line ends and blank
  lines at the end were dropped;
- `tokens`: the same words in order, white space apart;
- `float`: as tokens, numbers within the tolerance;
- `set`, `multiset`: the same lines in any order, without or with repetitions.
"""
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


class StreamCase(Record):
    """One run of the program: what it reads and what it must print."""

    stdin: str
    stdout: str


class Suite(Record):
    """The hidden cases of one task."""

    entry_point: str | None = None
    """The function to call; None: the code is a program, judged by its standard output."""
    cases: tuple[FunctionCase, ...] | tuple[StreamCase, ...] = Field(min_length=1)
    compare: Comparison = "lines"
    tolerance: Tolerance | None = None
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
        try:
            pack(from_task(case.input))
            expected = from_task(case.expected)
            pack(expected)
        except (NotPlain, TypeError, RecursionError) as error:
            raise ValueError(f"case {number}: {error}") from error
        if not equal(expected, expected):
            raise ValueError(f"case {number} expects a NaN, which nothing equals")

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


def values_agree(suite: Suite, expected: Json, answer: Plain) -> bool:
    """Whether a function's answer is the expected value, within the suite's tolerance."""
    tolerance = suite.tolerance or Tolerance(rel=FUNCTION_REL)
    return equal(from_task(expected), answer, rel=tolerance.rel, absolute=tolerance.abs)


def outputs_agree(suite: Suite, expected: str, output: bytes) -> bool:
    """Whether a program's output is the expected one, as the suite compares."""
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
