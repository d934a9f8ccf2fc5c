"""Runs a coroutine to its end from synchronous code, also inside a notebook."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result; Ctrl-C cancels it, waits for its clean-up, and goes on as usual.

    Where a loop already runs in this thread (a notebook), the coroutine gets a loop in a thread of
    its own.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    return _in_own_thread(coroutine)


def _in_own_thread(coroutine: Coroutine[Any, Any, T]) -> T:
    outcome: list[T] = []
    failure: list[BaseException] = []
    started = threading.Event()
    state: dict[str, Any] = {}

    async def main() -> None:
        state["loop"] = asyncio.get_running_loop()
        state["task"] = asyncio.current_task()
        started.set()
        outcome.append(await coroutine)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failure.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="quintain-run", daemon=True)
    thread.start()
    started.wait()
    try:
        thread.join()
    except KeyboardInterrupt:
        if "task" in state and thread.is_alive():
            state["loop"].call_soon_threadsafe(state["task"].cancel)
            thread.join()
        raise
    if failure:
        raise failure[0]
    return outcome[0]
