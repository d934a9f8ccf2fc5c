"""A child process that is watched through a descriptor: no signals, no threads.

Nobody else ever waits for it, so its number cannot become another process's before it is reaped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence

TAIL_BYTES = 4096


class Process:
    """A running child whose output is kept, the last `TAIL_BYTES` of it."""

    def __init__(self, argv: Sequence[str], fds: Sequence[int]) -> None:
        self._loop = asyncio.get_running_loop()
        self._child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=tuple(fds),
            start_new_session=True,
            env={},
        )
        self.pid = self._child.pid
        self.said = b""
        self.gone: asyncio.Future[int] = self._loop.create_future()
        """Its exit code, once it has ended."""
        assert self._child.stdout is not None
        self._output = self._child.stdout.fileno()
        os.set_blocking(self._output, False)
        self._handle = os.pidfd_open(self.pid)
        self._loop.add_reader(self._output, self._readable)
        self._loop.add_reader(self._handle, self._ended)

    def _readable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._output, 1 << 16)
            if not data:
                self._loop.remove_reader(self._output)
            self.said = (self.said + data)[-TAIL_BYTES:]

    def _ended(self) -> None:
        self._loop.remove_reader(self._handle)
        os.close(self._handle)
        self._handle = -1
        self._readable()
        self._loop.remove_reader(self._output)
        assert self._child.stdout is not None
        self._child.stdout.close()
        self.gone.set_result(self._child.wait())

    def kill(self) -> None:
        """Ends it by SIGKILL."""
        if self._handle >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
