"""Training pauses while the host spoils rollouts, goes on when that ceases, or ends resumably."""

import asyncio

import pytest

from quintain.errors import SandboxError, TrainingError
from quintain.rollouts import Host
from quintain.store import Store
from quintain.training import faults
from quintain.training.bandit import BanditLearner, BanditPolicy
from quintain.training.config import TrainConfig
from quintain.training.faults import FaultWatch, Slots
from quintain.training.run import run_training
from words import words

from .builders import span, trajectory

SMALL = {"groups_per_step": 4, "group_size": 4, "checkpoint_every": 3, "eval_every": 0}


class Served(BanditPolicy):
    """Asks a real server before each answer; without the server every call fails."""

    def __init__(self, port):
        super().__init__()
        self.port = port

    async def act(self, *arguments, **call):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        await reader.read()
        writer.close()
        return await super().act(*arguments, **call)


async def answer(reader, writer):
    await asyncio.sleep(0.005)
    writer.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_pauses_while_the_server_is_gone_and_loses_nothing(tmp_path, monkeypatch, mode):
    monkeypatch.setattr(faults, "FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(faults, "LONGEST_WAIT_S", 0.2)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def outage():
        await asyncio.sleep(0.5)
        server.close()
        with Store.read(tmp_path) as store:
            while not store.event_rows(faults.PAUSED):
                await asyncio.sleep(0.05)
        return await asyncio.start_server(answer, "127.0.0.1", port)

    config = TrainConfig(steps=12, mode=mode, max_staleness=2, **SMALL)
    with Store.begin(tmp_path, kind="train", identity={}) as store:
        broken = asyncio.create_task(outage())
        learner = BanditLearner(tmp_path, work_s=0.1)
        settings = {"retries": 1, "backoff_s": 0.01}
        async with Host(words(), Served(port), store=store, **settings) as host:
            await run_training(config, host, store, learner=learner)
        (await broken).close()
        (paused,) = store.event_rows(faults.PAUSED)
        assert "spoiled by the host, more than the bound of 25%" in paused[2]["message"]
        assert "PolicyError in policy" in paused[2]["message"]
        assert len(store.event_rows(faults.UNPAUSED)) == 1
        lost = sum(value for _, name, value in store.metric_rows() if name == "host_faults")
        assert lost < 8, "those that were spoiled before the pause; none of those that waited"
        seconds = [name for _, name, _ in store.metric_rows(scope="timeline")]
        assert "learner/paused" in seconds


async def test_ends_with_a_message_when_nothing_mends_itself(tmp_path):
    async def judge(text):
        raise SandboxError("no space left on the device")

    config = TrainConfig(steps=3, mode="sync", fault_patience_s=0.2, **SMALL)
    with Store.begin(tmp_path, kind="train", identity={}) as store:
        async with Host(words(judge), BanditPolicy(), store=store, backoff_s=0.0) as host:
            with pytest.raises(TrainingError, match=r"(?s)no space left.*none came through in 0.2"):
                await run_training(config, host, store, learner=BanditLearner(tmp_path))
        assert store.event_rows(faults.PAUSED)


async def test_few_faults_are_no_reason():
    async def tell(kind, data):
        raise AssertionError(kind)

    watch = FaultWatch(0.25, 8, 10.0, tell)
    for number in range(20):
        spoiled = trajectory([span([1], [2])], reward=None if number % 5 == 4 else 1.0)
        assert await watch.again(spoiled) is False
    assert watch.going.is_set()


async def test_no_place_is_given_while_the_gate_is_shut():
    gate = asyncio.Event()
    slots = Slots(1, gate)
    waiting = asyncio.create_task(slots.acquire())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    gate.set()
    await waiting
    second = asyncio.create_task(slots.acquire())
    await asyncio.sleep(0)
    gate.clear()
    slots.release()
    await asyncio.sleep(0.01)
    assert not second.done(), "it had waited for a place when the gate was shut"
    gate.set()
    await second
