"""The spawn server and supervisor in plain Python: the same walls where there is no compiler.

Run as `python -m quintain.sandbox.launcher FD`. The *server* owns every sandbox of one owner: it
forks the first process of a sandbox into a new PID namespace, and ends them all when the owner is
gone. That first process, the *supervisor*, carries out the plan, gives up its rights, and then
starts commands on request. Each command has a *minder* that it cannot signal: the reaper of all
its descendants, which reports by waitpid, keeps the time, and kills what is left.

`box.c` is the same program in C; `wire.py` says what the frames mean.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import resource
import select
import signal
import socket
import stat
import struct
import sys
import time
import warnings  # noqa: F401 - os.execvpe imports it, when no file can be found any more
from collections.abc import Callable
from typing import ClassVar

from quintain.sandbox import wire

ROUND_S = 0.001
ROUNDS = 3000
YOUNG_ROUNDS = 200
FREEZE_AFTER, KILL_ALL_AFTER, KILL_ALL_FROZEN = 4, 100, 2000
PROC_MAGIC = 0x9FA0
MS_MOVE = 8192

_libc = ctypes.CDLL(None, use_errno=True)
_CALLS = {
    "x86_64": {"clone": 56, "pivot_root": 155, "capset": 126, "openat2": 437, "pidfd_open": 434},
    "aarch64": {"clone": 220, "pivot_root": 41, "capset": 91, "openat2": 437, "pidfd_open": 434},
}
_CALL = _CALLS.get(platform.machine(), _CALLS["x86_64"])


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _prctl(option: int, argument: int = 0, pointer: ctypes.Structure | None = None) -> None:
    second = ctypes.byref(pointer) if pointer is not None else ctypes.c_ulong(0)
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(option, ctypes.c_ulong(argument), second, zero, zero), "prctl")


def _die_with_parent() -> None:
    _prctl(1, signal.SIGKILL)


def _write(path: str | int, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC) if isinstance(path, str) else path
    try:
        os.write(fd, data)
    finally:
        if isinstance(path, str):
            os.close(fd)


def _keep_only(wanted: list[int]) -> list[int]:
    """Moves descriptors to 3, 4, … and closes all others above 2."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in wanted]
    placed = []
    for at, fd in enumerate(high, 3):
        os.dup2(fd, at, inheritable=False)
        placed.append(at)
    _close_from(3 + len(placed))
    return placed


def _close_from(lowest: int) -> None:
    _libc.close_range(ctypes.c_uint(lowest), ctypes.c_uint(0xFFFFFFFF), 0)


# --- carrying out a plan ------------------------------------------------------------------------


