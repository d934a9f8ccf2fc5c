"""Where in a text the answer is.

Each way is a function from the text to the answer's own text, or None when there is none. None of
them falls back to another: what a policy must write is part of the task. `auto` is the one that
tries several, in a fixed order, and never the last number of a sentence; `last_number` must be
asked for by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable

MAX_TEXT_CHARS = 2_000_000
TAIL_CHARS = 100_000
"""Where answers are looked for; patterns below are bounded, so that no text makes them slow."""
MATH_TAIL_CHARS = 8_000
MAX_BETWEEN_CHARS = 200
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BOX = re.compile(r"\\+(?:begin)?(?:boxed|fbox)\s*(?=[{\d])")
_BETWEEN_BOXES = re.compile(
    r"(?:[\s$,;.]|\\[()\[\],;:! ]|\\q?quad|and|or|&"
    r"|\\(?:text|textbf|mathrm)\s*\{\s*[,;]?\s*(?:and|or|for|part|\([a-z]\)|\s)*\s*\}"
    r"|[a-zA-Z](?:_\{?\w+\}?)?\s*(?:=|\\in))*"
)
_CONNECTOR = re.compile(r"[,;]|and|or|&|quad")
_AFTER_BOX = re.compile(r"[\s$]*(?:\\?%|percent(?:age)?\b|pct\b)")
_MARKER = re.compile(
    r"(?:final answer|answer|result|solution|correct (?:option|choice))\s{0,9}"
    r"(?:\*\*)?\s{0,9}(?:is\b\s{0,9}:?|:|=|are\b)\s{0,9}(?:\*\*)?",
    re.IGNORECASE,
)
_MATH = re.compile(
    r"\$\$(?P<a>.{1,2000}?)\$\$|\$(?P<b>[^$]{1,2000})\$"
    r"|\\\[(?P<c>.{1,2000}?)\\\]|\\\((?P<d>.{1,2000}?)\\\)",
    re.DOTALL,
)
_JOINS_MATH = re.compile(r"\s{0,9}(?:,|;|,?\s{0,9}and|,?\s{0,9}or)?\s{0,9}")
_MATH_UNIT = re.compile(r"\s{0,9}(?:\\?%|[a-zA-Z]{1,20})(?:\s[a-zA-Z]{1,20})?[\s.]{0,9}\Z")
_NUMBER = re.compile(r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+)?%?")
_LABEL = re.compile(
    r"\A(?=[^:]{0,130}[A-Za-z]{2})[^\s:=$\\]{1,30}(?:\s[^\s:=$\\]{1,30}){0,3}\s*:\s+"
)


def last_box(text: str, *, lenient: bool = False) -> str | None:
    r"""The content of the last `\boxed{…}`, braces matched.

    Boxes joined by nothing but commas, "and" or names are one answer, a list. A box that is never
    closed is none, unless `lenient` (a gold answer was cut).
    """
    boxes = _boxes(text, lenient)
    if not boxes:
        return None
    parts = [boxes[-1][2]]
    for earlier, later in zip(reversed(boxes[:-1]), reversed(boxes), strict=False):
        between = text[earlier[1] : later[0]]
        if len(between) > MAX_BETWEEN_CHARS:
            break
        if not (_BETWEEN_BOXES.fullmatch(between) and _CONNECTOR.search(between)):
            break
        parts.insert(0, earlier[2])
    after = _AFTER_BOX.match(text, boxes[-1][1])
    if len(parts) == 1:
        return parts[0] + (" %" if after and "%" not in parts[0] else "")
    return ", ".join(dict.fromkeys(parts)) if len(set(parts)) > 1 else parts[0]


def _boxes(text: str, lenient: bool) -> list[tuple[int, int, str]]:
    """(start, end, content) of the outermost boxes, in one pass whatever the braces do."""
    openings = {match.end(): match.start() for match in _BOX.finditer(text)}
    boxes: list[tuple[int, int, str]] = []
    stack: list[int] = []
    for match in _BRACE.finditer(text):
        place = match.start()
        if match.group() == "{":
            stack.append(place)
        elif match.group() == "}" and stack:
            opened = stack.pop()
            if opened in openings:
                while boxes and boxes[-1][0] > opened:
                    boxes.pop()
                boxes.append((openings[opened], place + 1, text[opened + 1 : place]))
    if lenient and not boxes and (left := [place for place in stack if place in openings]):
        boxes.append((openings[left[-1]], len(text), text[left[-1] + 1 :]))
    bare = [(start, end + 1, text[end]) for end, start in openings.items() if text[end] != "{"]
    return sorted((*boxes, *bare)) if bare else boxes


def final_line(text: str) -> str | None:
    """The last line that is not empty, without emphasis and without `Label:` before it."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip(" \t*_`")]
    return _bare(lines[-1]) if lines else None


def after_marker(text: str) -> str | None:
    """What follows the last "answer is", "answer:" and the like, to the end of its line."""
    found = None
    for match in _MARKER.finditer(text):
        found = match
    if found is None:
        return None
    rest = text[found.end() :].strip()
    if rest.startswith(("$$", "\\[")):
        return last_math(rest)
    line = rest.splitlines()[0] if rest else ""
    return _bare(line) or None


def last_math(text: str) -> str | None:
    """The last formula between dollars or LaTeX's brackets, with those joined to it and a unit."""
    text = text[-MATH_TAIL_CHARS:]
    found = list(_MATH.finditer(text))
    if not found:
        return None
    parts = [_inside(found[-1])]
    for earlier, later in zip(reversed(found[:-1]), reversed(found), strict=False):
        between = text[earlier.end() : later.start()]
        if not (_JOINS_MATH.fullmatch(between) and between.strip()):
            break
        parts.insert(0, _inside(earlier))
    unit = _MATH_UNIT.match(text, found[-1].end())
    joined = ", ".join(parts)
    if len(parts) == 1 and unit and not text[: found[-1].start()].strip():
        joined += " " + unit.group().strip()
    return joined


def last_number(text: str) -> str | None:
    """The last number anywhere."""
    found = _NUMBER.findall(text)
    return found[-1].rstrip(",") if found else None


def whole(text: str) -> str | None:
    """The text itself."""
    return text.strip() or None


def auto(text: str, *, lenient: bool = False) -> str | None:
    """The last box; else what is said to be the answer; else the last formula; else the last line.

    A text of one short line without any of these is the answer itself.
    """
    if (found := last_box(text, lenient=lenient)) is not None:
        return found
    stripped = text.strip()
    if (found := after_marker(stripped)) is not None:
        inner = last_math(found)
        return inner if inner is not None and not _MATH.sub("", found).strip(" .,!*") else found
    if _MATH.fullmatch(stripped) is None and (found := last_math(stripped)) is not None:
        return found
    return final_line(stripped)


def _inside(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None).strip()


def _bare(line: str) -> str:
    line = re.sub(r"\A(?:[#>*\-•]\s+)+", "", line.strip().strip("*_` ✅"))
    line = _LABEL.sub("", line)
    line = line.strip().strip("*_`").strip()
    return line.rstrip(".") or line


WAYS: dict[str, Callable[[str], str | None]] = {
    "auto": auto,
    "last_box": last_box,
    "final_line": final_line,
    "after_marker": after_marker,
    "last_math": last_math,
    "last_number": last_number,
    "whole": whole,
}


def extract(text: str, way: str, *, lenient: bool = False) -> str | None:
    """The answer in a text, or None when it has none.

    Args:
        text: at most two million characters; more is no answer.
        way: a name in `WAYS`, or a regular expression whose last match counts (its first group,
            where it has one).
        lenient: for golds: an unclosed box counts.
    """
    if len(text) > MAX_TEXT_CHARS:
        return None
    text = text[-TAIL_CHARS:]
    if way == "auto":
        return auto(text, lenient=lenient)
    if way == "last_box":
        return last_box(text, lenient=lenient)
    if way in WAYS:
        return WAYS[way](text)
    found = None
    for match in re.finditer(way, text):
        found = match
    return None if found is None else (found.group(1) if found.re.groups else found.group())
