"""From tokens to a tree: expressions, tuples, intervals, sets, matrices, relations, lists.

A recursive-descent parser over the tokens of `notation`. A node is a nested tuple whose first
element names its kind (`Node` lists them), so trees are hashable and two equal trees are equal
answers. The parser only builds; it computes nothing.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from quintain.verifiers.notation import (
    FUNCTIONS,
    NotMath,
    Token,
    TooLarge,
    join_thousands,
    plain,
    tokenize,
)

Node = tuple[Any, ...]
"""One of

`("num", Fraction, decimals)`: decimals after the point as written, −1 when there is no point;
`("sym", name)`, `("inf",)`, `("neg", a)`, `("add", items)`, `("mul", items)`, `("div", a, b)`,
`("pow", a, b)`, `("fact", a)`, `("pct", a)`, `("deg", a)`, `("abs", a)`, `("pm", left | None,
right, sign)`, `("call", name, arguments)`;
`("tuple", open, close, items)`: also an interval, `("set", items)`, `("list", items)`: bare,
`("cup", items)`, `("minus", a, b)`: of sets, `("matrix", rows)`, `("ratio", items)`;
`("rel", first, ((operator, next), …))`, `("def", name, variables, body)`, `("unit", value, unit)`,
`("text", words)`, `("groups", lists)`.
"""

MAX_DEPTH = 60
RELATIONS = ("=", "<", ">", "<=", ">=", "!=")
_OPENING = {"(": ")", "[": "]"}
_END: Token = ("end", "")
_PREFIX_NAMES = ("angle", "triangle", "overline", "overrightarrow", "vec", "hat", "bar")


def parse(text: str) -> Node:
    """The tree of an answer, thousands separators not read as such.

    Raises:
        NotMath: the text is not in the grammar.
        TooLarge: it is over a cap on length, digits or depth.
    """
    return _Parser(tokenize(join_thousands(plain(text)))).answer()


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.place = 0
        self.depth = 0
        self.in_abs = 0

    # --- reading tokens ---

    @property
    def next(self) -> Token:
        return self.tokens[self.place]

    def take(self) -> Token:
        token = self.tokens[self.place]
        if token == _END:
            raise NotMath("the expression ends too early")
        self.place += 1
        return token

    def at(self, kind: str, text: str) -> bool:
        return self.tokens[self.place] == (kind, text)

    def skip(self, kind: str, text: str) -> bool:
        if self.tokens[self.place] == (kind, text):
            self.place += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.skip("op", text):
            raise NotMath(f"expected {text!r}, found {self.next[1]!r}")

    # --- answers and statements ---

    def answer(self) -> Node:
        groups: list[list[Node]] = [[]]
        commas = False
        while True:
            while self.next in (("op", ","), ("op", "quad"), ("op", "and")):
                commas = commas or self.next[1] != "quad"
                self.take()
            if self.next == _END:
                break
            if self.next in (("op", ";"), ("op", "or")):
                self.take()
                if groups[-1]:
                    groups.append([])
                continue
            groups[-1].append(self.statement())
            if self.next != _END and self.next[1] not in (",", ";", "quad", "and", "or"):
                raise NotMath(f"unexpected {self.next[1]!r}")
        groups = [group for group in groups if group]
        if not groups:
            raise NotMath("nothing there")
        if len(groups) > 1 and all(len(group) > 1 for group in groups):
            return ("groups", tuple(("list", tuple(group)) for group in groups))
        flat = tuple(item for group in groups for item in group)
        return flat[0] if len(flat) == 1 else ("list", flat)

    def statement(self) -> Node:
        if self.next[0] in ("text", "word"):
            return self.words()
        if (definition := self.definition()) is not None:
            return definition
        first = self.sets()
        first = self.unit(first)
        rest = []
        while True:
            if self.next[0] == "op" and self.next[1] in RELATIONS:
                operator = self.take()[1]
            elif self.skip("command", "in"):
                operator = "in"
            else:
                break
            following = self.words() if self.next[0] in ("text", "word") else self.sets()
            rest.append((operator, self.unit(following)))
        return ("rel", first, tuple(rest)) if rest else first

    def definition(self) -> Node | None:
        """`f(x) = …`, whose variable has no meaning outside."""
        start = self.place
        if self.next[0] == "name" and self.tokens[start + 1] == ("op", "("):
            name = self.subscripted(self.take()[1])
            if self.skip("op", "("):
                variables = []
                while self.next[0] == "name":
                    variables.append(self.subscripted(self.take()[1]))
                    if not self.skip("op", ","):
                        break
                if variables and self.skip("op", ")") and self.at("op", "="):
                    body: Node = ("sym", "")
                    while self.skip("op", "="):
                        body = self.sets()
                    return ("def", name, tuple(variables), body)
        self.place = start
        return None

    def words(self) -> Node:
        found = []
        while self.next[0] in ("text", "word", "name", "number") or self.at("op", "'"):
            found.append(self.take()[1])
        return ("text", " ".join(found))

    def unit(self, value: Node) -> Node:
        if self.next[0] not in ("text", "word"):
            return value
        found = []
        while self.next[0] in ("text", "word", "number", "name") or (
            self.next[0] == "op" and self.next[1] in "/^{}-'"
        ):
            found.append(self.take()[1])
            if self.at("op", "%"):
                raise NotMath("a percent sign after a unit")
        unit = " ".join(part for part in found if part not in "{}")
        return ("unit", value, unit)

    def sets(self) -> Node:
        items = [self.ratio()]
        while True:
            if self.skip("command", "cup"):
                items.append(self.ratio())
            elif self.skip("command", "setminus") or self.skip("command", "\\"):
                items = [("minus", _joined(items), self.ratio())]
            else:
                return _joined(items)

    def ratio(self) -> Node:
        items = [self.sum()]
        while self.skip("op", ":"):
            items.append(self.sum())
        return items[0] if len(items) == 1 else ("ratio", tuple(items))

    # --- arithmetic ---

    def sum(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooLarge(f"the expression is nested deeper than {MAX_DEPTH}")
        items: list[Node] = []
        while True:
            if self.next in (("command", "pm"), ("command", "mp")):
                sign = self.take()[1]
                items = [("pm", _sum_of(items) if items else None, self.product(), sign)]
            elif not items:
                items = [self.product()]
            elif self.skip("op", "+"):
                items.append(self.product())
            elif self.skip("op", "-"):
                items.append(("neg", self.product()))
            else:
                self.depth -= 1
                return _sum_of(items)

    def product(self) -> Node:
        left = self.signed()
        factors = [left]
        while True:
            if self.skip("op", "*"):
                factors.append(self.signed())
            elif self.skip("op", "/"):
                factors = [("div", _product_of(factors), self.signed())]
            elif self.begins_factor():
                before = self.tokens[self.place - 1]
                mixed = self.mixed(factors, before)
                if mixed is not None:
                    factors[-1] = mixed
                else:
                    factors.append(self.power())
            else:
                return _product_of(factors)

    def mixed(self, factors: list[Node], before: Token) -> Node | None:
        r"""`2\frac{1}{2}` and `2 1/2` are two and a half; refuses other numbers side by side."""
        whole = factors[-1]
        if before[0] == "number" and "." not in before[1] and self.at("command", "frac"):
            start = self.place
            part = self.atom()
            if part[0] == "div" and _proper(part) and whole[0] == "num":
                return self.postfix(("add", (whole, part)))
            self.place = start
        if self.next[0] == "number":
            after = self.tokens[self.place + 1 : self.place + 3]
            if before[0] == "number" and len(after) == 2 and after[0] == ("op", "/"):
                top, bottom = _number(self.take()[1]), None
                self.take()
                if self.next[0] == "number":
                    bottom = _number(self.take()[1])
                    part = ("div", top, bottom)
                    if _proper(part):
                        return ("add", (whole, part))
            if before not in (("op", ")"), ("op", "}")):
                raise NotMath("two numbers side by side")
        return None

    def begins_factor(self) -> bool:
        kind, text = self.next
        if kind in ("name", "number"):
            return True
        if kind == "op":
            return text in ("(", "{") or (text == "|" and not self.in_abs)
        if kind == "command":
            return text in FUNCTIONS or text in (
                "frac", "sqrt", "pi", "infty", "binom", "lfloor", "lceil", *_PREFIX_NAMES,
            ) or text.startswith("begin ")  # fmt: skip
        return False

    def signed(self) -> Node:
        minus = False
        while self.next in (("op", "-"), ("op", "+")):
            minus ^= self.take()[1] == "-"
        value = self.power()
        return ("neg", value) if minus else value

    def power(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooLarge(f"the expression is nested deeper than {MAX_DEPTH}")
        value = self.postfix(self.atom())
        if self.skip("op", "^"):
            if self.degrees():
                value = self.postfix(("deg", value))
            else:
                value = self.postfix(("pow", value, self.exponent()))
        self.depth -= 1
        return value

    def degrees(self) -> bool:
        start = self.place
        braced = self.skip("op", "{")
        if self.skip("command", "circ") and (not braced or self.skip("op", "}")):
            return True
        self.place = start
        return False

    def exponent(self) -> Node:
        if self.at("op", "-") or self.at("op", "+"):
            return self.signed()
        return self.power()

    def postfix(self, value: Node) -> Node:
        while True:
            if self.skip("op", "!"):
                value = ("fact", value)
            elif self.skip("op", "%"):
                value = ("pct", value)
            else:
                return value

    # --- atoms ---

    def atom(self) -> Node:
        kind, text = self.take()
        if kind == "number":
            return self.based(_number(text))
        if kind == "name":
            return self.name(text)
        if kind == "command":
            return self.command(text)
        if kind == "op" and text in _OPENING:
            return self.bracket(text)
        if kind == "op" and text == "{":
            return self.group()
        if kind == "op" and text == "\\{":
            return self.braces()
        if kind == "op" and text == "|":
            self.in_abs += 1
            inside = self.sum()
            self.in_abs -= 1
            self.expect("|")
            return ("abs", inside)
        raise NotMath(f"unexpected {text!r}")

    def based(self, value: Node) -> Node:
        """`2516_8` is a numeral in base 8."""
        if not self.skip("op", "_"):
            return value
        base = self.argument(digit=False)
        if base[0] != "num":
            raise NotMath("a base that is not a number")
        return ("unit", value, f"base {base[1]}")

    def braces(self) -> Node:
        """A set by its elements, or by a condition: `{x : x > 3}` is the condition."""
        bar = self.tokens[self.place + 1] if self.next[0] == "name" else _END
        if bar in (("op", "|"), ("op", ":")):
            self.place += 2
            conditions = self.items("\\}")
            return conditions[0] if len(conditions) == 1 else ("list", conditions)
        return ("set", self.items("\\}"))

    def name(self, text: str) -> Node:
        name = self.subscripted(text)
        while self.skip("op", "'"):
            name += "'"
        if name[0] in "fgh" and self.at("op", "("):
            self.take()
            return ("call", name, self.items(")"))
        return ("sym", name)

    def subscripted(self, name: str) -> str:
        if not self.skip("op", "_"):
            return name
        if not self.skip("op", "{"):
            return f"{name}_{self.take()[1]}"
        parts = []
        while not self.skip("op", "}"):
            if self.next == _END:
                raise NotMath("a subscript is not closed")
            parts.append(self.take()[1])
        return f"{name}_{''.join(parts)}"

    def items(self, *closing: str) -> tuple[Node, ...]:
        """Statements up to a closing bracket, which is taken."""
        found: list[Node] = []
        outer, self.in_abs = self.in_abs, 0
        while not (self.next[0] == "op" and self.next[1] in closing):
            found.append(self.statement())
            if not (self.skip("op", ",") or self.skip("op", ";")):
                break
            self.skip("op", "quad")
        self.in_abs = outer
        if not (self.next[0] == "op" and self.next[1] in closing):
            raise NotMath(f"expected {closing[0]!r}, found {self.next[1]!r}")
        self.take()
        return tuple(found)

    def bracket(self, opening: str) -> Node:
        found = self.items(")", "]")
        closed, comma = self.tokens[self.place - 1][1], self.tokens[self.place - 2][1] == ","
        if len(found) == 1 and not comma and _OPENING[opening] == closed:
            return found[0]
        return ("tuple", opening, closed, found)

    def group(self) -> Node:
        found = self.items("}")
        if not found:
            raise NotMath("an empty group")
        return found[0] if len(found) == 1 else ("list", found)

    def argument(self, *, digit: bool) -> Node:
        """The argument of a LaTeX macro: a group, or one token (of a number: one digit)."""
        if self.skip("op", "{"):
            return self.group()
        kind, text = self.next
        if kind == "number" and digit and len(text) > 1 and "." not in text:
            self.tokens[self.place] = ("number", text[1:])
            return _number(text[0])
        if kind == "op" and text == "-":
            raise NotMath("a sign where a macro wants its argument")
        return self.atom()

    def command(self, text: str) -> Node:
        if text == "frac":
            return ("div", self.argument(digit=True), self.argument(digit=True))
        if text == "sqrt":
            return self.root()
        if text == "pi":
            return ("sym", "pi")
        if text == "infty":
            return ("inf",)
        if text == "binom":
            if self.skip("op", "("):
                return ("call", "binom", self.items(")"))
            return ("call", "binom", (self.argument(digit=True), self.argument(digit=True)))
        if text in ("lfloor", "lceil"):
            inside = self.sum()
            if self.take() != ("command", "r" + text[1:]):
                raise NotMath(f"\\{text} is not closed")
            return ("call", text[1:], (inside,))
        if text in _PREFIX_NAMES:
            return ("call", text, (self.product(),))
        if text == "varnothing":
            return ("set", ())
        if text.startswith("begin "):
            return self.environment(text.removeprefix("begin "))
        if text in FUNCTIONS:
            return self.function(text)
        raise NotMath(f"\\{text} is not in the grammar")

    def root(self) -> Node:
        degree: Node = ("num", Fraction(2), -1)
        if self.skip("op", "["):
            degree = self.sum()
            self.expect("]")
        inside = self.argument(digit=False)
        return ("pow", inside, ("div", ("num", Fraction(1), -1), degree))

    def function(self, name: str) -> Node:
        base: Node | None = None
        power: Node | None = None
        for _ in range(2):
            if name == "log" and base is None and self.skip("op", "_"):
                base = self.argument(digit=False)
            elif power is None and self.skip("op", "^"):
                power = self.argument(digit=False) if self.at("op", "{") else self.atom()
        if self.skip("op", "("):
            arguments = self.items(")")
        elif self.at("op", "{"):
            self.take()
            arguments = (self.group(),)
        else:
            arguments = (self.chain(),)
        if not arguments:
            raise NotMath(f"{name} of nothing")
        if name == "factorial":
            value: Node = ("fact", arguments[0])
        elif name == "abs":
            value = ("abs", arguments[0])
        elif name in ("binomial", "binom"):
            value = ("call", "binom", arguments)
        elif name == "exp":
            value = ("pow", ("sym", "e"), arguments[0])
        elif name == "cbrt":
            value = ("pow", arguments[0], ("div", _ONE, ("num", Fraction(3), -1)))
        else:
            value = (
                "call",
                "log" if name == "ln" else name,
                (*arguments, *((base,) if base else ())),
            )
        if power is None:
            return value
        if power == ("neg", _ONE) and name in ("sin", "cos", "tan"):
            return ("call", f"a{name}", arguments)
        return ("pow", value, power)

    def chain(self) -> Node:
        """What a function without parentheses applies to: factors up to an operator."""
        if self.at("op", "-"):
            self.take()
            return ("neg", self.chain())
        factors = [self.power()]
        while (
            self.begins_factor()
            and not (self.next[0] == "command" and self.next[1] in FUNCTIONS)
            and not self.at("op", "(")
            and self.next[0] != "number"
        ):
            factors.append(self.power())
        return _product_of(factors)

    def environment(self, name: str) -> Node:
        if name.rstrip("*") not in (
            "matrix", "pmatrix", "bmatrix", "vmatrix", "Bmatrix", "smallmatrix", "array",
        ):  # fmt: skip
            raise NotMath(f"the environment {name} is not in the grammar")
        rows: list[tuple[Node, ...]] = []
        row: list[Node] = []
        while True:
            if self.skip("command", f"end {name}"):
                break
            if self.skip("command", "\\"):
                rows.append(tuple(row))
                row = []
            elif not self.skip("op", "&"):
                if self.next == _END:
                    raise NotMath(f"the environment {name} is not closed")
                row.append(self.sum())
        if row:
            rows.append(tuple(row))
        if not rows or len({len(row) for row in rows}) != 1 or not rows[0]:
            raise NotMath("a matrix needs rows of one length")
        matrix = ("matrix", tuple(rows))
        return ("call", "det", (matrix,)) if name.startswith("v") else matrix


_ONE: Node = ("num", Fraction(1), -1)


def _number(text: str) -> Node:
    whole, point, decimals = text.partition(".")
    if not point:
        return ("num", Fraction(int(whole)), -1)
    return ("num", Fraction(int(whole + decimals), 10 ** len(decimals)), len(decimals))


def _proper(part: Node) -> bool:
    top, bottom = part[1], part[2]
    return bool(
        top[0] == bottom[0] == "num"
        and top[1].denominator == bottom[1].denominator == 1
        and 0 < top[1] < bottom[1]
    )


def _sum_of(items: list[Node]) -> Node:
    return items[0] if len(items) == 1 else ("add", tuple(items))


def _product_of(items: list[Node]) -> Node:
    return items[0] if len(items) == 1 else ("mul", tuple(items))


def _joined(items: list[Node]) -> Node:
    return items[0] if len(items) == 1 else ("cup", tuple(items))