class Supervisor:
    """The first process of a sandbox, from its birth to its death."""

    def __init__(self, control: socket.socket | None, sync: socket.socket | None) -> None:
        self.control = control
        self.sync = sync
        self.counters = [-1, -1, -1]
        self.pids_max = b"max"
        self.joins: list[int] = []
        self.limits: list[tuple[int, int, int]] = []
        self.filter = b""
        self.minders: dict[int, int] = {}
        """PID of a minder to the id of its command."""

    def carry_out(self, plan: bytes) -> None:
        """Executes a plan; raises OSError naming the step that failed."""
        for step, flags, a, b, c, strings in wire.steps(plan):
            name, action = self._actions[step]
            try:
                action(self, flags, a, b, c, [os.fsdecode(s) for s in strings], strings)
            except OSError as error:
                if flags & wire.OPTIONAL:
                    continue
                told = strings[:2] if step not in (wire.WRITE, wire.USERNS, wire.FILTER) else []
                shown = " ".join(os.fsdecode(s)[:80] for s in told or strings[: step == wire.WRITE])
                raise OSError(error.errno or errno.EIO, f"{name} {shown}".strip()) from error

    def _mkdir(self, _f: int, a: int, b: int, c: int, s: list[str], _r: list[bytes]) -> None:
        os.mkdir(s[0], a)
        if b != wire.NOBODY:
            os.chown(s[0], b, c)

    def _write(self, flags: int, a: int, _b: int, _c: int, s: list[str], r: list[bytes]) -> None:
        create = os.O_CREAT if flags & wire.CREATE else 0
        fd = os.open(s[0], os.O_WRONLY | os.O_CLOEXEC | create, a)
        try:
            os.write(fd, r[1])
        finally:
            os.close(fd)

    def _link(self, _f: int, _a: int, _b: int, _c: int, s: list[str], _r: list[bytes]) -> None:
        os.symlink(s[0], s[1])

    def _unshare(self, _f: int, a: int, _b: int, _c: int, _s: list[str], _r: list[bytes]) -> None:
        _check(_libc.unshare(ctypes.c_int(a)), "unshare")

    def _mount(self, _f: int, a: int, _b: int, _c: int, _s: list[str], r: list[bytes]) -> None:
        source, target, kind, data = (value or None for value in r)
        _check(_libc.mount(source, target, kind, ctypes.c_ulong(a), data), "mount")

    def _pivot(self, flags: int, _a: int, _b: int, _c: int, s: list[str], r: list[bytes]) -> None:
        os.chdir(s[0])
        old = r[1] if flags & wire.KEEP_OLD else b"."
        _check(_libc.syscall(_CALL["pivot_root"], b".", old), "pivot_root")
        if not flags & wire.KEEP_OLD:
            _check(_libc.umount2(b".", 2), "umount")
        os.chdir("/")

    def _mknod(self, _f: int, a: int, b: int, _c: int, s: list[str], _r: list[bytes]) -> None:
        os.mknod(s[0], a, b)

    def _hostname(self, _f: int, _a: int, _b: int, _c: int, s: list[str], _r: list[bytes]) -> None:
        socket.sethostname(s[0])

    def _loopback(self, _f: int, _a: int, _b: int, _c: int, _s: list[str], _r: list[bytes]) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            fcntl.ioctl(probe, 0x8914, struct.pack("16sH14x", b"lo", 0x1 | 0x40))

    def _userns(self, flags: int, a: int, b: int, _c: int, _s: list[str], r: list[bytes]) -> None:
        _check(_libc.unshare(ctypes.c_int(wire.NEW_USER)), "unshare")
        if flags & wire.SELF_MAP:
            _prctl(4, 1)
            kept = f"/proc/self/fd/{wire.KEPT_FD}"
            here = f"{kept}/self" if os.path.exists(kept) else "/proc/self"
            with contextlib.suppress(OSError):
                _write(f"{here}/setgroups", b"deny")
            _write(f"{here}/uid_map", r[0])
            _write(f"{here}/gid_map", r[1])
        elif self.sync is not None:
            self.sync.send(b"U")
            if self.sync.recv(1) != b"G":
                raise OSError(errno.EPERM, "the ids were not mapped")
        if a != wire.NOBODY:
            with contextlib.suppress(OSError):
                os.setgroups([])
            os.setresgid(b, b, b)
            os.setresuid(a, a, a)
        _prctl(4, 0)
        _die_with_parent()

    def _counter(self, _f: int, a: int, _b: int, _c: int, s: list[str], _r: list[bytes]) -> None:
        mode = os.O_WRONLY if a == wire.PIDS_LIMIT else os.O_RDONLY
        self.counters[a] = os.open(s[0], mode | os.O_CLOEXEC)
        if a == wire.PIDS_LIMIT:
            self.pids_max = s[1].encode()

    def descriptors(self) -> list[int]:
        """What was opened for the commands to come."""
        return [*self.joins, *(fd for fd in self.counters if fd >= 0)]

    def renumber(self, moved: list[int]) -> None:
        """Says where `descriptors` lie now."""
        rest = iter(moved)
        self.joins = [next(rest) for _ in self.joins]
        self.counters = [next(rest) if fd >= 0 else -1 for fd in self.counters]

    def _join(self, _f: int, _a: int, _b: int, _c: int, s: list[str], _r: list[bytes]) -> None:
        self.joins.append(os.open(s[0], os.O_WRONLY | os.O_CLOEXEC))

    def _rlimit(self, _f: int, a: int, _b: int, _c: int, s: list[str], _r: list[bytes]) -> None:
        self.limits.append((a, int(s[0]), int(s[1])))

    def _filter(self, _f: int, _a: int, _b: int, _c: int, _s: list[str], r: list[bytes]) -> None:
        self.filter = r[0]

    def _umount(self, _f: int, _a: int, _b: int, _c: int, _s: list[str], r: list[bytes]) -> None:
        _check(_libc.umount2(r[0], 2), "umount")

    def _unlink(self, _f: int, _a: int, _b: int, _c: int, s: list[str], _r: list[bytes]) -> None:
        os.unlink(s[0])

    def _keep(self, _f: int, _a: int, _b: int, _c: int, s: list[str], _r: list[bytes]) -> None:
        fd = os.open(s[0], os.O_PATH | os.O_CLOEXEC)
        os.dup2(fd, wire.KEPT_FD, inheritable=False)
        os.close(fd)

    def _enter(self, _f: int, _a: int, _b: int, _c: int, s: list[str], _r: list[bytes]) -> None:
        os.chdir(s[0])
        _check(_libc.mount(b".", b"/", None, ctypes.c_ulong(MS_MOVE), None), "mount")
        os.chroot(".")
        os.chdir("/")

    def _nothing(self, _f: int, _a: int, _b: int, _c: int, _s: list[str], _r: list[bytes]) -> None:
        """A step for the server."""

    _actions: ClassVar[
        dict[
            int,
            tuple[str, Callable[[Supervisor, int, int, int, int, list[str], list[bytes]], None]],
        ]
    ] = {
        wire.MKDIR: ("mkdir", _mkdir),
        wire.WRITE: ("write", _write),
        wire.LINK: ("link", _link),
        wire.UNSHARE: ("unshare", _unshare),
        wire.MOUNT: ("mount", _mount),
        wire.PIVOT: ("pivot_root", _pivot),
        wire.MKNOD: ("mknod", _mknod),
        wire.HOSTNAME: ("sethostname", _hostname),
        wire.LOOPBACK: ("loopback", _loopback),
        wire.USERNS: ("user namespace", _userns),
        wire.COUNTER: ("open", _counter),
        wire.JOIN: ("open", _join),
        wire.RLIMIT: ("rlimit", _rlimit),
        wire.FILTER: ("filter", _filter),
        wire.CLEAN: ("clean", _nothing),
        wire.UMOUNT: ("umount", _umount),
        wire.UNLINK: ("unlink", _unlink),
        wire.KEEP: ("open", _keep),
        wire.BASE: ("base", _nothing),
        wire.ENTER: ("enter", _enter),
    }

    # --- serving --------------------------------------------------------------------------------

    def drop_bounding_set(self) -> None:
        """Nothing started from here on can ever gain a capability."""
        for capability in range(64):
            try:
                _prctl(24, capability)
            except OSError:
                break

    def serve(self) -> None:
        """Starts commands and opens files until the owner hangs up."""
        assert self.control is not None
        wake_r, wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(wake_r, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if wake_r in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_r, 4096)
                self._reap()
            if self.control.fileno() in ready:
                frame = wire.receive(self.control)
                if frame is None:
                    return
                self._answer(*frame)

    def _reap(self) -> None:
        abandoned = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if self.minders.pop(pid, None) is not None and status != 0:
                abandoned = True
        if abandoned:
            kill_tree(self, set(self.minders))

    def _answer(self, kind: int, number: int, body: bytes, fds: list[int]) -> None:
        assert self.control is not None
        try:
            if kind == wire.EXEC:
                self._start(number, body, fds)
            elif kind == wire.FILE:
                self._open(number, body)
            elif kind == wire.KILL:
                self._kill(number, body)
        except OSError as error:
            what = wire.ERRNO.pack(error.errno or errno.EIO)
            wire.send(self.control, wire.REFUSED, number, what)
        finally:
            for fd in fds:
                os.close(fd)

    def _kill(self, number: int, body: bytes) -> None:
        for pid in [pid for pid, command in self.minders.items() if command == number]:
            if not body:
                os.kill(pid, signal.SIGKILL)
                continue
            shell, number_of_signal, young_ms = wire.KILL_BODY.unpack(body)
            oldest = time.clock_gettime(time.CLOCK_BOOTTIME) - young_ms / 1000
            with contextlib.suppress(ProcessLookupError):
                os.kill(shell, number_of_signal)
            for _ in range(YOUNG_ROUNDS):
                if not kill_below(pid, {shell}, int(oldest * os.sysconf("SC_CLK_TCK"))):
                    break
                time.sleep(ROUND_S)

    def _start(self, number: int, body: bytes, fds: list[int]) -> None:
        pid = os.fork()
        if pid:
            self.minders[pid] = number
            return
        code = 1
        try:
            code = Minder(self, body, fds).run()
        finally:
            os._exit(code)

    def _open(self, number: int, body: bytes) -> None:
        assert self.control is not None
        purpose, mode, uid, gid = wire.FILE_HEAD.unpack_from(body)
        writing = purpose == wire.REPLACE
        (raw,), _ = wire.take(body, wire.FILE_HEAD.size, 1)
        path = os.fsdecode(raw)
        if writing:
            _make_folders(path, uid, gid)
        flags = (os.O_WRONLY | os.O_CREAT) if writing else os.O_RDONLY
        fd = open_inside(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, mode)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            if _file_system(fd) == PROC_MAGIC:
                raise OSError(errno.EACCES, "not a stored file")
            if writing:
                os.ftruncate(fd, 0)
                os.fchown(fd, uid, gid)
                os.fchmod(fd, mode)
            if purpose == wire.TAKE:
                os.unlink(path)
            wire.send(self.control, wire.OPENED, number, b"", (fd,))
        finally:
            os.close(fd)


