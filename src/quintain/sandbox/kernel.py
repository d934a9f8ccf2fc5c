"""The few kernel calls of the Python launcher that the standard library has not, by ctypes."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import signal
import struct
import time
from typing import NamedTuple

libc = ctypes.CDLL(None, use_errno=True)
_NEW = {
    "openat2": 437, "pidfd_open": 434, "close_range": 436, "open_tree": 428, "move_mount": 429,
    "mount_setattr": 442,
}  # fmt: skip
CALLS = {
    "x86_64": {"clone": 56, "pivot_root": 155, "capset": 126, **_NEW},
    "aarch64": {"clone": 220, "pivot_root": 41, "capset": 91, **_NEW},
}
ROUND_S, YOUNG_ROUNDS = 0.001, 200
"""Wait between rounds of killing, and how many rounds what is young gets."""
HALF_TURN = 16_384
"""More processes than are born within a few clock ticks, and no more than half of all PIDs."""
CALL = CALLS.get(platform.machine(), CALLS["x86_64"])


def check(result: int, what: str) -> int:
    """The result of a C call, or the OSError that it stands for."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def prctl(option: int, argument: int = 0, pointer: ctypes.Structure | None = None) -> None:
    """One call of prctl."""
    second = ctypes.byref(pointer) if pointer is not None else ctypes.c_ulong(0)
    zero = ctypes.c_ulong(0)
    check(libc.prctl(option, ctypes.c_ulong(argument), second, zero, zero), "prctl")


def hide_arguments() -> None:
    """Shows `quintain` as this process's command line: the real one names folders of the host."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    if 0 < start < end:
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, b"quintain", min(8, end - start - 1))


def die_with_parent() -> None:
    """Asks the kernel for SIGKILL when the parent dies; a change of ids forgets it."""
    prctl(1, signal.SIGKILL)


def write_file(path: str | int, data: bytes) -> None:
    """Writes to a file that is there, by its name or descriptor."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC) if isinstance(path, str) else path
    try:
        os.write(fd, data)
    finally:
        if isinstance(path, str):
            os.close(fd)


def keep_only(wanted: list[int]) -> list[int]:
    """Moves descriptors to 3, 4, … and closes all others above 2."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in wanted]
    placed = []
    for at, fd in enumerate(high, 3):
        os.dup2(fd, at, inheritable=False)
        placed.append(at)
    close_from(3 + len(placed))
    return placed


def close_from(lowest: int) -> None:
    """Closes every descriptor from the given one on."""
    call = ctypes.c_long(CALL["close_range"])
    if libc.syscall(call, ctypes.c_uint(lowest), ctypes.c_uint(0xFFFFFFFF), 0) < 0:
        os.closerange(lowest, os.sysconf("SC_OPEN_MAX"))


class _How(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_inside(path: str, flags: int, mode: int, below: str = "/") -> int:
    """openat2 with the folder `below` as root, out of which no link leads, magic or not."""
    root = os.open(below, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return open_at(root, path, flags, mode)
    finally:
        os.close(root)


def open_at(root: int, path: str, flags: int, mode: int = 0) -> int:
    """openat2 for which the folder `root` is `/`: no link and no `..` leads out of it."""
    how = _How(flags, mode if flags & os.O_CREAT else 0, 0x02 | 0x10)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    call = ctypes.c_long(CALL["openat2"])
    fd = libc.syscall(call, root, os.fsencode(path), ctypes.byref(how), size)
    return check(int(fd), "open")


def file_system(fd: int) -> int:
    """The magic number of the file system of an open file."""
    buffer = (ctypes.c_long * 32)()
    check(libc.fstatfs(fd, ctypes.byref(buffer)), "fstatfs")
    return int(buffer[0])


def drop(uid: int, gid: int, kept: int = 0) -> None:
    """Gives up the user, the groups and every capability but those in the mask `kept`."""
    with contextlib.suppress(PermissionError):
        os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    head = struct.pack("<Ii", 0x20080522, 0)
    sets = struct.pack("<6I", kept, kept, 0, 0, 0, 0)
    check(libc.syscall(CALL["capset"], head, sets), "capset")


def map_mount(source: bytes, target: bytes, space: int) -> None:
    """A read-only bind mount that shows the ids on disk through a user namespace's map."""
    here = ctypes.c_int(-100)
    attributes = struct.pack("<4Q", 0x1 | 0x2 | 0x4 | 0x100000, 0, 0, space)
    flags = ctypes.c_uint(1 | os.O_CLOEXEC)
    tree = check(libc.syscall(CALL["open_tree"], here, source, flags), "open_tree")
    try:
        size = ctypes.c_size_t(len(attributes))
        call = libc.syscall(CALL["mount_setattr"], tree, b"", 0x1000, attributes, size)
        check(call, "mount_setattr")
        check(libc.syscall(CALL["move_mount"], tree, b"", here, target, 4), "move_mount")
    finally:
        os.close(tree)


