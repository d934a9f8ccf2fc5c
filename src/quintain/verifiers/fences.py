"""Code in messages."""

from __future__ import annotations

import re

_FENCE = re.compile(r"^```[ \t]*([\w+-]*)[^\n]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)


def fenced_code(text: str) -> str:
    """The last fenced block of Python in a message, else the last fenced one, else the message."""
    blocks = _FENCE.findall(text)
    python = [body for language, body in blocks if language.lower() in ("python", "py", "python3")]
    if python:
        return str(python[-1])
    unnamed = [body for language, body in blocks if not language]
    return str(unnamed[-1]) if unnamed else text
