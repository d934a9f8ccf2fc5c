"""The frames between owner, spawn server and supervisors, and the plans that they carry.

Every message is one SOCK_SEQPACKET frame: `kind, id` and a body; file descriptors travel beside it.
A body too long for a frame lies in a memory file whose descriptor comes last (`IN_MEMORY`).
A *plan* is a list of small steps (mount, mkdir, write, …) that a launcher executes in order; the
owner decides everything, and the two launchers (`box.c`, `launcher.py`) only carry it out, so
that both build the same walls. Constants here are repeated in `box.c`.

Standard library only: the Python launcher loads this file and nothing else of the package.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from dataclasses import dataclass, field

VERSION = 1

# owner -> server
INIT, OPEN, CLOSE, RESET, TEMPLATE = 1, 2, 3, 4, 5
# server -> owner
READY, FAILED, GONE = 8, 9, 10
# owner -> supervisor
EXEC, FILE, KILL, FREEZE, THAW, FILLED, ASK = 16, 17, 18, 19, 20, 21, 22
# supervisor -> owner
UP, BROKEN, OPENED, REFUSED, FILL = 32, 33, 34, 35, 36

IN_MEMORY = 0x80000000
MAX_FRAME = 60_000
MAX_FDS = 8

HEADER = struct.Struct("<II")
STEP = struct.Struct("<BBHIII")
LENGTH = struct.Struct("<I")
ERRNO = struct.Struct("<I")
EXEC_HEAD = struct.Struct("<IIIIII")
"""timeout in ms (0: none), uid, gid, flags, argument count, environment count; then the strings.
Beside it: stdin, stdout, stderr, where the minder reports, and what the command gets as 4, 5, …"""
FILE_HEAD = struct.Struct("<IIII")
"""What for (`READ`, `REPLACE`, `TAKE`, `FOLDER`), mode, uid, gid; then the path."""
KILL_BODY = struct.Struct("<II")
"""Of a `KILL` that spares a shell: its PID inside and the signal that it gets; what was born below
its minder since the last `ASK` dies. Without a body the minder dies and all below it. `ASK` hands a
session's process a word: the body, for the descriptor beside it."""
READ, REPLACE, TAKE, FOLDER, PROC, LAYER = 0, 1, 2, 3, 4, 5
"""Read a file, write it anew, read it for the last time (its name goes), list a folder; look at a
file or folder of `/proc`; list the writable layer (the path does not matter)."""
STATUS = struct.Struct("<iIIIQQII")
"""wait status, errno, where it failed, flags, CPU µs, wall µs, OOM kills, refused forks."""

TIMED_OUT, UNKILLABLE = 1, 2
"""Flags of a status."""
IN_PLACE = 1
"""Flag of an `EXEC`: the first argument is Python code, for a fork of the template to run."""
AT_FORK, AT_CHDIR, AT_EXEC, AT_DROP = 1, 2, 3, 4
"""Where a command failed to start."""

# steps of a plan
MKDIR, WRITE, LINK, UNSHARE, MOUNT, PIVOT, MKNOD, HOSTNAME = 1, 2, 3, 4, 5, 6, 7, 8
LOOPBACK, USERNS, COUNTER, RLIMIT, FILTER, CLEAN, JOIN, UMOUNT = 9, 10, 11, 12, 13, 14, 15, 16
UNLINK, KEEP, BASE, ENTER, LISTEN, OFFER, RULES, ALLOW = 17, 18, 19, 20, 21, 22, 23, 24
RESTRICT, IDMAP, RIGHTS, SPACE = 25, 30, 31, 32
"""`BASE` parts a sandbox's plan: the server itself carries out what comes before (control groups),
then lets the supervisor be born in the mount namespace that it names and that a plan of its own
makes once; `ENTER` makes a folder the root by moving it over the old one. `LISTEN` makes a socket
on a port of 127.0.0.1 inside, which goes to the owner with `UP`. `OFFER` hands the writable layer
to the owner (`FILL`), who puts a snapshot into it (`FILLED`). `RULES`, `ALLOW` and `RESTRICT` are
the three calls of Landlock. `IDMAP` is a read-only bind mount that shows the ids on disk through a
map; `RIGHTS` leaves root inside some capabilities in its own user namespace (for builds)."""

KEPT_FD, LAYER_FD = 50, 51
"""Where `KEEP` holds a folder open: until the supervisor is up; with `a=1` as long as it lives."""

OPTIONAL, CREATE, SELF_MAP, KEEP_OLD = 1, 2, 4, 8
"""Flags of a step: go on if it fails; create the file (a folder: or take over the one that is
there); map ids alone; keep the old root."""

NOBODY = 0xFFFFFFFF
"""No owner to set."""

