"""A small, typed part of SMT-LIB 2.6: terms are read, checked for their sorts, and written anew.

Nothing that a candidate wrote reaches a solver as text. There are terms only, no commands:
constants, declared symbols, the operators below, `let`, and quantifiers where a task allows them.
Bound names are renamed, so that none can stand for a declared one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

Expression: TypeAlias = "str | list[Expression]"
Sort: TypeAlias = str
MAX_CHARS = 20_000
MAX_DEPTH = 100
MAX_NODES = 4_000
MAX_WIDTH = 512
"""Bits of a bit vector."""

_TOKEN = re.compile(r"\s+|;[^\n]*|([()])|([^\s();|\"]+)")
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_.$]{0,63}")
_BITS = re.compile(r"BitVec (\d{1,4})")
RESERVED = frozenset(
    ("let", "forall", "exists", "match", "par", "_", "!", "as", "true", "false", "lambda")
)
_CHAINED = {"<", "<=", ">", ">="}
_BV_SAME = frozenset(
    ("bvand", "bvor", "bvxor", "bvadd", "bvmul", "bvsub", "bvudiv", "bvurem", "bvsdiv", "bvsrem",
     "bvshl", "bvlshr", "bvashr")
)  # fmt: skip
_BV_TEST = frozenset(
    ("bvult", "bvule", "bvugt", "bvuge", "bvslt", "bvsle", "bvsgt", "bvsge")
)  # fmt: skip
OPERATORS = frozenset(
    ("not", "and", "or", "xor", "=>", "ite", "=", "distinct", "+", "-", "*", "div", "mod", "abs",
     "/", "to_real", "to_int", "is_int", "bvnot", "bvneg", "concat")
) | _CHAINED | _BV_SAME | _BV_TEST  # fmt: skip


class BadTerm(ValueError):
    """What is wrong with a term, in words."""


def parse(text: str) -> list[Expression]:
    """The expressions of a text.

    Raises:
        BadTerm: it is too long, too deep, or no S-expression without strings and quoted symbols.
    """
    if len(text) > MAX_CHARS:
        raise BadTerm(f"more than {MAX_CHARS} characters")
    stack: list[list[Expression]] = [[]]
    for nodes, token in enumerate(_tokens(text)):
        if nodes >= MAX_NODES:
            raise BadTerm(f"more than {MAX_NODES} symbols")
        if token == "(":
            if len(stack) > MAX_DEPTH:
                raise BadTerm(f"nested more than {MAX_DEPTH} deep")
            stack.append([])
        elif token == ")":
            if len(stack) == 1:
                raise BadTerm("a closing parenthesis too many")
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    if len(stack) > 1:
        raise BadTerm("a parenthesis has no end")
    return stack[0]


def _tokens(text: str) -> Iterator[str]:
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise BadTerm(f"{text[place]!r} is not allowed")
        if match[1] or match[2]:
            yield match[1] or match[2]
        place = match.end()


def one(text: str) -> Expression:
    """The only expression of a text.

    Raises:
        BadTerm: it has none, or several, or is none.
    """
    found = parse(text)
    if len(found) != 1:
        raise BadTerm(f"expected one term, got {len(found)}")
    return found[0]


def sort_of(text: str) -> Sort:
    """A sort as it is written: Bool, Int, Real or (_ BitVec n).

    Raises:
        BadTerm: it is another.
    """
    expression = one(text)
    if expression in ("Bool", "Int", "Real"):
        return str(expression)
    if isinstance(expression, list) and expression[:2] == ["_", "BitVec"] and len(expression) == 3:
        width = expression[2]
        if isinstance(width, str) and width.isdecimal() and 0 < int(width) <= MAX_WIDTH:
            return f"BitVec {int(width)}"
    raise BadTerm(f"expected Bool, Int, Real or (_ BitVec n), got {text!r:.60}")


def written(sort: Sort) -> str:
    """A sort as SMT-LIB writes it."""
    return f"(_ {sort})" if sort.startswith("BitVec") else sort


@dataclass(slots=True)
class Scope:
    """The symbols that a term may use."""

    symbols: Mapping[str, tuple[tuple[Sort, ...], Sort]]
    """Name to argument sorts (none: a constant) and result sort."""
    quantifiers: bool = False
    prefix: str = "b"
    """Of bound names; scopes of one script have different ones."""
    _fresh: Iterator[int] = field(default_factory=count)

    def term(self, expression: Expression, wanted: Sort | None = None) -> tuple[str, Sort]:
        """The term written anew, and its sort.

        Raises:
            BadTerm: a symbol is not declared, an operator is not allowed, or sorts do not fit.
        """
        text, sort = self._term(expression, {})
        if wanted == "Real" and sort == "Int":
            text, sort = f"(to_real {text})", "Real"
        if wanted is not None and sort != wanted:
            raise BadTerm(f"expected a {wanted}, got a {sort}")
        return text, sort

    def _term(self, e: Expression, bound: Mapping[str, tuple[str, Sort]]) -> tuple[str, Sort]:
        if isinstance(e, str):
            return self._atom(e, bound)
        if not e:
            raise BadTerm("an empty list is no term")
        head = e[0]
        if isinstance(head, list):
            return self._indexed(head, [self._term(each, bound) for each in e[1:]])
        if head == "_":
            return _literal(e)
        if head == "let":
            return self._let(e, bound)
        if head in ("forall", "exists"):
            return self._quantified(e, bound)
        arguments = [self._term(each, bound) for each in e[1:]]
        if head in self.symbols:
            return self._applied(head, arguments)
        if head in OPERATORS:
            return _operator(head, arguments)
        raise BadTerm(f"{head!r:.60} is neither declared nor an operator that is allowed")

    def _atom(self, name: str, bound: Mapping[str, tuple[str, Sort]]) -> tuple[str, Sort]:
        if name in bound:
            return bound[name]
        if name in ("true", "false"):
            return name, "Bool"
        if name in self.symbols:
            arguments, sort = self.symbols[name]
            if arguments:
                raise BadTerm(f"{name} takes {len(arguments)} arguments")
            return name, sort
        if re.fullmatch(r"0|[1-9][0-9]*", name):
            return name, "Int"
        if re.fullmatch(r"(0|[1-9][0-9]*)\.[0-9]+", name):
            return name, "Real"
        for pattern, bits in ((r"#x[0-9a-fA-F]+", 4), (r"#b[01]+", 1)):
            if re.fullmatch(pattern, name) and (len(name) - 2) * bits <= MAX_WIDTH:
                return name, f"BitVec {(len(name) - 2) * bits}"
        raise BadTerm(f"{name!r:.60} is not declared")

    def _let(self, e: list[Expression], bound: Mapping[str, tuple[str, Sort]]) -> tuple[str, Sort]:
        if len(e) != 3 or not isinstance(e[1], list) or not e[1]:
            raise BadTerm("let is written (let ((name term) …) term)")
        inner = dict(bound)
        written_pairs = []
        for pair in e[1]:
            if not (isinstance(pair, list) and len(pair) == 2):
                raise BadTerm("let is written (let ((name term) …) term)")
            text, sort = self._term(pair[1], bound)
            fresh = f"{self.prefix}!{next(self._fresh)}"
            inner[_name(pair[0])] = (fresh, sort)
            written_pairs.append(f"({fresh} {text})")
        body, sort = self._term(e[2], inner)
        return f"(let ({' '.join(written_pairs)}) {body})", sort

    def _quantified(
        self, e: list[Expression], bound: Mapping[str, tuple[str, Sort]]
    ) -> tuple[str, Sort]:
        if not self.quantifiers:
            raise BadTerm("quantifiers are not allowed here")
        if len(e) != 3 or not isinstance(e[1], list) or not e[1]:
            raise BadTerm(f"{e[0]} is written ({e[0]} ((name sort) …) term)")
        inner, names = dict(bound), []
        for pair in e[1]:
            if not (isinstance(pair, list) and len(pair) == 2):
                raise BadTerm(f"{e[0]} is written ({e[0]} ((name sort) …) term)")
            sort = sort_of(_flat(pair[1]))
            fresh = f"{self.prefix}!{next(self._fresh)}"
            inner[_name(pair[0])] = (fresh, sort)
            names.append(f"({fresh} {written(sort)})")
        body, sort = self._term(e[2], inner)
        if sort != "Bool":
            raise BadTerm(f"the body of {e[0]} is a {sort}")
        return f"({e[0]} ({' '.join(names)}) {body})", "Bool"

    def _applied(self, name: str, arguments: Sequence[tuple[str, Sort]]) -> tuple[str, Sort]:
        wanted, sort = self.symbols[name]
        if tuple(given for _, given in arguments) != wanted or not wanted:
            raise BadTerm(f"{name} takes {', '.join(wanted) or 'no arguments'}")
        return _call(name, arguments), sort

    def _indexed(
        self, head: list[Expression], arguments: Sequence[tuple[str, Sort]]
    ) -> tuple[str, Sort]:
        """`((_ extract i j) x)` and `((_ zero_extend n) x)`."""
        if len(arguments) != 1 or not (match := _BITS.fullmatch(arguments[0][1])):
            raise BadTerm(f"{_flat(head)[:60]} takes one bit vector")
        width, numbers = int(match[1]), [str(each) for each in head[2:]]
        if head[0] == "_" and all(n.isdecimal() and len(n) < 5 for n in numbers):
            indexes = list(map(int, numbers))
            if head[1] == "extract" and len(indexes) == 2 and width > indexes[0] >= indexes[1]:
                new = indexes[0] - indexes[1] + 1
                return f"((_ extract {indexes[0]} {indexes[1]}) {arguments[0][0]})", f"BitVec {new}"
            if head[1] in ("zero_extend", "sign_extend") and len(indexes) == 1:
                new = width + indexes[0]
                if new <= MAX_WIDTH:
                    return f"((_ {head[1]} {indexes[0]}) {arguments[0][0]})", f"BitVec {new}"
        raise BadTerm(f"{_flat(head)[:60]} is not allowed")


def _name(e: Expression) -> str:
    if not isinstance(e, str) or not _SYMBOL.fullmatch(e) or e in RESERVED or e in OPERATORS:
        raise BadTerm(f"{_flat(e)[:60]!r} is no name")
    return e


def check_name(name: str) -> str:
    """A declared symbol's name.

    Raises:
        BadTerm: it is reserved, an operator, or no simple symbol.
    """
    return _name(name)


def _flat(e: Expression) -> str:
    return e if isinstance(e, str) else f"({' '.join(map(_flat, e))})"


def _literal(e: list[Expression]) -> tuple[str, Sort]:
    """`(_ bv5 8)`."""
    if len(e) == 3 and isinstance(e[1], str) and isinstance(e[2], str):
        value = re.fullmatch(r"bv(0|[1-9][0-9]{0,160})", e[1])
        if value and e[2].isdecimal() and 0 < int(e[2][:5]) <= MAX_WIDTH:
            width = int(e[2])
            if int(value[1]) < 2**width:
                return f"(_ bv{value[1]} {width})", f"BitVec {width}"
    raise BadTerm(f"{_flat(e)[:60]} is not allowed")


def _call(name: str, arguments: Sequence[tuple[str, Sort]]) -> str:
    return f"({name} {' '.join(text for text, _ in arguments)})"


def _operator(name: str, arguments: Sequence[tuple[str, Sort]]) -> tuple[str, Sort]:
    sorts, n = [sort for _, sort in arguments], len(arguments)
    if "Real" in sorts and "Int" in sorts and name not in ("ite",):
        # Whole numbers among real ones mean themselves.
        arguments = [(f"(to_real {t})", "Real") if s == "Int" else (t, s) for t, s in arguments]
        sorts = [sort for _, sort in arguments]
    alike = n > 0 and len(set(sorts)) == 1
    first = sorts[0] if sorts else ""
    number, bits = first in ("Int", "Real"), first.startswith("BitVec")
    result = ""
    match name:
        case "not":
            result = "Bool" if sorts == ["Bool"] else ""
        case "and" | "or" | "xor" | "=>":
            result = "Bool" if n >= 2 and alike and first == "Bool" else ""
        case "=" | "distinct":
            result = "Bool" if n >= 2 and alike else ""
        case "ite":
            result = sorts[1] if n == 3 and first == "Bool" and sorts[1] == sorts[2] else ""
        case "+" | "*":
            result = first if n >= 2 and alike and number else ""
        case "-":
            result = first if n >= 1 and alike and number else ""
        case "div" | "mod":
            result = "Int" if sorts == ["Int", "Int"] else ""
        case "abs":
            result = "Int" if sorts == ["Int"] else ""
        case "/":
            if n == 2 and alike and number:
                reals = [(f"(to_real {t})" if s == "Int" else t, "Real") for t, s in arguments]
                return _call("/", reals), "Real"
        case "to_real":
            result = "Real" if sorts == ["Int"] else ""
        case "to_int":
            result = "Int" if sorts == ["Real"] else ""
        case "is_int":
            result = "Bool" if sorts == ["Real"] else ""
        case "bvnot" | "bvneg":
            result = first if n == 1 and bits else ""
        case "concat":
            widths = [int(s.split()[1]) for s in sorts if s.startswith("BitVec")]
            if n == len(widths) == 2 and sum(widths) <= MAX_WIDTH:
                result = f"BitVec {sum(widths)}"
        case _ if name in _CHAINED:
            result = "Bool" if n >= 2 and alike and number else ""
        case _ if name in _BV_SAME:
            result = first if n == 2 and alike and bits else ""
        case _ if name in _BV_TEST:
            result = "Bool" if n == 2 and alike and bits else ""
    if not result:
        raise BadTerm(f"{name} does not take {', '.join(sorts) or 'nothing'}")
    return _call(name, arguments), result
