"""The spawn server in plain Python: the same walls where there is no compiler.

Run as `python -m quintain.sandbox.launcher FD`. The server owns every sandbox of one owner: it
forks the first process of a sandbox (`supervisor.py`) into a new PID namespace, maps its ids, and
ends them all when the owner is gone. `box.c` is the same program in C; `wire.py` says what the
frames mean.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import socket
import struct
import sys
import time

from quintain.sandbox import wire
from quintain.sandbox.kernel import (
    CALL,
    check,
    die_with_parent,
    hide_arguments,
    keep_only,
    libc,
    prctl,
    write_file,
)
from quintain.sandbox.supervisor import ROUND_S, Supervisor


class _Box:
    """What the server knows of one sandbox."""

    def __init__(self, number: int, sync: socket.socket, plan: bytes) -> None:
        self.number = number
        self.sync = sync
        self.plan = plan
        self.control = self.net = -1
        """Of a reset that waits for the death of the first process."""
        self.clean: list[str] = []
        self.maps: list[bytes] = []
        for step, _, _, _, _, strings in wire.steps(plan):
            if step == wire.CLEAN:
                self.clean.append(os.fsdecode(strings[0]))
            elif step == wire.USERNS:
                self.maps = strings

    def forget(self) -> None:
        """Calls off a reset."""
        for fd in (self.control, self.net):
            if fd >= 0:
                os.close(fd)
        self.control = self.net = -1


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
        hide_arguments()
        os.umask(0)
        wake_r, wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        frame = wire.receive(self.owner)
        if frame is None or frame[0] != wire.INIT:
            return
        self.poll.register(self.owner, select.POLLIN)
        self.poll.register(wake_r, select.POLLIN)
        watch = int(libc.syscall(CALL["pidfd_open"], owner_pid, 0))
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
                elif kind in (wire.CLOSE, wire.RESET):
                    self._kill(number, fds)

    def _kill(self, number: int, fds: list[int]) -> None:
        """Ends a sandbox; given a control socket, it is born anew once it is gone (`RESET`)."""
        for pid, box in self.boxes.items():
            if box.number == number:
                box.forget()
                if fds:
                    box.control = fds.pop()
                    with contextlib.suppress(OSError):
                        box.net = os.open(f"/host/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
                os.kill(pid, signal.SIGKILL)
        for fd in fds:
            os.close(fd)

    def _open(
        self, number: int, plan: bytes, fds: list[int], *, again: bool = False, net: int = -1
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        box = _Box(number, ours, plan)
        here = Supervisor(None, None)
        here.again, here.keep_net = again, net >= 0
        try:
            own, name, base, rest = _parts(plan)
            here.carry_out(own)
            space = self._base(name, base)
            pid = self._bear(space, rest, here, fds[0], theirs.fileno(), net)
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

    def _bear(
        self, space: int, plan: bytes, here: Supervisor, control: int, sync: int, net: int
    ) -> int:
        """Forks the supervisor into the base's mount namespace and a new PID namespace."""
        check(libc.setns(space, wire.NEW_MOUNT), "setns")
        ctypes.pythonapi.PyOS_BeforeFork()
        clone = wire.NEW_PID | signal.SIGCHLD
        pid = int(libc.syscall(CALL["clone"], ctypes.c_ulong(clone), 0, 0, 0, 0))
        code = ctypes.get_errno()
        if pid == 0:
            ctypes.pythonapi.PyOS_AfterFork_Child()
            if net >= 0 and libc.setns(net, wire.NEW_NET) < 0:
                os._exit(1)
            _be_supervisor(plan, here, control, sync)
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        check(libc.setns(self.own_space, wire.NEW_MOUNT), "setns")
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
                prctl(4, 1)  # so that the server may open its namespace
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
                write_file(f"/host/proc/{pid}/uid_map", box.maps[0])
                write_file(f"/host/proc/{pid}/gid_map", box.maps[1])
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
            if box.control >= 0:
                control, net = box.control, box.net
                box.control = box.net = -1
                self._open(box.number, box.plan, [control], again=True, net=net)
                if net >= 0:
                    os.close(net)
                continue
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
        control_fd, sync_fd, *rest = keep_only([control_fd, sync_fd, *here.descriptors()])
        here.renumber(rest)
        control = here.control = socket.socket(fileno=control_fd)
        sync = here.sync = socket.socket(fileno=sync_fd)
        die_with_parent()
        prctl(4, 0)
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
        with contextlib.ExitStack() as passed:
            listener = here.listener
            fds = () if listener is None else (passed.enter_context(listener).fileno(),)
            wire.send(control, wire.UP, 0, b"", fds)
        here.serve()
        os._exit(0)
    finally:
        os._exit(2)


if __name__ == "__main__":
    Server(socket.socket(fileno=int(sys.argv[1]))).run()
