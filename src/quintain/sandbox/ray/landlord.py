"""The actor of a node: owns a backend there and does what its leases are asked.

Faults travel as data, so that an error arrives with its kind whatever Ray makes of exceptions.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from typing import Any

from quintain import registry
from quintain.errors import ConfigError, IsolationError, QuintainError, SandboxError
from quintain.record import Json
from quintain.task import SandboxSpec

FORWARDED = ("session", "python", "list", "network_log")
"""Capabilities that a lease has where the sandbox behind it has them."""
CALLS = ("exec", "read", "write", "entries", "network_log")


class Landlord:
    """Opens sandboxes of one backend for one process elsewhere.

    Args:
        inner: the registered name of the backend.
        allow_weaker: passed on to it.
    """

    def __init__(self, inner: str, allow_weaker: bool) -> None:
        self._inner = inner
        self._allow_weaker = allow_weaker
        self._backend: Any = None
        self._making = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._boxes: dict[int, Any] = {}
        self._consoles: dict[int, Any] = {}
        self._of: dict[int, set[int]] = {}
        """A sandbox's consoles."""

    async def about(self) -> Json:
        """Comes up: the backend is made, and nothing opened; who it is."""
        return await _told(self._about())

    async def _about(self) -> Json:
        async with self._making:
            if self._backend is None:
                make = registry.sandboxes.get(self._inner)
                self._backend = make(allow_weaker=self._allow_weaker)
        return {"backend": self._inner, "pid": os.getpid()}

    async def open(self, spec: str) -> Json:
        """A lease: its number, and what the sandbox can do."""
        return await _told(self._open(spec))

    async def _open(self, spec: str) -> Json:
        await self._about()
        box = await self._backend.open(SandboxSpec.model_validate_json(spec))
        number = next(self._numbers)
        self._boxes[number], self._of[number] = box, set()
        return {
            "lease": number,
            "capabilities": sorted(name for name in FORWARDED if name in box.capabilities),
            "missing": dict(getattr(box, "missing", {})),
            "isolation": getattr(box, "isolation", ""),
        }

    async def call(self, lease: int, name: str, arguments: Json) -> Any:
        """One of `CALLS` of a sandbox."""
        return await _told(self._call(lease, name, arguments))

    async def _call(self, lease: int, name: str, arguments: Json) -> Any:
        if name not in CALLS:
            raise SandboxError(f"a lease has no call {name!r}")
        return await getattr(self._box(lease), name)(**arguments)

    async def console(self, lease: int, kind: str) -> Any:
        """Starts a shell ("session") or an interpreter ("python"); its number."""
        return await _told(self._console(lease, kind))

    async def _console(self, lease: int, kind: str) -> int:
        opening: Callable[[], Awaitable[Any]] = getattr(self._box(lease), kind)
        console = await opening()
        number = next(self._numbers)
        self._consoles[number] = console
        self._of[lease].add(number)
        return number

    async def run(self, console: int, arguments: Json) -> Any:
        """Runs something in a console: the result, and how often it has begun anew."""
        return await _told(self._run(console, arguments))

    async def _run(self, number: int, arguments: Json) -> Any:
        console = self._consoles.get(number)
        if console is None:
            raise SandboxError("that shell is closed")
        return await console.run(**arguments), console.restarts

    async def end(self, console: int) -> Any:
        """Ends a console."""
        found = self._consoles.pop(console, None)
        return await _told(found.close()) if found is not None else ("ok", None)

    async def release(self, lease: int) -> Any:
        """Ends a sandbox."""
        box = self._boxes.pop(lease, None)
        for console in self._of.pop(lease, set()):
            self._consoles.pop(console, None)
        return await _told(box.close()) if box is not None else ("ok", None)

    async def close(self) -> Any:
        """Ends everything."""
        self._boxes.clear()
        self._consoles.clear()
        backend, self._backend = self._backend, None
        return await _told(backend.close()) if backend is not None else ("ok", None)

    def _box(self, lease: int) -> Any:
        box = self._boxes.get(lease)
        if box is None:
            raise SandboxError("the sandbox cannot be used any more: it was closed")
        return box


async def _told(doing: Awaitable[Any]) -> Any:
    """`("ok", result)`, or the kind, message and details of what was raised."""
    try:
        return "ok", await doing
    except IsolationError as error:
        return "isolation", str(error), list(error.missing)
    except (ConfigError, SandboxError) as error:
        return "fault", type(error).__name__, str(error)
    except QuintainError as error:
        return "fault", "SandboxError", f"{type(error).__name__}: {error}"
    except OSError as error:
        return "os", error.errno, error.strerror or str(error), error.filename
    except ValueError as error:
        return "value", str(error)
