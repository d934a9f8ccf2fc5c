r"""From a mathematical answer, in LaTeX or as typed, to tokens.

Layout is dropped (`\left`, `\,`, `$`), synonyms are joined (`\dfrac`, `<=`, `≤`), and what stays
is a flat list of `(kind, text)` pairs. Nothing is evaluated. Caps on length and digits come first:
the text is untrusted.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

MAX_CHARS = 4_000
MAX_DIGITS = 4_000


class NotMath(ValueError):
    """The text is not an expression of the grammar."""


class TooLarge(ValueError):
    """The text is larger than any honest answer: too long, too deep, too many digits."""


Token = tuple[str, str]
"""(kind, text); kinds: number, name, word, command, text, op, end."""

SPACING = tuple(
    re.findall(
        r"\w+",
        "displaystyle textstyle limits nolimits left right bigl bigr Bigl Bigr biggl biggr"
        " Biggl Biggr big Big bigg Bigg middle mathopen mathclose mathstrut qquad quad hfill"
        " noindent strut hspace smash null",
    )
)
SEPARATING = ("qquad", "quad")
TEXT_COMMANDS = tuple(
    re.findall(
        r"\w+",
        "text textbf textit textrm textsf texttt textnormal mbox hbox emph mathbf mathrm mathit"
        " mathsf mathtt mathcal operatorname boldsymbol bm mathbb mathfrak underline boxed fbox"
        " pmb bold",
    )
)
SYNONYMS = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "nicefrac": "frac", "sfrac": "frac",
    "dbinom": "binom", "tbinom": "binom", "choose": "binom",
    "leqslant": "le", "leq": "le", "lt": "<", "geqslant": "ge", "geq": "ge", "gt": ">",
    "neq": "ne", "approx": "=", "simeq": "=", "equiv": "=", "coloneqq": "=", "sim": "=",
    "lbrace": "{", "rbrace": "}", "lbrack": "[", "rbrack": "]", "lparen": "(", "rparen": ")",
    "lvert": "|", "rvert": "|", "vert": "|", "mid": "|", "langle": "(", "rangle": ")",
    "cdot": "*", "times": "*", "ast": "*", "bullet": "*", "cdotp": "*", "div": "/", "colon": ":",
    "bigcup": "cup", "land": "and", "wedge": "and", "lor": "or", "vee": "or",
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "emptyset": "varnothing",
    "to": "rightarrow", "longrightarrow": "rightarrow", "implies": "Rightarrow",
    "degree": "circ", "dots": "ldots", "cdots": "ldots", "dotsc": "ldots", "vdots": "ldots",
    "lgroup": "(", "rgroup": ")", "minus": "-", "plus": "+", "varepsilon": "epsilon",
}  # fmt: skip
CHARACTERS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "×": "*", "·": "*", "∙": "*", "⋅": "*",
    "÷": "/", "∕": "/", "≤": "<=", "⩽": "<=", "≥": ">=", "⩾": ">=", "≠": "!=", "≈": "=",
    "∞": "\\infty ", "π": "\\pi ", "√": "\\sqrt ", "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ",
    "°": "^\\circ ", "º": "^\\circ ", "±": "\\pm ", "∓": "\\mp ", "…": "\\ldots ", "θ": "\\theta ",
    "α": "\\alpha ", "β": "\\beta ", "γ": "\\gamma ", "φ": "\\phi ", "λ": "\\lambda ",
    "μ": "\\mu ", "σ": "\\sigma ", "ω": "\\omega ", "∠": "\\angle ", "∅": "\\varnothing ",
    "ℝ": "\\mathbb{R}", "∖": "\\setminus ", "∧": "\\land ", "∨": "\\lor ", "′": "'", "’": "'",
    "\u2009": "\\,", "\u202f": "\\,", "\u00a0": " ", "\u200b": "", "\ufeff": "", "⟨": "(",
    "⟩": ")", "，": ",", "。": ".", "（": "(", "）": ")", "：": ":", "％": "%", "＝": "=",
}  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
_VULGAR = {
    "½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5",
    "⅗": "3/5", "⅘": "4/5", "⅙": "1/6", "⅚": "5/6", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8",
}  # fmt: skip
FUNCTIONS = frozenset(
    re.findall(
        r"\w+",
        "sin cos tan cot sec csc asin acos atan acot asec acsc sinh cosh tanh coth asinh "
        "acosh atanh log ln lg exp sqrt cbrt abs floor ceil gcd lcm max min arg det factorial "
        "binomial binom sign sgn gamma ",
    )
)
WORD_SYNONYMS = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "infinity": "infty", "inf": "infty",
    "oo": "infty", "percentage": "percent", "pct": "percent", "percents": "percent",
    "degrees": "circ", "degree": "circ", "deg": "circ", "union": "cup", "plusminus": "pm",
}  # fmt: skip
GREEK = frozenset(
    re.findall(
        r"\w+",
        "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma "
        "tau upsilon phi chi psi omega varphi vartheta varrho varsigma Gamma Delta Theta "
        "Lambda Xi Sigma Phi Psi Omega ell hbar ",
    )
)
UNITS = frozenset(
    re.findall(
        r"\w+", "cm mm km kg mg ml ft hr hrs min sec lb lbs oz mph kph yd mi Hz kW kJ km2 cm2"
    )
)
"""Read as units right behind a number; single letters stay variables."""
_VARIABLE_RUNS = ("abcd", "klmn", "mnpq", "pqrst", "uvwxyz")
_TOKEN = re.compile(
    r"(?P<number>\d+\.\d+|\d+\.(?![\d.])|\.\d+|\d+)"
    r"|\\(?P<command>[a-zA-Z]+|[{}|%$&#_\\])"
    r"|(?P<name>[a-zA-Z]+)"
    r"|(?P<op><=|>=|!=|==|\*\*|:=|\.\.\.|[-+*/^_=<>(){}\[\],;:|!%&'])"
    r"|(?P<space>[\s~]+)"
)


_INVISIBLE = re.compile(r"\\[hv]?phantom\s{0,9}(?:\{[^{}]*\}|\\?[A-Za-z0-9])")
"""What nobody sees is not said. With braces inside it stays, and no expression can hold it."""


def plain(text: str) -> str:
    """One line of ASCII: Unicode operators, double backslashes and layout macros resolved."""
    if not text.isascii():
        text = "".join(CHARACTERS.get(char, char) for char in text)
        text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+", _superscript, text)
        text = re.sub("(\\d*)([" + "".join(_VULGAR) + "])", _vulgar, text)
        text = unicodedata.normalize("NFKC", text)
    text = _INVISIBLE.sub(" ", text)
    if "\\begin" not in text:
        text = re.sub(r"\\\\(?=[a-zA-Z({\[)}\]])", r"\\", text)
    text = text.replace("\\n", "\n") if re.search(r"\\n(?![a-zA-Z])", text) else text
    text = re.sub(r"(\d{0,40})\.(\d{0,40})\\overline\{(\d{1,40})\}", _repeating, text)
    if "\\" not in text:
        text = re.sub(r"(?<![\w.])(\d+(?:\.\d+)?)[eE]([+-]?\d{1,3})(?![\w.])", r"\1*10^{\2}", text)
    text = re.sub(r"\\[()\[\]]|\$\$|(?<!\\)\$", " ", text)
    return text.strip()


def _repeating(match: re.Match[str]) -> str:
    whole, once, again = match.groups()
    nines = (10 ** len(again) - 1) * 10 ** len(once)
    top = int(whole + once + again) - int(whole + once or "0")
    return f"\\frac{{{top}}}{{{nines}}}"


def _superscript(match: re.Match[str]) -> str:
    return "^{" + match.group().translate(_SUPERSCRIPTS) + "}"


def _vulgar(match: re.Match[str]) -> str:
    whole, fraction = match.group(1), _VULGAR[match.group(2)]
    return f"({whole}+{fraction})" if whole else f"({fraction})"


def join_thousands(text: str) -> str:
    r"""`1,\!000`, `1{,}000` and `1\,000` are one number in any reading."""
    text = re.sub(r"(?<=\d)(?:,\s*\\!\s*|\{,\}\s*|\\[,;:!]\s*|\\ )(?=\d{3}(?!\d))", "", text)
    return re.sub(r"(?<!\\)\\[,;:!> ]", " ", text)


def tokenize(text: str) -> list[Token]:
    """The tokens of an already `plain` text, an `end` token last.

    Raises:
        TooLarge: the text or one of its numbers is over a cap.
        NotMath: a character has no place in an expression.
    """
    if len(text) > MAX_CHARS:
        raise TooLarge(f"the expression has {len(text)} characters, more than {MAX_CHARS}")
    tokens: list[Token] = []
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise NotMath(f"unexpected {text[place]!r}")
        kind, place = str(match.lastgroup), match.end()
        found = match.group(kind)
        if kind == "space":
            continue
        if kind == "command":
            place = _command(found, text, place, tokens)
        elif kind == "name":
            _name(found, tokens)
        elif kind == "number":
            if len(found) > MAX_DIGITS:
                raise TooLarge(f"a number has {len(found)} digits, more than {MAX_DIGITS}")
            tokens.append(("number", found))
        else:
            tokens.append(("op", {"==": "=", ":=": "=", "**": "^"}.get(found, found)))
    tokens.append(("end", ""))
    return tokens


@lru_cache(maxsize=1024)
def _known_command(name: str) -> tuple[str, str]:
    r"""A command and what was run into it (`\quadx` is `\quad x`)."""
    if name in _COMMANDS:
        return name, ""
    for size in range(len(name) - 1, 1, -1):
        if name[:size] in _COMMANDS:
            return name[:size], name[size:]
    return name, ""


def _command(name: str, text: str, place: int, tokens: list[Token]) -> int:
    if not name[0].isalpha():
        fixed = {"{": ("op", "\\{"), "}": ("op", "\\}"), "%": ("op", "%"), "|": ("op", "|")}
        if name in fixed:
            tokens.append(fixed[name])
        elif name == "\\":
            tokens.append(("command", "\\"))
        elif name not in "$#":
            raise NotMath(f"unexpected \\{name}")
        return place
    name, rest = _known_command(name)
    place -= len(rest)
    if name in TEXT_COMMANDS:
        return _text(name, text, place, tokens)
    if name in SPACING:
        if name in SEPARATING:
            tokens.append(("op", "quad"))
        return place
    if name == "begin" or name == "end":
        match = re.compile(r"\s*\{([a-z]+\*?)\}(?:\{[lcr|]*\})?").match(text, place)
        if match is None:
            raise NotMath(f"\\{name} without an environment")
        tokens.append(("command", f"{name} {match.group(1)}"))
        return match.end()
    name = SYNONYMS.get(name, name)
    if name in ("{", "}"):
        tokens.append(("op", "\\" + name))
    elif not name[0].isalpha() or name in ("and", "or"):
        tokens.append(("op", name))
    elif name in ("le", "ge", "ne"):
        tokens.append(("op", {"le": "<=", "ge": ">=", "ne": "!="}[name]))
    elif name in GREEK:
        tokens.append(("name", name))
    else:
        tokens.append(("command", name))
    return place


def _text(name: str, text: str, place: int, tokens: list[Token]) -> int:
    """The argument of a text command: a number, letters, a connector, or words."""
    while place < len(text) and text[place].isspace():
        place += 1
    if place >= len(text):
        return place
    if text[place] != "{":
        inside, place = text[place], place + 1
    else:
        end = closing(text, place)
        if end < 0:
            raise NotMath(f"\\{name} is not closed")
        inside, place = text[place + 1 : end], end + 1
    inside = inside.strip()
    if name == "mathbb" and len(inside) == 1:
        tokens.append(("name", f"bb{inside}"))
    elif re.fullmatch(r"[a-zA-Z ]+\.?", inside) and len(inside) > 1:
        for word in inside.rstrip(".").split():
            _name(word, tokens, as_text=not name.startswith(("math", "bold", "bm", "operator")))
    elif name == "text" and re.fullmatch(r"[a-zA-Z]", inside):
        tokens.append(("text", inside))
    else:
        tokens.extend(tokenize(inside)[:-1])
    return place


def _name(found: str, tokens: list[Token], *, as_text: bool = False) -> None:
    """A run of letters: a function, a constant, variables side by side, or a word."""
    lower = WORD_SYNONYMS.get(found.lower(), found.lower())
    match = re.match(r"(and|or)(?![a-z])", found)
    before = tokens[-1] if tokens else ("", "")
    if found in UNITS and (before[0] == "number" or before == ("op", "}")):
        tokens.append(("word", found))
    elif match and not as_text and len(found) > len(match.group()):
        tokens.append(("op", match.group()))
        _name(found[match.end() :], tokens)
    elif lower in ("and", "or"):
        tokens.append(("op", lower))
    elif lower in ("percent",):
        tokens.append(("op", "%"))
    elif lower == "circ":
        tokens.extend((("op", "^"), ("command", "circ")))
    elif (lower in FUNCTIONS or lower in ("infty", "cup", "pm", "in")) and not as_text:
        tokens.append(("command", lower))
    elif found in ("pi", "Pi") and not as_text:
        tokens.append(("command", "pi"))
    elif found in GREEK and not as_text:
        tokens.append(("name", found))
    elif as_text:
        tokens.append(("text", found))
    elif len(found) <= 2 or found.isupper() or any(found in run for run in _VARIABLE_RUNS):
        tokens.extend(("name", letter) for letter in found)
    elif tokens and tokens[-1] == ("op", "_"):
        tokens.append(("name", found))
    elif (split := _split_function(found)) is not None:
        for part in split:
            _name(part, tokens)
    else:
        tokens.append(("word", found))


def _split_function(found: str) -> tuple[str, str] | None:
    """`xsin` and `cosx` run a variable into a function."""
    for name in ("sin", "cos", "tan", "sqrt", "log", "ln", "exp"):
        rest = found.removeprefix(name)
        if rest != found and len(rest) == 1:
            return name, rest
        rest = found.removesuffix(name)
        if rest != found and len(rest) == 1:
            return rest, name
    return None


def closing(text: str, start: int) -> int:
    """Where the brace at `start` closes, escaped braces apart; −1 when it does not."""
    depth, place = 0, start
    while place < len(text):
        char = text[place]
        if char == "\\":
            place += 2
            continue
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return place
        place += 1
    return -1


_COMMANDS = frozenset(
    {
        *SPACING, *TEXT_COMMANDS, *SYNONYMS, *FUNCTIONS, *GREEK, "frac", "sqrt", "pi", "infty",
        "pm", "mp", "cup", "cap", "in", "circ", "le", "ge", "ne", "begin", "end", "lfloor",
        "rfloor", "lceil", "rceil", "overline", "angle", "triangle", "mathbb", "notin",
        "setminus", "varnothing", "ldots", "Rightarrow", "rightarrow", "forall", "exists", "sum",
        "prod", "int", "lim", "binom", "prime", "perp", "parallel", "pmod", "bmod", "mod",
        "overrightarrow", "vec", "hat", "bar", "subset", "subseteq", "partial", "nabla",
        "therefore", "because", "cong", "Leftrightarrow", "iff",
    }
)  # fmt: skip
