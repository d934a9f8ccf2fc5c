"""Evaluations beside asynchronous training: bound to a version, taken up again, told when wrong."""

import asyncio

import pytest

from quintain.rollouts import Host
from quintain.store import Store
from quintain.training.bandit import BanditLearner, BanditPolicy
from quintain.training.config import TrainConfig
from quintain.training.run import run_training
from words import words

SMALL = {"groups_per_step": 3, "group_size": 4, "checkpoint_every": 3, "eval_every": 3}


async def train(folder, on_checkpoint, policy=None, mode="async", steps=9):
    policy = policy or BanditPolicy(lambda text, seed: 0.01)
    config = TrainConfig(steps=steps, mode=mode, max_staleness=2, **SMALL)
    with Store.begin(folder, kind="train", identity={}, resume=True) as store:
        async with Host(words(), policy, store=store) as host:
            await run_training(
                config, host, store, learner=BanditLearner(folder), on_checkpoint=on_checkpoint
            )
    return policy


async def test_training_goes_on_and_the_evaluated_version_stays(tmp_path):
    policy = BanditPolicy(lambda text, seed: 0.01)
    seen, moved = [], []

    async def evaluate(checkpoint):
        before, own = policy.version, checkpoint.policy
        for _ in range(20):
            assert own.version == checkpoint.version
            await asyncio.sleep(0.01)
        moved.append(policy.version > before)
        seen.append(checkpoint.step)

    await train(tmp_path, evaluate, policy)
    assert seen == [0, 3, 6, 9], "in order, and all before the run ends"
    assert any(moved[1:-1])
    assert not moved[0], "the first one is waited for"


async def test_synchronous_training_waits(tmp_path):
    policy = BanditPolicy()

    async def evaluate(checkpoint):
        await asyncio.sleep(0.02)
        assert checkpoint.policy is policy
        assert policy.version == checkpoint.version

    await train(tmp_path, evaluate, policy, mode="sync")


async def test_one_that_was_cut_off_is_taken_up_again(tmp_path):
    begun = asyncio.Event()

    async def for_ever(checkpoint):
        if checkpoint.step == 3:
            begun.set()
            await asyncio.sleep(3600)

    running = asyncio.create_task(train(tmp_path, for_ever))
    await begun.wait()
    with Store.read(tmp_path) as store:
        while not any(row.step == 6 for row in store.checkpoints()):
            await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    seen = []

    async def evaluate(checkpoint):
        assert checkpoint.policy.version == checkpoint.version
        seen.append(checkpoint.step)

    await train(tmp_path, evaluate)
    assert seen == [3, 6, 9]


async def test_an_evaluation_that_fails_ends_the_run(tmp_path):
    async def wrong(checkpoint):
        if checkpoint.step == 3:
            raise ZeroDivisionError("no samples")

    with pytest.raises(ZeroDivisionError, match="no samples"):
        await train(tmp_path, wrong, steps=60)
