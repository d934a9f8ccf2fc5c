"""Is the final answer right: an extracted text against the gold answer, compared as its kind.

Most answers are settled here in microseconds by exact forms without any dependency. What those
leave open goes to a worker process that compares values to many digits (extra `math`); what even
that leaves open abstains. Nothing a candidate writes is evaluated as code, and a text over a cap on
length, digits, depth or time fails: it is the candidate's own.

A gold answer must be readable as its kind and equal to itself (`check_gold`): a gold that is not
is an error of the task, never a reward.
"""

from __future__ import annotations

import math
import re
import time
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Literal, get_args

from quintain.errors import ConfigError, TaskError, VerifierError
from quintain.protocols import JudgeContext
from quintain.record import Json
from quintain.task import Task
from quintain.verdict import Check, Kind, Verdict
from quintain.verifiers import exact
from quintain.verifiers.extract import WAYS, extract
from quintain.verifiers.grammar import Node, parse
from quintain.verifiers.mathematics import Decided, Percent, Rules, same
from quintain.verifiers.notation import MAX_CHARS, NotMath, TooLarge
from quintain.verifiers.workers import BudgetExceeded

AnswerKind = Literal[
    "auto", "exact", "text", "choice", "number", "math", "set", "list", "tuple", "interval",
    "equation", "matrix", "date",
]  # fmt: skip
MAX_CHECKED = 10_000
_INTEGER = re.compile(r"-?\d{1,400}")
_DECIMAL = re.compile(r"-?\d{0,400}\.\d{1,400}")
_FRACTION = re.compile(
    r"(-?)(?:\\[dtc]?frac\{(-?\d{1,400})\}\{(\d{1,400})\}|(\d{1,400})/(\d{1,400}))"
)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_DECIMAL_COMMA = re.compile(r"(-?\s{0,3}\d+),(\d{1,2}|\d{4,})([^\d,()\[\]{}]*)")
_MONEY = re.compile(r"(-?\d[\d.,]*)\s*\\?[$€£][\s.a-zA-Z]{0,20}")
_WORDS = re.compile(r"[A-Za-z][A-Za-z][A-Za-z '\-]*[.!]?")
_DATES = (
    "%Y-%m-%d", "%d %B %Y", "%d %b %Y", "%B %d %Y", "%b %d %Y", "%Y/%m/%d", "%d.%m.%Y",
)  # fmt: skip
_SHAPES: dict[str, tuple[str, ...]] = {
    "set": ("set", "list"), "list": ("list", "tuple"), "tuple": ("tuple", "list"),
    "interval": ("tuple", "cup", "rel", "set"), "equation": ("rel", "def"),
    "matrix": ("matrix", "mul", "add"),
}  # fmt: skip


