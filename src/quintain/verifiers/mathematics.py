"""Whether two mathematical answers are the same, kind by kind.

`same(gold, answer, rules)` compares two trees of `grammar`. Leaves are expressions, compared by
their exact forms; where those do not decide, `rules.numeric` does if there is one (it runs in a
worker, `symbolic`), and else the result is None: undecided, never a guess.

Conventions, all in `Rules`: a bare list is a set of answers; a list against a tuple is compared in
order; a name on one side only (`x = 2` against `2`) is dropped; a unit on one side only is dropped,
two different units are different; a decimal counts as a fraction when it is the fraction correctly
rounded to at least so many digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from quintain.verifiers import exact
from quintain.verifiers.grammar import Node
from quintain.verifiers.meaning import INFINITE, MAX_ITEMS, has, has_variables, settle
from quintain.verifiers.notation import TooLarge

Decided = bool | None
Percent = Literal["strict", "gold", "optional"]
DOUBLE_DIGITS = 15
"""A decimal of so many digits is the print of a double: it may be off by one in its last."""
CLOSE = 0.01
"""Relative difference of an irrational value and what may be called approximately equal to it."""
_VALUES = ("num", "neg", "add", "mul", "div", "pow", "fact", "abs", "call")
_RESULTS = ("num", "neg", "div")
_CONVENTIONAL = ("pct", "deg", "unit", "pm", "text")
"""Where equality is a matter of conventions: 0.5 = 50 %."""

_ROUND_OR_SQUARE = (("(", ")"), ("[", "]"))


@dataclass(frozen=True, slots=True)
class Rules:
    """The conventions of one comparison."""

    percent: Percent = "gold"
    """28% is 0.28; `gold`: a gold of 28% is also met by 28; `optional`: 28 also by 28%."""
    rational_digits: int = 2
    """Decimals that a rounded fraction must show; 0: rounding never counts."""
    irrational_digits: int = 6
    """The same for irrational values, in significant digits."""
    ordered: bool = False
    """Whether bare lists and sets are compared in order."""
    tolerance: float = 0.0
    """Largest relative difference of two numbers; 0: exact."""
    absolute: float = 0.0
    """Largest absolute difference of two numbers; 0: exact."""
    numeric: Callable[[Node, Node], Decided] | None = None
    """Decides two expressions that exact forms leave open; None: undecided."""


def same(gold: Node, answer: Node, rules: Rules) -> Decided:
    """Whether the answer is the gold; None when that could not be decided.

    Raises:
        TooLarge: a cap was reached.
    """
    if gold == answer:
        return True
    exact.meter.start()
    if _contradicts_itself(answer, rules):
        return False
    return _same(settle(gold), settle(answer), rules)


def _contradicts_itself(answer: Node, rules: Rules) -> bool:
    """Whether it is a chain like `5/4 = 3/4`, of which each reader might pick the side that fits.

    `≈` reads as `=`, so a decimal may stand beside an irrational value that it is close to. On the
    way from a name to its value (`z = 3 + 3 = 2`) only results count, not sums still to do.
    """
    if answer[0] != "rel" or any(operator != "=" for operator, _ in answer[2]):
        return False
    sides = [answer[1], *(side for _, side in answer[2])]
    kinds = _RESULTS if has_variables(answer[1]) else _VALUES
    values = [side for side in sides if side[0] in kinds and not has_variables(side)]
    values = [value for value in values if not any(has(value, kind) for kind in _CONVENTIONAL)]
    if any(has(value, kind) for value in values for kind in ("sym", "pow", "call")):
        rules = replace(rules, tolerance=max(rules.tolerance, CLOSE))
    return any(
        _same(value, values[-1], rules) is False and _same(values[-1], value, rules) is False
        for value in values[:-1]
    )


def _same(gold: Node, answer: Node, rules: Rules) -> Decided:
    if gold == answer:
        return True
    if gold[0] == "named" and answer[0] == "list":
        gold = _split_names(gold)
    elif answer[0] == "named" and gold[0] == "list":
        answer = _split_names(answer)
    if gold[0] == "named" and answer[0] not in ("named", "rel"):
        return _same(_unnamed(gold), answer, rules)
    if answer[0] == "named" and gold[0] not in ("named", "rel"):
        return _same(gold, _unnamed(answer), rules)
    if gold[0] == answer[0] == "named":
        return _named(gold, answer, rules)
    kinds = (gold[0], answer[0])
    if "groups" in kinds:
        return _pairs(_items(gold), _items(answer), rules, ordered=False)
    if "unit" in kinds:
        return _units(gold, answer, rules)
    if "text" in kinds:
        return _texts(gold, answer)
    if "list" in kinds or "set" in kinds:
        return _collections(gold, answer, rules)
    if has(gold, "matrix") or has(answer, "matrix"):
        return _matrices(gold, answer, rules)
    if "tuple" in kinds:
        return _tuples(gold, answer, rules)
    if kinds == ("cup", "cup"):
        return _pairs(gold[1], answer[1], rules, ordered=False)
    if "cup" in kinds or "minus" in kinds:
        return None if kinds == ("minus", "minus") else False
    if "rel" in kinds:
        return _relations(gold, answer, rules)
    if "ratio" in kinds:
        return _ratios(gold, answer, rules)
    if "inf" in kinds or gold in INFINITE or answer in INFINITE:
        return False
    return _scalars(gold, answer, rules)


# --- comparing kinds ---


def _split_names(node: Node) -> Node:
    """`(p, q) = (3, 2)` as `p = 3, q = 2`; anything else as it is."""
    names, values = node[1], node[2]
    if names[0] == values[0] == "tuple" and len(names[3]) == len(values[3]):
        pairs = zip(names[3], values[3], strict=True)
        return ("list", tuple(("named", a, b, ("rel", a, (("=", b),))) for a, b in pairs))
    return node


def _unnamed(node: Node) -> Node:
    """The value of a named one, a function's in its own variable."""
    value: Node = node[3][1] if node[3][0] == "body" else node[2]
    return value


