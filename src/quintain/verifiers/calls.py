"""Were the right functions called with the right arguments: exact types, no more, no less.

Calls are those that the policy made (its messages' tool calls, never what a text says of calls), or
with `source="text"` those that its last message writes down, as JSON or in Python's notation. Text
is parsed, never evaluated. The semantics follow the Berkeley Function-Calling Leaderboard: each
argument has one or several right values, some may be left out, and anything further is wrong.

`Task.answer` is

    {"calls": [{"name": "book", "arguments": {"seats": 2, "class": "first"},
                "alternatives": {"city": ["Paris", "Paris, FR"]}, "optional": ["class"]}],
     "order": "any", "ignore": ["search"]}

or `{"no_calls": true}` where the right thing is to call nothing. `{"$float": …}` and the other tags
of `plain` stand for what JSON lacks.
"""

from __future__ import annotations

import ast
import json
import re
import time
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from quintain.errors import ConfigError, TaskError, VerifierError, boundary
from quintain.protocols import JudgeContext
from quintain.record import Json, Record
from quintain.task import Task
from quintain.verdict import Check, Kind, Verdict
from quintain.verifiers.matching import assignment
from quintain.verifiers.plain import NotPlain, equal, from_task
from quintain.verifiers.workers import BudgetExceeded

MAX_TEXT_CHARS = 50_000
MAX_CALLS = 200
MAX_DEPTH = 50
_FENCE = re.compile(r"```[ \t]*[\w+-]*[^\n]*\n(.*?)```", re.DOTALL)
_LOOSE = re.compile(r"[\s,./\-_*^]+")


class ExpectedCall(Record):
    """One call that must be made."""

    name: str = Field(min_length=1)
    arguments: dict[str, Json] = Field(default_factory=dict)
    """With the one right value."""
    alternatives: dict[str, list[Json]] = Field(default_factory=dict)
    """With several right values."""
    optional: tuple[str, ...] = ()
    """Of these arguments, those that may be left out."""

    @model_validator(mode="after")
    def _whole(self) -> ExpectedCall:
        known = {*self.arguments, *self.alternatives}
        if set(self.arguments) & set(self.alternatives):
            raise ValueError(f"{self.name}: an argument has one value or alternatives, not both")
        if unknown := set(self.optional) - known:
            raise ValueError(f"{self.name}: no value is given for optional {sorted(unknown)}")
        for name, values in self.alternatives.items():
            if not values:
                raise ValueError(f"{self.name}: {name} has no alternatives")
        return self

    def values(self, name: str) -> list[Json]:
        """The right values of an argument."""
        return self.alternatives[name] if name in self.alternatives else [self.arguments[name]]

    @property
    def names(self) -> set[str]:
        """All arguments that it may have."""
        return {*self.arguments, *self.alternatives}


class ExpectedCalls(Record):
    """What `Task.answer` says."""

    calls: tuple[ExpectedCall, ...] = Field(default=(), max_length=MAX_CALLS)
    order: Literal["exact", "any"] = "exact"
    ignore: tuple[str, ...] = ()
    """Functions that may be called besides, as often as one likes (look-ups)."""
    no_calls: bool = False
    """Whether calling nothing is right; what `ignore` names may be called."""

    @model_validator(mode="after")
    def _something(self) -> ExpectedCalls:
        if self.no_calls == bool(self.calls):
            raise ValueError("give calls, or no_calls=true where none must be made")
        for call in self.calls:
            if call.name in self.ignore:
                raise ValueError(f"{call.name} is expected and ignored")
        return self

    @classmethod
    def of(cls, task: Task) -> ExpectedCalls:
        """The expectation of a task.

        Raises:
            TaskError: it is missing or malformed.
        """
        if not isinstance(task.answer, dict):
            raise TaskError(
                f"task {task.id!r}: expected an answer with 'calls', got {task.answer!r:.100}"
            )
        try:
            expected = cls.model_validate(task.answer)
            for call in expected.calls:
                for name in call.names:
                    for value in call.values(name):
                        if not equal(plain := from_task(value), plain):
                            raise NotPlain(f"{call.name}.{name}: {value!r} does not equal itself")
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise TaskError(f"task {task.id!r}: answer {where}: {first['msg']}") from error
        except NotPlain as error:
            raise TaskError(f"task {task.id!r}: answer: {error}") from error
        return expected


Made = tuple[str, dict[str, Any]]
"""A call: the name and its arguments."""


