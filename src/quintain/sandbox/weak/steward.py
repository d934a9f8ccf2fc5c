"""The stewards of weak sandboxes and the minders of their commands; see `keeper.py`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import select
import signal
import socket
import stat
import time
import traceback
from typing import Any

from quintain.sandbox import wire
from quintain.sandbox.kernel import (
    Moment,
    close_from,
    die_with_parent,
    drop,
    kill_below,
    kill_young,
    open_inside,
    prctl,
)

ROUND_S = 0.002
ROUNDS = 2000
NOTES = 3
RECEIVE = """
import array, os, socket, sys
s = socket.socket(fileno=0)
_, sent, _, _ = s.recvmsg(1, socket.CMSG_SPACE(64))
fds = array.array("i", sent[0][2])
high = [os.dup(fd) for fd in fds if not os.set_inheritable(fd, False)]
for at, fd in zip([0, *range(4, 3 + len(fds))], high):
    os.dup2(fd, at)
os.closerange(3 + len(fds), 256)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Takes a command's further descriptors from a socket: sandlock passes on no more than three."""
SUBREAPER, DUMPABLE = 36, 4
PROGRAMS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt")
"""Top-level folders of the host that are visible, read-only."""


def become_reaper() -> None:
    """Orphans below this process become its children."""
    prctl(SUBREAPER, 1)


def drop_bounding_set() -> None:
    """Nothing started from here on can ever gain a capability."""
    for capability in range(64):
        try:
            prctl(24, capability)
        except OSError:
            break


def kill_all_below(spared: set[int]) -> None:
    """Kills this process's descendants, but for the spared and theirs, and collects them."""
    for turn in range(ROUNDS):
        living = kill_below(os.getpid(), spared)
        for pid in children() - spared:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if not living and not children() - spared:
            return
        if turn:
            time.sleep(ROUND_S)


def children() -> set[int]:
    """The children of this process, the dead included."""
    found: set[int] = set()
    for task in os.listdir("/proc/self/task"):
        with (
            contextlib.suppress(OSError),
            open(f"/proc/self/task/{task}/children", "rb") as file,
        ):
            found |= {int(pid) for pid in file.read().split()}
    return found