class _How(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_inside(path: str, flags: int, mode: int) -> int:
    """openat2 that follows no magic links (this process's root is the sandbox's)."""
    how = _How(flags, mode if flags & os.O_CREAT else 0, 0x02 | 0x10)
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        size = ctypes.c_size_t(ctypes.sizeof(how))
        call = ctypes.c_long(_CALL["openat2"])
        fd = _libc.syscall(call, root, os.fsencode(path), ctypes.byref(how), size)
        return _check(int(fd), "open")
    finally:
        os.close(root)


def _file_system(fd: int) -> int:
    buffer = (ctypes.c_long * 32)()
    _check(_libc.fstatfs(fd, ctypes.byref(buffer)), "fstatfs")
    return int(buffer[0])


def _make_folders(path: str, uid: int, gid: int) -> None:
    at = path.find("/", 1)
    while at > 0:
        folder = path[:at]
        try:
            os.mkdir(folder, 0o755)
        except FileExistsError:
            pass
        else:
            os.chown(folder, uid, gid, follow_symlinks=False)
        at = path.find("/", at + 1)


# --- one command --------------------------------------------------------------------------------


class Minder:
    """Watches one command: reports how it ended, and leaves none of its descendants."""

    def __init__(self, supervisor: Supervisor, body: bytes, fds: list[int]) -> None:
        self.supervisor = supervisor
        (timeout_ms, self.uid, self.gid, _flags, argc, envc) = wire.EXEC_HEAD.unpack_from(body)
        strings, _ = wire.take(body, wire.EXEC_HEAD.size, 1 + argc + envc)
        self.cwd, self.argv, self.env = strings[0], strings[1 : 1 + argc], strings[1 + argc :]
        self.timeout_s = timeout_ms / 1000 if timeout_ms else None
        self.stdin, self.stdout, self.stderr, self.report = fds
        self.child = -1
        self.status: int | None = None

    def run(self) -> int:
        """Runs the command to its end; 0 if everything it started is gone."""
        _prctl(36, 1)
        began = time.monotonic()
        before = self._counts()
        failed_r, failed_w = os.pipe2(os.O_CLOEXEC)
        wake_r, wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        error, where, flags = 0, 0, 0
        try:
            self.child = os.fork()
        except OSError as reason:
            error, where = reason.errno or errno.EAGAIN, wire.AT_FORK
        if self.child == 0:
            self._become(failed_w)
        for fd in (self.stdin, self.stdout, self.stderr, failed_w):
            os.close(fd)
        if self.child > 0:
            flags |= self._watch(wake_r, began)
            if not kill_tree(self.supervisor, set(), self):
                flags |= wire.UNKILLABLE
            failure = os.read(failed_r, 8)
            if len(failure) == 8:
                error, where = struct.unpack("<II", failure)
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        after = self._counts()
        record = wire.STATUS.pack(
            self.status or 0,
            error,
            where,
            flags,
            int((usage.ru_utime + usage.ru_stime) * 1e6),
            int((time.monotonic() - began) * 1e6),
            max(0, after[0] - before[0]),
            max(0, after[1] - before[1]),
        )
        with contextlib.suppress(OSError):
            os.write(self.report, record)
        return 1 if flags & wire.UNKILLABLE else 0

    def _watch(self, wake: int, began: float) -> int:
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(self.report, 0)
        while self.status is None:
            left = None
            if self.timeout_s is not None:
                left = max(0.0, began + self.timeout_s - time.monotonic()) * 1000
            ready = dict(poll.poll(left))
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
            self.reap()
            if self.status is None:
                if self.report in ready:
                    return 0
                if left is not None and time.monotonic() - began >= (self.timeout_s or 0):
                    return wire.TIMED_OUT
        return 0

    def reap(self) -> bool:
        """Collects what ended; whether anything is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.child:
                self.status = status

    def _counts(self) -> tuple[int, int]:
        found = []
        for slot, key in ((wire.OOM_COUNTER, b"oom_kill"), (wire.PIDS_COUNTER, b"max")):
            fd = self.supervisor.counters[slot]
            value = 0
            if fd >= 0:
                for line in os.pread(fd, 4096, 0).splitlines():
                    name, _, number = line.partition(b" ")
                    if name == key:
                        value = int(number)
            found.append(value)
        return found[0], found[1]

    def _become(self, failed: int) -> None:
        """Turns the forked child into the command."""
        where = wire.AT_DROP
        try:
            signal.set_wakeup_fd(-1)
            for number in range(1, signal.NSIG):
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            os.setsid()
            for join in self.supervisor.joins:
                os.write(join, b"0")
            for kind, soft, hard in self.supervisor.limits:
                resource.setrlimit(kind, (soft, hard))
            os.umask(0o022)
            stdio = [
                fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100)
                for fd in (self.stdin, self.stdout, self.stderr)
            ]
            failed = fcntl.fcntl(failed, fcntl.F_DUPFD_CLOEXEC, 100)
            for at, fd in enumerate(stdio):
                os.dup2(fd, at)
            os.dup2(failed, 3, inheritable=False)
            failed = 3
            _close_from(4)
            drop(self.uid, self.gid)
            where = wire.AT_CHDIR
            os.chdir(self.cwd)
            where = wire.AT_DROP
            confine(self.supervisor.filter)
            where = wire.AT_EXEC
            environment = dict(item.partition(b"=")[::2] for item in self.env)
            os.execvpe(self.argv[0], self.argv, environment)
        except OSError as error:
            os.write(failed, struct.pack("<II", error.errno or errno.EIO, where))
        finally:
            os._exit(127)


def drop(uid: int, gid: int) -> None:
    """Gives up the user, the groups and every capability."""
    with contextlib.suppress(PermissionError):
        os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    head = struct.pack("<Ii", 0x20080522, 0)
    _check(_libc.syscall(_CALL["capset"], head, bytes(24)), "capset")


def confine(program: bytes) -> None:
    """No new privileges, then the system-call filter, for good."""
    _prctl(38, 1)
    if not program:
        return
    code = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    wanted = Program(len(program) // 8, ctypes.addressof(code))
    _prctl(22, 2, wanted)


def kill_below(root: int, spared: set[int], oldest: int = 0) -> int:
    """Kills the living below `root` that started at `oldest` (clock ticks since boot) or later.

    The spared and everything below them stay, but what is below a spared one counts when `oldest`
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
        if not oldest:
            fresh -= spared
        found |= fresh
    victims = [pid for pid in sorted(found - spared) if started[pid] >= oldest]
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(victims)


def kill_tree(supervisor: Supervisor, spared: set[int], minder: Minder | None = None) -> bool:
    """Kills every descendant of this process; whether all are gone.

    A tree that forks faster than it is killed is first forbidden to fork (the group's process
    limit goes to 0 for that moment), and at last everything but the supervisor is killed at once.
    """
    frozen, root = False, os.getpid()
    pids_limit = supervisor.counters[wire.PIDS_LIMIT]
    try:
        last_resort = KILL_ALL_FROZEN if pids_limit >= 0 else KILL_ALL_AFTER
        for turn in range(ROUNDS):
            if minder is not None and not minder.reap():
                return True
            if turn == FREEZE_AFTER and pids_limit >= 0:
                _write(pids_limit, b"0")
                frozen = True
            living = kill_below(root, spared)
            if minder is None and not living:
                return True
            if turn >= last_resort and living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGKILL)
            if turn:
                time.sleep(ROUND_S)
        return False
    finally:
        if frozen:
            _write(pids_limit, supervisor.pids_max)


