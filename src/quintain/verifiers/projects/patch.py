"""Applies a unified diff to files held in memory: exactly, or not at all.

No program of the host reads what the candidate wrote, and no hunk is placed by guessing: lines that
a hunk takes for granted must stand where it says, or it does not apply.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_NEWLINE = "\\ No newline at end of file"


class BadPatch(ValueError):
    """The text is no patch, or does not apply; the message says where."""


def touched(patch: str) -> list[str]:
    """The paths that a patch changes, in order; empty when it is none."""
    return list(
        dict.fromkeys(path for old, new, _ in _sections(patch) for path in (old, new) if path)
    )


def apply_patch(patch: str, files: Mapping[str, bytes]) -> dict[str, bytes | None]:
    """What a patch makes of files: path to content, None where the file is removed.

    Raises:
        BadPatch: it does not apply.
    """
    out: dict[str, bytes | None] = {}
    for old, new, hunks in _sections(patch):
        before = out.get(old, files.get(old)) if old else b""
        if before is None:
            raise BadPatch(f"{old} is not there")
        after = _patched(old or new, before.decode("utf-8", "surrogateescape"), hunks)
        if old and old != new:
            out[old] = None
        if new:
            out[new] = after.encode("utf-8", "surrogateescape")
    return out


def _sections(patch: str) -> list[tuple[str, str, list[list[str]]]]:
    """Old path, new path and hunks of each file; an absent side is an empty path."""
    found: list[tuple[str, str, list[list[str]]]] = []
    lines = patch.replace("\r\n", "\n").split("\n")
    place = 0
    while place < len(lines):
        line = lines[place]
        if not (line.startswith("--- ") and place + 1 < len(lines)):
            place += 1
            continue
        if not lines[place + 1].startswith("+++ "):
            place += 1
            continue
        old, new = _path(line[4:]), _path(lines[place + 1][4:])
        place += 2
        hunks: list[list[str]] = []
        while place < len(lines) and (head := _HUNK.match(lines[place])):
            hunk, place = _hunk(lines, place, head)
            hunks.append(hunk)
        if hunks and (old or new):
            found.append((old, new, hunks))
    return found


def _hunk(lines: list[str], place: int, head: re.Match[str]) -> tuple[list[str], int]:
    """The lines of a hunk by the counts in its head, and where it ends."""
    old, new = (int(head[group] or "1") for group in (2, 4))
    out = [lines[place]]
    place += 1
    while place < len(lines) and (old > 0 or new > 0 or lines[place].startswith("\\")):
        line = lines[place] or " "
        if line[0] not in " +-\\":
            break
        old -= line[0] in " -"
        new -= line[0] in " +"
        out.append(line)
        place += 1
    if old or new:
        raise BadPatch(f"the hunk {out[0]!r} is shorter than it says")
    return out, place


def _path(text: str) -> str:
    name = text.split("\t")[0].strip()
    if name == "/dev/null":
        return ""
    if name.startswith(("a/", "b/")):
        name = name[2:]
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise BadPatch(f"{name!r} leads out of the project")
    return posixpath.normpath(name)


def _patched(path: str, text: str, hunks: list[list[str]]) -> str:
    before = re.findall(r"[^\n]*\n|[^\n]+", text)
    after: list[str] = []
    place = 0
    for hunk in hunks:
        head = _HUNK.match(hunk[0])
        assert head is not None
        start = int(head[1]) - (1 if head[2] != "0" else 0)
        if not place <= start <= len(before):
            raise BadPatch(f"{path}: {hunk[0]} is out of place")
        after += before[place:start]
        place = start
        for number, line in enumerate(hunk[1:], start=1):
            if line.startswith("\\"):
                continue
            bare = number + 1 < len(hunk) and hunk[number + 1] == _NO_NEWLINE
            content = line[1:] + ("" if bare else "\n")
            if line[0] == "+":
                after.append(content)
                continue
            if place >= len(before) or before[place].replace("\r\n", "\n") != content:
                raise BadPatch(f"{path}: {hunk[0]}: line {place + 1} is another")
            if line[0] == " ":
                after.append(before[place])
            place += 1
    return "".join([*after, *before[place:]])