class Steward:
    """Starts commands and opens files for one sandbox, with the rights of its user."""

    def __init__(self, folder: str, plan: dict[str, Any], control: int) -> None:
        self.folder, self.plan = folder, plan
        self.control_fd = control
        self.minders: dict[int, int] = {}
        """PID to the number of the command."""
        self.asked: dict[int, Moment] = {}
        """When a session's process, by the number of its command, was last asked for something."""

    def run(self) -> None:
        """Serves until the owner hangs up; then nothing below is left."""
        keeper = os.pidfd_open(os.getppid())
        for at, fd in enumerate((os.dup(self.control_fd), os.dup(keeper)), 3):
            os.dup2(fd, at, inheritable=False)
        close_from(5)
        control, keeper = socket.socket(fileno=3), 4
        become_reaper()
        os.umask(0o022)
        try:
            drop_bounding_set()
            drop(self.plan["uid"], self.plan["uid"])
            prctl(DUMPABLE, 0)
            os.listdir(self.folder)
        except OSError as error:
            what = f"user {self.plan['uid']} cannot have {self.folder}".encode()
            wire.send(control, wire.BROKEN, 0, wire.ERRNO.pack(error.errno or 0) + what)
            os._exit(1)
        wake_r, wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        poll = select.poll()
        for watched in (control.fileno(), wake_r, keeper):
            poll.register(watched, select.POLLIN)
        wire.send(control, wire.UP, 0)
        while True:
            ready = dict(poll.poll())
            if keeper in ready:
                kill_all_below(set())
                os._exit(0)
            if wake_r in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_r, 4096)
                self._reap()
            if control.fileno() in ready:
                frame = wire.receive(control)
                if frame is None:
                    kill_all_below(set())
                    os._exit(0)
                self._answer(control, *frame)

    def _reap(self) -> None:
        ended = False
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self.asked.pop(self.minders.pop(pid, 0), None)
            ended = True
        if ended:
            kill_all_below(set(self.minders))

    def _answer(
        self, control: socket.socket, kind: int, number: int, body: bytes, fds: list[int]
    ) -> None:
        try:
            if kind == wire.EXEC:
                self._start(number, body, fds)
            elif kind == wire.FILE:
                self._file(control, number, body)
            elif kind == wire.KILL:
                self._kill(number, body)
            elif kind == wire.ASK:
                self.asked[number] = Moment.now()
                os.write(fds[0], body)
        except OSError as error:
            wire.send(control, wire.REFUSED, number, wire.ERRNO.pack(error.errno or errno.EIO))
        finally:
            for fd in fds:
                os.close(fd)

    def _start(self, number: int, body: bytes, fds: list[int]) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                Minder(self, number, body, fds).run()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        self.minders[pid] = number

    def _kill(self, number: int, body: bytes) -> None:
        for pid in [pid for pid, command in self.minders.items() if command == number]:
            if not body:
                os.kill(pid, signal.SIGKILL)
                continue
            shell, number_of_signal = wire.KILL_BODY.unpack(body)
            if shell in below(pid):
                os.kill(shell, number_of_signal)
            if number in self.asked:
                kill_young(pid, shell, self.asked[number])

    # --- files ------------------------------------------------------------------------------------

    def _file(self, control: socket.socket, number: int, body: bytes) -> None:
        purpose, mode, _, _ = wire.FILE_HEAD.unpack_from(body)
        (raw,), _ = wire.take(body, wire.FILE_HEAD.size, 1)
        path = os.fsdecode(raw)
        fd = self.open(path, purpose == wire.REPLACE, mode)
        try:
            wanted = stat.S_ISDIR if purpose == wire.FOLDER else stat.S_ISREG
            if not wanted(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "neither a regular file nor a folder as asked for")
            if purpose == wire.REPLACE:
                os.ftruncate(fd, 0)
                os.fchmod(fd, mode)
            if purpose == wire.TAKE:
                folder = self.folder_at(os.path.dirname(path))
                try:
                    os.unlink(os.path.basename(path), dir_fd=folder)
                finally:
                    os.close(folder)
            wire.send(control, wire.OPENED, number, b"", (fd,))
        finally:
            os.close(fd)

    def open(self, path: str, writing: bool, mode: int) -> int:
        """A file as the command would find it: nothing but the sandbox's folders and programs."""
        top, _, rest = path.strip("/").partition("/")
        if top in PROGRAMS and not writing:
            return open_inside(rest, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, 0, f"/{top}")
        if writing and top == "etc":
            raise OSError(errno.EROFS, "read-only")
        if writing:
            self._make_folders(os.path.dirname(path))
        flags = (os.O_WRONLY | os.O_CREAT) if writing else os.O_RDONLY
        return open_inside(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode, self.folder)

    def folder_at(self, path: str) -> int:
        """A folder as the command would find it."""
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        top, _, rest = path.strip("/").partition("/")
        if top in PROGRAMS:
            return open_inside(rest or ".", flags, 0, f"/{top}")
        return open_inside(path, flags, 0, self.folder)

    def _make_folders(self, path: str) -> None:
        made, at = "/", os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in path.strip("/").split("/"):
                if made == "/" and part not in self.plan["tops"]:
                    raise OSError(errno.EROFS, "read-only")
                made = os.path.join(made, part)
                if part not in ("", ".", ".."):
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=at)
                last, at = at, self.folder_at(made)
                os.close(last)
        finally:
            os.close(at)