class Answer:
    r"""Compares the answer in the policy's last message with `Task.answer`.

    Args:
        kind: how to compare. `auto`: mathematics, and words where the gold is words; `exact`: the
            same characters; `text`: the same words, letter case and punctuation apart; `choice`: a
            letter or one of `choices`; `number`: written out, not as a sum to do; `math`: any
            expression of that value; `set`, `list` and `tuple` (the last two ordered),
            `interval`, `equation`, `matrix`; `date`.
        extraction: `auto`, `last_box`, `after_marker`, `final_line`, `last_math`, `last_number`,
            `whole`, or a regular expression (its last match, first group).
        choices: what a `choice` may be; empty: the letters A to Z.
        percent: see `Rules.percent`.
        tolerance: largest relative difference of numbers; 0: exact.
        absolute: largest absolute difference of numbers; 0: exact.
        rounding: whether a decimal counts that is the exact gold rounded (see `Rules`).
        cpu_s: budget of one answer in a worker.
        key: where the gold is, when `Task.answer` is an object.
        name: the verifier's name.

    Raises:
        ConfigError: an option is wrong.
    """

    def __init__(
        self,
        kind: AnswerKind = "auto",
        *,
        extraction: str = "auto",
        choices: tuple[str, ...] = (),
        percent: Percent = "gold",
        tolerance: float = 0.0,
        absolute: float = 0.0,
        rounding: bool = True,
        cpu_s: float = 2.0,
        key: str = "answer",
        name: str = "answer",
    ) -> None:
        if kind not in get_args(AnswerKind):
            raise ConfigError(f"kind is one of {', '.join(get_args(AnswerKind))}, got {kind!r}")
        if percent not in get_args(Percent):
            raise ConfigError(f"percent is one of {', '.join(get_args(Percent))}, got {percent!r}")
        for option, value in (("tolerance", tolerance), ("absolute", absolute)):
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{option} is finite and not negative, got {value!r}")
        if extraction not in WAYS:
            if re.fullmatch(r"[a-z_]+", extraction):
                raise ConfigError(
                    f"extraction is one of {', '.join(WAYS)} or a regular expression, "
                    f"got {extraction!r}"
                )
            try:
                re.compile(extraction)
            except re.error as error:
                raise ConfigError(f"extraction {extraction!r}: {error}") from error
        self.name = name
        self.kind: Kind = "formal"
        self.compares = kind
        self.extraction = extraction
        self.choices = tuple(choices)
        self.cpu_s = cpu_s
        self.key = key
        self._checked: set[str] = set()
        self.rules = Rules(
            percent=percent,
            tolerance=tolerance,
            absolute=absolute,
            ordered=kind in ("list", "tuple"),
            rational_digits=2 if rounding else 0,
            irrational_digits=6 if rounding else 0,
        )

    # --- the gold ---

    def gold(self, task: Task) -> str:
        """The gold answer as text.

        Raises:
            TaskError: there is none, or it is of a type that has no text.
        """
        value = task.answer.get(self.key) if isinstance(task.answer, dict) else task.answer
        text = self._gold_text(value)
        if text is None:
            raise TaskError(
                f"task {task.id!r}: the gold answer is {value!r}; expected a text, a finite number"
                " or a list of these"
            )
        inner = extract(text, "auto", lenient=True) if self._reads_math else None
        return (inner or text).strip()

    def _gold_text(self, value: Json) -> str | None:
        if isinstance(value, str):
            return value.strip() or None
        if isinstance(value, bool):
            return str(value) if self.compares in ("auto", "text", "choice", "exact") else None
        if isinstance(value, int):
            return str(value) if abs(value) < 10**4000 else None
        if isinstance(value, float):
            return _positional(value) if math.isfinite(value) else None
        if isinstance(value, list) and value:
            parts = [self._gold_text(item) for item in value]
            if None in parts:
                return None
            joined = ", ".join(part for part in parts if part is not None)
            return f"({joined})" if self.compares == "tuple" else joined
        return None

    @property
    def _reads_math(self) -> bool:
        return self.compares not in ("exact", "text", "choice", "date")

    def check_gold(self, task: Task) -> None:
        """Refuses a task whose gold answer cannot be compared.

        Raises:
            TaskError: it is missing, unreadable as its kind, or not equal to itself.
        """
        gold = self.gold(task)
        if gold in self._checked:
            return
        if self.compares == "number" and self._number(gold) is None:
            raise TaskError(f"task {task.id!r}: the gold answer {gold!r} is not a number")
        wanted = _SHAPES.get(self.compares)
        if wanted:
            node = self._tree(gold)
            if node is None or node[0] not in wanted:
                raise TaskError(
                    f"task {task.id!r}: the gold answer {gold!r} does not read as a {self.compares}"
                )
        if self._compare(gold, gold) is not True:
            raise TaskError(
                f"task {task.id!r}: the gold answer {gold!r} is not equal to itself as "
                f"{self.compares}"
            )
        if len(self._checked) >= MAX_CHECKED:
            self._checked.clear()
        self._checked.add(gold)

    # --- the verdict ---

    async def judge(self, context: JudgeContext) -> Verdict:
        """Right, wrong, or undecided.

        Raises:
            TaskError: the task's gold answer is at fault.
            VerifierError: a worker failed.
        """
        began = time.monotonic()
        verdict = await self._judge(context)
        return verdict.model_copy(
            update={"verifier": self.name, "kind": self.kind, "wall_s": time.monotonic() - began}
        )

    async def _judge(self, context: JudgeContext) -> Verdict:
        self.check_gold(context.task)
        gold = self.gold(context.task)
        found = extract(context.trajectory.text, self.extraction)
        if found is None or not found.strip():
            return _verdict(False, "no answer found", gold, found)
        found = found.strip()
        try:
            decided = self._compare(gold, found)
        except TooLarge as error:
            return self._too_large(gold, found, str(error))
        if decided is None:
            return await self._in_worker(gold, found, context)
        return _verdict(decided, "equal" if decided else "not equal", gold, found)

    async def _in_worker(self, gold: str, found: str, context: JudgeContext) -> Verdict:
        """The comparison by values, where the input may burn a budget."""
        try:
            from quintain.verifiers import symbolic
        except ImportError as error:
            return Verdict.abstain(
                f"undecided without the extra `math` ({error}): pip install 'quintain[math]'"
            )
        wall_s = max(0.1, min(30.0, context.deadline - time.monotonic()))

        try:
            decided, why = await context.workers.run(
                symbolic.compare,
                _joined(gold),
                _readings(found),
                self.rules,
                cpu_s=self.cpu_s,
                wall_s=wall_s,
            )
        except BudgetExceeded as error:
            if error.budget == "wall":
                raise VerifierError(f"{self.name}: {error}") from error
            return self._too_large(gold, found, str(error))
        except MemoryError as error:
            return self._too_large(gold, found, str(error))
        except Exception as error:
            raise VerifierError(f"{self.name}: {type(error).__name__}: {error}") from error
        if decided is None:
            return Verdict.abstain(f"undecided ({why}): {_short(found)} against {_short(gold)}")
        if why.startswith("too large"):
            return self._too_large(gold, found, why)
        return _verdict(decided, why, gold, found)

    def _too_large(self, gold: str, found: str, why: str) -> Verdict:
        """The candidate's fault, unless the gold itself is over the cap."""
        try:
            node = self._tree(_joined(gold))
            if node is not None:
                exact.form(node)
        except TooLarge:
            return Verdict.abstain(f"undecided: the gold answer is over a cap ({why})")
        except (exact.NotExact, exact.Undefined):
            pass
        return _verdict(False, f"the answer is too large: {why}", gold, found)

    # --- comparisons ---

    def _compare(self, gold: str, found: str) -> Decided:
        """Inline: exact and bounded. None: a worker must look."""
        match self.compares:
            case "exact":
                return found == gold
            case "text":
                return _words(found) == _words(gold) if _words(gold) else found == gold
            case "choice":
                return self._choice(gold, found)
            case "date":
                return _date(gold) is not None and _date(gold) == _date(found)
        if found == gold:
            return not _not_a_number(gold)
        left, right = _rational(gold), _rational(found)
        if left is not None and left == right:
            divided = "/" in found or "frac" in found
            if not (self.compares == "number" and divided and left.denominator == 1):
                return True
        if self.compares == "number":
            return self._numbers(gold, found)
        return self._mathematics(gold, found)

    def _choice(self, gold: str, found: str) -> bool:
        chosen, wanted = _chosen(found, self.choices), _chosen(gold, self.choices)
        return wanted is not None and chosen == wanted

    def _number(self, text: str) -> Node | None:
        node = self._tree(_joined(text))
        if node is None:
            return None
        bare = node
        while bare[0] in ("unit", "rel"):
            bare = bare[1] if bare[0] == "unit" else bare[2][-1][1]
        try:
            exact.form(bare)
        except exact.NotExact:
            return node if bare[0] in _EXPRESSIONS else None
        except (exact.Undefined, TooLarge):
            return None
        return node

    def _numbers(self, gold: str, found: str) -> Decided:
        wanted = self._number(gold)
        if wanted is None:
            return False
        undecided = False
        for reading in _readings(found):
            given = self._number(reading)
            if given is not None and _written_out(given):
                decided = same(wanted, given, self.rules)
                if decided:
                    return True
                undecided = undecided or decided is None
        return None if undecided else False

    def _mathematics(self, gold: str, found: str) -> Decided:
        if _is_words(gold) and _is_words(found) and _words(gold) == _words(found):
            return True
        wanted = self._tree(_joined(gold))
        if wanted is None:
            return self._outside(gold, found)
        undecided = False
        for reading in _readings(found):
            given = self._tree(reading)
            if given is None:
                continue
            decided = same(wanted, given, self.rules)
            if decided:
                return True
            undecided = undecided or decided is None
        return None if undecided else False

    def _outside(self, gold: str, found: str) -> Decided:
        """A gold that is not in the grammar: the same notation, the same words, or undecided."""
        if _squeezed(gold) == _squeezed(found):
            return True
        return False if _is_words(gold) else None

    def _tree(self, text: str) -> Node | None:
        try:
            return parse(text)
        except NotMath:
            return None


