"""Killable worker processes for pure functions that meet untrusted input.

Every call runs in a process of its own, forked from a zygote that has the function loaded
(`zygote.py`). A hostile input costs its own budget; what it does to its process (patched modules,
leaked memory, a hung C call) ends with the call. Budgets are CPU seconds, counted by the kernel,
so that load does not flip a verdict, with a wall-clock backstop kept by the owner. Functions are
loaded once per zygote; there is one zygote per module, so that a light function does not pay for
forking the pages of a heavy one.

Answers are unpickled with a short list of plain types: a compromised worker can lie about its own
call, and nothing else.
"""

from __future__ import annotations

import array
import asyncio
import builtins
import io
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from itertools import count
from typing import Any, Literal, TypeVar

import cloudpickle

from quintain import errors
from quintain.record import digest
from quintain.verdict import Check, Outcome, Verdict
from quintain.verifiers.zygote import LENGTH, RAISED, RESULT

T = TypeVar("T")
MESSAGES = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM
"""Sockets that keep message borders; macOS has no sequenced ones of this family."""
MAX_RESULT_BYTES = 64 << 20
_EXIT_NOTICE_S = 1.0
_THREADS_OFF = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
_PLAIN = {
    (kind.__module__, kind.__qualname__): kind
    for kind in (
        *(set, frozenset, complex, bytearray, range, slice),
        *(Fraction, Decimal, date, datetime, timedelta, time, timezone),
        *(Verdict, Check, Outcome),
    )
}
"""What an answer may be made of besides the types that pickle needs no name for."""


class BudgetExceeded(TimeoutError):
    """A call ran out of a budget and was killed.

    Args:
        message: what ran out, and how much of it there was.
        budget: which: CPU seconds (the input is too hard) or wall clock (the host may be slow).
    """

    def __init__(self, message: str, budget: Literal["cpu", "wall"]) -> None:
        super().__init__(message)
        self.budget = budget