def below(root: int) -> set[int]:
    """The living descendants of a process."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    found: set[int] = set()
    fresh = {root}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh and pid not in found}
        found |= fresh
    return found


class Minder:
    """Watches one command: reports how it ended, and leaves none of its descendants."""

    def __init__(self, steward: Steward, number: int, body: bytes, fds: list[int]) -> None:
        self.steward, self.plan, self.number = steward, steward.plan, number
        (timeout_ms, _, _, _, argc, envc) = wire.EXEC_HEAD.unpack_from(body)
        strings, _ = wire.take(body, wire.EXEC_HEAD.size, 1 + argc + envc)
        self.cwd = os.fsdecode(strings[0])
        self.argv = [os.fsdecode(word) for word in strings[1 : 1 + argc]]
        pairs = (os.fsdecode(word).partition("=") for word in strings[1 + argc :])
        self.env = {name: value for name, _, value in pairs}
        self.timeout_s = timeout_ms / 1000 if timeout_ms else None
        self.stdio, self.report, self.extra = fds[:3], fds[3], fds[4:]
        self.notes = os.memfd_create("notes", os.MFD_CLOEXEC)
        """Where sandlock's host says that a command was ended for its memory."""
        self.child = -1
        self.status: int | None = None

    def run(self) -> None:
        """Runs the command to its end and reports; it ends too when nobody waits any more."""
        become_reaper()
        began = time.monotonic()
        error, where, flags = 0, 0, 0
        wake_r, wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        try:
            os.close(self.steward.folder_at(self.cwd))
            self.child = os.fork()
        except OSError as reason:
            error, where = reason.errno or errno.EIO, wire.AT_CHDIR
        if self.child == 0:
            self._become()
        if self.child > 0:
            for fd in (*self.stdio, *self.extra):
                os.close(fd)
            flags = self._watch(wake_r, began)
            if self.status is None:
                os.kill(self.child, signal.SIGKILL)
                _, self.status = os.waitpid(self.child, 0)
            kill_all_below(set())
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        record = wire.STATUS.pack(
            self.status or 0,
            error,
            where,
            flags,
            int((usage.ru_utime + usage.ru_stime) * 1e6),
            int((time.monotonic() - began) * 1e6),
            int(os.fstat(self.notes).st_size > 0),
            0,
        )
        with contextlib.suppress(OSError):
            os.write(self.report, record)
        os._exit(0)

    def _watch(self, wake: int, began: float) -> int:
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(self.report, 0)
        while True:
            left = None
            if self.timeout_s is not None:
                left = max(0.0, began + self.timeout_s - time.monotonic())
            ready = dict(poll.poll(None if left is None else left * 1000))
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
            self._collect()
            if self.status is not None or self.report in ready:
                return 0
            if left is not None and time.monotonic() - began >= (self.timeout_s or 0):
                return wire.TIMED_OUT

    def _collect(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.child:
                self.status = status

    def _become(self) -> None:
        """Turns the forked child into sandlock's host, which ends as its command ended."""
        code = 126
        try:
            signal.set_wakeup_fd(-1)
            die_with_parent()
            # sandlock reaches into its child, which inherits this; Landlock keeps the child out.
            prctl(DUMPABLE, 1)
            os.setsid()
            if self.extra:
                self._send_extra()
            wanted = [*self.stdio, self.notes]
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for fd in wanted]
            for at, fd in enumerate(high):
                os.dup2(fd, at, inheritable=at != NOTES)
            close_from(len(high))
            for name, most in self.plan["limits"].items():
                resource.setrlimit(getattr(resource, name), (most, most))
            code = self._host()
        except Exception as error:
            os.write(2, f"cannot run {self.argv[0]!r}: {error}\n".encode())
        finally:
            if code < 0:
                signal.signal(-code, signal.SIG_DFL) if code not in (-9, -19) else None
                os.kill(os.getpid(), -code)
            os._exit(code)

    def _send_extra(self) -> None:
        """Lets the command find its stdin and further descriptors on a socket."""
        ours, theirs = socket.socketpair()
        socket.send_fds(ours, [b"x"], [self.stdio[0], *self.extra])
        self.stdio[0] = theirs.detach()
        self.argv = ["python3", "-c", RECEIVE, *self.argv]

    def _host(self) -> int:
        """Runs the command under sandlock; its exit code, or minus its signal."""
        import sandlock

        last: dict[int, str] = {}

        def decide(event: Any, _context: Any) -> bool:
            """Refuses whatever names an address; UNIX sockets and files name none."""
            last[event.pid] = event.category
            return event.category == "network" and event.host is not None

        folder, plan = self.steward.folder, self.plan
        top = self.cwd.split("/")[1]
        box = sandlock.Sandbox(
            chroot="/",
            cwd=self.cwd if top in PROGRAMS else folder + self.cwd,
            fs_mount={path: folder + path for path in plan["mounts"]},
            fs_mount_ro={"/etc": f"{folder}/etc", **plan["read_only"]},
            fs_readable=plan["readable"],
            fs_writable=[*plan["mounts"], *plan["devices"]],
            fs_denied=plan["denied"],
            extra_deny_syscalls=plan["refused"],
            max_memory=plan["memory"],
            max_processes=plan["processes"],
            clean_env=True,
            env=self.env,
            no_coredump=True,
            name=f"sandbox-{plan['owner']}-{plan['number']}-{self.number}",
            policy_fn=decide,
        )
        process = box.popen(self.argv)
        pid = process.pid
        result = process.wait()
        if result.reason == 0:
            return int(result.exit_code)
        if result.reason == 1 and result.signal > 0:
            return -int(result.signal)
        # The supervisor of sandlock kills over a memory limit while it answers a call for memory.
        if last.get(pid or 0) == "memory":
            os.write(NOTES, b"memory\n")
        return -int(signal.SIGKILL)