_EXPRESSIONS = (
    "num",
    "sym",
    "neg",
    "add",
    "mul",
    "div",
    "pow",
    "fact",
    "pct",
    "deg",
    "abs",
    "call",
)


def _written_out(node: Node) -> bool:
    """Whether it is a number as one writes a result: `6 * 7` and `84/2` only repeat a question."""
    kind = node[0]
    if kind in ("neg", "pct", "deg", "unit"):
        return _written_out(node[1])
    if kind == "rel":
        return _written_out(node[2][-1][1])
    if kind == "mul":
        # 6 × 10⁵ is how large numbers are written.
        return len(node[1]) == 2 and node[1][0][0] in ("num", "neg") and _power_of_ten(node[1][1])
    if kind == "add":
        # A mixed number is a sum of a whole and a proper fraction.
        parts = node[1]
        return len(parts) == 2 and parts[0][0] == "num" and parts[1][0] == "div"
    if kind == "div":
        top, bottom = node[1], node[2]
        return (
            top[0] in ("num", "neg")
            and _written_out(top)
            and bottom[0] == "num"
            and bottom[1] != 0
            and (top[1] if top[0] == "num" else top[1][1]) % bottom[1] != 0
        )
    return bool(kind == "num")


def _power_of_ten(node: Node) -> bool:
    exponent = node[2] if node[0] == "pow" and node[1][:2] == ("num", 10) else None
    return exponent is not None and (exponent[1] if exponent[0] == "neg" else exponent)[0] == "num"


