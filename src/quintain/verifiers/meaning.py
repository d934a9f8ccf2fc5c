"""What an answer means, before it is compared: signs expanded, values named, intervals solved.

`settle` turns the tree that was read into one that can be compared: `x = 2` is the value 2 with a
name, `3 > x` is an interval, `±2` two values, `f(t) = t²` a function of whatever its variable is
called. The node that this adds is `("named", name, value, origin)`, where origin is the relation
that it came from, or `("body", expression)` for a function.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from quintain.verifiers import exact
from quintain.verifiers.grammar import Node
from quintain.verifiers.notation import TooLarge

MAX_ITEMS = 64
INFINITY: Node = ("inf",)
INFINITE = (INFINITY, ("neg", INFINITY))


def settle(node: Node) -> Node:
    """Expands ±, names values, turns inequalities into intervals, unpacks names of tuples."""
    kind = node[0]
    if kind == "groups":
        return ("groups", tuple(settle(item) for item in node[1]))
    if kind in ("list", "set"):
        return _settle_items(kind, node[1])
    if kind == "tuple":
        return ("tuple", node[1], node[2], tuple(settle(item) for item in node[3]))
    if kind == "cup":
        items = tuple(settle(item) for item in node[1])
        return ("cup", items)
    if kind == "def":
        body = node[3]
        for place, variable in enumerate(node[2]):
            body = _renamed(body, variable, f"#{place}")
        return ("named", ("sym", f"{node[1]}()"), settle(body), ("body", settle(node[3])))
    if node == ("sym", "bbR"):
        return ("tuple", "(", ")", (("neg", INFINITY), INFINITY))
    if kind == "rel":
        return _relation(node)
    if has(node, "pm") and kind not in ("matrix", "ratio"):
        return ("list", tuple(_signs(node)))
    return node


def _settle_items(kind: str, items: Sequence[Node]) -> Node:
    settled: list[Node] = []
    for item in items:
        item = settle(item)
        settled.extend(item[1] if item[0] == "list" else (item,))
    if len(settled) > MAX_ITEMS:
        raise TooLarge(f"more than {MAX_ITEMS} items")
    # `n = 1, 2, 3` names the first and means all.
    if len(settled) > 1 and settled[0][0] == "named" and all(i[0] != "named" for i in settled[1:]):
        settled[0] = settled[0][2]
    return settled[0] if len(settled) == 1 and kind == "list" else (kind, tuple(settled))


def _relation(node: Node) -> Node:
    first, rest = node[1], node[2]
    operators = [operator for operator, _ in rest]
    last = rest[-1][1]
    if operators == ["in"]:
        return ("named", first, settle(last), node)
    if set(operators) == {"="}:
        if _is_name(first):
            value = settle(last)
            if value[0] == "list" and has(last, "pm"):
                return ("list", tuple(("named", first, item, node) for item in value[1]))
            return ("named", first, value, node)
        if not has_variables(first) and not has_variables(last):
            return settle(last)
    return _interval(node) or node


def _interval(node: Node) -> Node | None:
    """The interval that inequalities in one variable, linear in it, describe."""
    expressions = [node[1], *(item for _, item in node[2])]
    if [operator for operator, _ in node[2]] == ["!="]:
        solved = _solve(*expressions)
        if solved is None:
            return None
        sides = (("neg", INFINITY), solved[1]), (solved[1], INFINITY)
        return (
            "named",
            ("sym", solved[0]),
            ("cup", tuple(("tuple", "(", ")", s) for s in sides)),
            node,
        )
    low: tuple[Node, bool] = (("neg", INFINITY), False)
    high: tuple[Node, bool] = (INFINITY, False)
    variable: str | None = None
    for (operator, _), left, right in zip(node[2], expressions, expressions[1:], strict=False):
        if operator not in ("<", ">", "<=", ">="):
            return None
        solved = _solve(left, right)
        if solved is None or variable not in (None, solved[0]):
            return None
        variable, bound, negative = solved
        # left − right = c (x − bound); a negative c turns the sign around.
        less = (operator[0] == "<") != negative
        end = (bound, operator.endswith("="))
        if less and high[0] == INFINITY:
            high = end
        elif not less and low[0] == ("neg", INFINITY):
            low = end
        else:
            return None
    if variable is None:
        return None
    brackets = ("[" if low[1] else "(", "]" if high[1] else ")")
    return ("named", ("sym", variable), ("tuple", *brackets, (low[0], high[0])), node)


def _solve(left: Node, right: Node) -> tuple[str, Node, bool] | None:
    """(variable, bound, sign of its coefficient is negative) of a linear left − right."""
    if left in INFINITE or right in INFINITE:
        return None
    for one, other, negative in ((left, right, False), (right, left, True)):
        if one[0] == "sym" and one[1] not in ("e", "i", "pi") and not has_variables(other):
            return one[1], other, negative
    try:
        value = exact.form(("add", (left, ("neg", right))))
    except (exact.NotExact, exact.Undefined):
        return None
    symbols = value.symbols()
    if len(symbols) != 1 or value.opaque or set(value.bottom) != {()}:
        return None
    (name,) = symbols
    slope = value.top.get(((("s", name), Fraction(1)),))
    rest = value.top.get((), Fraction(0))
    if slope is None or len(value.top) > 2 or (len(value.top) == 2 and () not in value.top):
        return None
    return name, ("num", -rest / slope, -1), slope / value.bottom[()] < 0


def _is_name(node: Node) -> bool:
    """Whether it only names a quantity: a letter, f(x), |AB|, ∠APC, AB:CD, a tuple of names."""
    kind = node[0]
    if kind == "sym":
        return node[1] not in ("e", "i", "pi")
    if kind == "call":
        return all(_is_name(item) for item in node[2]) and (
            node[1] in ("f", "g", "h", "angle", "triangle", "overline", "vec", "det", "arg")
            or node[1][0] in "fgh"
        )
    if kind == "mul":
        # AB is a segment; xy = 6 is an equation.
        return all(item[0] == "sym" and item[1][0].isupper() for item in node[1])
    if kind == "ratio":
        return all(_is_name(item) for item in node[1])
    if kind == "div":
        return _is_name(node[1]) and _is_name(node[2])
    if kind == "abs":
        return _is_name(node[1])
    if kind == "tuple":
        return bool(node[3]) and all(_is_name(item) for item in node[3])
    return kind in ("text",)


def _signs(node: Node) -> list[Node]:
    """Both readings of the ± in an expression, all signs turned together."""
    return [_with_sign(node, plus) for plus in (True, False)]


def _with_sign(node: Node, plus: bool) -> Node:
    if node[0] == "pm":
        left, right = node[1], _with_sign(node[2], plus)
        positive = plus == (node[3] == "pm")
        right = right if positive else ("neg", right)
        return right if left is None else ("add", (_with_sign(left, plus), right))
    return tuple(
        _with_sign(item, plus)
        if isinstance(item, tuple) and item and isinstance(item[0], str)
        else tuple(_with_sign(part, plus) if isinstance(part, tuple) else part for part in item)
        if isinstance(item, tuple)
        else item
        for item in node
    )


def has(node: object, kind: str) -> bool:
    """Whether a node of that kind occurs."""
    return isinstance(node, tuple) and (
        (bool(node) and node[0] == kind) or any(has(item, kind) for item in node)
    )


def has_variables(node: object) -> bool:
    """Whether a variable occurs."""
    if not isinstance(node, tuple):
        return False
    if node and node[0] == "sym":
        return node[1] not in ("e", "i", "pi")
    return any(has_variables(item) for item in node)


def _renamed(node: Node, old: str, new: str) -> Node:
    if node == ("sym", old):
        return ("sym", new)
    return tuple(_renamed(item, old, new) if isinstance(item, tuple) else item for item in node)
