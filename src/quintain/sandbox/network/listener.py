"""A listening socket inside the network namespace of a process that is already running.

For sandboxes that this program did not start itself (containers). A socket belongs to the
namespace that its maker was in when it was made; so a thread of its own enters the namespace,
makes the socket and ends, and the owner accepts on it from where it is.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import threading

from quintain.errors import SandboxError

NEW_NET = 0x40000000
SET_FLAGS, UP_AND_RUNNING = 0x8914, 0x41
JOIN_S = 10.0


def listen_inside(pid: int, port: int, backlog: int = 64) -> socket.socket:
    """Listens on a port of 127.0.0.1 in the network namespace of a process; brings loopback up.

    Args:
        pid: of a process in the namespace, as this program sees it.
        port: to listen on.
        backlog: connections that may wait.

    Raises:
        SandboxError: the namespace cannot be entered (needs root over it), or the port is taken.
    """
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def make() -> None:
        try:
            made.append(_listen(pid, port, backlog))
        except OSError as error:
            failed.append(error)

    # Only this thread changes its namespace, and it ends with it.
    thread = threading.Thread(target=make, name="listen-inside", daemon=True)
    thread.start()
    thread.join(JOIN_S)
    if failed or not made:
        why = failed[0] if failed else "no answer"
        raise SandboxError(f"no way out for the sandbox of process {pid}: {why}")
    return made[0]


def _listen(pid: int, port: int, backlog: int) -> socket.socket:
    libc = ctypes.CDLL(None, use_errno=True)
    space = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(space, NEW_NET) < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"setns: {os.strerror(code)}")
    finally:
        os.close(space)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sH14x", b"lo", UP_AND_RUNNING))
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener
