"""Does a formula, an invariant, a model or an unsatisfiable core hold: z3 and cvc5 must agree.

What the candidate wrote is read as terms over the task's symbols and written anew (`smtlib`); it is
never spliced into a script. Each obligation is the unsatisfiability of a negation. Both solvers say
unsat: it holds. Both say sat: it does not. Anything else (unknown, a limit, a disagreement) is an
abstention. `Task.answer` is one of::

    {"goal": "equivalent", "symbols": {"x": "Int"}, "formula": "(> x 2)"}
    {"goal": "invariant", "symbols": {"x": "Int"}, "init": "(= x 0)",
     "step": "(= x_next (+ x 2))", "safe": "(distinct x 7)"}
    {"goal": "model", "symbols": {"x": "Int", "y": "Int"}, "formula": "(= (+ x y) 12)"}
    {"goal": "decide", "symbols": {…}, "formulas": {"a": "…", "b": "…"}, "max_core": 3}

The candidate answers with a term, with `((x 3) (y 9))`, or with `(sat (x 3) …)` or `(unsat a b)`.
"""

from __future__ import annotations

import json
import re
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Literal, cast

from pydantic import Field

from quintain.errors import ConfigError, TaskError, VerifierError, boundary
from quintain.protocols import JudgeContext
from quintain.record import Record, digest
from quintain.task import Task
from quintain.verdict import Check, Kind, Verdict
from quintain.verifiers.smtlib import (
    BadTerm,
    Expression,
    Scope,
    Sort,
    check_name,
    one,
    sort_of,
    written,
)
from quintain.verifiers.state import expectation
from quintain.verifiers.workers import BudgetExceeded

