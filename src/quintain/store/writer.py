"""The one thread that writes a run: group commit, and one wake-up per event loop and batch."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from quintain.errors import StoreError
from quintain.store.schema import connect, run_file

T = TypeVar("T")
Action = Callable[[sqlite3.Connection], T]
_Done = Callable[[Any, BaseException | None], None]

_BATCH = 512
"""Items that share one COMMIT at the most."""


@dataclass(frozen=True, slots=True)
class _Work:
    action: Action[Any]
    done: _Done
    loop: asyncio.AbstractEventLoop | None
    """Where to call `done`; None: on the writer's thread."""


class Writer:
    """Runs functions of the connection in order, many to a transaction.

    Each item has a savepoint: one that fails is its own caller's error, the others commit.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="quintain-store", daemon=True)
        self._thread.start()

    async def awrite(self, action: Action[T]) -> T:
        """Runs the action in the writer's transaction; returns once that is committed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def done(value: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        self._put(_Work(action, done, loop))
        return await future

    def write(self, action: Action[T]) -> T:
        """The same for callers without an event loop."""
        future: Future[T] = Future()

        def done(value: Any, error: BaseException | None) -> None:
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        self._put(_Work(action, done, None))
        return future.result()

    def close(self) -> None:
        """Writes what is queued, then ends the thread; may be called twice."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        self._thread.join()

    def _put(self, work: _Work) -> None:
        if self._closed:
            raise StoreError(f"{self._folder} is closed")
        self._queue.put(work)

    def _run(self) -> None:
        connection = connect(self._folder)
        with_end = False
        while not with_end:
            batch = [self._queue.get()]
            while len(batch) < _BATCH:
                try:
                    batch.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            with_end = None in batch
            work = [item for item in batch if item is not None]
            if work:
                _deliver(self._commit(connection, work))
        connection.close()

    def _commit(
        self, connection: sqlite3.Connection, batch: list[_Work]
    ) -> list[tuple[_Work, Any, BaseException | None]]:
        results: list[tuple[_Work, Any, BaseException | None]] = []
        try:
            connection.execute("BEGIN IMMEDIATE")
            for work in batch:
                connection.execute("SAVEPOINT item")
                try:
                    results.append((work, work.action(connection), None))
                except Exception as error:
                    connection.execute("ROLLBACK TO item")
                    results.append((work, None, error))
                connection.execute("RELEASE item")
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            failure = StoreError(f"cannot write {run_file(self._folder)}: {error}")
            failure.__cause__ = error
            return [(work, None, failure) for work in batch]
        return results


def _deliver(results: list[tuple[_Work, Any, BaseException | None]]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Done, Any, BaseException | None]]] = {}
    for work, value, error in results:
        if work.loop is None:
            work.done(value, error)
        else:
            by_loop.setdefault(work.loop, []).append((work.done, value, error))
    for loop, calls in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(_call_all, calls)


def _call_all(calls: list[tuple[_Done, Any, BaseException | None]]) -> None:
    for done, value, error in calls:
        done(value, error)
