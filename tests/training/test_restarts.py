"""A learner and a generation process that are killed in mid-run: nothing is lost."""

import asyncio
import functools
import os
import random
import signal
from collections import Counter

import numpy as np
import pytest

from quintain.errors import TrainingError
from quintain.rollouts import Host
from quintain.store import Store
from quintain.training.bandit import BanditLearner, BanditPolicy
from quintain.training.config import TrainConfig
from quintain.training.learner_process import LearnerDied
from quintain.training.restarts import CAUGHT_UP, RESTARTED, LastingLearner
from quintain.training.run import run_training
from words import words

SMALL = {"groups_per_step": 3, "group_size": 4, "checkpoint_every": 4, "eval_every": 4}


async def kill_now_and_then(learner, store, choose, times):
    for number in range(times):
        await asyncio.sleep(choose.uniform(0.1, 0.5))
        os.kill(learner.pid, signal.SIGKILL)
        while len(store.event_rows(CAUGHT_UP)) <= number:
            await asyncio.sleep(0.05)


async def train(folder, mode, kills=0):
    policy = BanditPolicy(lambda text, seed: random.Random(seed).random() ** 3 * 0.05)
    config = TrainConfig(steps=12, mode=mode, max_staleness=2, **SMALL)
    with Store.begin(folder, kind="train", identity={}) as store:
        factory = functools.partial(BanditLearner, folder, work_s=0.05)
        learner = await LastingLearner.start(factory, store.event)
        choose = random.Random(mode)
        killing = asyncio.create_task(kill_now_and_then(learner, store, choose, kills))
        try:
            async with Host(words(), policy, store=store) as host:
                await run_training(config, host, store, learner=learner)
        finally:
            killing.cancel()
            await learner.close()
    return policy


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_killed_learner_is_brought_to_where_it_was(tmp_path, mode):
    policy = await train(tmp_path / "killed", mode, kills=2)
    with Store.read(tmp_path / "killed") as store:
        assert store.event_rows(RESTARTED), "it was killed"
        for _, _, data in store.event_rows(CAUGHT_UP):
            assert data["same_weights"]
        rewards = [step for step, name, _ in store.metric_rows() if name == "reward"]
        assert rewards == list(range(1, 13))
        keys = Counter((row.key.task_id, row.key.sample_index) for row in store.rows(final=None))
        assert set(keys.values()) == {1}, "no rollout was repeated"
    if mode == "sync":
        plain = await train(tmp_path / "plain", mode)
        assert np.array_equal(plain.logits, policy.logits)


class Poisoned:
    """Dies of one batch, whenever it is given it."""

    def update(self, batch):
        if batch == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        return {"skipped": 0.0}


async def test_what_kills_every_process_ends_the_run():
    told = []

    async def tell(kind, data):
        told.append(kind)

    learner = await LastingLearner.start(Poisoned, tell)
    await learner.update("food")
    with pytest.raises(LearnerDied, match=r"(?s)SIGKILL.*resume the run"):
        await learner.update("poison")
    assert told.count(RESTARTED) == 2
    assert isinstance(LearnerDied("x"), TrainingError)
    assert await learner.update("food") == {"skipped": 0.0}
    await learner.close()
