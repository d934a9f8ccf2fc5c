"""A pool of sandboxes that are made before they are asked for.

*Single use*: every sandbox is given out once and destroyed afterwards; what is saved is the wait.
*Reuse* (`reuse=True`): a sandbox that is given back is reset (its processes killed, its writable
layer discarded) and goes back on the shelf only with proof: a survey that equals the one taken when
it was fresh, aspect by aspect. One that fails is destroyed and counted.

Each spec has a shelf. A shelf grows when somebody had to wait and shrinks when part of it was not
needed; `most` bounds all shelves together. Refilling waits while anybody waits for a sandbox, so
that it never takes from the foreground. The pool owns nothing by itself: its sandboxes end with the
backend's owner, as all others do.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Coroutine, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from quintain.errors import CapabilityError, RolloutError, SandboxError
from quintain.protocols import (
    ExecResult,
    PreparesImages,
    Probe,
    Resettable,
    Sandbox,
    SandboxBackend,
)
from quintain.task import SandboxSpec

log = logging.getLogger(__name__)

SWEEP_S = 5.0
"""How often a shelf gives up what was not needed since the last time."""
PROOFS, PROOF_PAUSE_S = 4, 0.05
"""How often a proof is tried while only the groups differ: the kernel gives memory back late."""
BACKOFF_S = 1.0
"""Wait after a sandbox that could not be made in the background."""
CLOSE_S = 30.0


@dataclass(slots=True)
class PoolStats:
    """What a pool did, as counts."""

    ready: int = 0
    """Asked for and there."""
    waited: int = 0
    """Asked for and not there: opened while the caller waited."""
    made: int = 0
    """Opened in the background."""
    failed: int = 0
    """Could not be opened in the background."""
    unhealthy: int = 0
    """Found broken when it was to be given out, and replaced."""
    surplus: int = 0
    """Closed without having been used."""
    reset: int = 0
    """Given back, reset and proved to be as new."""
    unproved: int = 0
    """Given back, reset, and destroyed: something of the last use was left, or no proof was had."""
    left: dict[str, int] = field(default_factory=dict)
    """Aspects that differed in failed proofs, counted."""


@dataclass(slots=True)
class _Ready:
    sandbox: Sandbox
    fresh: Mapping[str, str] | None
    """Its survey when it was fresh; None where nothing is reused."""


class _Shelf:
    """What is ready of one spec."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.spec = spec
        self.ready: deque[_Ready] = deque()
        self.wanted = 0
        self.making = 0
        self.out = 0
        """Given out, to come back (only with reuse)."""
        self.fewest = 0
        """Fewest ready at once since the last sweep."""
        self.barren = False
        """Whether the backend refuses this spec: then nothing is made in the background."""

    def missed(self, most: int) -> None:
        self.wanted = min(most, max(1, 2 * self.wanted))

    def lacking(self) -> bool:
        return not self.barren and len(self.ready) + self.making + self.out < self.wanted


