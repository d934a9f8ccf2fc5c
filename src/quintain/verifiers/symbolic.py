"""The step beyond exact forms: values to many digits, at fixed random points.

Runs in a worker process (`workers`), never in the caller: hostile input may burn its budget here.
Two expressions are equal when their difference shrinks with the precision (60, then 150 digits) at
every tried point where both are defined: a real difference, however small, stays, an error of
rounding goes. Variables are drawn from both signs and, where needed, from integers. A tree is
walked with mpmath's functions; no text is ever evaluated. `simplify` is not used: it is slow, and
its failures are silent.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath

from quintain.verifiers.grammar import Node, parse
from quintain.verifiers.mathematics import Decided, Rules, same
from quintain.verifiers.notation import NotMath, TooLarge

DIGITS = 60
MORE_DIGITS = 150
TRIES = 6
ENOUGH = 4
MAX_EXPONENT = 1_000_000


class _NoValue(ValueError):
    """Not defined, or not real, at this point."""


def compare(gold: str, readings: list[str], rules: Rules) -> tuple[Decided, str]:
    """Whether any reading of an answer is the gold, and why not or why undecided."""
    try:
        wanted = parse(gold)
    except NotMath as error:
        return None, f"the gold answer is not in the grammar: {error}"
    rules = replace(rules, numeric=agree)
    undecided = ""
    for reading in readings:
        try:
            decided = same(wanted, parse(reading), rules)
        except NotMath:
            continue
        except (TooLarge, MemoryError, RecursionError) as error:
            return False, f"too large: {error}"
        if decided:
            return True, "equal"
        undecided = undecided or ("no point to compare at" if decided is None else "")
    return (None, undecided) if undecided else (False, "not equal")


def agree(left: Node, right: Node) -> Decided:
    """Whether two expressions have the same value at every tried point; None: no such point.

    Besides expressions: two `("equation", sign, difference)` agree when one difference is a
    constant multiple of the other (positive for inequalities), and `("within", a, b, bound)` asks
    whether |a − b| ≤ bound.
    """
    try:
        return _agree(left, right)
    except _NoValue:
        return None


def _agree(left: Node, right: Node) -> Decided:
    if left[0] == "within":
        return _within(left[1], left[2], left[3])
    if left[0] == "equation":
        return _multiple(left[1], left[2], right[2])
    names = sorted(_names(left) | _names(right))
    if not names:
        return bool(_vanishes(left, right, {}))
    return _everywhere(lambda point: _vanishes(left, right, point), names, (left, right))


def _everywhere(
    holds: Callable[[dict[str, Any]], Decided], names: list[str], seed: tuple[Node, Node]
) -> Decided:
    """Whether something holds wherever it is defined, at enough points."""
    # The points are fixed by the expressions, so that a verdict never changes.
    generator = random.Random(repr(seed))
    agreed = 0
    for low, high, integers in ((0, 3, False), (-3, 0, False), (-3, 3, False), (1, 9, True)):
        if integers and agreed >= ENOUGH:
            break
        for _ in range(TRIES):
            decided = holds({name: _draw(generator, low, high, integers) for name in names})
            if decided is False:
                return False
            agreed += decided is True
    return True if agreed >= ENOUGH else None


def _draw(generator: random.Random, low: int, high: int, integers: bool) -> Any:
    if integers:
        return Fraction(generator.randint(low, high))
    return low + (high - low) * Fraction(generator.randrange(1, 2**64), 2**64)


def _vanishes(left: Node, right: Node, point: dict[str, Any]) -> Decided:
    """Whether the difference of two values shrinks with the precision; None: not defined."""
    try:
        coarse, scale = _gap(left, right, point, DIGITS)
        if coarse and scale and coarse > scale * mpmath.mpf(10) ** (10 - DIGITS):
            return False
        fine, scale = _gap(left, right, point, MORE_DIGITS)
    except (_NoValue, ArithmeticError, ValueError):
        return None if point else False
    if not coarse:
        # Also what the first precision could not see must not be there.
        return bool(fine <= (scale or 1) * mpmath.mpf(10) ** (30 - MORE_DIGITS))
    # A real difference, however small, stays; an error of rounding goes.
    return bool(fine <= coarse * mpmath.mpf(10) ** (20 + DIGITS - MORE_DIGITS))


def _gap(left: Node, right: Node, point: dict[str, Any], digits: int) -> tuple[Any, Any]:
    """|a − b|, and the smaller magnitude of the two (0 when one of them is 0)."""
    with mpmath.workdps(digits):
        drawn = {name: _mp(number) for name, number in point.items()}
        a, b = value(left, drawn), value(right, drawn)
        if not (mpmath.isfinite(a) and mpmath.isfinite(b)):
            raise _NoValue("infinite")
        real = "i" not in _names(left, constants=True) | _names(right, constants=True)
        if point and real and (_is_complex(a) or _is_complex(b)):
            raise _NoValue("not real")
        return abs(a - b), min(abs(a), abs(b))


def _is_complex(number: Any) -> bool:
    return isinstance(number, mpmath.mpc) and abs(number.imag) > abs(number) * mpmath.mpf(10) ** -40


def _multiple(sign: str, left: Node, right: Node) -> Decided:
    """Whether left is a constant multiple of right: cross products at pairs of points."""
    names = sorted(_names(left) | _names(right))
    if not names:
        return None
    generator = random.Random(repr(("first", left, right)))
    for _ in range(TRIES):
        first = {name: _draw(generator, 0, 3, False) for name in names}
        with mpmath.workdps(DIGITS):
            try:
                drawn = {name: _mp(number) for name, number in first.items()}
                a, b = value(left, drawn), value(right, drawn)
            except (_NoValue, ArithmeticError, ValueError):
                continue
            if _is_complex(a) or _is_complex(b) or a == 0 or b == 0:
                continue
            if sign not in ("=", "!=") and mpmath.re(a / b) < 0:
                return False
        one, two = _at(left, first), _at(right, first)
        return _everywhere(
            lambda point, one=one, two=two: _vanishes(  # type: ignore[misc]
                ("mul", (left, two)), ("mul", (right, one)), point
            ),
            names,
            (left, right),
        )
    return None


def _at(node: Node, point: dict[str, Any]) -> Node:
    """The expression with its variables replaced by numbers."""
    if len(node) == 2 and node[0] == "sym" and node[1] in point:
        return ("num", point[node[1]], -1)
    return tuple(_at(item, point) if isinstance(item, tuple) else item for item in node)


def _within(expression: Node, decimal: Node, half: Node) -> Decided:
    with mpmath.workdps(DIGITS):
        try:
            gap = abs(value(expression, {}) - value(decimal, {}))
            return bool(gap <= value(half, {}) * (1 + mpmath.mpf(10) ** -20))
        except (_NoValue, ArithmeticError, ValueError):
            return False


def _names(node: object, *, constants: bool = False) -> set[str]:
    if not isinstance(node, tuple):
        return set()
    if len(node) == 2 and node[0] == "sym":
        return {node[1]} if constants or node[1] not in ("e", "i", "pi") else set()
    if node and node[0] == "call" and node[1] in ("f", "g", "h"):
        raise _NoValue("an unknown function has no value")
    found: set[str] = set()
    for item in node:
        found |= _names(item, constants=constants)
    return found


def value(node: Node, point: dict[str, Any]) -> Any:
    """The value of an expression at a point, as an mpmath number."""
    match node[0]:
        case "num":
            return _mp(node[1])
        case "sym":
            if node[1] in point:
                return point[node[1]]
            return {"pi": mpmath.pi, "e": mpmath.e, "i": mpmath.mpc(0, 1)}[node[1]] * 1
        case "neg":
            return -value(node[1], point)
        case "add":
            return mpmath.fsum(value(item, point) for item in node[1])
        case "mul":
            return mpmath.fprod(value(item, point) for item in node[1])
        case "div":
            return value(node[1], point) / value(node[2], point)
        case "pct":
            return value(node[1], point) / 100
        case "deg":
            return value(node[1], point)
        case "abs":
            return abs(value(node[1], point))
        case "fact":
            inside = value(node[1], point)
            if abs(inside) > MAX_EXPONENT:
                raise TooLarge("the factorial of a large number")
            return mpmath.gamma(inside + 1)
        case "pow":
            return _power(node[1], node[2], point)
        case "call":
            return _call(node[1], node[2], point)
    raise _NoValue(f"a {node[0]} has no value")


def _mp(fraction: Fraction) -> Any:
    return mpmath.mpf(fraction.numerator) / fraction.denominator


def _power(base_node: Node, exponent_node: Node, point: dict[str, Any]) -> Any:
    base, exponent = value(base_node, point), value(exponent_node, point)
    if abs(exponent) > MAX_EXPONENT:
        raise TooLarge("a power with a large exponent")
    if base == 0 and mpmath.re(exponent) <= 0:
        raise _NoValue("zero to a power that is not positive")
    negative = not isinstance(base, mpmath.mpc) and base < 0
    if negative and exponent_node[0] == "div" and exponent_node[2][0] == "num":
        # An odd root of a negative number is real here.
        degree = exponent_node[2][1]
        top = exponent_node[1]
        if degree.denominator == 1 and degree % 2 and top[0] == "num" and top[1].denominator == 1:
            root = mpmath.power(-base, exponent)
            return -root if top[1] % 2 else root
    return mpmath.power(base, exponent)


_FUNCTIONS: dict[str, Any] = {
    "sin": mpmath.sin, "cos": mpmath.cos, "tan": mpmath.tan, "cot": mpmath.cot,
    "sec": mpmath.sec, "csc": mpmath.csc, "asin": mpmath.asin, "acos": mpmath.acos,
    "atan": mpmath.atan, "acot": mpmath.acot, "asec": mpmath.asec, "acsc": mpmath.acsc,
    "sinh": mpmath.sinh, "cosh": mpmath.cosh, "tanh": mpmath.tanh, "coth": mpmath.coth,
    "asinh": mpmath.asinh, "acosh": mpmath.acosh, "atanh": mpmath.atanh,
    "floor": mpmath.floor, "ceil": mpmath.ceil, "sign": mpmath.sign, "sgn": mpmath.sign,
    "gamma": mpmath.gamma, "max": max, "min": min, "arg": mpmath.arg,
}  # fmt: skip
_CIRCULAR = ("sin", "cos", "tan", "cot", "sec", "csc")


def _call(name: str, arguments: tuple[Node, ...], point: dict[str, Any]) -> Any:
    if name in _CIRCULAR and len(arguments) == 1 and "deg" in repr(arguments):
        return _FUNCTIONS[name](value(arguments[0], point) * mpmath.pi / 180)
    values = [value(item, point) for item in arguments]
    if any(abs(item) > mpmath.mpf(10) ** 1000 for item in values):
        raise TooLarge("a function of a huge number")
    if name in ("log", "lg") and values[0] == 0:
        raise _NoValue("the logarithm of zero")
    if name == "log":
        base = mpmath.log(values[1]) if len(values) == 2 else 1
        return mpmath.log(values[0]) / base
    if name == "lg":
        return mpmath.log10(values[0])
    if name == "binom":
        return mpmath.binomial(*values)
    if name in ("gcd", "lcm"):
        whole = [int(item) for item in values if mpmath.isint(item)]
        if len(whole) != len(values):
            raise _NoValue("gcd of numbers that are not whole")
        return mpmath.mpf(_fold(name, whole))
    if name not in _FUNCTIONS:
        raise _NoValue(f"{name} has no value")
    if name in ("max", "min") and len(values) == 1:
        return values[0]
    try:
        return _FUNCTIONS[name](*values)
    except TypeError as error:
        raise _NoValue(f"{name} of these arguments has no value") from error


def _fold(name: str, whole: list[int]) -> int:
    return math.gcd(*whole) if name == "gcd" else math.lcm(*whole)
