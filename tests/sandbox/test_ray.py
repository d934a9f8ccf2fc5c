"""Leases on a real Ray cluster of several simulated nodes: contract, slots, losses."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import pytest_asyncio

from quintain.envs.environment import Environment
from quintain.errors import IsolationError, SandboxError, SandboxTimeout
from quintain.policies.scripted import Scripted
from quintain.rollouts import Host, schedule
from quintain.rollouts.host import jobs_of
from quintain.sandbox.ray import RayBackend
from quintain.store import Store
from quintain.task import SandboxSpec
from quintain.testing import check_sandbox
from quintain.verdict import Verdict

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.asyncio(loop_scope="module")]

MEMORY = 80 << 20
"""Of a node's object store: Ray's least."""
MARK = str(4_000_000 + os.getpid())


class Untouched:
    """Accepts where the task's file is in the sandbox as it was, after a while."""

    name, kind = "untouched", "state"

    async def judge(self, context):
        run = await context.sandbox.exec(["sh", "-c", "sleep 0.5; cat mine"])
        return Verdict.of(run.text == context.task.id)


@pytest.fixture(scope="module")
def cluster():
    """A head without slots of its own, and two nodes."""
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=MEMORY) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    cluster.spare = nodes
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(cluster):
    """One for all tests: each actor is a process that imports the package."""
    backend = RayBackend(slots=2, allow_weaker=True)
    yield backend
    await backend.close()


def running(mark=MARK):
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


async def up(count, mark=MARK):
    async with asyncio.timeout(60):
        while len(running(mark)) < count:
            await asyncio.sleep(0.05)


async def gone(mark=MARK, within_s=15.0):
    deadline = time.monotonic() + within_s
    while running(mark) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return not running(mark)


async def test_contract_and_consoles(backend):
    await check_sandbox(backend)
    box = await backend.open(SandboxSpec())
    shell = await box.session()
    await shell.run("cd /tmp; name=lance")
    assert (await shell.run("pwd; echo $name")).text == "/tmp\nlance\n"
    assert (await shell.run("sleep 60", timeout_s=0.5)).killed == "timeout"
    python = await box.python()
    await python.run("x = 20")
    assert (await python.run("x + 1")).value == "21"
    await box.write("a/b", "c")
    assert [entry.path for entry in await box.entries(".")] == ["a", "a/b"]
    await box.close()
    with pytest.raises(SandboxError, match="closed"):
        await shell.run("true")


async def test_slots_are_shared_out_and_waited_for(backend):
    spec = SandboxSpec(startup_s=30)
    boxes = await asyncio.gather(*(backend.open(spec) for _ in range(4)))
    nodes = {box.node for box in boxes}
    per_node = [sum(box.node == node for box in boxes) for node in nodes]
    assert sum(per_node) == 4
    assert max(per_node) <= 2
    with pytest.raises(SandboxTimeout, match="no slot"):
        await backend.open(SandboxSpec(startup_s=0.5))
    waiting = asyncio.create_task(backend.open(spec))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await boxes[0].close()
    last = await waiting
    assert (await last.exec(["echo", "in"])).text == "in\n"
    await asyncio.gather(*(box.close() for box in [*boxes[1:], last]))


async def test_what_a_node_refuses_arrives_with_its_kind(backend):
    strict = RayBackend(slots=1)
    try:
        with pytest.raises(IsolationError) as error:
            await strict.open(SandboxSpec(isolation="microvm"))
        assert "microvm" in error.value.missing
        with pytest.raises(SandboxError):
            await RayBackend(slots=1, inner="no-such-backend").open(SandboxSpec(startup_s=5))
    finally:
        await strict.close()


async def test_cancelled_commands_end_there(backend):
    box = await backend.open(SandboxSpec())
    running_there = asyncio.create_task(box.exec(["sleep", MARK], timeout_s=600))
    await up(1)
    running_there.cancel()
    assert await gone(), running()
    assert (await box.exec(["echo", "alive"])).text == "alive\n"
    await box.close()


async def test_a_dead_actor_leaves_nothing_and_breaks_its_leases(backend):
    box = await backend.open(SandboxSpec())
    task = asyncio.create_task(box.exec(["sh", "-c", f"setsid sleep {MARK} & sleep {MARK}"]))
    await up(2)
    os.kill(backend._nodes[box.node].ready.result()["pid"], signal.SIGKILL)
    with pytest.raises(SandboxError, match="lost"):
        await task
    assert await gone(), running()
    await box.close()
    again = await backend.open(SandboxSpec())
    assert (await again.exec(["echo", "elsewhere"])).text == "elsewhere\n"
    await again.close()


OWNER = """
import asyncio, sys
from quintain.sandbox.ray import RayBackend
from quintain.task import SandboxSpec

async def main():
    backend = RayBackend(slots=2, address=sys.argv[1], allow_weaker=True)
    boxes = [await backend.open(SandboxSpec()) for _ in range(2)]
    runs = [asyncio.create_task(box.exec(["sleep", sys.argv[2]], timeout_s=600)) for box in boxes]
    print("up", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_a_dead_owner_frees_its_leases(cluster):
    mark = str(int(MARK) + 1)
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, cluster.address, mark, stdout=subprocess.PIPE
    )
    try:
        async with asyncio.timeout(60):
            assert await owner.stdout.readline() == b"up\n"
            while len([pid for pid in running(mark) if pid != owner.pid]) < 2:
                await asyncio.sleep(0.05)
        owner.kill()
        await owner.wait()
        assert await gone(mark, 30), running(mark)
    finally:
        if owner.returncode is None:
            owner.kill()
            await owner.wait()


async def test_a_node_killed_while_rollouts_run(cluster, backend, tmp_path):
    """No sample gets reward 0 for it: what was lost is played again elsewhere."""
    node = cluster.add_node(num_cpus=1, object_store_memory=MEMORY)

    rows = [{"id": f"t{n}", "prompt": "go", "files": {"mine": f"t{n}"}} for n in range(12)]
    environment = Environment(
        tasks=rows, verifier=Untouched(), name="files", sandbox=SandboxSpec(startup_s=40)
    )
    killed = []
    await (await backend.open(SandboxSpec())).close()
    await asyncio.wait_for(asyncio.gather(*(one.ready for one in backend._usable())), 60)

    async def kill_when_used():
        while not killed:
            await asyncio.sleep(0.05)
            for found in backend._usable():
                if found.id == node.node_id and found.used:
                    killed.append(found.used)
                    await asyncio.to_thread(cluster.remove_node, node, False)

    store = Store.begin(tmp_path / "run", kind="eval", identity={})
    killer = asyncio.create_task(kill_when_used())
    host = Host(environment, Scripted("done"), store=store, backend=backend, retries=4)
    jobs = jobs_of([environment.tasks.get(row["id"]) for row in rows], "eval:files@v0", 1)
    async with asyncio.timeout(150), host:
        progress = await schedule(jobs, host, concurrency=6)
        await killer
    found = list(store.trajectories(final=None))
    store.close()
    final = [one for one in found if one.outcome is not None and one.error is None]
    assert progress.done == 12
    assert progress.outcomes == {"pass": 12} or sum(progress.outcomes.values()) == 12
    assert {one.task_id for one in final} == {row["id"] for row in rows}
    assert {one.verdict.reward for one in final} == {1.0}
    lost = [one for one in found if one.error is not None]
    assert lost, "nothing was lost with the node"
    assert all(one.verdict is None for one in lost)