class WorkerError(RuntimeError):
    """A worker could not load the function, died, or answered with something that is not data."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PLAIN:
            return _PLAIN[module, name]
        raise WorkerError(
            f"a worker answered with a {module}.{name}: return plain data (None, bool, int, float, "
            "str, bytes, list, tuple, dict, set, Fraction, Decimal, a date) or a Verdict"
        )


def _unpickle(data: bytes) -> Any:
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except WorkerError:
        raise
    except Exception as error:
        raise WorkerError(f"a worker's answer cannot be read: {error!r}") from error


def _exception(data: bytes) -> BaseException:
    module, name, text, trace = _unpickle(data)
    namespace = {"builtins": builtins, "quintain.errors": errors}.get(module)
    kind = getattr(namespace, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        with suppress(Exception):
            error = kind(text)
            error.add_note(f"in a worker process:\n{trace}")
            return error
    error = WorkerError(f"{name}: {text}")
    error.add_note(f"in a worker process:\n{trace}")
    return error


async def _exchange(conn: socket.socket, data: bytes) -> bytes:
    """Sends one frame and receives one; b"" when the other side closed without an answer."""
    loop = asyncio.get_running_loop()
    received = bytearray()
    try:
        await loop.sock_sendall(conn, LENGTH.pack(len(data)) + data)
        while len(received) < LENGTH.size or len(received) < _size(received):
            chunk = await loop.sock_recv(conn, 1 << 18)
            if not chunk:
                return b""
            received += chunk
    except ConnectionError:
        return b""
    return bytes(received[LENGTH.size : _size(received)])


def _size(received: bytearray) -> int:
    size = int(LENGTH.unpack_from(received)[0])
    if size > MAX_RESULT_BYTES:
        raise WorkerError(f"a worker's answer has {size} bytes, more than {MAX_RESULT_BYTES}")
    return LENGTH.size + size


class _Zygote:
    """The owner's side of one zygote process.

    Args:
        name: what it is for, in messages.
        hash_seed: of the process; None: this process's own setting.
    """

    def __init__(self, name: str, hash_seed: int | None = None) -> None:
        self.name = name
        seed = {} if hash_seed is None else {"PYTHONHASHSEED": str(hash_seed)}
        path = {"PYTHONPATH": os.pathsep.join(_import_path())}
        self.loaded: dict[str, asyncio.Task[None]] = {}
        self.exits: dict[int, asyncio.Future[int]] = {}
        self.sending = asyncio.Lock()
        ours, theirs = socket.socketpair(socket.AF_UNIX, MESSAGES)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "quintain.verifiers.zygote", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **_THREADS_OFF, **path, **seed},
                start_new_session=True,
            )
        ours.setblocking(False)
        self.control = ours
        self.alive = True

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_reader(self.control, self._heard)

    def _heard(self) -> None:
        try:
            data = self.control.recv(1 << 12)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.alive = False
            asyncio.get_running_loop().remove_reader(self.control)
            for future in self.exits.values():
                if not future.done():
                    future.set_result(-signal.SIGKILL)
            return
        _, call, status = pickle.loads(data)
        future = self.exits.get(call)  # type: ignore[assignment]
        if future is not None and not future.done():
            future.set_result(os.waitstatus_to_exitcode(status))

    async def send(self, message: tuple[Any, ...], conn: socket.socket | None = None) -> None:
        data = pickle.dumps(message, 5)
        rights = []
        if conn is not None:
            rights = [
                (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [conn.fileno()]).tobytes())
            ]
        async with self.sending:
            while True:
                try:
                    self.control.sendmsg([data], rights)
                    return
                except BlockingIOError:
                    await self._writable()

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()

        def writable() -> None:
            if not ready.done():
                ready.set_result(None)

        loop.add_writer(self.control, writable)
        try:
            await ready
        finally:
            loop.remove_writer(self.control)

    async def load(self, key: str, payload: bytes) -> None:
        """Loads a function once, whoever asks first."""
        task = self.loaded.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self.loaded[key] = asyncio.ensure_future(self._load(key, payload))
        await asyncio.shield(task)

    async def _load(self, key: str, payload: bytes) -> None:
        ours, theirs = _pair()
        with ours:
            with theirs:
                await self.send(("load", key), theirs)
            answer = await _exchange(ours, pickle.dumps((_import_path(), payload), 5))
        if answer[:1] == RAISED:
            raise WorkerError(
                "a worker cannot load the function (it must be importable in a fresh process "
                "with the same sys.path, or picklable by cloudpickle)"
            ) from _exception(answer[1:])
        if answer != RESULT:
            raise WorkerError(f"the worker zygote for {self.name} died while loading a function")

    async def close(self) -> None:
        with suppress(Exception):
            asyncio.get_running_loop().remove_reader(self.control)
        self.control.close()
        deadline = asyncio.get_running_loop().time() + 5
        while self.process.poll() is None:
            if asyncio.get_running_loop().time() > deadline:
                self.process.kill()
            await asyncio.sleep(0.002)


def _pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return ours, theirs


def _import_path() -> list[str]:
    return [os.path.abspath(entry) for entry in sys.path]


def _importable(function: Callable[..., Any]) -> bool:
    """Whether a fresh process finds the function by its module and name."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not module or module == "__main__" or "<" in name:
        return False
    loaded = sys.modules.get(module)
    found: Any = loaded
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is function and getattr(loaded, "__spec__", None) is not None


