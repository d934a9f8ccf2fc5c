"""Fresh, pooled, reused, auto: a policy of the run, recorded with its reason."""

from __future__ import annotations

import pytest

import quintain as q
from quintain.errors import IsolationError
from quintain.messages import ToolCall, assistant
from quintain.rollouts.host import CHOSEN, POOLED, Host
from quintain.sandbox.native import NativeBackend
from quintain.sandbox.pool import Pool
from quintain.store import Store


async def passes(task, sandbox) -> bool:
    return (await sandbox.exec(["sh", "-c", "test -e /work/done"])).ok


@pytest.fixture
async def environment():
    backend = NativeBackend()
    try:
        await (await backend.open(q.SandboxSpec())).close()
    except IsolationError as error:
        pytest.skip(f"no native sandbox here: {error}")
    finally:
        await backend.close()
    tasks = [{"prompt": f"Make /work/done, {n}", "split": "eval"} for n in range(4)]
    return q.Environment(
        tasks=tasks,
        tools=[q.tools.shell],
        sandbox=q.SandboxSpec(),
        verifier=q.verifier(passes, clean_room=["/work/done"]),
    )


def script(environment):
    command = "test -e /work/done || touch /work/done"
    call = ToolCall(id="1", name="shell", arguments={"command": command})
    return q.scripted([assistant("", call), "done"])


@pytest.mark.parametrize("sandboxes", ["fresh", "pooled", "reused", "auto"])
async def test_every_policy_gives_the_same_verdicts_and_is_recorded(
    environment, tmp_path, sandboxes
):
    run = await q.aevaluate(
        environment,
        script(environment),
        samples=2,
        concurrency=2,
        run=tmp_path / "run",
        sandboxes=sandboxes,
    )
    assert run.pass_at(1).interval.value == 1.0
    store = Store.read(tmp_path / "run")
    ((_, _, chosen),) = store.event_rows(CHOSEN)
    assert chosen["asked"] == sandboxes
    assert chosen["why"]
    if sandboxes == "auto":
        assert chosen["measured_ms"]["open"] > 0
    else:
        assert chosen["sandboxes"] == sandboxes
    pooled = [data for _, _, data in store.event_rows(POOLED)]
    assert bool(pooled) == (chosen["sandboxes"] != "fresh")
    if sandboxes == "reused":
        assert pooled[0].get("unproved", 0) == 0


async def test_a_backend_that_was_given_stays_open_behind_its_pool(environment):
    backend = NativeBackend()
    try:
        async with Host(environment, script(environment), backend=backend, sandboxes="pooled") as h:
            box = await h.open_sandbox(q.SandboxSpec())
            await box.close()
            assert isinstance(h._backend, Pool)
        assert (await (await backend.open(q.SandboxSpec())).exec(["true"])).ok
    finally:
        await backend.close()
