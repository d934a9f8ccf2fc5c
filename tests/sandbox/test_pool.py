"""The pool: single use or proved reuse, bounded, modest, and gone with its owner."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quintain.errors import CapabilityError, IsolationError, SandboxError
from quintain.sandbox import cgroups
from quintain.sandbox import pool as pools
from quintain.sandbox.choose import choose
from quintain.sandbox.native import NativeBackend
from quintain.sandbox.pool import Pool
from quintain.task import SandboxSpec

SPEC = SandboxSpec()
LOOPBACK = """
import socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).sendall(b"traffic")
"""


class Counting:
    """The native backend, counted and slowed down; `broken` makes it refuse."""

    name = "counting"

    def __init__(self, slow_s=0.0, broken=None):
        self.inner = NativeBackend()
        self.slow_s, self.broken = slow_s, broken
        self.opened = self.at_once = self.most_at_once = 0

    async def open(self, spec):
        if self.broken is not None:
            raise self.broken
        self.opened += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.slow_s)
            return await self.inner.open(spec)
        finally:
            self.at_once -= 1

    async def probe(self):
        return await self.inner.probe()

    async def close(self):
        await self.inner.close()


@pytest.fixture
async def possible():
    backend = NativeBackend()
    try:
        await (await backend.open(SPEC)).close()
    except IsolationError as error:
        pytest.skip(f"no native sandbox here: {error}")
    finally:
        await backend.close()


@pytest.fixture
async def pool_over(possible):
    """Makes pools over the counting backend; they are closed at the end."""
    made = []

    def make(backend=None, **options):
        made.append(Pool(backend or Counting(), **options))
        return made[-1]

    yield make
    for pool in made:
        await pool.close()


async def until(condition, seconds=10.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_ready_one_is_given_out_once_and_replaced(pool_over):
    pool = pool_over()
    await pool.fill(SPEC, 2)
    first, second = await pool.open(SPEC), await pool.open(SPEC)
    assert first is not second
    assert pool.stats.ready == 2
    assert pool.stats.waited == 0
    await first.write("/tmp/mark", "x")
    await first.close()
    await until(lambda: pool.held() == 2 and not pool.inner.at_once)
    for _ in range(2):
        box = await pool.open(SPEC)
        assert box is not first
        assert box is not second
        with pytest.raises(FileNotFoundError):
            await box.read("/tmp/mark")
        await box.close()
    await second.close()


async def test_it_grows_with_those_who_had_to_wait_and_never_over_its_bound(pool_over):
    pool = pool_over(most=3)
    assert pool.held() == 0
    for _ in range(3):
        boxes = await asyncio.gather(*(pool.open(SPEC) for _ in range(5)))
        await asyncio.gather(*(box.close() for box in boxes))
        await until(lambda: sum(len(shelf.ready) for shelf in pool._shelves.values()) == 3)
        assert pool.held() == 3
    assert pool.stats.waited >= 5
    assert pool.stats.ready >= 6


async def test_it_shrinks_when_nobody_comes(pool_over, monkeypatch):
    monkeypatch.setattr(pools, "SWEEP_S", 0.1)
    pool = pool_over()
    await pool.fill(SPEC, 4)
    await until(lambda: pool.held() == 0)
    assert pool.stats.surplus >= 4


async def test_refilling_waits_while_somebody_waits(pool_over):
    backend = Counting(slow_s=0.1)
    pool = pool_over(backend, at_once=4)
    boxes = [await pool.open(SPEC)]
    waiting = [asyncio.create_task(pool.open(SPEC)) for _ in range(4)]
    await asyncio.sleep(0)
    seen = []
    while not all(task.done() for task in waiting):
        seen.append(backend.at_once)
        await asyncio.sleep(0.01)
    # At most the one that was begun before they came is made beside the four.
    assert max(seen) <= 5
    boxes += [task.result() for task in waiting]
    await asyncio.gather(*(box.close() for box in boxes))


async def test_one_that_broke_on_the_shelf_is_not_given_out(pool_over):
    pool = pool_over()
    await pool.fill(SPEC, 1)
    (server,) = pool.inner.inner._servers.values()
    os.kill(server._process.pid, signal.SIGKILL)
    (shelf,) = pool._shelves.values()
    await until(lambda: not pools._healthy(shelf.ready[0].sandbox))
    box = await pool.open(SPEC)
    assert (await box.exec(["echo", "well"])).text == "well\n"
    assert pool.stats.unhealthy == 1
    await box.close()


async def test_specs_do_not_mix_and_share_the_bound(pool_over):
    pool = pool_over(most=2)
    other = SandboxSpec(memory_mb=64, env={"WHO": "other"})
    await pool.fill(SPEC, 2)
    box = await pool.open(other)
    assert (await box.exec(["sh", "-c", "echo $WHO"])).text == "other\n"
    await box.close()
    await until(lambda: pool.stats.surplus >= 1)
    assert pool.held() <= 2


async def test_what_the_backend_refuses_is_refused_once_more_and_not_tried_in_vain(pool_over):
    backend = Counting(broken=IsolationError("no wall", ("wall",)))
    pool = pool_over(backend)
    with pytest.raises(IsolationError):
        await pool.open(SPEC)
    backend.broken = None
    box = await pool.open(SPEC)
    backend.broken = SandboxError("for a while")
    await box.close()
    await until(lambda: pool.stats.failed or pool.held() == 1)


async def test_reuse_gives_the_same_place_back_with_proof(pool_over):
    pool = pool_over(reuse=True)
    for turn in range(5):
        box = await pool.open(SPEC)
        assert (await box.exec(["sh", "-c", "ls -A /tmp /work /dev/shm | grep -c x"])).text == "0\n"
        await box.write("/tmp/x", str(turn))
        await box.exec(["sh", "-c", "touch /dev/shm/x; sleep 60 &"])
        await box.close()
        with pytest.raises(SandboxError, match="closed"):
            await box.exec(["true"])
        await box.close()
        await until(lambda: any(shelf.ready for shelf in pool._shelves.values()))
    assert pool.stats.reset >= 4
    assert pool.stats.unproved == 0
    assert pool.inner.opened <= 2


async def test_one_that_fails_its_proof_is_destroyed_and_counted(pool_over):
    pool = pool_over(reuse=True)
    box = await pool.open(SPEC)
    assert (await box.exec(["python3", "-c", LOOPBACK])).ok
    await box.close()
    await until(lambda: pool.stats.unproved == 1)
    assert pool.stats.left == {"network": 1}
    assert pool.stats.reset == 0
    after = await pool.open(SPEC)
    dev = (await after.exec(["cat", "/proc/net/dev"])).text.splitlines()[-1].split()
    assert dev[1:3] == ["0", "0"]
    await after.close()


async def test_reuse_needs_sandboxes_that_can_be_reset(pool_over, monkeypatch):
    pool = pool_over(reuse=True)
    monkeypatch.setattr("quintain.sandbox.running.NativeSandbox.capabilities", frozenset())
    with pytest.raises(CapabilityError, match="reset"):
        await pool.open(SPEC)


async def test_closing_leaves_nothing_and_wakes_nobody(pool_over):
    backend = Counting(slow_s=0.2)
    pool = pool_over(backend)
    box = await pool.open(SPEC)
    await until(lambda: pool.held() > 0)
    await pool.close()
    assert pool.held() == 0
    places = cgroups.find().places()
    mine = f"{cgroups.owner_name()}.{id(backend.inner):x}"
    assert not [n for place in places for n in os.listdir(place) if n.startswith(mine)]
    with pytest.raises(SandboxError):
        await box.exec(["true"])


async def test_a_refill_that_fails_is_tried_again_later(pool_over, monkeypatch):
    monkeypatch.setattr(pools, "BACKOFF_S", 0.05)
    backend = Counting()
    pool = pool_over(backend)
    box = await pool.open(SPEC)
    backend.broken = SandboxError("for a while")
    await until(lambda: pool.stats.failed >= 2 or pool.stats.made)
    backend.broken = None
    await until(lambda: pool.stats.made >= 1)
    await box.close()


async def test_auto_takes_fresh_ones_where_they_are_quick_and_pooled_ones_where_not(possible):
    quick, slow = Counting(), Counting(slow_s=0.06)
    try:
        found = await choose(slow, SPEC)
        assert found.sandboxes == "pooled"
        assert "single-use" in found.why
        assert found.measured_ms["open"] >= 60
        found = await choose(quick, SPEC)
        assert found.sandboxes == ("fresh" if found.measured_ms["open"] <= 25 else "pooled")
    finally:
        await quick.close()
        await slow.close()


async def test_auto_reuses_only_what_is_slow_to_make_and_quick_to_reset(possible, monkeypatch):
    monkeypatch.setattr("quintain.sandbox.choose.LONG_MS", 300)
    backend = Counting(slow_s=0.4)
    try:
        assert (await choose(backend, SPEC)).sandboxes == "reused"
    finally:
        await backend.close()


OWNER = """
import asyncio
from quintain.sandbox.native import NativeBackend
from quintain.sandbox.pool import Pool
from quintain.task import SandboxSpec

async def main():
    pool = Pool(NativeBackend(), reuse=True)
    await pool.fill(SandboxSpec(), 4)
    await pool.open(SandboxSpec())
    print(list(pool.inner._servers.values())[0]._process.pid, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_an_owner_killed_leaves_nothing(possible):
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE)
    try:
        server = int(owner.stdout.readline())
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    deadline = time.monotonic() + 10
    mine = f"{cgroups.PREFIX}{owner.pid}-"
    while time.monotonic() < deadline:
        groups = [n for p in cgroups.find().places() for n in os.listdir(p) if n.startswith(mine)]
        status = Path(f"/proc/{server}/status")
        gone = not status.exists() or "State:\tZ" in status.read_text()
        if gone and not groups:
            return
        time.sleep(0.02)
    pytest.fail(f"left: server alive {not gone}, groups {groups}")
