"""What the owner and the guest agent (`agent.c`) say to each other over one serial port.

A frame is a head (length of the body, id, kind) and a body. Requests are lists of words; streams
carry raw bytes, and an empty one ends a stream. Whatever goes on at the same time has an id of its
own: a command, a file on its way, a connection.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quintain.protocols import Entry
from quintain.sandbox.command import Ended

STEP, START, EXEC, INPUT, KILL, READ, WRITE, FREEZE, THAW, LISTEN, WINDOW = range(1, 12)
ATTACH, ASK, WALK = range(12, 15)
"""To the guest. Words: STEP as in `layout.py`; START seed, microseconds; EXEC limit in ms (0:
none), most output, argc, uid, gid, folder, argv, environment; KILL nothing (the whole tree), or pid
and signal of a session's process: what was born there since it was last asked dies; READ path, most
bytes, "1" to remove it; WRITE path, mode, uid, gid, and then INPUT; LISTEN port; ATTACH as EXEC,
for a session's process; ASK script, word for it; WALK path, most entries, uid, gid, "1" for the
writable layer."""
HELLO, DONE, OUT, ERR, EXIT, CREDIT, DATA, ACCEPT, OUT_TAIL, ERR_TAIL, ANSWER = range(64, 75)
"""From the guest. DONE: an errno, 0 for success; EXIT: `Ending`; CREDIT: bytes of INPUT taken;
OUT_TAIL: how many bytes of stdout were not told, and the last of them; ANSWER: of a session's
process, empty at the end; what it printed before was told before."""

HEAD = struct.Struct("<IIB")
NUMBER = struct.Struct("<I")
TOTAL = struct.Struct("<Q")
ERRNO = struct.Struct("<i")
ENTRY = struct.Struct("<IIIIIIQ")
"""Of a WALK: kind, mode, uid, gid, bytes of path and of a link's target, size; then path and target
and, of the writable layer, the content. The last has kind 0, and an errno as mode."""
_ENDING = struct.Struct("<iiBBQII")
CHUNK = 1 << 16
INPUT_WINDOW = 4 * CHUNK
"""How many bytes of INPUT may be on their way to one command or connection."""
MAX_FRAME = 16 << 20

AT_FORK, AT_DROP, AT_CHDIR, AT_EXEC = 1, 2, 3, 4
TIMED_OUT, UNKILLABLE = 1, 2
_KINDS: dict[int, Literal["file", "folder", "link"]] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
}
_PLACES: dict[int, Literal["fork", "folder", "program"]] = {
    AT_FORK: "fork",
    AT_CHDIR: "folder",
    AT_EXEC: "program",
}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command ended."""

    status: int
    """As waitpid gives it."""
    error: int
    """An errno, when it could not be started."""
    where: int
    """What failed then: AT_FORK..."""
    flags: int
    """TIMED_OUT, UNKILLABLE."""
    cpu_us: int
    ooms: int
    """Its processes that were killed for memory."""
    refused: int
    """Its forks that the process limit refused."""

    @property
    def ended(self) -> Ended:
        """The same, as every backend tells it."""
        return Ended(
            status=self.status,
            error=self.error,
            at=_PLACES.get(self.where, ""),
            timed_out=bool(self.flags & TIMED_OUT),
            ooms=self.ooms,
            refused=self.refused,
        )


def ending(body: bytes) -> Ending:
    """Reads the body of an EXIT frame."""
    return Ending(*_ENDING.unpack(body))


def entries(data: bytes) -> list[Entry]:
    """What a WALK found, sorted by path.

    Raises:
        OSError: with what it ended.
    """
    found, at = [], 0
    while at < len(data):
        kind, mode, _, _, path, target, size = ENTRY.unpack_from(data, at)
        at += ENTRY.size
        if not kind and mode:
            raise OSError(mode, os.strerror(mode))
        if kind:
            words = (data[at : at + path], data[at + path : at + path + target])
            name, leads = (word.decode("utf-8", "backslashreplace") for word in words)
            found.append(Entry(name, _KINDS.get(kind, "other"), mode, size or target, leads))
        at += path + target
    return sorted(found, key=lambda entry: entry.path)


def frame(kind: int, number: int, body: bytes = b"") -> bytes:
    """One frame."""
    return HEAD.pack(len(body), number, kind) + body


def words(values: Sequence[str | bytes | int]) -> bytes:
    """The body of a request."""
    parts = []
    for value in values:
        data = value if isinstance(value, bytes) else os.fsencode(str(value))
        parts.append(NUMBER.pack(len(data)) + data + b"\0")
    return b"".join(parts)
