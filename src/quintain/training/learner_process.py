"""A learner in a process of its own, behind an async client: the event loop never computes.

The child runs this module and answers one call at a time over a socket pair that both ends alone
hold. It ends when its owner does, even by SIGKILL: a thread waits for the socket to close. When the
child dies, the pending call raises a `TrainingError` that says how it died and what it wrote last.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import cloudpickle

from quintain.batch import Batch
from quintain.errors import QuintainError, TrainingError
from quintain.policies.local.spec import ModelSpec
from quintain.protocols import Metrics, Published
from quintain.training.config import LearnerOptions

if TYPE_CHECKING:
    from quintain.training.learner import LocalLearner

logger = logging.getLogger(__name__)


class LearnerDied(TrainingError):
    """The learner's process is no more."""


class LearnerProcess:
    """A running learner; made by `start`, ended by `close`."""

    def __init__(self, process: subprocess.Popen[bytes], pipe: Connection, log: IO[bytes]) -> None:
        self._process = process
        self._pipe = pipe
        self._log = log
        self._turn = asyncio.Lock()

    @classmethod
    async def start(cls, factory: Callable[[], Any], *, timeout_s: float = 600.0) -> LearnerProcess:
        """Starts the process and makes the learner in it.

        Args:
            factory: makes the learner; anything that cloudpickle takes, run in the child.
            timeout_s: for making it.

        Raises:
            TrainingError: the process died or took too long.
            QuintainError: what the factory raised.
        """
        client = cls(*_spawn())
        try:
            async with asyncio.timeout(timeout_s):
                await client._call("", list(sys.path), cloudpickle.dumps(factory))
        except TimeoutError as error:
            await client.close()
            raise TrainingError(f"the learner was not ready after {timeout_s:g} s") from error
        except BaseException:
            await client.close()
            raise
        return client

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    async def update(self, batch: Batch) -> Metrics:
        """One optimiser step on the batch."""
        metrics: Metrics = await self._call("update", batch)
        return metrics

    async def publish(self) -> Published:
        """Writes the current weights under the next version."""
        published: Published = await self._call("publish")
        return published

    async def current(self) -> Published:
        """Writes the current weights under the version that they have."""
        published: Published = await self._call("current")
        return published

    async def save(self, folder: Path) -> Published:
        """Writes a checkpoint."""
        published: Published = await self._call("save", folder)
        return published

    async def restore(self, folder: Path) -> Published:
        """Goes on from a checkpoint."""
        published: Published = await self._call("restore", folder)
        return published

    async def _call(self, method: str, *arguments: Any) -> Any:
        async with self._turn:
            waiting = asyncio.create_task(asyncio.to_thread(self._exchange, method, arguments))
            try:
                kind, value = await asyncio.shield(waiting)
            except asyncio.CancelledError:
                # The answer would be taken for the next call's: this learner cannot go on.
                self._kill()
                with contextlib.suppress(TrainingError):
                    await waiting
                raise
        if kind == "error":
            raise value
        return value

    def _exchange(self, method: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
        try:
            self._pipe.send_bytes(pickle.dumps((method, arguments)))
            answer: tuple[str, Any] = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError) as error:
            raise LearnerDied(self._epitaph(method)) from error
        return answer

    def _epitaph(self, method: str) -> str:
        """How the child died, and the end of what it wrote."""
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            code = None
        if code is None:
            how = "closed its connection without exiting"
        elif code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            how += " (out of memory?)" if code == -signal.SIGKILL else ""
        else:
            how = f"exited with code {code}"
        doing = f" during {method}" if method else " while starting"
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 2000))
        wrote = self._log.read().decode("utf-8", "replace").strip()
        return (
            f"the learner process {how}{doing}; resume the run to go on from its last checkpoint"
            + (f"\nit wrote last:\n{wrote}" if wrote else "")
        )

    def _kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()

    async def close(self) -> None:
        """Ends the process; may be called twice."""
        self._kill()
        await asyncio.to_thread(self._process.wait)
        async with self._turn:
            self._pipe.close()
            self._log.close()


def local_learner(spec: ModelSpec, options: LearnerOptions, folder: Path) -> LocalLearner:
    """Makes a `LocalLearner`: a factory for `LearnerProcess.start`; imports torch."""
    from quintain.training.learner import LocalLearner

    return LocalLearner(spec, options, folder)


def _spawn() -> tuple[subprocess.Popen[bytes], Connection, IO[bytes]]:
    """The child, the owner's end of the socket, and the file that the child writes to."""
    ours, theirs = socket.socketpair()
    log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C is for the owner, who then ends the learner in order.
            start_new_session=True,
        )
    return process, Connection(ours.detach()), log


def _die_with_owner(handle: int) -> None:
    """Ends this process as soon as the owner's end of the socket is closed, in mid-update too."""
    poll = select.poll()
    poll.register(handle, select.POLLHUP | select.POLLERR)
    poll.poll()
    os._exit(0)


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _serve(pipe: Connection) -> None:
    learner: Any = None
    while True:
        try:
            method, arguments = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            if method == "":
                path, factory = arguments
                sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
                learner = pickle.loads(factory)()
                answer: tuple[str, Any] = ("ok", None)
            else:
                value = getattr(learner, method)(*arguments)
                answer = ("ok", asyncio.run(_awaited(value)) if isawaitable(value) else value)
        except QuintainError as error:
            answer = ("error", error)
        except Exception as error:
            text = traceback.format_exc(limit=-8)
            answer = ("error", TrainingError(f"{type(error).__name__}: {error}\n{text}"))
        pipe.send_bytes(pickle.dumps(answer))


def _main() -> None:
    handle = int(sys.argv[1])
    threading.Thread(target=_die_with_owner, args=(handle,), daemon=True).start()
    _serve(Connection(handle))


if __name__ == "__main__":
    _main()
