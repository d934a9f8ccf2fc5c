"""Reads the documentation's pages: the blocks of code that stand in them, in order.

Blocks of `python` run, in one namespace a page; with `title="name"` in the fence's line a block is
written to that file instead. Lines that begin with `$ quintain` in blocks of `console` are run.
A block after `<!-- not run: why -->` is only shown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"(?P<skip><!-- not run: [^>]+ -->\n)?"
    r"^```(?P<language>\w+)(?P<rest>[^\n]*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    language: str
    title: str
    """The file that it is; empty: none."""
    text: str
    run: bool
    line: int


def pages() -> list[Path]:
    """README and documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', match["rest"])
        found.append(
            Block(
                language=match["language"],
                title=title[1] if title else "",
                text=match["text"],
                run=match["skip"] is None,
                line=text.count("\n", 0, match.start()) + 2,
            )
        )
    return found