def confine(program: bytes) -> None:
    """No new privileges, then the system-call filter, for good."""
    prctl(38, 1)
    if not program:
        return
    code = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    wanted = Program(len(program) // 8, ctypes.addressof(code))
    prctl(22, 2, wanted)


class Moment(NamedTuple):
    """Tells what was born before it from what was born after it.

    The kernel gives out PIDs in turn, and starts in clock ticks: within the ticks of the moment
    PIDs decide, outside them the ticks, so that it does not matter when PIDs begin anew.
    """

    before: int
    """Clock ticks since boot."""
    last: int
    """The youngest PID then."""
    after: int
    """Clock ticks since boot."""

    @classmethod
    def now(cls) -> Moment:
        """This one; a process of a few system calls is born for it.

        Where none can be, whatever starts in these ticks comes after it.
        """
        before, pid = _ticks(), 0
        with contextlib.suppress(BlockingIOError):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
        return cls(before, pid, _ticks())

    def precedes(self, pid: int, started: int) -> bool:
        """Whether a process was born after it.

        Args:
            pid: of the process, as this one sees it.
            started: clock ticks since boot, of `/proc/PID/stat`.
        """
        if not self.before <= started <= self.after:
            return started > self.after
        ahead = pid - self.last
        return 0 < ahead < HALF_TURN or ahead < -HALF_TURN


def _ticks() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def kill_young(root: int, shell: int, since: Moment) -> None:
    """Kills what was born below `root` after a moment, but for one shell."""
    for _ in range(YOUNG_ROUNDS):
        if not kill_below(root, {shell}, since):
            break
        time.sleep(ROUND_S)


def kill_below(root: int, spared: set[int], since: Moment | None = None) -> int:
    """Kills the living below `root`, or those that were born after a moment.

    The spared and everything below them stay, but what is below a spared one counts when a moment
    is given: a shell lives on, its children do not. Returns how many were killed.
    """
    parents: dict[int, int] = {}
    started: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] != b"Z":
            parents[int(name)], started[int(name)] = int(fields[1]), int(fields[19])
    found: set[int] = set()
    fresh = {root}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh and pid not in found}
        if since is None:
            fresh -= spared
        found |= fresh
    victims = sorted(found - spared)
    if since is not None:
        victims = [pid for pid in victims if since.precedes(pid, started[pid])]
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(victims)


SYSTEM_V = {"sem": (4, "semctl"), "shm": (7, "shmctl"), "msg": (7, "msgctl")}
"""Tables of `/proc/sysvipc`: in which column the owner stands, and what removes an object."""


def remove_system_v(users: range) -> None:
    """Removes System V semaphores, memory and queues of users that are nobody but a sandbox's.

    They outlive every process; sandlock keeps its accounts in them. Those of this process's own
    user stay: they may be somebody else's.
    """
    for name, (column, control) in SYSTEM_V.items():
        try:
            with open(f"/proc/sysvipc/{name}", encoding="utf-8") as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        for row in rows:
            owner = int(row[column])
            if owner in users and owner != os.geteuid():
                arguments = (0, 0) if name == "sem" else (0, None)
                getattr(libc, control)(int(row[1]), *arguments)