def _named(gold: Node, answer: Node, rules: Rules) -> Decided:
    if gold[1] == answer[1]:
        decided = _same(gold[2], answer[2], rules)
        if decided:
            return True
        if gold[2][0] in ("tuple", "cup", "set", "list"):
            return decided
    if gold[3][0] == answer[3][0] == "rel":
        return _relations(gold[3], answer[3], rules)
    return False


def _units(gold: Node, answer: Node, rules: Rules) -> Decided:
    units = [node[2] for node in (gold, answer) if node[0] == "unit"]
    if len(units) == 2 and _unit_name(units[0]) != _unit_name(units[1]):
        return False
    bare = [
        settle(node[1]) if node[0] == "unit" else _without_unit(node, units[0])
        for node in (gold, answer)
    ]
    return _same(bare[0], bare[1], rules)


def _without_unit(node: Node, unit: str) -> Node:
    """`5 cm`, read as 5·c·m, is 5 beside a value in cm."""
    if node[0] != "mul":
        return node
    letters = [item[1] if item[0] == "sym" else "" for item in node[1]]
    size = len(unit)
    if 0 < size < len(letters) and "".join(letters[-size:]) == unit:
        rest = node[1][:-size]
        return rest[0] if len(rest) == 1 else ("mul", rest)
    return node


def _unit_name(unit: str) -> str:
    unit = re.sub(r"[^a-z0-9/^]+", "", unit.lower().replace(" per ", "/"))
    unit = {"feet": "foot", "inches": "inch"}.get(unit, unit)
    return unit[:-1] if len(unit) > 3 and unit.endswith("s") else unit


def _texts(gold: Node, answer: Node) -> Decided:
    words = []
    for node in (gold, answer):
        if node[0] not in ("text", "sym"):
            return False
        words.append(str(node[1]).casefold().split())
    return words[0] == words[1]


def _items(node: Node) -> tuple[Node, ...]:
    return tuple(node[1]) if node[0] in ("groups", "list", "set") else (node,)