class WorkerPool:
    """The pool behind the `Workers` protocol.

    Used from one event loop at a time; start-up is lazy. Close it (or use `async with`) so that no
    process stays; when its owner is killed, its processes leave by themselves.

    Args:
        size: calls that run at once; None: two per CPU, at least four.
        memory_mb: memory that a call may map beyond what its zygote had.
        hash_seed: `PYTHONHASHSEED` of the processes; None: this process's own setting.
    """

    def __init__(
        self, size: int | None = None, *, memory_mb: int = 1024, hash_seed: int | None = None
    ) -> None:
        self.size = size or max(4, 2 * (os.cpu_count() or 1))
        self.memory_mb = memory_mb
        self.hash_seed = hash_seed
        self.kills = 0
        """Calls killed for a budget so far."""
        self._zygotes: dict[str, _Zygote] = {}
        self._payloads: dict[Callable[..., Any], tuple[str, str, bytes]] = {}
        self._calls = count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots = asyncio.Semaphore(self.size)
        self._starting = asyncio.Lock()

    async def run(self, function: Callable[..., T], *args: Any, cpu_s: float, wall_s: float) -> T:
        """Calls the function in a process of its own: see `quintain.protocols.Workers`.

        Raises:
            BudgetExceeded: a budget ran out; the process was killed.
            MemoryError: the memory cap was reached.
            WorkerError: the function cannot be loaded, the worker died, or its answer is not data.
            Exception: what the function raised, of the same type for built-in exceptions.
        """
        self._bind()
        where, key, payload = self._payload(function)
        data = pickle.dumps(args, 5)
        zygote = await self._zygote(where)
        await zygote.load(key, payload)
        async with self._slots:
            call = next(self._calls)
            ended = zygote.exits[call] = asyncio.get_running_loop().create_future()
            ours, theirs = _pair()
            try:
                with ours:
                    with theirs:
                        await zygote.send(("call", call, key, cpu_s, self.memory_mb << 20), theirs)
                    try:
                        async with asyncio.timeout(wall_s):
                            answer = await _exchange(ours, data)
                            if not answer:
                                raise await self._died(ended, cpu_s)
                    except TimeoutError as error:
                        self.kills += 1
                        await self._kill(zygote, call)
                        if isinstance(error, BudgetExceeded):
                            raise
                        raise BudgetExceeded(
                            f"the call did not answer within {wall_s:g} s of wall clock "
                            f"(CPU budget {cpu_s:g} s) and was killed",
                            "wall",
                        ) from None
                    except asyncio.CancelledError:
                        await self._kill(zygote, call)
                        raise
            finally:
                del zygote.exits[call]
        if answer[:1] == RAISED:
            raise _exception(answer[1:])
        return _unpickle(answer[1:])  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Ends every process; calls that are running fail. May be called twice."""
        zygotes, self._zygotes = list(self._zygotes.values()), {}
        for zygote in zygotes:
            await zygote.close()

    async def __aenter__(self) -> WorkerPool:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _bind(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise errors.ConfigError(
                "a worker pool belongs to one event loop: make one pool per loop, or close this one"
            )
        for zygote in self._zygotes.values():
            zygote.control.close()
            zygote.process.wait()
        self._zygotes.clear()
        self._loop = loop
        self._slots = asyncio.Semaphore(self.size)
        self._starting = asyncio.Lock()

    def _payload(self, function: Callable[..., Any]) -> tuple[str, str, bytes]:
        """Which zygote, under which key, from which bytes."""
        try:
            if function in self._payloads:
                return self._payloads[function]
        except TypeError:
            pass
        by_name = _importable(function)
        payload = cloudpickle.dumps(function)
        module = function.__module__ if by_name else ""
        made = (module, digest(payload), payload)
        if by_name:
            self._payloads[function] = made
        return made

    async def _zygote(self, where: str) -> _Zygote:
        zygote = self._zygotes.get(where)
        if zygote is not None and zygote.alive:
            return zygote
        async with self._starting:
            zygote = self._zygotes.get(where)
            if zygote is None or not zygote.alive:
                if zygote is not None:
                    await zygote.close()
                zygote = self._zygotes[where] = await _start(
                    where or "pickled functions", self.hash_seed
                )
                zygote.attach(asyncio.get_running_loop())
            return zygote

    async def _kill(self, zygote: _Zygote, call: int) -> None:
        with suppress(OSError):
            await zygote.send(("kill", call))

    async def _died(self, ended: asyncio.Future[int], cpu_s: float) -> Exception:
        await asyncio.wait((ended,), timeout=_EXIT_NOTICE_S)
        if not ended.done():
            return WorkerError("the worker exited without a whole answer")
        code = ended.result()
        if code in (-signal.SIGPROF, -signal.SIGXCPU):
            return BudgetExceeded(f"the call used up its {cpu_s:g} s of CPU and was killed", "cpu")
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return WorkerError(f"the worker died ({name}) without an answer")


async def _start(name: str, hash_seed: int | None) -> _Zygote:
    """Starts a process off the loop, in a thread of its own: the loop's executor may be full."""
    future: asyncio.Future[_Zygote] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def start() -> None:
        try:
            zygote = _Zygote(name, hash_seed)
        except BaseException as error:
            loop.call_soon_threadsafe(future.set_exception, error)
        else:
            loop.call_soon_threadsafe(future.set_result, zygote)

    threading.Thread(target=start, daemon=True).start()
    return await future
