"""The owner's side of an engine's process: start it, ask it, notice when it dies.

Answers are read by a thread, so that a policy may be used from several event loops one after the
other (each `asyncio.run` has its own). Whatever is in flight when the process dies fails with
`PolicyError`; starting another is the policy's decision.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future

from quintain.errors import ConfigError, PolicyError, PolicyRestarts
from quintain.policies.local import wire
from quintain.record import Json

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Threads that spin while waiting starve whoever shares the cores: the learner, the sandboxes.
    "OMP_WAIT_POLICY": "PASSIVE",
    "TRANSFORMERS_VERBOSITY": "error",
}


_NUMBERS = itertools.count(1)
"""Of requests to any engine: one that outlives its process must not be another's namesake."""


class EngineProcess:
    """One process, spawned now.

    Args:
        threads: of its matrix kernels; None: all cores.
    """

    def __init__(self, threads: int | None) -> None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, **QUIET}
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 closed with the process
        with theirs:
            # A session of its own: Ctrl-C is for the owner, which then closes this in order.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "quintain.policies.local.server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,
            )
        self._connection = ours
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Json]] = {}
        self._fault: Exception | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._fault is None

    def number(self) -> int:
        """A fresh number for a request."""
        return next(_NUMBERS)

    def ask(self, message: Json) -> Future[Json]:
        """Sends an operation; the future holds its answer, or fails when the process does."""
        number = self.number()
        return self.submit({**message, "id": number}, [number])[0]

    def submit(self, message: Json, numbers: list[int]) -> list[Future[Json]]:
        """Sends a message that is answered once for each of the numbers."""
        futures: list[Future[Json]] = [Future() for _ in numbers]
        with self._lock:
            if self._fault is not None:
                raise self._fault
            self._waiting.update(zip(numbers, futures, strict=True))
        self.tell(message)
        return futures

    def tell(self, message: Json) -> None:
        """Sends a message that has no answer; a dead process is noticed by the reader."""
        with self._lock:
            if self._fault is None:
                try:
                    wire.send(self._connection, message)
                except OSError:
                    # The reader sees the end of the stream and fails whoever waits.
                    return

    def drop(self, number: int) -> None:
        """Nobody waits for that answer any more; the process need not compute it."""
        with self._lock:
            known = self._waiting.pop(number, None)
        if known is not None:
            self.tell({"op": "cancel", "request": number})

    def close(self) -> None:
        """Ends the process and waits for it."""
        self._fail(PolicyError("the engine was closed"))
        with contextlib.suppress(OSError):  # it may have ended by itself
            self._connection.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._connection.close()
        self._errors.close()

    def _read(self) -> None:
        fault: Exception | None = None
        while (message := wire.receive(self._connection)) is not None:
            if "fatal" in message:
                kind = ConfigError if message["kind"] == "config" else PolicyError
                fault = kind(message["fatal"])
                continue
            with self._lock:
                future = self._waiting.pop(message.pop("id"), None)
            if future is not None and future.set_running_or_notify_cancel():
                future.set_result(message)
        if self._fault is None:
            self._fail(fault or PolicyRestarts(self._epitaph()))

    def _fail(self, fault: Exception) -> None:
        with self._lock:
            if self._fault is None:
                self._fault = fault
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(self._fault)

    def _epitaph(self) -> str:
        """How the process ended, with the end of what it wrote to stderr."""
        try:
            code = self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read()[-2000:].decode("utf-8", "replace").strip()
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return f"the generation process died ({how}); the next call starts another. {said}".strip()
