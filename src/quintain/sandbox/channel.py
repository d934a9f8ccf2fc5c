"""The owner's end of a socket to the spawn server or to a supervisor: frames, never blocking."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable

from quintain.sandbox import wire


class Channel:
    """Sends and receives frames on the running event loop.

    Args:
        sock: a SOCK_SEQPACKET socket, owned by the channel from now on.
        on_frame: called with kind, id, body and descriptors (which it then owns).
        on_lost: called once when the other side is gone, not after `close`.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_frame: Callable[[int, int, bytes, list[int]], None],
        on_lost: Callable[[], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[int, int, bytes, tuple[int, ...]]] = deque()
        self.open = True
        # By number: the loop describes a socket in words when it does not find it.
        self._fd = sock.fileno()
        self._writing = False
        self._loop.add_reader(self._fd, self.poll)

    def send(self, kind: int, number: int, body: bytes = b"", fds: tuple[int, ...] = ()) -> None:
        """Sends a frame, now or when there is room; the caller keeps its descriptors.

        Raises:
            OSError: the other side is gone.
        """
        if not self.open:
            raise BrokenPipeError("the channel is closed")
        if not self._waiting:
            try:
                wire.send(self._sock, kind, number, body, fds)
                return
            except BlockingIOError:
                self._loop.add_writer(self._fd, self._flush)
                self._writing = True
        self._waiting.append((kind, number, body, tuple(os.dup(fd) for fd in fds)))

    def _flush(self) -> None:
        while self._waiting:
            kind, number, body, fds = self._waiting[0]
            try:
                wire.send(self._sock, kind, number, body, fds)
            except BlockingIOError:
                return
            except OSError:
                self._lose()
                return
            self._waiting.popleft()
            for fd in fds:
                os.close(fd)
        self._loop.remove_writer(self._fd)
        self._writing = False

    def poll(self) -> None:
        """Takes every frame that has arrived."""
        while self.open:
            try:
                frame = wire.receive(self._sock)
            except BlockingIOError:
                return
            except OSError:
                frame = None
            if frame is None:
                self._lose()
                return
            self._on_frame(*frame)

    def _lose(self) -> None:
        if self.open:
            self.close()
            self._on_lost()

    def close(self) -> None:
        """Hangs up; may be called twice."""
        if not self.open:
            return
        self.open = False
        if not self._loop.is_closed():
            with contextlib.suppress(ValueError):
                self._loop.remove_reader(self._fd)
                if self._writing:
                    self._loop.remove_writer(self._fd)
        self._sock.close()
        while self._waiting:
            for fd in self._waiting.popleft()[3]:
                os.close(fd)