class Calls:
    """Compares the calls with those in `Task.answer` (see the module).

    Args:
        source: `trajectory`: the tool calls of all the policy's messages; `text`: what the last
            message writes down.
        text: how strings compare: `exact`, or `loose`: letter case, blanks and `,./-_*^` apart.
        tolerance: largest relative difference of floats; where a float is expected, an int of that
            value counts. Otherwise types are exact: `"5"` and `true` are no numbers.
        failed: whether calls that could not be read, or that a tool answered with an error,
            `count` as made (and are wrong where they are not expected) or are to `ignore`.
        cpu_s: budget for reading one text.
        name: the verifier's name.

    Raises:
        ConfigError: an option is wrong.
    """

    def __init__(
        self,
        *,
        source: Literal["trajectory", "text"] = "trajectory",
        text: Literal["exact", "loose"] = "exact",
        tolerance: float = 0.0,
        failed: Literal["count", "ignore"] = "count",
        cpu_s: float = 2.0,
        name: str = "calls",
    ) -> None:
        for option, value, known in (
            ("source", source, ("trajectory", "text")),
            ("text", text, ("exact", "loose")),
            ("failed", failed, ("count", "ignore")),
        ):
            if value not in known:
                raise ConfigError(f"{option} is one of {', '.join(known)}, got {value!r}")
        if not 0 <= tolerance < 1:
            raise ConfigError(f"tolerance is in [0, 1), got {tolerance!r}")
        self.name = name
        self.kind: Kind = "formal"
        self.source = source
        self.text = text
        self.tolerance = tolerance
        self.failed = failed
        self.cpu_s = cpu_s

    def check_gold(self, task: Task) -> None:
        """Refuses a task whose calls are missing or malformed.

        Raises:
            TaskError: what is wrong with them.
        """
        ExpectedCalls.of(task)

    async def judge(self, context: JudgeContext) -> Verdict:
        """All expected calls made, and no others.

        Raises:
            TaskError: the expectation is at fault.
            VerifierError: the text could not be read in time by the clock.
        """
        began = time.monotonic()
        expected = ExpectedCalls.of(context.task)
        with boundary(VerifierError, f"verifier {self.name}"):
            if self.source == "trajectory":
                made, why = self._made(context), ""
            else:
                made, why = await self._written(context)
        if why:
            checks = [Check(name="calls", passed=False, detail=why)]
        else:
            kept = [call for call in made if call[0] not in expected.ignore]
            checks = self._compare(expected, kept)
        wrong = next((check for check in checks if not check.passed), None)
        explanation = f"{wrong.name}: {wrong.detail}" if wrong else "the right calls, and no others"
        return Verdict.of(
            wrong is None,
            explanation,
            checks=tuple(checks),
            metrics={"calls": float(len(made)), "calls_expected": float(len(expected.calls))},
        ).signed(self.name, self.kind, time.monotonic() - began)

    # --- what was called ---

    def _made(self, context: JudgeContext) -> list[Made]:
        made: list[Made] = []
        for step in context.trajectory.steps:
            results = [r for message in step.observation.messages for r in message.tool_results]
            refused = {result.call_id for result in results if result.is_error}
            for call in step.action.message.tool_calls:
                if self.failed == "ignore" and (call.error or call.id in refused):
                    continue
                # A call that could not be read is none that is expected.
                made.append((f"(unreadable) {call.name}" if call.error else call.name,
                             call.arguments))  # fmt: skip
        return made

    async def _written(self, context: JudgeContext) -> tuple[list[Made], str]:
        text = context.trajectory.text
        if len(text) > MAX_TEXT_CHARS:
            return [], f"the text has more than {MAX_TEXT_CHARS} characters"
        left = max(context.deadline - time.monotonic(), 0.001)
        try:
            return await context.workers.run(read_calls, text, cpu_s=self.cpu_s, wall_s=left)
        except BudgetExceeded as error:
            if error.budget != "cpu":
                raise
            return [], "reading the text took too long"

    # --- comparison ---

    def _compare(self, expected: ExpectedCalls, made: Sequence[Made]) -> list[Check]:
        if len(made) > MAX_CALLS:
            return [Check(name="calls", passed=False, detail=f"more than {MAX_CALLS} calls")]
        right = [[self.difference(want, call) for call in made] for want in expected.calls]
        if expected.order == "exact":
            pairs = {i: i for i in range(min(len(made), len(right))) if not right[i][i]}
        else:
            pairs = assignment([[not difference for difference in row] for row in right])
        checks = []
        for number, want in enumerate(expected.calls):
            detail = "" if number in pairs else "not called as expected"
            if not detail or not right[number]:
                pass
            elif expected.order == "exact" and number < len(made):
                detail = right[number][number]
            elif near := [why for why, call in zip(right[number], made, strict=True)
                          if call[0] == want.name]:  # fmt: skip
                detail = near[0] or "another call takes its place"
            checks.append(
                Check(name=f"call {number} {want.name}", passed=not detail, detail=detail)
            )
        extra = [made[i][0] for i in range(len(made)) if i not in set(pairs.values())]
        checks.append(
            Check(
                name="no others",
                passed=not extra,
                detail=f"also called: {', '.join(extra)[:500]}" if extra else "",
            )
        )
        return checks

    def difference(self, want: ExpectedCall, made: Made) -> str:
        """Why a call is not the expected one; empty when it is."""
        name, arguments = made
        if name != want.name:
            return f"{name[:100]!r} was called"
        if unknown := sorted(set(arguments) - want.names):
            return f"unexpected argument {unknown[0][:100]!r}"
        for argument in sorted(want.names):
            if argument not in arguments:
                if argument not in want.optional:
                    return f"argument {argument!r} is missing"
            elif not any(self._same(v, arguments[argument]) for v in want.values(argument)):
                return f"argument {argument!r} is {arguments[argument]!r:.100}"
        return ""

    def _same(self, expected: Json, given: Any) -> bool:
        wanted = from_task(expected)
        if self.text == "loose":
            wanted, given = _loose(wanted), _loose(given)
        return equal(wanted, given, rel=self.tolerance)