def _collections(gold: Node, answer: Node, rules: Rules) -> Decided:
    kinds = {gold[0], answer[0]}
    if kinds == {"list", "tuple"}:
        items = [node[1] if node[0] == "list" else node[3] for node in (gold, answer)]
        brackets = gold if gold[0] == "tuple" else answer
        # [0, 1] is an interval and not the two numbers, unless the task asks for a list.
        interval = len(brackets[3]) == 2 and not rules.ordered
        if (brackets[1], brackets[2]) not in ((("(", ")"),) if interval else _ROUND_OR_SQUARE):
            return False
        return _pairs(items[0], items[1], rules, ordered=True)
    if kinds - {"list", "set"}:
        other = gold if gold[0] not in ("list", "set") else answer
        collection = answer if other is gold else gold
        if other[0] == "tuple" or len(collection[1]) != 1:
            return False
        single = collection[1][0]
        return _same(other, single, rules) if other is gold else _same(single, other, rules)
    left, right = gold[1], answer[1]
    # Names that tell values apart on one side only: then only the order can.
    ordered = rules.ordered or (
        kinds == {"list"}
        and (bool(_distinct_names(left)) ^ bool(_distinct_names(right)))
        and not (_any_named(left) and _any_named(right))
    )
    return _pairs(left, right, rules, ordered=ordered)


def _any_named(items: Sequence[Node]) -> bool:
    return any(item[0] == "named" for item in items)


def _distinct_names(items: Sequence[Node]) -> bool:
    names = [item[1] for item in items if item[0] == "named"]
    return len(names) == len(items) > 1 and len(set(map(repr, names))) == len(names)


def _pairs(gold: Sequence[Node], answer: Sequence[Node], rules: Rules, *, ordered: bool) -> Decided:
    """Item by item, in order or as a matching; repetitions in the answer alone do not count."""
    if len(gold) > MAX_ITEMS or len(answer) > MAX_ITEMS:
        raise TooLarge(f"more than {MAX_ITEMS} items")
    if ordered:
        if len(gold) != len(answer):
            return False
        return _all(_same(a, b, rules) for a, b in zip(gold, answer, strict=True))
    if len(set(map(repr, gold))) == len(gold):
        answer = _without_repeats(answer, rules)
    if len(gold) != len(answer):
        return False
    left = list(answer)
    undecided = False
    for item in gold:
        open_here = False
        for place, candidate in enumerate(left):
            decided = _same(item, candidate, rules)
            if decided:
                del left[place]
                break
            open_here = open_here or decided is None
        else:
            if not open_here:
                return False
            undecided = True
    return None if undecided else True


def _without_repeats(items: Sequence[Node], rules: Rules) -> list[Node]:
    kept: list[Node] = []
    for item in items:
        if not any(item == other or _same(other, item, rules) for other in kept):
            kept.append(item)
    return kept


def _all(decisions: object) -> Decided:
    undecided = False
    for decided in decisions:  # type: ignore[attr-defined]
        if decided is False:
            return False
        undecided = undecided or decided is None
    return None if undecided else True


def _tuples(gold: Node, answer: Node, rules: Rules) -> Decided:
    if gold[0] != "tuple" or answer[0] != "tuple":
        return False
    if gold[1:3] != answer[1:3]:
        points = {("(", ")"), ("[", "]")}
        intervals = any(_is_interval(node) for node in (gold, answer))
        if intervals or {gold[1:3], answer[1:3]} - points or len(gold[3]) == 2:
            return False
    return _pairs(gold[3], answer[3], rules, ordered=True)


def _is_interval(node: Node) -> bool:
    return node[1:3] in (("(", "]"), ("[", ")")) or any(item in INFINITE for item in node[3])


def _matrices(gold: Node, answer: Node, rules: Rules) -> Decided:
    tables: list[tuple[tuple[Node, ...], ...]] = []
    for node in (gold, answer):
        if node[0] == "tuple":
            tables.append(tuple((item,) for item in node[3]))
        else:
            table = _table(node)
            if table is None:
                return False
            tables.append(table)
    left, right = tables
    if len(left) != len(right) or len(left[0]) != len(right[0]):
        return False
    cells = zip((c for row in left for c in row), (c for row in right for c in row), strict=True)
    return _all(_scalars(a, b, rules) for a, b in cells)


