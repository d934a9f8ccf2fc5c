"""The judge's side of `runner.py`: frames out, answers in.

What comes in was written by the runner, which a candidate may have killed or stopped but has no
descriptor or memory of; it is still read as untrusted: a malformed frame ends the reading, and the
cases behind it have no answer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("runner.py").read_text(encoding="utf-8")
"""The runner's text."""
ANSWERED, RAISED, EXITED, LATE, CPU, FLOODED, STUCK, PAUSED = range(8)
READY = -1
REASONS = {
    RAISED: "the code failed",
    EXITED: "the process ended without an answer",
    LATE: "over the wall-clock limit",
    CPU: "over the CPU limit",
    FLOODED: "too much output",
    STUCK: "processes were left that could not be ended",
}
FIRST_CHUNK = 8
MAX_CHUNK = 200
_HEAD = struct.Struct(">Bidd")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the runner says of one case."""

    status: int
    exit_code: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    data: bytes = b""
    """The answer; where there is none, the end of what the code wrote to standard error."""


def framed(data: bytes) -> bytes:
    """A length and the bytes."""
    return len(data).to_bytes(4, "big") + data


def read(data: bytes) -> list[Answer]:
    """The frames in the runner's output, as far as they are whole and well-formed."""
    answers: list[Answer] = []
    place = 0
    while place + 4 <= len(data):
        size = int.from_bytes(data[place : place + 4], "big")
        frame = data[place + 4 : place + 4 + size]
        if len(frame) < size:
            break
        place += 4 + size
        if not answers:
            if frame != b"ready":
                break
            answers.append(Answer(READY))
        elif size >= _HEAD.size:
            status, code, cpu_s, wall_s = _HEAD.unpack_from(frame)
            answers.append(Answer(status, code, cpu_s, wall_s, frame[_HEAD.size :]))
        else:
            break
    return answers
