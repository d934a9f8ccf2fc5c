"""Names to addresses, on the owner's side, without holding up its event loop or its threads."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

Resolve = Callable[[str], Awaitable[list[str]]]
"""The addresses of a canonical name; raises OSError when there are none."""

KEEP_S = 30.0
DEADLINE_S = 15.0
THREADS = 8
MOST_NAMES = 4096


class Resolver:
    """Asks the host's own resolver, in a few threads of its own; answers are kept for a while."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._known: dict[str, tuple[float, list[str] | OSError]] = {}
        self._asking: dict[str, asyncio.Future[list[str]]] = {}

    async def __call__(self, name: str) -> list[str]:
        """The addresses of a name.

        Raises:
            OSError: there are none, or the resolver did not answer in time.
        """
        until, answer = self._known.get(name, (0.0, []))
        if until < time.monotonic():
            answer = await self._ask(name)
        if isinstance(answer, OSError):
            raise OSError(answer.errno, answer.strerror)
        return answer

    async def _ask(self, name: str) -> list[str] | OSError:
        asking = self._asking.get(name)
        if asking is None:
            asking = asyncio.get_running_loop().run_in_executor(self._pool(), _addresses, name)
            self._asking[name] = asking
            asking.add_done_callback(lambda _: self._asking.pop(name, None))
        answer: list[str] | OSError
        try:
            async with asyncio.timeout(DEADLINE_S):
                answer = await asyncio.shield(asking)
        except TimeoutError:
            return OSError(110, "the resolver does not answer")
        except OSError as error:
            answer = OSError(error.errno, error.strerror)
        if len(self._known) >= MOST_NAMES:
            self._known.clear()
        self._known[name] = (time.monotonic() + KEEP_S, answer)
        return answer

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "resolver")
        return self._threads

    def close(self) -> None:
        """Lets the threads go as soon as their questions are answered."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None
        for asking in list(self._asking.values()):
            with contextlib.suppress(RuntimeError):
                asking.cancel()


def _addresses(name: str) -> list[str]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
