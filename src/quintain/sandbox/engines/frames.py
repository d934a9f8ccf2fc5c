"""The words between an owner and the agent of a container (`agent.c`), as frames on a stream.

A frame is `length, kind, number` (little-endian, 32 bits each) and a body; the number names a
command or a file. Of output the agent passes on the head at once and the tail at the end, and drops
what is between, so that a flood never crosses the stream;
input goes out in pieces, the next one when the agent says WANT.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from quintain.protocols import Entry

OVERDUE = b"!"
"""Body of a KILL: the minder itself does not answer any more."""
SETUP, EXEC, INPUT, KILL, READ, WRITE, DATA, LIST = range(1, 9)
"""To the agent."""
UP, BROKEN, OUT, EXIT, REFUSED, PIECE, DONE, WANT = range(16, 24)
"""From the agent."""
AT_FORK, AT_DROP, AT_CHDIR, AT_EXEC = range(1, 5)
"""Where a command could not be started."""
TIMED_OUT, UNKILLABLE, TOO_MANY = 1, 2, 4
"""Flags of a record."""

HEAD = struct.Struct("<III")
RECORD = struct.Struct("<iIIIQQIIQQ")
"""status, errno, where, flags, cpu_us, wall_us, kills for memory, refused forks, bytes of stdout
and of stderr"""
REFUSAL = struct.Struct("<IQ")
"""errno, and the size of a file that is too long"""
_SETUP = struct.Struct("<IIIII")
_LIMIT = struct.Struct("<IIQQ")
_EXEC = struct.Struct("<IIII")
_KINDS: dict[int, Literal["file", "folder", "link", "other"]] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
}
_MOST = struct.Struct("<Q")
_ENTRY = struct.Struct("<IIQII")
_MODE = struct.Struct("<I")

MAX_BODY = 8 << 20
PIECE_BYTES = 256 << 10
UNLIMITED = 0xFFFFFFFFFFFFFFFF


def frame(kind: int, number: int, body: bytes = b"") -> bytes:
    """One frame.

    Raises:
        ValueError: the body is longer than an agent takes.
    """
    if len(body) > MAX_BODY:
        raise ValueError(f"{len(body)} bytes in one request, at most {MAX_BODY} are taken")
    return HEAD.pack(len(body), kind, number) + body


class Reader:
    """Cuts a stream into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def frames(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """The frames that are complete with these bytes, as `(kind, number, body)`."""
        self._data += data
        at = 0
        while len(self._data) - at >= HEAD.size:
            length, kind, number = HEAD.unpack_from(self._data, at)
            if length > MAX_BODY:
                raise ValueError(f"a frame of {length} bytes: this is no agent")
            end = at + HEAD.size + length
            if len(self._data) < end:
                break
            yield kind, number, bytes(self._data[at + HEAD.size : end])
            at = end
        del self._data[:at]


def setup(
    uid: int,
    filter_: bytes,
    limits: Mapping[int, tuple[int, int]],
    *,
    watched_pids: int = 0,
    places: Sequence[str] = (),
) -> bytes:
    """What every command gets.

    Args:
        uid: user and group that run commands.
        filter_: system-call filter.
        limits: of `resource`, soft and hard; -1 is unlimited.
        places: folders that anybody may write to, as to `/tmp`.
        watched_pids: kill a command's tree beyond that many processes; 0: do not look.
    """
    body = _SETUP.pack(uid, uid, watched_pids, len(limits), len(filter_))
    for kind, values in limits.items():
        soft, hard = (UNLIMITED if value < 0 else value for value in values)
        body += _LIMIT.pack(kind, 0, soft, hard)
    return body + filter_ + b"".join(_string(place) for place in places)


def command(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, *, limit_ms: int, most: int
) -> bytes:
    """A command.

    Args:
        argv: program and arguments.
        env: the whole environment.
        cwd: absolute.
        limit_ms: wall-clock time after which the tree is killed; 0: none.
        most: bytes of stdout, and of stderr, to pass on.

    Raises:
        ValueError: a NUL byte in a word.
    """
    words = [cwd, *argv, *(f"{name}={value}" for name, value in env.items())]
    head = _EXEC.pack(limit_ms, min(most, 0xFFFFFFFF), len(argv), len(env))
    return head + b"".join(_string(word) for word in words)


def read(path: str, most: int) -> bytes:
    """A request for a file of at most so many bytes."""
    return _MOST.pack(most) + _string(path)


def folder(path: str, most: int) -> bytes:
    """A request for what lies under a folder, at most so many entries."""
    return _MODE.pack(most) + _string(path)


def entries(data: bytes) -> list[Entry]:
    """What a folder's answer says, sorted by path."""
    found, at = [], 0
    while at < len(data):
        kind, mode, size, path, target = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        words = (data[at : at + path], data[at + path : at + path + target])
        at += path + target
        name, leads = (word.decode("utf-8", "backslashreplace") for word in words)
        known = _KINDS.get(kind, "other")
        found.append(Entry(name, known, mode, size if known in ("file", "link") else 0, leads))
    return sorted(found, key=lambda entry: entry.path)


def write(path: str, mode: int) -> bytes:
    """The beginning of an upload."""
    return _MODE.pack(mode) + _string(path)


def _string(word: str) -> bytes:
    if "\0" in word:
        raise ValueError(f"a NUL byte in {word[:80]!r}: no command or file can have it")
    return word.encode("utf-8", "surrogateescape") + b"\0"
