"""Exact arithmetic on expression trees, with caps: numbers, radicals, π, e, i and symbols.

An expression becomes a quotient of two polynomials with rational coefficients. The generators are
symbols, π and e, the imaginary unit with i² = −1, and primes with a fractional exponent in (0, 1):
different products of such radicals are linearly independent over the rationals (Besicovitch 1940),
so a polynomial in them is zero exactly when all its coefficients are. What lies beyond (a function
of an argument, a nested radical, a symbolic exponent) becomes an *opaque* generator named by its
canonical argument: equal forms are then still equal, and unequal ones are left undecided.

No power is computed before its size is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import comb, factorial
from typing import Any

from quintain.verifiers.grammar import Node
from quintain.verifiers.notation import TooLarge

Atom = tuple[Any, ...]
"""("s", name), ("p", prime), ("i",) or an opaque ("f", name, argument keys)."""
Monomial = tuple[tuple[Atom, Fraction], ...]
Poly = dict[Monomial, Fraction]

MAX_BITS = 60_000
MAX_TERMS = 300
MAX_FACTORIAL = 5_000
MAX_TRIAL = 2_000
MAX_WORK = 20_000
_ZERO, _ONE, _HALF = Fraction(0), Fraction(1), Fraction(1, 2)
_CONSTANT: Monomial = ()


class NotExact(ValueError):
    """The expression has no exact form here."""


class Undefined(ValueError):
    """A division by zero, or another value that does not exist."""


@dataclass(frozen=True, slots=True)
class Form:
    """A quotient of polynomials."""

    top: Poly
    bottom: Poly
    opaque: bool = False
    """Whether any generator is opaque: then unequal forms may still be equal in value."""

    def rational(self) -> Fraction | None:
        """Its value when it is a rational number."""
        top, bottom = _constant(self.top), _constant(self.bottom)
        return None if top is None or bottom is None else top / bottom

    def key(self) -> tuple[Any, ...]:
        """A hashable name, equal for equal top and bottom."""
        return (_key(self.top), _key(self.bottom))

    def symbols(self) -> set[str]:
        """The symbols that occur outside of opaque generators."""
        return {
            atom[1]
            for poly in (self.top, self.bottom)
            for monomial in poly
            for atom, _ in monomial
            if atom[0] == "s" and atom[1] not in ("pi", "e")
        }


def number(value: Fraction) -> Form:
    """A rational number."""
    return Form({_CONSTANT: value} if value else {}, {_CONSTANT: _ONE})


class _Meter:
    """Work done since the last `start`: a bound on time that no input can get around."""

    spent = 0

    def start(self) -> None:
        self.spent = 0

    def pay(self, poly: Poly) -> None:
        self.spent += 1 + len(poly)
        for value in poly.values():
            bits = value.numerator.bit_length() + value.denominator.bit_length()
            if bits > 4 * MAX_BITS:
                raise TooLarge("a number grew over the cap")
            self.spent += bits >> 9
        if self.spent > MAX_WORK:
            raise NotExact("too much work for an exact form")


meter = _Meter()


@lru_cache(maxsize=256)
def form(node: Node) -> Form:
    """The exact form of an expression.

    Raises:
        NotExact: it is not an expression, or cannot be put in the form.
        TooLarge: a cap on bits, terms or degrees is reached.
        Undefined: it divides by zero.
    """
    match node[0]:
        case "num":
            return number(node[1])
        case "sym":
            return _atom(("i",) if node[1] == "i" else ("s", node[1]))
        case "add":
            total = form(node[1][0])
            for item in node[1][1:]:
                total = add(total, form(item))
            return total
        case "neg":
            return scale(form(node[1]), Fraction(-1))
        case "mul":
            product = form(node[1][0])
            for item in node[1][1:]:
                product = multiply(product, form(item))
            return product
        case "div":
            return divide(form(node[1]), form(node[2]))
        case "pow":
            return _power(node[1], node[2])
        case "pct":
            return scale(form(node[1]), Fraction(1, 100))
        case "deg":
            return form(node[1])
        case "fact":
            value = _whole(form(node[1]))
            if value is None:
                return _opaque("fact", form(node[1]))
            if not 0 <= value <= MAX_FACTORIAL:
                raise TooLarge(f"the factorial of {value} is not computed")
            return number(Fraction(factorial(value)))
        case "abs":
            return _absolute(form(node[1]))
        case "call":
            return _call(node[1], node[2])
    raise NotExact(f"a {node[0]} has no exact form")


def difference(a: Form, b: Form) -> Poly:
    """The numerator of a − b: empty when the forms are equal."""
    return _minus(_times(a.top, b.bottom), _times(b.top, a.bottom))


def equal(a: Form, b: Form) -> bool | None:
    """Whether two forms are equal; None when that is beyond exact forms."""
    if not difference(a, b):
        return True
    return None if a.opaque or b.opaque else False


def proportional(a: Form, b: Form) -> Fraction | bool | None:
    """The rational c with a = c·b; False when there is none, None when undecided."""
    top, bottom = _times(a.top, b.bottom), _times(b.top, a.bottom)
    if not top or not bottom:
        return (None if a.opaque or b.opaque else False) if top or bottom else _ONE
    monomial = next(iter(bottom))
    if monomial in top:
        ratio = top[monomial] / bottom[monomial]
        if not _minus(top, {key: value * ratio for key, value in bottom.items()}):
            return ratio
    return None if a.opaque or b.opaque else False


# --- arithmetic of forms ---


def add(a: Form, b: Form) -> Form:
    """Their sum."""
    if a.bottom == b.bottom:
        return Form(_plus(a.top, b.top), a.bottom, a.opaque or b.opaque)
    top = _plus(_times(a.top, b.bottom), _times(b.top, a.bottom))
    return Form(top, _times(a.bottom, b.bottom), a.opaque or b.opaque)


def scale(a: Form, by: Fraction) -> Form:
    """A rational multiple."""
    return Form({key: value * by for key, value in a.top.items()} if by else {}, a.bottom, a.opaque)


def multiply(a: Form, b: Form) -> Form:
    """Their product."""
    return Form(_times(a.top, b.top), _times(a.bottom, b.bottom), a.opaque or b.opaque)


def divide(a: Form, b: Form) -> Form:
    """Their quotient.

    Raises:
        Undefined: the divisor is zero.
    """
    if not b.top:
        raise Undefined("a division by zero")
    value = b.rational()
    if value is not None:
        return scale(a, 1 / value)
    return Form(_times(a.top, b.bottom), _times(a.bottom, b.top), a.opaque or b.opaque)


def _power(base_node: Node, exponent_node: Node) -> Form:
    exponent = form(exponent_node)
    power = exponent.rational()
    base = form(base_node)
    if power is None:
        return _opaque("power", base, exponent)
    if power.denominator == 1:
        return _integer_power(base, power.numerator)
    return _root(base, power)


def _integer_power(base: Form, power: int) -> Form:
    if power < 0:
        return _integer_power(divide(number(_ONE), base), -power)
    if power == 0:
        return number(_ONE)
    value = base.rational()
    if value is not None:
        return number(_rational_power(value, power))
    if len(base.top) > 1 or len(base.bottom) > 1:
        if power > 32:
            return _opaque("power", base, number(Fraction(power)))
    elif power > 10_000:
        raise TooLarge(f"a power with the exponent {power} is not expanded")
    result, square = number(_ONE), base
    while power:
        if power & 1:
            result = multiply(result, square)
        power >>= 1
        if power:
            square = multiply(square, square)
    return result


def _rational_power(value: Fraction, power: int) -> Fraction:
    bits = max(value.numerator.bit_length(), value.denominator.bit_length())
    if abs(value) != 1 and value and bits * power > MAX_BITS:
        raise TooLarge(f"a power of about {bits * power} bits is not computed")
    return Fraction(value.numerator**power, value.denominator**power)


def _root(base: Form, power: Fraction) -> Form:
    """A fractional power of one term; anything else is opaque."""
    if len(base.top) != 1 or len(base.bottom) != 1:
        if not base.top:
            if power < 0:
                raise Undefined("a division by zero")
            return base
        return _opaque("power", base, number(power))
    (top, coefficient), (bottom, divisor) = *base.top.items(), *base.bottom.items()
    result = _rational_root(coefficient / divisor, power)
    for monomial, sign in ((top, 1), (bottom, -1)):
        for atom, exponent in monomial:
            # √(x²) is |x|: an even root of an even power is left alone.
            even = power.denominator % 2 == 0 and exponent.numerator % 2 == 0
            if atom[0] in ("i", "f") or (even and atom[0] == "s" and atom[1] not in ("pi", "e")):
                return _opaque("power", base, number(power))
            result = multiply(result, _monomial(atom, sign * exponent * power))
    return result


def _monomial(atom: Atom, exponent: Fraction) -> Form:
    if atom[0] == "p":
        return _rational_root(Fraction(atom[1]), exponent)
    single: Poly = {((atom, abs(exponent)),): _ONE}
    one: Poly = {_CONSTANT: _ONE}
    return Form(single, one) if exponent > 0 else Form(one, single)


def _rational_root(value: Fraction, power: Fraction) -> Form:
    """value^power in prime radicals; odd roots of negatives are real."""
    result = number(_ONE)
    if value < 0:
        if power.denominator == 2:
            result = multiply(_atom(("i",)), number(Fraction((-1) ** (power.numerator // 2))))
        elif power.denominator % 2:
            result = number(Fraction((-1) ** power.numerator))
        else:
            raise NotExact("an even root of a negative number")
        value = -value
    for part, sign in ((value.numerator, 1), (value.denominator, -1)):
        for prime, count in _factors(part):
            exponent = sign * count * power
            whole = exponent.numerator // exponent.denominator
            result = scale(result, _rational_power_signed(prime, whole))
            rest = exponent - whole
            if rest:
                result = multiply(result, Form({((("p", prime), rest),): _ONE}, {_CONSTANT: _ONE}))
    return result


def _rational_power_signed(prime: int, power: int) -> Fraction:
    value = _rational_power(Fraction(prime), abs(power))
    return value if power >= 0 else 1 / value


def _factors(value: int) -> list[tuple[int, int]]:
    """The prime factors of a positive number, found by trial division up to a bound.

    Raises:
        NotExact: what remains is too large to be known as a prime.
    """
    found = []
    candidate = 2
    while candidate <= MAX_TRIAL and candidate * candidate <= value:
        count = 0
        while value % candidate == 0:
            value //= candidate
            count += 1
        if count:
            found.append((candidate, count))
        candidate += 1 if candidate == 2 else 2
    if value > 1:
        if value > MAX_TRIAL * MAX_TRIAL:
            raise NotExact("a radical of a number with large prime factors")
        found.append((value, 1))
    return found


def _absolute(inside: Form) -> Form:
    value = inside.rational()
    if value is not None:
        return number(abs(value))
    # |−x| and |x| are one generator.
    first = next(iter(sorted(inside.top.items(), key=repr)))[1]
    return _opaque("abs", scale(inside, Fraction(-1)) if first < 0 else inside)


def _call(name: str, arguments: tuple[Node, ...]) -> Form:
    forms = [form(argument) for argument in arguments]
    values = [_whole(item) for item in forms]
    if name == "binom" and len(forms) == 2 and None not in values:
        n, k = values[0] or 0, values[1] or 0
        if not 0 <= k <= n <= MAX_BITS:
            raise TooLarge(f"the binomial coefficient of {n} and {k} is not computed")
        return number(Fraction(comb(n, k)))
    if name in ("floor", "ceil") and len(forms) == 1:
        value = forms[0].rational()
        if value is not None:
            return number(Fraction(value.__floor__() if name == "floor" else value.__ceil__()))
    if name == "log" and len(forms) == 1 and forms[0].rational() == 1:
        return number(_ZERO)
    if name in ("sin", "tan", "cos") and len(forms) == 1 and not forms[0].top:
        return number(_ONE if name == "cos" else _ZERO)
    # sin 30° is not sin 30: the tree of the argument belongs to the name.
    return _opaque(f"{name} deg" if "deg" in repr(arguments) else name, *forms)


def _whole(value: Form) -> int | None:
    number = value.rational()
    return number.numerator if number is not None and number.denominator == 1 else None


def _opaque(name: str, *arguments: Form) -> Form:
    atom = ("f", name, tuple(argument.key() for argument in arguments))
    return Form({((atom, _ONE),): _ONE}, {_CONSTANT: _ONE}, opaque=True)


def _atom(atom: Atom) -> Form:
    return Form({((atom, _ONE),): _ONE}, {_CONSTANT: _ONE})


# --- arithmetic of polynomials ---


def _constant(poly: Poly) -> Fraction | None:
    if not poly:
        return _ZERO
    if len(poly) == 1 and _CONSTANT in poly:
        return poly[_CONSTANT]
    return None


def _key(poly: Poly) -> tuple[Any, ...]:
    return tuple(sorted(poly.items(), key=repr))


def _plus(a: Poly, b: Poly) -> Poly:
    total = dict(a)
    for monomial, value in b.items():
        value += total.get(monomial, _ZERO)
        if value:
            total[monomial] = value
        else:
            total.pop(monomial, None)
    return _capped(total)


def _minus(a: Poly, b: Poly) -> Poly:
    return _plus(a, {monomial: -value for monomial, value in b.items()})


def _times(a: Poly, b: Poly) -> Poly:
    if len(a) * len(b) > MAX_TERMS * 10:
        raise NotExact("a product of too many terms")
    meter.spent += len(a) * len(b)
    product: Poly = {}
    for left, x in a.items():
        for right, y in b.items():
            monomial, factor = _join(left, right)
            value = product.get(monomial, _ZERO) + x * y * factor
            if value:
                product[monomial] = value
            else:
                product.pop(monomial, None)
    return _capped(product)


def _join(left: Monomial, right: Monomial) -> tuple[Monomial, Fraction]:
    """The product of two monomials, and the rational factor that radicals and i leave."""
    if not left or not right:
        return left or right, _ONE
    exponents = dict(left)
    factor = _ONE
    for atom, exponent in right:
        exponent += exponents.pop(atom, _ZERO)
        if atom[0] == "p" and exponent >= 1:
            factor *= atom[1]
            exponent -= 1
        elif atom[0] == "i" and exponent == 2:
            factor = -factor
            continue
        if exponent:
            exponents[atom] = exponent
    return tuple(sorted(exponents.items(), key=repr)), factor


def _capped(poly: Poly) -> Poly:
    if len(poly) > MAX_TERMS:
        raise NotExact(f"more than {MAX_TERMS} terms")
    meter.pay(poly)
    return poly