def _loose(value: Any) -> Any:
    """The value with its strings (not its keys) brought to one form."""
    if isinstance(value, str):
        return _LOOSE.sub("", value).casefold()
    if isinstance(value, list | tuple):
        return [_loose(item) for item in value]
    if isinstance(value, dict):
        return {key: _loose(item) for key, item in value.items()}
    return value


# --- text, in a worker ---


class _NoCalls(ValueError):
    """The text holds no calls."""


def read_calls(text: str) -> tuple[list[Made], str]:
    """The calls that a text writes down, and why there are none where it cannot be read.

    The last fenced block counts, or the whole text: a JSON object or list of objects with `name`
    and `arguments`, or Python calls with keyword arguments whose values are literals.
    """
    blocks = _FENCE.findall(text)
    body = (blocks[-1] if blocks else text).strip()
    try:
        return (_json_calls(body) if body.startswith(("{", "[{")) or body == "[]"
                else _python_calls(body)), ""  # fmt: skip
    except _NoCalls as error:
        return [], str(error)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        return [], f"the text holds no readable calls ({type(error).__name__})"


def _json_calls(text: str) -> list[Made]:
    value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    calls: list[Made] = []
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, dict) or set(item) - {"name", "arguments"} or "name" not in item:
            raise _NoCalls("a call is an object of name and arguments")
        name, arguments = item["name"], item.get("arguments", {})
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise _NoCalls("a call's name is a text and its arguments an object")
        calls.append((name, arguments))
    return calls


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise _NoCalls("an object has a key twice")
    return made


def _constant(name: str) -> Any:
    raise _NoCalls(f"{name} is not JSON")


def _python_calls(text: str) -> list[Made]:
    body = ast.parse(text, mode="eval").body
    nodes = body.elts if isinstance(body, ast.List | ast.Tuple) else [body]
    return [_python_call(node) for node in nodes]


def _python_call(node: ast.expr) -> Made:
    if not isinstance(node, ast.Call):
        raise _NoCalls("the text is not a list of calls")
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        raise _NoCalls("arguments are given by name")
    names = [str(keyword.arg) for keyword in node.keywords]
    if len(set(names)) < len(names):
        raise _NoCalls("an argument is given twice")
    values = [_literal(keyword.value, 0) for keyword in node.keywords]
    return _dotted(node.func), dict(zip(names, values, strict=True))


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise _NoCalls("a function is given by its name")


def _literal(node: ast.expr, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise _NoCalls("an argument is nested too deeply")
    match node:
        case ast.Constant(value=value) if isinstance(value, str | int | float) or value is None:
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) if type(value) in (
            int,
            float,
        ):
            return -value  # type: ignore[operator]
        case ast.List(elts=elements):
            return [_literal(element, depth + 1) for element in elements]
        case ast.Tuple(elts=elements):
            return tuple(_literal(element, depth + 1) for element in elements)
        case ast.Dict(keys=keys, values=values):
            pairs = [
                (_literal(key, depth + 1), _literal(value, depth + 1))
                for key, value in zip(keys, values, strict=True)
                if key is not None
            ]
            if len(pairs) < len(keys) or not all(isinstance(key, str) for key, _ in pairs):
                raise _NoCalls("a dictionary has texts as keys")
            return _object(pairs)
    raise _NoCalls("an argument is not a literal")