def _table(node: Node) -> tuple[tuple[Node, ...], ...] | None:
    """The rows of a matrix expression: a matrix, a product, a sum, a multiple."""
    if node[0] == "matrix":
        return tuple(node[1])
    if node[0] == "neg":
        table = _table(node[1])
        return table and tuple(tuple(("neg", cell) for cell in row) for row in table)
    if node[0] == "add":
        tables = [_table(item) for item in node[1]]
        if any(table is None for table in tables):
            return None
        sizes = {(len(table or ()), len((table or ((),))[0])) for table in tables}
        if len(sizes) != 1:
            return None
        rows, columns = sizes.pop()
        return tuple(
            tuple(("add", tuple((table or ())[i][j] for table in tables)) for j in range(columns))
            for i in range(rows)
        )
    if node[0] == "mul":
        product: tuple[tuple[Node, ...], ...] | None = None
        factors: list[Node] = []
        for item in node[1]:
            table = _table(item)
            if table is None:
                factors.append(item)
            else:
                product = table if product is None else _multiplied(product, table)
                if product is None:
                    return None
        if product is None or not factors:
            return product
        return tuple(tuple(("mul", (*factors, cell)) for cell in row) for row in product)
    return None


def _multiplied(
    left: tuple[tuple[Node, ...], ...], right: tuple[tuple[Node, ...], ...]
) -> tuple[tuple[Node, ...], ...] | None:
    if len(left[0]) != len(right) or len(left) * len(right[0]) > MAX_ITEMS:
        return None
    return tuple(
        tuple(
            ("add", tuple(("mul", (row[k], right[k][j])) for k in range(len(right))))
            for j in range(len(right[0]))
        )
        for row in left
    )


def _relations(gold: Node, answer: Node, rules: Rules) -> Decided:
    """Equations and inequalities up to a constant factor, both sides brought together."""
    parts = [_difference(node) for node in (gold, answer)]
    if parts[0] is None or parts[1] is None:
        both = gold[0] in ("rel", "named") and answer[0] in ("rel", "named")
        return None if both and gold[0] == answer[0] == "rel" else False
    (sign, left), (other, right) = parts[0], parts[1]
    if sign != other:
        return False
    try:
        ratio = exact.proportional(exact.form(left), exact.form(right))
    except (exact.NotExact, exact.Undefined):
        return None
    if ratio is None and rules.numeric is not None:
        return rules.numeric(("equation", sign, left), ("equation", sign, right))
    if ratio is None or isinstance(ratio, bool):
        return ratio
    return ratio != 0 and (sign in ("=", "!=") or ratio > 0)


def _difference(node: Node) -> tuple[str, Node] | None:
    """A relation as `expression (=, <, <=, !=) 0`."""
    if node[0] == "named":
        node = node[3]
    if node[0] != "rel" or len(node[2]) != 1:
        return None
    operator, right = node[2][0]
    left = node[1]
    if operator == "in" or any(
        item[0] in ("tuple", "list", "set", "text") for item in (left, right)
    ):
        return None
    if operator in (">", ">="):
        operator, left, right = operator.replace(">", "<"), right, left
    return operator, ("add", (left, ("neg", right)))


def _ratios(gold: Node, answer: Node, rules: Rules) -> Decided:
    if gold[0] == answer[0] == "ratio":
        if len(gold[1]) != len(answer[1]):
            return False
        if all(_same(a, b, rules) for a, b in zip(gold[1], answer[1], strict=True)):
            return True
        first = zip(gold[1][1:], answer[1][1:], strict=True)
        cross = [(("mul", (a, answer[1][0])), ("mul", (b, gold[1][0]))) for a, b in first]
        zero: Node = ("num", Fraction(0), -1)
        if any(_scalars(item, zero, rules) is not False for item in (gold[1][0], answer[1][0])):
            return False
        return _all(_scalars(a, b, rules) for a, b in cross)
    ratio, other = (gold, answer) if gold[0] == "ratio" else (answer, gold)
    if len(ratio[1]) != 2:
        return False
    quotient: Node = ("div", ratio[1][0], ratio[1][1])
    return _scalars(*((quotient, other) if ratio is gold else (other, quotient)), rules)