# --- the server ---------------------------------------------------------------------------------


class _Box:
    """What the server knows of one sandbox."""

    def __init__(self, number: int, sync: socket.socket, plan: bytes) -> None:
        self.number = number
        self.sync = sync
        self.clean: list[str] = []
        self.maps: list[bytes] = []
        for step, _, _, _, _, strings in wire.steps(plan):
            if step == wire.CLEAN:
                self.clean.append(os.fsdecode(strings[0]))
            elif step == wire.USERNS:
                self.maps = strings


class Server:
    """Forks sandboxes for one owner, maps their ids, and ends and clears them."""

    def __init__(self, owner: socket.socket) -> None:
        self.owner = owner
        self.boxes: dict[int, _Box] = {}
        """By the PID of the supervisor."""
        self.clean: list[str] = []
        self.bases: dict[bytes, int] = {}
        self.own_space = -1
        self.poll = select.poll()

    def run(self) -> None:
        """Serves until the owner is gone; then nothing is left."""
        owner_pid = os.getppid()
        os.umask(0)
        wake_r, wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        frame = wire.receive(self.owner)
        if frame is None or frame[0] != wire.INIT:
            return
        self.poll.register(self.owner, select.POLLIN)
        self.poll.register(wake_r, select.POLLIN)
        watch = int(_libc.syscall(_CALL["pidfd_open"], owner_pid, 0))
        if watch >= 0:
            self.poll.register(watch, select.POLLIN)
        try:
            here = Supervisor(None, None)
            here.carry_out(frame[2])
            self.clean = _Box(0, self.owner, frame[2]).clean
        except OSError as error:
            self._failed(0, error)
            return
        self.own_space = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        wire.send(self.owner, wire.READY, wire.VERSION)
        try:
            self._loop(wake_r, watch)
        finally:
            self._end()

    def _loop(self, wake: int, watch: int) -> None:
        while True:
            ready = dict(self.poll.poll())
            if watch in ready:
                return
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
                self._reap()
            for pid, box in list(self.boxes.items()):
                if box.sync.fileno() in ready:
                    self._map(pid, box)
            if self.owner.fileno() in ready:
                frame = wire.receive(self.owner)
                if frame is None:
                    return
                kind, number, body, fds = frame
                if kind == wire.OPEN:
                    self._open(number, body, fds)
                elif kind == wire.CLOSE:
                    for pid, box in self.boxes.items():
                        if box.number == number:
                            os.kill(pid, signal.SIGKILL)

    def _open(self, number: int, plan: bytes, fds: list[int]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        box = _Box(number, ours, plan)
        here = Supervisor(None, None)
        try:
            own, name, base, rest = _parts(plan)
            here.carry_out(own)
            space = self._base(name, base)
            pid = self._bear(space, rest, here, fds[0], theirs.fileno())
        except OSError as error:
            ours.close()
            self._failed(number, error)
            _remove(box.clean)
            return
        finally:
            theirs.close()
            for fd in (*fds, *here.descriptors()):
                os.close(fd)
        self.boxes[pid] = box
        self.poll.register(ours, select.POLLIN)

    def _bear(self, space: int, plan: bytes, here: Supervisor, control: int, sync: int) -> int:
        """Forks the supervisor into the base's mount namespace and a new PID namespace."""
        _check(_libc.setns(space, wire.NEW_MOUNT), "setns")
        ctypes.pythonapi.PyOS_BeforeFork()
        clone = wire.NEW_PID | signal.SIGCHLD
        pid = int(_libc.syscall(_CALL["clone"], ctypes.c_ulong(clone), 0, 0, 0, 0))
        code = ctypes.get_errno()
        if pid == 0:
            ctypes.pythonapi.PyOS_AfterFork_Child()
            _be_supervisor(plan, here, control, sync)
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        _check(_libc.setns(self.own_space, wire.NEW_MOUNT), "setns")
        if pid < 0:
            raise OSError(code, f"clone: {os.strerror(code)}")
        return pid

    def _base(self, name: bytes, plan: bytes) -> int:
        """The mount namespace of a base, made once by a process that then ends."""
        if name in self.bases:
            return self.bases[name]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                _prctl(4, 1)  # so that the server may open its namespace
                try:
                    Supervisor(None, None).carry_out(plan)
                    theirs.send(b"made")
                except OSError as error:
                    theirs.send(wire.ERRNO.pack(error.errno or 0) + str(error.strerror).encode())
                theirs.recv(1)
            finally:
                os._exit(0)
        theirs.close()
        try:
            answer = ours.recv(400)
            if answer != b"made":
                raise OSError(wire.ERRNO.unpack(answer[:4])[0], answer[4:].decode())
            self.bases[name] = os.open(f"/host/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            ours.close()
            os.waitpid(pid, 0)
        return self.bases[name]

    def _map(self, pid: int, box: _Box) -> None:
        self.poll.unregister(box.sync)
        try:
            if box.sync.recv(1) == b"U":
                _write(f"/host/proc/{pid}/uid_map", box.maps[0])
                _write(f"/host/proc/{pid}/gid_map", box.maps[1])
                box.sync.send(b"G")
        except OSError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        box.sync.close()

    def _reap(self) -> None:
        while self.boxes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            box = self.boxes.pop(pid)
            if box.sync.fileno() >= 0:
                self.poll.unregister(box.sync)
                box.sync.close()
            _remove(box.clean)
            wire.send(self.owner, wire.GONE, box.number, struct.pack("<i", status))

    def _failed(self, number: int, error: OSError) -> None:
        body = wire.ERRNO.pack(error.errno or errno.EIO) + str(error.strerror).encode()
        with contextlib.suppress(OSError):
            wire.send(self.owner, wire.FAILED, number, body)

    def _end(self) -> None:
        for pid in self.boxes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid, box in self.boxes.items():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            _remove(box.clean)
        _remove(self.clean)


def _parts(plan: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """The server's own steps, the name and plan of the base, the supervisor's steps."""
    at = 0
    while at < len(plan):
        start = at
        step, _, count, _, _, _ = wire.STEP.unpack_from(plan, at)
        strings, at = wire.take(plan, at + wire.STEP.size, count)
        if step == wire.BASE:
            return plan[:start], strings[0], strings[1], plan[at:]
    raise OSError(errno.EINVAL, "a plan without a base")


def _remove(folders: list[str]) -> None:
    """Removes control groups; a group is busy for a moment after its last process."""
    for folder in reversed(folders):
        for _ in range(200):
            try:
                os.rmdir(folder)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    break
                time.sleep(ROUND_S)
            else:
                break


def _be_supervisor(plan: bytes, here: Supervisor, control_fd: int, sync_fd: int) -> None:
    """The life of a sandbox's first process; never returns."""
    try:
        control_fd, sync_fd, *rest = _keep_only([control_fd, sync_fd, *here.descriptors()])
        here.renumber(rest)
        control = here.control = socket.socket(fileno=control_fd)
        sync = here.sync = socket.socket(fileno=sync_fd)
        _die_with_parent()
        _prctl(4, 0)
        try:
            here.carry_out(plan)
            here.drop_bounding_set()
        except OSError as error:
            body = wire.ERRNO.pack(error.errno or errno.EIO) + str(error.strerror).encode()
            wire.send(control, wire.BROKEN, 0, body)
            os._exit(1)
        sync.close()
        with contextlib.suppress(OSError):
            os.close(wire.KEPT_FD)
        wire.send(control, wire.UP, 0)
        here.serve()
        os._exit(0)
    finally:
        os._exit(2)


if __name__ == "__main__":
    Server(socket.socket(fileno=int(sys.argv[1]))).run()
