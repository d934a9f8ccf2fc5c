"""Rules of form, and likeness to a reference: heuristics, cheap and easily met by the wrong text.

Both say `kind="heuristic"`: put them behind something formal (`gated`). Regular expressions and
measures run in a killable worker, so that a text made to be slow costs its own budget and fails.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from quintain.errors import ConfigError, TaskError, VerifierError, boundary
from quintain.protocols import JudgeContext
from quintain.task import Task
from quintain.verdict import Check, Kind, Verdict
from quintain.verifiers.workers import BudgetExceeded

Measure = Literal["f1", "rouge_l", "chars"]
MAX_TOKENS = 5_000
GRAM = 4
_WORD = re.compile(r"\w+")


class Rules:
    """Checks the form of the last message.

    Args:
        must: regular expressions that must be found.
        must_not: regular expressions that must not.
        min_chars: fewest characters, blanks at the ends apart.
        max_chars: most characters.
        max_repetition: largest share of the text's four-word runs that any one of them may have;
            1: no bound.
        cpu_s: budget for the expressions on one text; a text that uses it up fails.
        name: the verifier's name.

    Raises:
        ConfigError: an expression is malformed, or a number is out of range.
    """

    def __init__(
        self,
        *,
        must: Sequence[str] = (),
        must_not: Sequence[str] = (),
        min_chars: int = 1,
        max_chars: int = 100_000,
        max_repetition: float = 1.0,
        cpu_s: float = 1.0,
        name: str = "rules",
    ) -> None:
        for pattern in (*must, *must_not):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(f"the expression {pattern!r}: {error}") from error
        if not (0 <= min_chars <= max_chars and 0 < max_repetition <= 1 and cpu_s > 0):
            raise ConfigError(
                "min_chars is not above max_chars, max_repetition in (0, 1], cpu_s positive"
            )
        self.name = name
        self.kind: Kind = "heuristic"
        self.must, self.must_not = tuple(must), tuple(must_not)
        self.min_chars, self.max_chars = min_chars, max_chars
        self.max_repetition = max_repetition
        self.cpu_s = cpu_s

    async def judge(self, context: JudgeContext) -> Verdict:
        """All rules met, or not.

        Raises:
            VerifierError: a worker was lost, or time ran out by the clock.
        """
        began = time.monotonic()
        text = context.trajectory.text.strip()
        checks = [
            Check(
                name="length",
                passed=self.min_chars <= len(text) <= self.max_chars,
                detail=f"{len(text)} characters",
            )
        ]
        if checks[0].passed:
            with boundary(VerifierError, f"verifier {self.name}"):
                checks += await self._rest(context, text)
        wrong = next((check for check in checks if not check.passed), None)
        return Verdict.of(
            wrong is None,
            f"{wrong.name}: {wrong.detail}" if wrong else "all rules met",
            checks=tuple(checks),
        ).signed(self.name, self.kind, time.monotonic() - began)

    async def _rest(self, context: JudgeContext, text: str) -> list[Check]:
        left = max(context.deadline - time.monotonic(), 0.001)
        try:
            found, share = await context.workers.run(
                look, text, (*self.must, *self.must_not), cpu_s=self.cpu_s, wall_s=left
            )
        except BudgetExceeded as error:
            if error.budget != "cpu":
                raise
            return [Check(name="budget", passed=False, detail="the text took too long to read")]
        checks = [
            Check(
                name=f"{'must' if number < len(self.must) else 'must not'} {pattern[:80]}",
                passed=there == (number < len(self.must)),
                detail="found" if there else "not found",
            )
            for number, (pattern, there) in enumerate(
                zip((*self.must, *self.must_not), found, strict=True)
            )
        ]
        if self.max_repetition < 1:
            told = f"one run of words is {share:.0%} of the text"
            passed = share <= self.max_repetition
            checks.append(Check(name="repetition", passed=passed, detail=told))
        return checks


def look(text: str, patterns: Sequence[str]) -> tuple[list[bool], float]:
    """Which patterns are found, and the share of the commonest four-word run; in a worker."""
    found = [re.search(pattern, text) is not None for pattern in patterns]
    words = _WORD.findall(text.casefold())
    runs = Counter(tuple(words[n : n + GRAM]) for n in range(len(words) - GRAM + 1))
    total = runs.total()
    return found, max(runs.values()) / total if total > GRAM else 0.0


class Similarity:
    """How like a reference the last message is.

    `Task.answer` is the reference, or a list of them, of which the likest counts. A text that is
    liker to the task's own prompt than to the reference is an echo and gets 0.

    Args:
        measure: `f1` of the words as a multiset, `rouge_l` (longest common subsequence of words),
            or `chars` (F1 of runs of three characters).
        threshold: reward 1 from this likeness on, else 0; None: the likeness itself, for an
            environment that says `graded=True`.
        cpu_s: budget of one text; a text that uses it up fails.
        name: the verifier's name.

    Raises:
        ConfigError: an option is wrong.
    """

    def __init__(
        self,
        measure: Measure = "f1",
        *,
        threshold: float | None = 0.8,
        cpu_s: float = 5.0,
        name: str = "similarity",
    ) -> None:
        if measure not in MEASURES:
            raise ConfigError(f"measure is one of {', '.join(MEASURES)}, got {measure!r}")
        if threshold is not None and not 0 < threshold <= 1:
            raise ConfigError(f"threshold is in (0, 1], got {threshold!r}")
        self.name = name
        self.kind: Kind = "heuristic"
        self.measure: Measure = measure
        self.threshold = threshold
        self.cpu_s = cpu_s

    def check_gold(self, task: Task) -> None:
        """Refuses a task without a reference that has words.

        Raises:
            TaskError: it has none.
        """
        self._references(task)

    def _references(self, task: Task) -> list[str]:
        given = task.answer if isinstance(task.answer, list) else [task.answer]
        if not given or not all(isinstance(text, str) and tokens(text) for text in given):
            raise TaskError(
                f"task {task.id!r}: a reference is a text with words, got {given!r:.99}"
            )
        return given

    async def judge(self, context: JudgeContext) -> Verdict:
        """The likeness, or whether it suffices.

        Raises:
            TaskError: there is no reference.
            VerifierError: a worker was lost, or time ran out by the clock.
        """
        began = time.monotonic()
        references = self._references(context.task)
        prompt = "\n".join(message.text for message in context.task.prompt)
        left = max(context.deadline - time.monotonic(), 0.001)
        with boundary(VerifierError, f"verifier {self.name}"):
            try:
                likeness, echo = await context.workers.run(
                    *(liken, context.trajectory.text, references, prompt, self.measure),
                    cpu_s=self.cpu_s,
                    wall_s=left,
                )
            except BudgetExceeded as error:
                if error.budget != "cpu":
                    raise
                likeness, echo = 0.0, 0.0
        told = f"{self.measure} {likeness:.3f}"
        if echo > likeness:
            told, likeness = f"an echo of the prompt ({echo:.3f} against {likeness:.3f})", 0.0
        passed = likeness >= (1.0 if self.threshold is None else self.threshold)
        return Verdict(
            reward=likeness if self.threshold is None else float(passed),
            passed=passed,
            score=likeness,
            checks=(Check(name=self.measure, passed=passed, detail=told),),
            explanation=told,
        ).signed(self.name, self.kind, time.monotonic() - began)


def liken(
    text: str, references: Sequence[str], prompt: str, measure: Measure
) -> tuple[float, float]:
    """Likeness to the likest reference, and to the prompt; in a worker."""
    like = MEASURES[measure]
    return max(like(text, reference) for reference in references), like(text, prompt)


def tokens(text: str) -> list[str]:
    """The words of a text, in one form of letters and case."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def _f1(common: float, one: int, other: int) -> float:
    return 2 * common / (one + other) if one + other else 0.0


def word_f1(text: str, reference: str) -> float:
    """F1 of the words as multisets."""
    one, other = Counter(tokens(text)), Counter(tokens(reference))
    return _f1((one & other).total(), one.total(), other.total())


def rouge_l(text: str, reference: str) -> float:
    """F1 of the longest common subsequence of words (Lin, 2004); 0 for over-long texts."""
    one, other = tokens(text), tokens(reference)
    if len(one) > MAX_TOKENS or len(other) > MAX_TOKENS:
        return 0.0
    before = [0] * (len(other) + 1)
    for word in one:
        row = [0]
        for place, wanted in enumerate(other):
            row.append(before[place] + 1 if word == wanted else max(row[-1], before[place + 1]))
        before = row
    return _f1(before[-1], len(one), len(other))


def char_f1(text: str, reference: str) -> float:
    """F1 of the runs of three characters as multisets."""
    one, other = (
        Counter(joined[n : n + 3] for n in range(len(joined) - 2))
        for joined in (f" {' '.join(tokens(given))} " for given in (text, reference))
    )
    return _f1((one & other).total(), one.total(), other.total())


MEASURES = {"f1": word_f1, "rouge_l": rouge_l, "chars": char_f1}