# --- comparing expressions ---


def _scalars(gold: Node, answer: Node, rules: Rules) -> Decided:
    if gold == answer:
        return True
    decided: Decided = None
    try:
        left, right = exact.form(gold), exact.form(answer)
        decided = exact.equal(left, right)
    except exact.Undefined:
        return False
    except exact.NotExact:
        pass
    else:
        if decided or _percents(gold, answer, rules):
            return True
        value, other = left.rational(), right.rational()
        if value is not None and other is not None:
            return _near(value, other, rules) or _rounded(gold, value, answer, other, rules)
    if decided is None:
        decided = rules.numeric(gold, answer) if rules.numeric else None
        if decided is not False:
            return decided
    return _close(gold, answer, rules)


def _close(gold: Node, answer: Node, rules: Rules) -> Decided:
    """Whether two different numbers, one irrational, are close enough by the rules."""
    bounds: list[Node] = []
    if rules.absolute:
        bounds.append(("num", Fraction(rules.absolute), -1))
    if rules.tolerance:
        bounds.append(("mul", (("num", Fraction(rules.tolerance), -1), ("abs", gold))))
    places = _decimals((gold, answer))
    if places is not None and rules.irrational_digits:
        decimal = gold if _decimal(gold) is not None else answer
        shown = exact.form(decimal).rational()
        if shown is not None and _significant(shown, places) >= rules.irrational_digits:
            bounds.append(("num", Fraction(1, 2 * 10**places), -1))
            if _significant(shown, places) >= DOUBLE_DIGITS:
                bounds.append(("num", abs(shown) / 2**52, -1))
    if not bounds or has_variables(gold) or has_variables(answer):
        return False
    if rules.numeric is None:
        return None
    zero: Node = ("num", Fraction(0), -1)
    return any(rules.numeric(("within", gold, answer, bound), zero) for bound in bounds)


def _near(value: Fraction, other: Fraction, rules: Rules) -> bool:
    gap = abs(value - other)
    return gap <= Fraction(rules.absolute) or gap <= Fraction(rules.tolerance) * abs(value)


def _percents(gold: Node, answer: Node, rules: Rules) -> bool:
    """Whether only a percent sign that the rules forgive tells them apart."""
    if rules.percent == "strict":
        return False
    for one, other, allowed in ((gold, answer, True), (answer, gold, rules.percent == "optional")):
        if allowed and one[0] == "pct" and not has(other, "pct"):
            return bool(exact.equal(exact.form(one[1]), exact.form(other)))
    return False


def _decimal(node: Node) -> int | None:
    """Decimals of a number written with a point; None for anything else."""
    if node[0] in ("neg", "deg"):
        return _decimal(node[1])
    if node[0] == "pct":
        inner = _decimal(node[1])
        return None if inner is None else inner + 2
    return int(node[2]) if node[0] == "num" and node[2] >= 0 else None


def _decimals(nodes: Sequence[Node]) -> int | None:
    found = [places for node in nodes if (places := _decimal(node)) is not None]
    return found[0] if len(found) == 1 else None


def _significant(value: Fraction, places: int) -> int:
    shown = abs(value) * 10**places
    return len(str(int(shown))) if shown >= 1 else 0


def _rounded(gold: Node, value: Fraction, answer: Node, other: Fraction, rules: Rules) -> bool:
    """Whether a decimal answer is the fraction rounded to the digits that it shows."""
    places, gold_places = _decimal(answer), _decimal(gold)
    if gold_places is None and places is not None and rules.rational_digits:
        enough = places >= rules.rational_digits <= _significant(other, places)
        return enough and value.denominator != 1 and _rounds(value, other, places)
    if gold_places is not None and _significant(value, gold_places) >= rules.irrational_digits > 0:
        finer = places is None or places > gold_places
        return finer and other.denominator != 1 and _rounds(other, value, gold_places)
    return False


def _rounds(value: Fraction, shown: Fraction, places: int) -> bool:
    return abs(value - shown) <= Fraction(1, 2 * 10**places)
