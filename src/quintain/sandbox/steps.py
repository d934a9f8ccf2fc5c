"""Carrying out a plan in Python: mounts, namespaces, files, control groups (`wire.py`)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable
from typing import ClassVar

from quintain.sandbox import wire
from quintain.sandbox.kernel import (
    CALL,
    Moment,
    check,
    die_with_parent,
    libc,
    map_mount,
    prctl,
    write_file,
)
from quintain.sandbox.landlock import allow_below, create_ruleset, restrict_self

MS_MOVE = 8192


class Steps:
    """Carries out a plan in this process, and keeps what its commands will need."""

    def __init__(self, control: socket.socket | None, sync: socket.socket | None) -> None:
        self.control = control
        self.sync = sync
        self.counters = [-1, -1, -1]
        self.pids_max = b"max"
        self.joins: list[int] = []
        self.limits: list[tuple[int, int, int]] = []
        self.filter = b""
        self.listener: socket.socket | None = None
        self.again = False
        """Whether the plan is carried out once more: its control groups are there."""
        self.keep_net = False
        """Whether this process is in the network namespace that it keeps."""
        self.rules = -1
        self.rights = 0
        self.minders: dict[int, int] = {}
        """PID of a minder to the id of its command."""
        self.asked: dict[int, Moment] = {}
        """When a session's process, by the id of its command, was last asked for something."""

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

    def _mkdir(self, flags: int, a: int, b: int, c: int, s: list[str], _r: list[bytes]) -> None:
        try:
            os.mkdir(s[0], a)
        except FileExistsError:
            if not flags & wire.CREATE:
                if self.again:
                    return
                raise
        if b != wire.NOBODY:
            os.chown(s[0], b, c, follow_symlinks=False)

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
        kept = wire.NEW_NET if self.keep_net else 0
        check(libc.unshare(ctypes.c_int(a & ~kept)), "unshare")

    def _mount(self, _f: int, a: int, _b: int, _c: int, _s: list[str], r: list[bytes]) -> None:
        source, target, kind, data = (value or None for value in r)
        check(libc.mount(source, target, kind, ctypes.c_ulong(a), data), "mount")

    def _pivot(self, flags: int, _a: int, _b: int, _c: int, s: list[str], r: list[bytes]) -> None:
        os.chdir(s[0])
        old = r[1] if flags & wire.KEEP_OLD else b"."
        check(libc.syscall(CALL["pivot_root"], b".", old), "pivot_root")
        if not flags & wire.KEEP_OLD:
            check(libc.umount2(b".", 2), "umount")
        os.chdir("/")

    def _mknod(self, _f: int, a: int, b: int, _c: int, s: list[str], _r: list[bytes]) -> None:
        os.mknod(s[0], a, b)

    def _hostname(self, _f: int, _a: int, _b: int, _c: int, s: list[str], _r: list[bytes]) -> None:
        socket.sethostname(s[0])

    def _loopback(self, _f: int, _a: int, _b: int, _c: int, _s: list[str], _r: list[bytes]) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            fcntl.ioctl(probe, 0x8914, struct.pack("16sH14x", b"lo", 0x1 | 0x40))

    def _userns(self, flags: int, a: int, b: int, _c: int, _s: list[str], r: list[bytes]) -> None:
        check(libc.unshare(ctypes.c_int(wire.NEW_USER)), "unshare")
        if flags & wire.SELF_MAP:
            prctl(4, 1)
            kept = f"/proc/self/fd/{wire.KEPT_FD}"
            here = f"{kept}/self" if os.path.exists(kept) else "/proc/self"
            with contextlib.suppress(OSError):
                write_file(f"{here}/setgroups", b"deny")
            write_file(f"{here}/uid_map", r[0])
            write_file(f"{here}/gid_map", r[1])
        elif self.sync is not None:
            self.sync.send(b"U")
            if self.sync.recv(1) != b"G":
                raise OSError(errno.EPERM, "the ids were not mapped")
        if a != wire.NOBODY:
            with contextlib.suppress(OSError):
                os.setgroups([])
            os.setresgid(b, b, b)
            os.setresuid(a, a, a)
        prctl(4, 0)
        die_with_parent()

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
        check(libc.umount2(r[0], 2), "umount")

    def _unlink(self, _f: int, _a: int, _b: int, _c: int, s: list[str], _r: list[bytes]) -> None:
        os.unlink(s[0])

    def _keep(self, _f: int, a: int, _b: int, _c: int, s: list[str], _r: list[bytes]) -> None:
        fd = os.open(s[0], os.O_PATH | os.O_CLOEXEC)
        os.dup2(fd, wire.LAYER_FD if a else wire.KEPT_FD, inheritable=False)
        os.close(fd)

    def _enter(self, _f: int, _a: int, _b: int, _c: int, s: list[str], _r: list[bytes]) -> None:
        os.chdir(s[0])
        check(libc.mount(b".", b"/", None, ctypes.c_ulong(MS_MOVE), None), "mount")
        os.chroot(".")
        os.chdir("/")

    def _listen(self, _f: int, a: int, b: int, _c: int, _s: list[str], _r: list[bytes]) -> None:
        self.listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.listener.bind(("127.0.0.1", a))
        self.listener.listen(b)

    def _offer(self, _f: int, _a: int, _b: int, _c: int, s: list[str], _r: list[bytes]) -> None:
        assert self.control is not None
        layer = os.open(s[0], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            wire.send(self.control, wire.FILL, 0, b"", (layer,))
        finally:
            os.close(layer)
        answer = wire.receive(self.control)
        if answer is None or answer[0] != wire.FILLED:
            raise OSError(errno.ECANCELED, "the owner did not fill the layer")

    def _rules(self, _f: int, a: int, b: int, c: int, _s: list[str], _r: list[bytes]) -> None:
        self.rules = create_ruleset(a, b, c)

    def _allow(self, _f: int, a: int, _b: int, _c: int, s: list[str], _r: list[bytes]) -> None:
        allow_below(self.rules, s[0], a)

    def _restrict(self, _f: int, _a: int, _b: int, _c: int, _s: list[str], _r: list[bytes]) -> None:
        restrict_self(self.rules)
        os.close(self.rules)

    def _idmap(self, _f: int, _a: int, _b: int, _c: int, _s: list[str], r: list[bytes]) -> None:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                die_with_parent()
                ours.close()
                check(libc.unshare(ctypes.c_int(wire.NEW_USER)), "unshare")
                theirs.send(b"U")
                theirs.recv(1)
            finally:
                os._exit(0)
        theirs.close()
        try:
            if ours.recv(1) != b"U":
                raise OSError(errno.EPERM, "no user namespace")
            write_file(f"/proc/{pid}/uid_map", r[2])
            write_file(f"/proc/{pid}/gid_map", r[2])
            space = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
            try:
                map_mount(r[0], r[1], space)
            finally:
                os.close(space)
        finally:
            ours.close()
            os.waitpid(pid, 0)

    def _rights(self, _f: int, a: int, _b: int, _c: int, _s: list[str], _r: list[bytes]) -> None:
        self.rights = a

    def _nothing(self, _f: int, _a: int, _b: int, _c: int, _s: list[str], _r: list[bytes]) -> None:
        """A step for the server."""

    _actions: ClassVar[
        dict[
            int,
            tuple[str, Callable[[Steps, int, int, int, int, list[str], list[bytes]], None]],
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
        wire.LISTEN: ("listen", _listen),
        wire.OFFER: ("fill", _offer),
        wire.RULES: ("landlock rules", _rules),
        wire.ALLOW: ("landlock rule", _allow),
        wire.RESTRICT: ("landlock", _restrict),
        wire.IDMAP: ("idmap", _idmap),
        wire.RIGHTS: ("rights", _rights),
    }
