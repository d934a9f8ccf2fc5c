"""Runs a blocking user function beside the event loop, with a deadline on the wait.

A thread cannot be killed: one whose deadline passes is abandoned (it is a daemon, its result is
dropped) and a fresh thread takes its place, so that a stuck function never holds up the others or
the exit of the process. Pure functions that must really end go to killable processes instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from quintain.errors import EnvironmentFault

T = TypeVar("T")

MAX_THREADS = 1024
"""Threads at once, abandoned ones included; at the cap a call fails instead of waiting forever."""
_IDLE_S = 10.0


class DeadlinePassed(TimeoutError):
    """The wait for a function ended; a `TimeoutError` of the function's own is not one of these."""


@dataclass(frozen=True, slots=True)
class _Call:
    context: contextvars.Context
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class _Threads:
    """Threads made on demand; an idle one takes the next call."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._total = 0

    def submit(self, call: _Call) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            elif self._total >= MAX_THREADS:
                raise EnvironmentFault(
                    f"{MAX_THREADS} user functions are stuck in threads; give them deadlines of "
                    "their own, or make them async"
                )
            else:
                self._total += 1
                threading.Thread(target=self._run, name="quintain-user", daemon=True).start()
            self._calls.put(call)

    def _run(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._idle == 0:
                        continue  # a call is on its way to this thread
                    self._idle -= 1
                    self._total -= 1
                    return
            try:
                outcome: tuple[Any, BaseException | None] = (
                    call.context.run(call.function, *call.arguments),
                    None,
                )
            except BaseException as error:
                outcome = (None, error)
            # A loop that is closed has nobody waiting; this thread must outlive it.
            with contextlib.suppress(RuntimeError):
                call.loop.call_soon_threadsafe(_settle, call.future, *outcome)
            del call, outcome
            with self._lock:
                self._idle += 1


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    elif isinstance(error, StopIteration) or not isinstance(error, Exception):
        # An exit, a cancellation or a StopIteration of the function's own would pass for the
        # loop's: `sys.exit()` in a user function must not end the run.
        wrapped = RuntimeError(f"the function raised {type(error).__name__}: {error}")
        wrapped.__cause__ = error
        future.set_exception(wrapped)
    else:
        future.set_exception(error)


_threads = _Threads()


def _forget_threads() -> None:
    """A forked child has none of its parent's threads."""
    global _threads
    _threads = _Threads()


os.register_at_fork(after_in_child=_forget_threads)


async def in_thread(function: Callable[..., T], *arguments: Any, timeout_s: float | None) -> T:
    """Calls a blocking function beside the loop.

    Args:
        function: called with the arguments and the caller's context variables.
        arguments: passed on.
        timeout_s: seconds to wait; the thread is then abandoned. None: no deadline of its own.

    Raises:
        DeadlinePassed: the deadline passed.
        EnvironmentFault: too many functions are stuck already.
        RuntimeError: the function raised something that is no `Exception` (`SystemExit`, …).
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    _threads.submit(_Call(contextvars.copy_context(), function, arguments, loop, future))
    try:
        await asyncio.wait({future}, timeout=timeout_s)
        if not future.done():
            raise DeadlinePassed(f"no result within {timeout_s} s")
        return future.result()
    finally:
        future.cancel()