NEXT = "_next"
"""Ends the name of a symbol's value after a step."""
CHECKED_KEPT = 1024
_FENCE = re.compile(r"^```[ \t]*([\w+-]*)[^\n]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
Symbols = dict[str, tuple[tuple[Sort, ...], Sort]]


class Question(Record):
    """What `Task.answer` says."""

    goal: Literal["equivalent", "invariant", "model", "decide"]
    symbols: dict[str, str | list[str]] = Field(min_length=1)
    """Name to sort; of a function the sorts of its arguments, then of its result."""
    formula: str = ""
    """`equivalent`: what the candidate's term must equal; `model`: what its values must satisfy."""
    assume: str = "true"
    """`equivalent`: holds of the symbols besides; it must be satisfiable."""
    init: str = ""
    step: str = ""
    """Over the symbols and, as `x_next`, their values after the step."""
    safe: str = ""
    formulas: dict[str, str] = Field(default_factory=dict)
    max_core: int = Field(default=0, ge=0)
    """`decide`: the largest core that counts; a claim without one is a coin's toss."""
    quantifiers: bool = False
    """Whether the candidate may use them."""


class Smt:
    """Checks with z3 and cvc5 what the last message says (see the module).

    Args:
        cpu_s: CPU seconds of one obligation, both solvers together; more is an abstention.
        name: the verifier's name.

    Raises:
        ConfigError: a solver is not installed, or the budget is not positive.
    """

    def __init__(self, *, cpu_s: float = 20.0, name: str = "smt") -> None:
        if not cpu_s > 0:
            raise ConfigError(f"cpu_s is positive, got {cpu_s!r}")
        missing = [name for name in ("z3", "cvc5") if find_spec(name) is None]
        if missing:
            raise ConfigError(f"smt needs {', '.join(missing)}: pip install 'quintain[smt]'")
        self.name = name
        self.kind: Kind = "formal"
        self.cpu_s = cpu_s
        self._sound: OrderedDict[str, None] = OrderedDict()

    def check_gold(self, task: Task) -> None:
        """Refuses a task whose formulas are not well-sorted terms over its symbols.

        Raises:
            TaskError: what is wrong with it.
        """
        _Goal(task)

    async def judge(self, context: JudgeContext) -> Verdict:
        """It holds, it does not, or the solvers cannot say.

        Raises:
            TaskError: the task is at fault.
            VerifierError: a solver refused a script, or a worker was lost.
        """
        began = time.monotonic()
        goal = _Goal(context.task)
        checks: list[Check] = []
        with boundary(VerifierError, f"verifier {self.name}"):
            await self._check_task(context, goal)
            try:
                obligations = goal.obligations(_said(context.trajectory.text))
            except BadTerm as error:
                checks.append(Check(name="term", passed=False, detail=str(error)))
                obligations = {}
            for name, script in obligations.items():
                holds, why = await self._holds(context, script)
                checks.append(Check(name=name, passed=holds, detail=why))
                if holds is False:
                    break
        wrong = next((check for check in checks if check.passed is False), None)
        open_ = next((check for check in checks if check.passed is None), None)
        all_checks = tuple(checks)
        if wrong is not None:
            verdict = Verdict.of(False, f"{wrong.name}: {wrong.detail}", checks=all_checks)
        elif open_ is not None:
            verdict = Verdict.abstain(f"{open_.name}: {open_.detail}", checks=all_checks)
        else:
            verdict = Verdict.of(True, "it holds; both solvers agree", checks=all_checks)
        return verdict.signed(self.name, self.kind, time.monotonic() - began)

    async def _check_task(self, context: JudgeContext, goal: _Goal) -> None:
        """What is assumed can be the case: else anything would follow from it."""
        key = digest(context.task.answer)
        if goal.premise is None or key in self._sound:
            return
        answers = await self._ask(context, goal.premise)
        if set(answers.values()) != {"sat"}:
            raise TaskError(
                f"task {context.task.id!r}: what it begins with is not satisfiable, as far as "
                f"the solvers can say ({answers})"
            )
        self._sound[key] = None
        while len(self._sound) > CHECKED_KEPT:
            self._sound.popitem(last=False)

    async def _holds(self, context: JudgeContext, script: str) -> tuple[bool | None, str]:
        answers = await self._ask(context, script)
        told = ", ".join(f"{solver}: {answer}" for solver, answer in answers.items())
        if set(answers.values()) == {"unsat"}:
            return True, ""
        if set(answers.values()) == {"sat"}:
            return False, "does not hold (both solvers have a counterexample)"
        return None, f"cannot be said ({told})"

    async def _ask(self, context: JudgeContext, script: str) -> Mapping[str, str]:
        from quintain.verifiers import smt_runner

        job = json.dumps({"script": script, "limit_ms": int(self.cpu_s * 400)})
        left = max(context.deadline - time.monotonic(), 0.001)
        try:
            text = await context.workers.run(
                smt_runner.run_text, job, cpu_s=self.cpu_s, wall_s=left
            )
        except BudgetExceeded as error:
            if error.budget != "cpu":
                raise
            return {"both": "over the CPU limit"}
        except MemoryError:
            return {"both": "out of memory"}
        answers: dict[str, str] = json.loads(text)
        for solver, answer in answers.items():
            if answer.startswith("error"):
                raise VerifierError(f"{self.name}: {solver} refused the script: {answer[:300]}")
        return answers


class _Goal:
    """A task's question, its own formulas written anew."""

    def __init__(self, task: Task) -> None:
        self.question = question = expectation(task, Question, "goal")
        try:
            self.symbols = _symbols(question)
            self.premise: str | None = None
            self.terms: dict[str, str] = {}
            self.sort: Sort = "Bool"
            getattr(self, f"_read_{question.goal}")()
        except BadTerm as error:
            raise TaskError(f"task {task.id!r}: {error}") from error

    def _own(self, text: str, what: str, symbols: Symbols | None = None) -> tuple[str, Sort]:
        scope = Scope(symbols or self.symbols, quantifiers=True, prefix=f"t{len(self.terms)}")
        try:
            return scope.term(one(text))
        except BadTerm as error:
            raise BadTerm(f"{what}: {error}") from error

    def _fact(self, name: str, text: str, symbols: Symbols | None = None) -> str:
        term, sort = self._own(text, name, symbols)
        if sort != "Bool":
            raise BadTerm(f"{name}: expected a Bool, got a {sort}")
        self.terms[name] = term
        return term

    # --- what a task says ---

    def _read_equivalent(self) -> None:
        self.terms["gold"], self.sort = self._own(self.question.formula, "formula")
        self.premise = self._script(self._fact("assume", self.question.assume))

    def _read_invariant(self) -> None:
        self.after = {f"{name}{NEXT}": kind for name, kind in self.symbols.items()}
        if self.after.keys() & self.symbols.keys():
            raise BadTerm(f"a symbol's name ends in {NEXT}")
        self._fact("step", self.question.step, {**self.symbols, **self.after})
        self._fact("safe", self.question.safe)
        self.premise = self._script(self._fact("init", self.question.init))

    def _read_model(self) -> None:
        self._fact("formula", self.question.formula)

    def _read_decide(self) -> None:
        question = self.question
        if not question.formulas or not 0 < question.max_core <= len(question.formulas):
            raise BadTerm("decide needs formulas, and max_core from 1 to their number")
        for name, text in question.formulas.items():
            self._fact(check_name(name), text)

    # --- what a candidate says ---

    def obligations(self, said: str) -> dict[str, str]:
        """Name to script that must be unsatisfiable.

        Raises:
            BadTerm: it is not what was asked for.
        """
        read = getattr(self, f"_want_{self.question.goal}")
        return cast("dict[str, str]", read(one(said)))

    def _scope(self, prefix: str = "c") -> Scope:
        return Scope(self.symbols, quantifiers=self.question.quantifiers, prefix=prefix)

    def _want_equivalent(self, given: Expression) -> dict[str, str]:
        term, _ = self._scope().term(given, self.sort)
        equal = f"(= {term} {self.terms['gold']})"
        return {"equivalent": self._script(self.terms["assume"], f"(not {equal})")}

    def _want_invariant(self, given: Expression) -> dict[str, str]:
        now, _ = self._scope().term(given, "Bool")
        later, _ = Scope(
            self.after, quantifiers=self.question.quantifiers, prefix="d"
        ).term(_renamed(given, self.symbols), "Bool")  # fmt: skip
        return {
            "holds at first": self._script(self.terms["init"], f"(not {now})"),
            "is kept": self._script(now, self.terms["step"], f"(not {later})", more=self.after),
            "is safe": self._script(now, f"(not {self.terms['safe']})"),
        }

    def _want_model(self, given: Expression) -> dict[str, str]:
        if not isinstance(given, list):
            raise BadTerm("a model is written ((name value) …)")
        return {"satisfies": self._script(*self._values(given), f"(not {self.terms['formula']})")}

    def _want_decide(self, given: Expression) -> dict[str, str]:
        if not isinstance(given, list) or not given or given[0] not in ("sat", "unsat"):
            raise BadTerm("the answer is written (sat (name value) …) or (unsat name …)")
        if given[0] == "sat":
            every = " ".join(self.terms.values())
            return {
                "satisfies": self._script(*self._values(given[1:]), f"(not (and true {every}))")
            }
        core = {str(name) for name in given[1:]}
        unknown = core - self.terms.keys()
        if unknown or not core:
            raise BadTerm(f"a core names formulas, got {', '.join(sorted(unknown)) or 'none'}")
        if len(core) > self.question.max_core:
            raise BadTerm(
                f"the core has {len(core)} formulas, {self.question.max_core} are allowed"
            )
        return {"unsatisfiable": self._script(*(self.terms[name] for name in sorted(core)))}

    def _values(self, pairs: Sequence[Expression]) -> list[str]:
        """Equations of all the symbols with plain values."""
        values: dict[str, str] = {}
        plain = Scope({})
        for pair in pairs:
            if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
                raise BadTerm("a value is written (name value)")
            name = pair[0]
            if name not in self.symbols or name in values:
                raise BadTerm(f"{name!r:.60} is not a symbol of the task, or stands there twice")
            arguments, sort = self.symbols[name]
            if arguments:
                raise BadTerm(f"{name} is a function; a model of functions cannot be given")
            values[name] = f"(= {name} {plain.term(pair[1], sort)[0]})"
        missing = self.symbols.keys() - values.keys()
        if missing:
            raise BadTerm(f"no value for {', '.join(sorted(missing))}")
        return list(values.values())

    def _script(self, *facts: str, more: Symbols | None = None) -> str:
        lines = ["(set-logic ALL)"]
        for name, (arguments, sort) in {**self.symbols, **(more or {})}.items():
            taken = " ".join(map(written, arguments))
            lines.append(f"(declare-fun {name} ({taken}) {written(sort)})")
        return "\n".join([*lines, *(f"(assert {fact})" for fact in facts)])


def _symbols(question: Question) -> Symbols:
    out: Symbols = {}
    for name, kind in question.symbols.items():
        sorts = [sort_of(text) for text in ([kind] if isinstance(kind, str) else kind)]
        if not sorts:
            raise BadTerm(f"{name} has no sort")
        out[check_name(name)] = (tuple(sorts[:-1]), sorts[-1])
    return out


def _renamed(e: Expression, symbols: Symbols, bound: frozenset[str] = frozenset()) -> Expression:
    """The term about the state after a step; bound names are no symbols of the state."""
    if isinstance(e, str):
        return f"{e}{NEXT}" if e in symbols and e not in bound else e
    if e and e[0] in ("let", "forall", "exists") and len(e) == 3 and isinstance(e[1], list):
        pairs = [pair for pair in e[1] if isinstance(pair, list) and len(pair) == 2]
        inner = bound | {str(pair[0]) for pair in pairs}
        named: list[Expression] = [
            [pair[0], _renamed(pair[1], symbols, bound) if e[0] == "let" else pair[1]]
            for pair in pairs
        ]
        return [e[0], named, _renamed(e[2], symbols, inner)]
    return [_renamed(each, symbols, bound) for each in e]


def _said(text: str) -> str:
    """The answer in a message: the last fenced block, else the whole message."""
    blocks = _FENCE.findall(text)
    return str(blocks[-1][1]) if blocks else text
