"""Code in messages."""

from __future__ import annotations

import re
import textwrap

_OPENING = re.compile(r"^( {0,12})(`{3,}|~{3,})[ \t]*([\w+-]*)[^\n`]*$")
_PYTHON = ("python", "py", "python3")


def fenced_code(text: str, defines: str | None = None) -> str:
    """The last fenced block of Python in a message, else the last fenced one, else the message.

    Fences are those of CommonMark: three or more backticks or tildes, indented as in a list.

    Args:
        text: the message.
        defines: a name; blocks that seem to define it come before others, as an answer is often
            followed by an example of its use.
    """
    blocks = _blocks(text)
    python = [body for language, body in blocks if language in _PYTHON]
    found = python or [body for language, body in blocks if not language]
    if defines is not None and len(found) > 1:
        name = re.escape(defines)
        line = re.compile(rf"^\s*(?:async def|def|class) {name}\b|^\s*{name}\s*[:=]", re.MULTILINE)
        found = [body for body in found if line.search(body)] or found
    return found[-1] if found else text


def _blocks(text: str) -> list[tuple[str, str]]:
    """(language in lower case, body) of each fenced block that is closed."""
    out: list[tuple[str, str]] = []
    lines = text.replace("\r\n", "\n").split("\n")
    at = 0
    while at < len(lines):
        opening = _OPENING.match(lines[at])
        at += 1
        if opening is None:
            continue
        indent, fence, language = opening.groups()
        end = re.compile(rf" {{0,12}}{re.escape(fence[0])}{{{len(fence)},}}[ \t]*")
        for close in range(at, len(lines)):
            if end.fullmatch(lines[close]):
                body = "".join(f"{line}\n" for line in lines[at:close])
                out.append((language.lower(), textwrap.dedent(body) if indent else body))
                at = close + 1
                break
    return out
