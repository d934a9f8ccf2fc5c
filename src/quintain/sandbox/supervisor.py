"""The first process of a sandbox, and the minder of each command, in Python.

The supervisor carries out the plan, gives up its rights, and starts commands on request. Each
command has a *minder* that it cannot signal: the reaper of all its descendants, which reports by
waitpid, keeps the time, and kills what is left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import select
import signal
import stat
import struct
import time
import warnings  # noqa: F401 - os.execvpe imports it, when no file can be found any more

from quintain.sandbox import wire
from quintain.sandbox.freeze import freeze, thaw
from quintain.sandbox.kernel import (
    Moment,
    close_from,
    confine,
    drop,
    file_system,
    kill_below,
    kill_young,
    open_inside,
    prctl,
    write_file,
)
from quintain.sandbox.steps import Steps

ROUND_S = 0.001
ROUNDS = 3000
FREEZE_AFTER, KILL_ALL_AFTER, KILL_ALL_FROZEN = 4, 100, 2000
PROC_MAGIC = 0x9FA0


class Supervisor(Steps):
    """The first process of a sandbox, from its birth to its death."""

    stopped: frozenset[int] = frozenset()
    """What stood still already before a freeze."""

    def drop_bounding_set(self) -> None:
        """Nothing started from here on can ever gain a capability."""
        for capability in range(64):
            if self.rights >> capability & 1:
                continue
            try:
                prctl(24, capability)
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
            number = self.minders.pop(pid, None)
            if number is not None:
                self.asked.pop(number, None)
                abandoned |= status != 0
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
            elif kind == wire.ASK:
                self.asked[number] = Moment.now()
                os.write(fds[0], body)
            elif kind == wire.FREEZE:
                self.stopped = freeze()
                self._open_layer(number)
            elif kind == wire.THAW:
                thaw(self.stopped)
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
            shell, number_of_signal = wire.KILL_BODY.unpack(body)
            with contextlib.suppress(ProcessLookupError):
                os.kill(shell, number_of_signal)
            if number in self.asked:
                kill_young(pid, shell, self.asked[number])

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

    def _open_layer(self, number: int) -> None:
        assert self.control is not None
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=wire.LAYER_FD)
        try:
            wire.send(self.control, wire.OPENED, number, b"", (fd,))
        finally:
            os.close(fd)

    def _open(self, number: int, body: bytes) -> None:
        assert self.control is not None
        purpose, mode, uid, gid = wire.FILE_HEAD.unpack_from(body)
        writing = purpose == wire.REPLACE
        (raw,), _ = wire.take(body, wire.FILE_HEAD.size, 1)
        path = os.fsdecode(raw)
        if purpose == wire.LAYER:
            self._open_layer(number)
            return
        if writing:
            _make_folders(path, uid, gid)
        flags = (os.O_WRONLY if writing else os.O_RDONLY) | os.O_NONBLOCK | os.O_NOCTTY
        there = not writing
        try:
            made = os.O_CREAT | os.O_EXCL if writing else 0
            fd = open_inside(path, flags | made | os.O_CLOEXEC, mode)
        except FileExistsError:
            there = True
            fd = open_inside(path, flags | os.O_CLOEXEC, 0)
        try:
            wanted = stat.S_ISDIR if purpose == wire.FOLDER else stat.S_ISREG
            if purpose != wire.PROC and not wanted(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "neither a regular file nor a folder as asked for")
            if (file_system(fd) == PROC_MAGIC) != (purpose == wire.PROC):
                raise OSError(errno.EACCES, "not a stored file, or none of /proc")
            if writing and there and uid and os.fstat(fd).st_uid != uid:
                # An image's own: only root inside replaces it.
                raise OSError(errno.EACCES, "it belongs to someone else")
            if writing and not there and uid and _plants(fd, uid):
                raise OSError(errno.EACCES, "the system's folders are not written to")
            if writing:
                os.ftruncate(fd, 0)
                os.fchown(fd, uid, gid)
                os.fchmod(fd, mode)
            if purpose == wire.TAKE:
                os.unlink(path)
            wire.send(self.control, wire.OPENED, number, b"", (fd,))
        finally:
            os.close(fd)


def _plants(fd: int, uid: int) -> bool:
    """Whether an open file is new in a folder of the system that this user could not write to.

    What a candidate's tools write must not become a library or a setting of its judge's programs.
    The file goes again.
    """
    path = os.readlink(f"/proc/self/fd/{fd}")
    if not path.startswith(("/etc/", "/usr/", "/bin/", "/sbin/", "/lib")):
        return False
    above = os.stat(os.path.dirname(path))
    if above.st_uid == uid or above.st_mode & stat.S_IWOTH:
        return False
    os.unlink(path)
    return True


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


class Minder:
    """Watches one command: reports how it ended, and leaves none of its descendants."""

    def __init__(self, supervisor: Supervisor, body: bytes, fds: list[int]) -> None:
        self.supervisor = supervisor
        (timeout_ms, self.uid, self.gid, _flags, argc, envc) = wire.EXEC_HEAD.unpack_from(body)
        strings, _ = wire.take(body, wire.EXEC_HEAD.size, 1 + argc + envc)
        self.cwd, self.argv, self.env = strings[0], strings[1 : 1 + argc], strings[1 + argc :]
        self.timeout_s = timeout_ms / 1000 if timeout_ms else None
        self.stdin, self.stdout, self.stderr, self.report, *self.extra = fds
        self.child = -1
        self.status: int | None = None

    def run(self) -> int:
        """Runs the command to its end; 0 if everything it started is gone."""
        prctl(36, 1)
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
        for fd in (self.stdin, self.stdout, self.stderr, *self.extra, failed_w):
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
            stdio = [_own_null(fd) for fd in (self.stdin, self.stdout, self.stderr)]
            wanted = [*stdio, failed, *self.extra]
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in wanted]
            for at, fd in enumerate(high):
                os.dup2(fd, at, inheritable=at != 3)
            failed = 3
            close_from(len(high))
            drop(self.uid, self.gid, 0 if self.uid else self.supervisor.rights)
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


def _own_null(fd: int) -> int:
    """The sandbox's own null device in place of the host's."""
    state = os.fstat(fd)
    if not stat.S_ISCHR(state.st_mode) or state.st_rdev != os.makedev(1, 3):
        return fd
    try:
        return os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return fd


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
                write_file(pids_limit, b"0")
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
            write_file(pids_limit, supervisor.pids_max)