OOM_COUNTER, PIDS_COUNTER, PIDS_LIMIT = 0, 1, 2
"""Slots of `COUNTER`."""

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 0x1000, 0x4000, 1 << 18, 1 << 19
NEW_TIME, NEW_MOUNT, NEW_CGROUP, NEW_UTS = 0x80, 0x20000, 0x02000000, 0x04000000
NEW_IPC, NEW_USER, NEW_PID, NEW_NET = 0x08000000, 0x10000000, 0x20000000, 0x40000000


def text(value: str | bytes) -> bytes:
    """One string of a body: length, bytes, NUL."""
    data = os.fsencode(value) if isinstance(value, str) else value
    return LENGTH.pack(len(data)) + data + b"\0"


@dataclass(slots=True)
class Plan:
    """Steps for a launcher, in order."""

    data: bytearray = field(default_factory=bytearray)

    def add(
        self,
        step: int,
        *strings: str | bytes,
        a: int = 0,
        b: int = NOBODY,
        c: int = NOBODY,
        flags: int = 0,
    ) -> None:
        """Appends a step; what its fields mean is said beside each caller."""
        self.data += STEP.pack(step, flags, len(strings), a, b, c)
        for string in strings:
            self.data += text(string)

    def mkdir(self, path: str, mode: int = 0o755, owner: int = NOBODY, flags: int = 0) -> None:
        """A folder, owned by a host uid (and gid of the same number)."""
        self.add(MKDIR, path, a=mode, b=owner, c=owner, flags=flags)

    def write(
        self, path: str, data: str | bytes, *, create: bool = False, optional: bool = False
    ) -> None:
        """A file's content."""
        flags = (CREATE if create else 0) | (OPTIONAL if optional else 0)
        self.add(WRITE, path, data, a=0o644, flags=flags)

    def link(self, target: str, path: str, *, optional: bool = False) -> None:
        """A symbolic link."""
        self.add(LINK, target, path, flags=OPTIONAL if optional else 0)

    def mount(
        self,
        source: str,
        target: str,
        kind: str = "",
        flags: int = 0,
        data: str = "",
        *,
        optional: bool = False,
    ) -> None:
        """One call of mount, as its manual page says."""
        self.add(MOUNT, source, target, kind, data, a=flags, flags=OPTIONAL if optional else 0)

    def bind(self, source: str, target: str, *, optional: bool = False) -> None:
        """A read-only bind mount without set-uid programs and devices."""
        self.mount(source, target, flags=MS_BIND, optional=optional)
        lock = MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV
        self.mount("", target, flags=lock, optional=optional)


def steps(data: bytes) -> list[tuple[int, int, int, int, int, list[bytes]]]:
    """A plan's steps as `(step, flags, a, b, c, strings)`."""
    found, at = [], 0
    while at < len(data):
        step, flags, count, a, b, c = STEP.unpack_from(data, at)
        at += STEP.size
        strings, at = take(data, at, count)
        found.append((step, flags, a, b, c, strings))
    return found


def take(data: bytes, at: int, count: int) -> tuple[list[bytes], int]:
    """`count` strings from `at`, and where they end."""
    strings = []
    for _ in range(count):
        (length,) = LENGTH.unpack_from(data, at)
        at += LENGTH.size
        strings.append(bytes(data[at : at + length]))
        at += length + 1
    return strings, at


def send(
    sock: socket.socket, kind: int, number: int, body: bytes = b"", fds: tuple[int, ...] = ()
) -> None:
    """Sends one frame."""
    memory = -1
    if len(body) > MAX_FRAME:
        memory = os.memfd_create("frame", os.MFD_CLOEXEC)
        view = memoryview(body)
        while view:
            view = view[os.write(memory, view) :]
        kind, body, fds = kind | IN_MEMORY, b"", (*fds, memory)
    try:
        ancillary = []
        if fds:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        sock.sendmsg([HEADER.pack(kind, number), body], ancillary, socket.MSG_NOSIGNAL)
    finally:
        if memory >= 0:
            os.close(memory)


def receive(sock: socket.socket, flags: int = 0) -> tuple[int, int, bytes, list[int]] | None:
    """One frame as `(kind, id, body, descriptors)`; None when the other side is gone."""
    space = socket.CMSG_SPACE(MAX_FDS * 4)
    try:
        data, ancillary, _, _ = sock.recvmsg(
            HEADER.size + MAX_FRAME, space, flags | socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionError:
        return None
    fds: list[int] = []
    for level, kind_, raw in ancillary:
        if level == socket.SOL_SOCKET and kind_ == socket.SCM_RIGHTS:
            received = array.array("i")
            received.frombytes(raw[: len(raw) - len(raw) % received.itemsize])
            fds.extend(received)
    if len(data) < HEADER.size:
        return None
    kind, number = HEADER.unpack_from(data)
    body = data[HEADER.size :]
    if kind & IN_MEMORY:
        memory = fds.pop()
        kind &= ~IN_MEMORY
        try:
            body = b""
            size = os.fstat(memory).st_size
            while len(body) < size:
                body += os.pread(memory, size - len(body), len(body))
        finally:
            os.close(memory)
    return kind, number, body, fds