class Pool:
    """A `SandboxBackend` that keeps sandboxes of another one ready.

    Args:
        inner: opens the sandboxes.
        reuse: whether sandboxes are reset and given out again; else each is used once.
        most: how many are kept ready at once, of all specs together.
        at_once: how many are made at once in the background; None: one a processor.
        close_inner: whether `inner` is closed with the pool.
    """

    def __init__(
        self,
        inner: SandboxBackend,
        *,
        reuse: bool = False,
        most: int = 32,
        at_once: int | None = None,
        close_inner: bool = True,
    ) -> None:
        if most < 1:
            raise ValueError(f"most: expected at least 1 sandbox, got {most}")
        self.inner = inner
        self.reuse = reuse
        self.most = most
        self.stats = PoolStats()
        self.name = inner.name
        self._close_inner = close_inner
        self._at_once = at_once or os.cpu_count() or 1
        self._shelves: dict[str, _Shelf] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._foreground = 0
        self._calm = asyncio.Event()
        self._calm.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._closed = False

    async def prepare(self, spec: SandboxSpec) -> None:
        """Lets the backend behind find or build the spec's image."""
        if isinstance(self.inner, PreparesImages):
            await self.inner.prepare(spec)

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """A sandbox that nobody used before, or (`reuse`) one that is proved to be as new.

        Raises:
            IsolationError: this host cannot enforce what the spec asks for, by name.
            CapabilityError: `reuse` was asked for, and the backend's sandboxes cannot be reset.
            SandboxError: it did not come up.
        """
        if not self._mine():
            return await self.inner.open(spec)
        shelf = self._shelf(spec)
        while shelf.ready:
            found = shelf.ready.popleft()
            shelf.fewest = min(shelf.fewest, len(shelf.ready))
            if _healthy(found.sandbox):
                self.stats.ready += 1
                return self._leased(found, shelf)
            self.stats.unhealthy += 1
            self._later(_end(found.sandbox))
        self.stats.waited += 1
        shelf.fewest = 0
        shelf.missed(self.most)
        self._foreground += 1
        self._calm.clear()
        try:
            made = await self._make(spec)
        finally:
            self._foreground -= 1
            if not self._foreground:
                self._calm.set()
        return self._leased(made, shelf)

    async def fill(self, spec: SandboxSpec, count: int) -> None:
        """Makes sure that `count` sandboxes of a spec are ready, and waits for them.

        Raises:
            SandboxError: one did not come up.
        """
        shelf = self._shelf(spec) if self._mine() else None
        while shelf is not None and len(shelf.ready) < min(count, self.most):
            shelf.wanted = max(shelf.wanted, min(count, self.most))
            shelf.ready.append(await self._make(spec))
            self.stats.made += 1

    async def probe(self) -> Probe:
        """What the backend below enforces."""
        return await self.inner.probe()

    async def close(self) -> None:
        """Ends what is ready and what is in the making, and the backend below if it is its own."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        tasks = [task for task in self._tasks if task.get_loop() is self._loop]
        for task in tasks:
            task.cancel()
        if tasks and self._loop is asyncio.get_running_loop():
            await asyncio.wait(tasks, timeout=CLOSE_S)
            ready = [found for shelf in self._shelves.values() for found in shelf.ready]
            await asyncio.gather(*(_end(found.sandbox) for found in ready))
        self._shelves.clear()
        if self._close_inner:
            await self.inner.close()

    def held(self) -> int:
        """How many sandboxes are ready or in the making."""
        return sum(len(shelf.ready) + shelf.making for shelf in self._shelves.values())

    # --- shelves --------------------------------------------------------------------------------

    def _mine(self) -> bool:
        """Whether the running loop is the pool's: sandboxes cannot change loops."""
        here = asyncio.get_running_loop()
        if self._loop is None or self._loop.is_closed():
            self._loop = here
            self._shelves, self._tasks, self._sweeper = {}, set(), None
            self._foreground, self._calm = 0, asyncio.Event()
            self._calm.set()
        return self._loop is here and not self._closed

    def _shelf(self, spec: SandboxSpec) -> _Shelf:
        key = spec.model_dump_json()
        if key not in self._shelves:
            self._shelves[key] = _Shelf(spec)
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep())
        return self._shelves[key]

    async def _make(self, spec: SandboxSpec) -> _Ready:
        sandbox = await self.inner.open(spec)
        if not self.reuse:
            return _Ready(sandbox, None)
        try:
            if "reset" not in sandbox.capabilities:
                raise CapabilityError(
                    f"sandboxes of the backend {self.inner.name!r} cannot be reset (capability "
                    "'reset'): use pooled or fresh ones"
                )
            return _Ready(sandbox, await cast(Resettable, sandbox).survey())
        except BaseException:
            await _end(sandbox)
            raise

    def _refill(self, shelf: _Shelf) -> None:
        making = sum(other.making for other in self._shelves.values())
        if not self._closed and shelf.lacking() and making < self._at_once:
            if self.held() >= self.most and not self._make_room(shelf):
                return
            shelf.making += 1
            self._later(self._make_ready(shelf))

    def _make_room(self, shelf: _Shelf) -> bool:
        """Gives up one ready sandbox of the fullest other shelf."""
        others = [other for other in self._shelves.values() if other is not shelf and other.ready]
        fullest = max(others, key=lambda other: len(other.ready), default=None)
        if fullest is None or len(fullest.ready) <= len(shelf.ready):
            return False
        fullest.wanted = len(fullest.ready) - 1
        self._give_up(fullest)
        return True

    async def _make_ready(self, shelf: _Shelf) -> None:
        try:
            while self._foreground:
                await self._calm.wait()
            shelf.ready.append(await self._make(shelf.spec))
            self.stats.made += 1
        except RolloutError as error:
            self.stats.failed += 1
            shelf.barren = not error.retryable
            log.warning("no sandbox could be made ready: %s", error)
            if not shelf.barren:
                await asyncio.sleep(BACKOFF_S)
        finally:
            shelf.making -= 1
        self._refill(shelf)

    async def _sweep(self) -> None:
        while not self._closed:
            await asyncio.sleep(SWEEP_S)
            for shelf in list(self._shelves.values()):
                if shelf.fewest > 0:
                    shelf.wanted = max(0, min(shelf.wanted, len(shelf.ready)) - shelf.fewest)
                    for _ in range(shelf.fewest):
                        self._give_up(shelf)
                shelf.fewest = len(shelf.ready)
                self._refill(shelf)

    def _give_up(self, shelf: _Shelf) -> None:
        self.stats.surplus += 1
        self._later(_end(shelf.ready.popleft().sandbox))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- reuse ----------------------------------------------------------------------------------

    def _leased(self, found: _Ready, shelf: _Shelf) -> Sandbox:
        if found.fresh is not None:
            shelf.out += 1
        self._refill(shelf)
        return found.sandbox if found.fresh is None else cast(Sandbox, Lease(self, shelf, found))

    async def take_back(self, shelf: _Shelf, used: _Ready) -> None:
        """Ends all that runs in a used sandbox; proves in the background that it is as new."""
        shelf.out -= 1
        full = not shelf.lacking() or self.held() >= self.most
        if self._closed or full or not _healthy(used.sandbox):
            await used.sandbox.close()
            return
        try:
            heir = await cast(Resettable, used.sandbox).reset()
        except SandboxError as error:
            self.stats.unproved += 1
            log.warning("a sandbox could not be reset: %s", error)
            await used.sandbox.close()
            return
        shelf.making += 1
        self._later(self._prove(shelf, _Ready(heir, used.fresh)))

    async def _prove(self, shelf: _Shelf, heir: _Ready) -> None:
        """Puts a reset sandbox on the shelf if it is as it was when fresh; else destroys it."""
        assert heir.fresh is not None
        proved, ended = False, False
        left: list[str] = []
        try:
            for attempt in range(PROOFS):
                if attempt:
                    await asyncio.sleep(PROOF_PAUSE_S)
                found = await cast(Resettable, heir.sandbox).survey()
                aspects = sorted(found.keys() | heir.fresh.keys())
                left = [name for name in aspects if found.get(name) != heir.fresh.get(name)]
                if left != ["groups"]:
                    break
            proved = not left
            for aspect in left:
                self.stats.left[aspect] = self.stats.left.get(aspect, 0) + 1
        except (SandboxError, OSError) as error:
            log.warning("no proof of a reset: %s", error)
        except asyncio.CancelledError:
            ended = True
            raise
        finally:
            shelf.making -= 1
            if not proved:
                self.stats.surplus += ended
                self.stats.unproved += not ended
                await _end(heir.sandbox)
        if proved:
            self.stats.reset += 1
            shelf.ready.append(heir)


