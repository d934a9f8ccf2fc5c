"""The process that workers are forked from: `python -m quintain.verifiers.zygote FD`.

The owner of a pool starts it as a fresh interpreter and talks to it over a control socket that
keeps message borders. It loads functions once, then forks one child per call: the child gets a
socket of its own, computes, answers and exits, so that nothing a hostile input does to a process
outlives its call. This process never touches an argument or an answer; it only loads, forks, kills
and reaps, in one thread. When its owner dies, it kills what runs and leaves.

Messages from the owner: `("load", key)` with a socket that carries a pickled function,
`("call", id, key, cpu_s, memory_bytes)` with a socket that carries pickled arguments,
`("kill", id)`. To the owner: `("exit", id, status)` for children that did not exit with 0.
"""

from __future__ import annotations

import array
import gc
import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from typing import Any

if sys.platform != "win32":
    import resource

LENGTH = struct.Struct("<Q")
RESULT, RAISED = b"R", b"E"
_OWNER_CHECK_MS = 1000


def send_frame(conn: socket.socket, data: bytes) -> None:
    """Sends a length and the bytes, blocking."""
    conn.sendall(LENGTH.pack(len(data)) + data)


def receive_frame(conn: socket.socket) -> bytes:
    """Receives one frame, blocking.

    Raises:
        EOFError: the other side closed before its end.
    """
    (size,) = LENGTH.unpack(_exactly(conn, LENGTH.size))
    return _exactly(conn, size)


def _exactly(conn: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = conn.recv(min(size - len(data), 1 << 20))
        if not chunk:
            raise EOFError("the connection closed in the middle of a frame")
        data += chunk
    return bytes(data)


def describe(error: BaseException) -> bytes:
    """An exception as plain data: module, name, text, traceback."""
    kind = type(error)
    trace = "".join(traceback.format_exception(error))[-4000:]
    try:
        text = str(error)
    except Exception as broken:
        text = f"<its text raised {type(broken).__name__}>"
    return RAISED + pickle.dumps((kind.__module__, kind.__qualname__, text, trace), 5)


def _limit(cpu_s: float, memory_bytes: int) -> None:
    # Nothing here opens a file or imports: each page touched after a fork is copied.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    seconds = ceil(cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _mapped_bytes() -> int:
    """Address space of this process; 0 where the system does not tell."""
    with suppress(OSError), open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
    return 0


def _answer(conn: socket.socket, function: Callable[..., Any]) -> None:
    try:
        result = function(*pickle.loads(receive_frame(conn)))
        data = RESULT + pickle.dumps(result, 5)
    except MemoryError:
        data = RAISED + pickle.dumps(("builtins", "MemoryError", "over the memory limit", ""), 5)
    except BaseException as error:
        data = describe(error)
    send_frame(conn, data)


class Zygote:
    """Loads, forks, kills and reaps, as the owner says.

    Args:
        control: the socket to the owner.
    """

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.functions: dict[str, Callable[..., Any]] = {}
        self.children: dict[int, int] = {}
        self.owner = os.getppid()
        self.mapped = _mapped_bytes()
        self.wake_read, self.wake_write = socket.socketpair()
        self.wake_write.setblocking(False)
        self.wake_read.setblocking(False)

    def serve(self) -> None:
        """Runs until the owner closes the control socket or dies."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write.fileno(), warn_on_full_buffer=False)
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        poller.register(self.wake_read, select.POLLIN)
        while os.getppid() == self.owner:
            events = dict(poller.poll(_OWNER_CHECK_MS))
            if self.wake_read.fileno() in events:
                with suppress(BlockingIOError):
                    self.wake_read.recv(4096)
            self._reap()
            if self.control.fileno() in events and not self._next():
                break
        signal.set_wakeup_fd(-1)  # before the socket goes: a child may still end
        for pid in list(self.children.values()):
            self._kill(pid)

    def _next(self) -> bool:
        try:
            data, ancillary, _, _ = self.control.recvmsg(1 << 16, socket.CMSG_SPACE(4))
        except ConnectionError:
            return False
        if not data:
            return False
        fds = array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload)
        message = pickle.loads(data)
        if message[0] == "kill":
            if message[1] in self.children:
                self._kill(self.children[message[1]])
            return True
        conn = socket.socket(fileno=fds[0])
        conn.setblocking(True)
        try:
            if message[0] == "load":
                self._load(conn, *message[1:])
            else:
                self._call(conn, *message[1:])
        finally:
            conn.close()
        return True

    def _load(self, conn: socket.socket, key: str) -> None:
        try:
            path, payload = pickle.loads(receive_frame(conn))
            sys.path[:] = path
            self.functions[key] = pickle.loads(payload)
            answer = RESULT
        except BaseException as error:
            answer = describe(error)
        # Collected once and frozen, so that children do not copy the pages of every object.
        gc.collect()
        gc.freeze()
        self.mapped = _mapped_bytes()
        with suppress(ConnectionError):
            send_frame(conn, answer)

    def _call(
        self, conn: socket.socket, call: int, key: str, cpu_s: float, memory_bytes: int
    ) -> None:
        pid = os.fork()
        if pid:
            self.children[call] = pid
            return
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setpgid(0, 0)
            self.control.close()
            self.wake_read.close()
            self.wake_write.close()
            _limit(cpu_s, self.mapped + memory_bytes)
            _answer(conn, self.functions[key])
            status = 0
        finally:
            os._exit(status)

    def _kill(self, pid: int) -> None:
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        if not self.children:
            return
        by_pid = {pid: call for call, pid in self.children.items()}
        while (ended := self._ended()) is not None:
            pid, status = ended
            call = by_pid.get(pid)
            if call is None:
                continue
            del self.children[call]
            if status:
                self._tell(pickle.dumps(("exit", call, status), 5))

    def _ended(self) -> tuple[int, int] | None:
        """A child that ended, its process group killed: process id and status."""
        try:
            if sys.platform == "darwin":
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid:
                    self._kill(pid)
                return (pid, status) if pid else None
            # Seen before it is reaped: until then nobody else can get its process group.
            seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if seen is None:
                return None
            self._kill(seen.si_pid)
            return seen.si_pid, os.waitpid(seen.si_pid, 0)[1]
        except ChildProcessError:
            return None

    def _tell(self, message: bytes) -> None:
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                self.control.send(message)
                return
            except BlockingIOError:
                select.select([], [self.control], [], 1)
            except ConnectionError:
                return


def main() -> None:
    """Serves on the control socket whose descriptor is the first argument."""
    gc.disable()
    Zygote(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