def _verdict(passed: bool, why: str, gold: str, found: str | None) -> Verdict:
    detail = f"answer {_short(found or '')}, expected {_short(gold)}"
    return Verdict.of(passed, why, checks=(Check(name="answer", passed=passed, detail=detail),))


def _short(text: str) -> str:
    return repr(text if len(text) <= 200 else text[:200] + "…")


def _positional(value: float) -> str:
    """A float without an exponent: `1e-7` is not in the grammar."""
    return format(Decimal(repr(value)), "f")


def _rational(text: str) -> Fraction | None:
    """A plain integer, decimal or fraction, without the grammar."""
    if _INTEGER.fullmatch(text):
        return Fraction(int(text))
    if _DECIMAL.fullmatch(text):
        return Fraction(text)
    if (match := _FRACTION.fullmatch(text)) is not None:
        sign, top, bottom, other_top, other_bottom = match.groups()
        divisor = int(bottom or other_bottom)
        if divisor:
            return Fraction(int(top or other_top), divisor) * (-1 if sign else 1)
    return None


def _joined(text: str) -> str:
    """Thousands joined where no bracket could make the commas a tuple's."""
    if "," not in text or any(bracket in text for bracket in "([{"):
        return text
    return _THOUSANDS.sub(lambda match: match.group().replace(",", ""), text)


def _readings(text: str) -> list[str]:
    """The ways that commas in an answer can be meant: thousands, a list, a decimal comma."""
    if (match := _MONEY.fullmatch(text)) is not None:
        text = match.group(1)
    readings = [text]
    if "," in text and len(text) <= MAX_CHARS:
        joined = _THOUSANDS.sub(lambda match: match.group().replace(",", ""), text)
        if joined != text:
            readings.insert(0, joined)
        if (match := _DECIMAL_COMMA.fullmatch(text)) is not None:
            readings.append(f"{match.group(1)}.{match.group(2)}{match.group(3)}")
    return readings


def _not_a_number(text: str) -> bool:
    return text.strip().strip("$").casefold() in ("nan", "\\text{nan}", "undefined nan")


def _squeezed(text: str) -> str:
    return re.sub(r"\\left|\\right|\\[,;:! ]|[\s$]", "", text)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", _without_text(text).casefold())


def _is_words(text: str) -> bool:
    """Whether it is prose; a single letter is a variable."""
    return _WORDS.fullmatch(_without_text(text)) is not None


def _without_text(text: str) -> str:
    return re.sub(r"\\(?:text|textbf|mathrm|textit|mathbf)\s*\{([^{}]*)\}", r"\1", text).strip()


def _chosen(text: str, choices: tuple[str, ...]) -> str | None:
    text = _without_text(text).replace("**", "").strip("$*_` .").strip()
    if choices:
        known = {choice.casefold(): choice for choice in choices}
        return known.get(text.casefold().strip("()[]"))
    match = re.fullmatch(r"[(\[]?([A-Za-z])(?:[)\]]|[).:](?:\s.*)?|\s*[-–].*)?", text, re.DOTALL)
    return match.group(1).upper() if match else None


def _date(text: str) -> date | None:
    text = re.sub(r"(?<=\d)(?:st|nd|rd|th)\b|,", "", text.strip().strip("."))
    for layout in _DATES:
        try:
            return datetime.strptime(" ".join(text.split()), layout).date()
        except ValueError:
            continue
    return None
