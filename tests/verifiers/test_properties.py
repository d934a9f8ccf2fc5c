"""Properties of the arithmetic and of the border, on generated values."""

import json
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.verifiers import runner
from quintain.verifiers.exact import Undefined, equal, form
from quintain.verifiers.grammar import parse
from quintain.verifiers.mathematics import Rules, same
from quintain.verifiers.notation import NotMath, TooLarge
from quintain.verifiers.plain import NotPlain, unpack
from quintain.verifiers.plain import equal as plain_equal

NUMBERS = st.integers(0, 99).map(lambda n: (str(n), Fraction(n)))


def joined(children):
    pairs = st.tuples(children, children)
    return st.one_of(
        pairs.map(lambda p: (f"({p[0][0]}+{p[1][0]})", p[0][1] + p[1][1])),
        pairs.map(lambda p: (f"({p[0][0]}-{p[1][0]})", p[0][1] - p[1][1])),
        pairs.map(lambda p: (f"{p[0][0]}\\cdot {p[1][0]}", p[0][1] * p[1][1])),
        pairs.filter(lambda p: p[1][1] != 0).map(
            lambda p: (f"\\frac{{{p[0][0]}}}{{{p[1][0]}}}", p[0][1] / p[1][1])
        ),
        st.tuples(children, st.integers(0, 4)).map(
            lambda p: (f"({p[0][0]})^{{{p[1]}}}", p[0][1] ** p[1])
        ),
        children.map(lambda c: (f"(-{c[0]})", -c[1])),
    )


EXPRESSIONS = st.recursive(NUMBERS, joined, max_leaves=8)
SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=2) | st.binary(max_size=2)
)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
        | st.sets(st.integers() | st.text(), max_size=4)
    ),
    max_leaves=12,
)


def travelled(value):
    return unpack(json.dumps(runner.to_plain(value)).encode("utf-8", "surrogatepass"))


@given(EXPRESSIONS)
def test_arithmetic_is_exact(expression):
    text, value = expression
    assert form(parse(text)).rational() == value


@given(EXPRESSIONS, st.integers(1, 10**6))
def test_a_changed_value_is_never_equal(expression, by):
    text, _ = expression
    assert (
        same(parse(text), parse(f"{text}+\\frac{{1}}{{{by}}}"), Rules(rational_digits=0)) is False
    )


@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 50))
def test_radicals_have_one_form(a, b, c):
    assert equal(form(parse(f"\\sqrt{{{a * c * c}}}")), form(parse(f"{c}\\sqrt{{{a}}}"))) is True
    product = form(parse(f"\\sqrt{{{a}}}\\sqrt{{{b}}}"))
    assert equal(product, form(parse(f"\\sqrt{{{a * b}}}"))) is True
    inverse = form(parse(f"\\frac{{1}}{{\\sqrt{{{a}}}}}"))
    assert equal(inverse, form(parse(f"\\frac{{\\sqrt{{{a}}}}}{{{a}}}"))) is True


@given(st.text(alphabet="0123456789+-*/^()[]{}\\,.=<>|!%&_ abexyfracsqtpim$:;'", max_size=60))
@settings(max_examples=400)
def test_any_text_is_read_or_refused(text):
    try:
        node = parse(text)
    except (NotMath, TooLarge):
        return
    try:
        decided = same(node, node, Rules())
    except (TooLarge, Undefined):
        return
    assert decided is True


@given(PLAIN)
def test_plain_values_travel_unchanged(value):
    back = travelled(value)
    assert plain_equal(value, back)
    assert type(back) is type(value)


@given(SCALARS, SCALARS)
def test_different_values_stay_different(one, other):
    assert plain_equal(one, travelled(other)) is (type(one) is type(other) and one == other)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    try:
        unpack(data)
    except NotPlain:
        return