class Lease:
    """A reused sandbox in the hands of one user; closing it gives the sandbox back."""

    def __init__(self, pool: Pool, shelf: _Shelf, held: _Ready) -> None:
        self._pool = pool
        self._shelf = shelf
        self._held: _Ready | None = held
        self.spec = held.sandbox.spec
        self.capabilities = held.sandbox.capabilities - {"reset"}

    def _sandbox(self) -> Sandbox:
        if self._held is None:
            raise SandboxError("the sandbox cannot be used any more: it was closed")
        return self._held.sandbox

    async def exec(self, argv: Any, **options: Any) -> ExecResult:
        """See `quintain.protocols.Sandbox.exec`."""
        return await self._sandbox().exec(argv, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox(), name)

    async def close(self) -> None:
        """Ends every process and removes everything; may be called twice."""
        held, self._held = self._held, None
        if held is not None:
            await self._pool.take_back(self._shelf, held)


def _healthy(sandbox: Sandbox) -> bool:
    """Whether it can still be used, as far as can be told without waiting."""
    check = getattr(sandbox, "check", None)
    if check is None:
        return True
    try:
        check()
    except SandboxError:
        return False
    return True


async def _end(sandbox: Sandbox) -> None:
    with contextlib.suppress(SandboxError, OSError):
        await sandbox.close()


def counts(stats: PoolStats) -> dict[str, int | dict[str, int]]:
    """The counts that are not zero, for a record."""
    return {name: value for name, value in asdict(stats).items() if value}
