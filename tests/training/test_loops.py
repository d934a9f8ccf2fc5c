"""Both loops on a bandit: learning, order, staleness, refusals, faults, skipped steps."""

import asyncio
import hashlib
import random
from collections import Counter

import numpy as np
import pytest

from quintain.errors import ConfigError, SandboxError, TrainingError
from quintain.policies.scripted import Scripted
from quintain.rollouts import Host
from quintain.store import Store
from quintain.training.bandit import BanditLearner, BanditPolicy
from quintain.training.config import TrainConfig
from quintain.training.guards import WARNING
from quintain.training.run import choose, run_training, trainable
from quintain.training.sampler import Uniform
from words import words

BASE = {"groups_per_step": 4, "group_size": 8, "checkpoint_every": 3, "eval_every": 3}


async def train(
    folder,
    *,
    policy=None,
    env=None,
    on_checkpoint=None,
    work_s=0.0,
    learner=None,
    tasks=None,
    **settings,
):
    config = TrainConfig(**{**BASE, "steps": 12, "mode": "sync", **settings})
    policy = policy or BanditPolicy()
    with Store.begin(folder, kind="train", identity={}, resume=True) as store:
        learner = learner or BanditLearner(folder, work_s=work_s)
        async with Host(env or words(), policy, store=store, backoff_s=0.0) as host:
            trainer = await run_training(
                config, host, store, learner=learner, on_checkpoint=on_checkpoint, tasks=tasks
            )
        rows = store.metric_rows()
    metrics = {}
    for step, name, value in rows:
        metrics.setdefault(step, {})[name] = value
    return trainer, learner, metrics


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_reward_rises_and_every_version_reaches_the_policy(tmp_path, mode):
    policy = BanditPolicy()
    trainer, learner, metrics = await train(tmp_path, policy=policy, mode=mode, steps=20)
    first, last = metrics[1]["reward"], metrics[20]["reward"]
    assert first < 0.4
    assert last > 0.8
    assert sorted(metrics) == list(range(1, 21))
    assert policy.updates == list(range(int(learner.version) + 1))
    assert trainer.step == 20


async def test_shuffled_rewards_teach_nothing(tmp_path):
    async def coin(task, trajectory):
        name = f"{task.id} {trajectory.sample_index}"
        return hashlib.blake2b(name.encode()).digest()[0] % 2 == 0

    _, learner, _ = await train(tmp_path, env=words(coin), steps=20)
    shares = np.exp(learner.logits) / np.exp(learner.logits).sum()
    assert shares[2] < 0.4


async def test_synchronous_runs_are_alike_to_the_bit_and_never_stale(tmp_path):
    def slow(text, seed):
        return random.Random(seed).random() * 0.02

    plain = await train(tmp_path / "a")
    shuffled = await train(tmp_path / "b", policy=BanditPolicy(slow))
    zero = await train(tmp_path / "c", mode="auto", max_staleness=0)
    for _, learner, metrics in (shuffled, zero):
        assert (learner.logits == plain[1].logits).all()
        for step, row in metrics.items():
            assert row.get("staleness_max", 0.0) == 0.0
            assert row["reward"] == plain[2][step]["reward"]
    with Store.read(tmp_path / "c") as store:
        assert "max_staleness is 0" in store.meta("training.mode")["why"]


async def test_asynchronous_overlaps_within_the_bound(tmp_path):
    def heavy(text, seed):
        return 0.15 if random.Random(seed).random() < 0.1 else 0.001

    policy = BanditPolicy(heavy)
    _, learner, metrics = await train(
        tmp_path, policy=policy, mode="async", max_staleness=2, steps=25, work_s=0.01
    )
    ages = {int(name.split("/")[1]) for row in metrics.values() for name in row if "ness/" in name}
    assert max(ages) >= 1
    for version, batch in enumerate(learner.batches):
        trained = batch.version_BT[batch.loss_mask_BT]
        assert (version - trained <= 2).all()
        assert (batch.denominator >= batch.loss_mask_BT.sum()).all()
    with Store.read(tmp_path) as store:
        groups = store.groups()
        assert all(group.consumed_step is not None for group in groups)
        keys = Counter((row.key.task_id, row.key.sample_index) for row in store.rows())
        assert set(keys.values()) == {1}
        assert sum(keys.values()) == 8 * len(groups)


async def test_evaluations_see_the_version_they_are_told(tmp_path):
    policy = BanditPolicy(lambda text, seed: 0.002)
    seen = []

    async def evaluate(checkpoint):
        for _ in range(3):
            assert checkpoint.policy.version == checkpoint.version
            await asyncio.sleep(0.01)
        assert checkpoint.published.path.exists()
        seen.append((checkpoint.step, checkpoint.version))

    await train(tmp_path, policy=policy, mode="async", on_checkpoint=evaluate)
    assert [step for step, _ in seen] == [0, 3, 6, 9, 12]
    assert seen[0] == (0, 0)


async def test_quiet_groups_are_replaced_up_to_the_cap_and_a_quiet_step_is_skipped(tmp_path):
    async def never(text):
        return False

    policy = BanditPolicy()
    _, learner, metrics = await train(
        tmp_path, policy=policy, env=words(never), steps=2, refill_groups=3
    )
    assert learner.batches == []
    assert policy.version == 0
    for row in metrics.values():
        assert row["groups"] == 4
        assert row["groups_filtered"] == 3
        assert row["skipped_quiet"] == 1
        assert row["reward"] == 0
    assert policy.calls == 2 * 7 * 8


async def test_eval_tasks_are_refused(tmp_path):
    class Careless:
        """A source that hands out whatever it has, whichever split is asked for."""

        def __init__(self, source):
            self.source = source

        def split(self, split):
            yield from self.source.split("train")
            yield self.source.get("train3").model_copy(update={"id": "secret", "split": "heldout"})

        def get(self, task_id):
            return self.source.get(task_id)

    env = words()
    env.tasks = Careless(env.tasks)
    with pytest.raises(TrainingError, match=r"'secret'.*heldout"):
        await train(tmp_path, env=env)
    empty = words()
    empty.tasks = type("Nothing", (), {"split": lambda self, split: iter(()), "get": None})()
    with pytest.raises(TrainingError, match="no task of split 'train'"):
        await train(tmp_path / "empty", env=empty)


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_host_faults_stop_training_and_a_resumed_run_loses_nothing(tmp_path, mode):
    broken = True

    async def judge(task, trajectory):
        if broken and trajectory.sample_index % 2:
            raise SandboxError("the machine is on fire")
        return trajectory.text == "cat"

    env = words(judge)
    with pytest.raises(TrainingError, match=r"(?s)spoiled by the host.*on fire"):
        await train(tmp_path, env=env, mode=mode, fault_patience_s=0.1)
    broken = False
    _, _, metrics = await train(tmp_path, env=env, mode=mode)
    assert sorted(metrics) == list(range(1, 13))
    assert all(row["host_faults"] == 0 for row in metrics.values())


async def test_single_faults_are_left_out_and_counted(tmp_path):
    async def judge(task, trajectory):
        if trajectory.sample_index % 8 == 0:
            raise SandboxError("gone")
        return trajectory.text == "cat"

    _, learner, metrics = await train(tmp_path, env=words(judge), steps=6)
    assert sum(row["host_faults"] for row in metrics.values()) >= 4
    assert all(len(set(batch.trajectory_B)) % 7 == 0 for batch in learner.batches)


async def test_policy_that_keeps_its_old_weights_is_found(tmp_path):
    class Deaf(BanditPolicy):
        async def update(self, published):
            pass

    with pytest.raises(TrainingError, match="new weights do not reach it"):
        await train(tmp_path, policy=Deaf())


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(ConfigError, match=r"q\.local"):
        trainable(Scripted("cat"))


async def test_greedy_sampling_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="temperature is 0"):
        await train(tmp_path, sampling={"temperature": 0.0})


def test_auto_chooses_by_what_a_step_waits_for():
    assert choose([1.0] * 100 + [29.0], 30.0)[0] == "sync"
    mode, why = choose([10.0] * 95 + [600.0] * 5, 30.0)
    assert mode == "async"
    assert "600.0 s (mean 39.5 s), not below the bound of 30 s" in why


async def test_auto_measures_once_and_says_why(tmp_path):
    policy = BanditPolicy(lambda text, seed: 0.02)
    await train(tmp_path, policy=policy, mode="auto", sync_below_s=0.01, steps=3)
    with Store.read(tmp_path) as store:
        decision = store.meta("training.mode")
        assert decision["mode"] == "async"
        assert "not below the bound of 0.01 s" in decision["why"]
        assert len(store.event_rows("training.mode")) == 1


@pytest.mark.parametrize("sampler", ["uniform", "band", "curriculum"])
async def test_an_adaptive_sampler_goes_on_as_if_it_had_never_stopped(tmp_path, sampler):
    class Dies(BanditLearner):
        async def update(self, batch):
            if len(self.batches) == 7:
                raise TrainingError("the power went out")
            return await super().update(batch)

    settings = {"sampler": sampler, "steps": 12, "refill_groups": 2}
    _, whole, _ = await train(tmp_path / "whole", **settings)
    with pytest.raises(TrainingError, match="power"):
        await train(tmp_path / "killed", learner=Dies(tmp_path / "killed"), **settings)
    _, resumed, _ = await train(tmp_path / "killed", **settings)
    assert (resumed.logits == whole.logits).all()
    drawn = {}
    for name in ("whole", "killed"):
        with Store.read(tmp_path / name) as store:
            drawn[name] = [(row.task_id, row.consumed_step) for row in store.groups()]
    assert drawn["whole"] == drawn["killed"]


async def test_a_sampler_is_told_each_sample_once(tmp_path):
    told = []

    class Spy(Uniform):
        def seen(self, task_id, rewards):
            told.extend((task_id, reward) for reward in rewards)

    def slow(text, seed):
        return 0.1 if random.Random(seed).random() < 0.1 else 0.001

    env = words()
    tasks = Spy(env.tasks, 0, 100)
    await train(tmp_path, policy=BanditPolicy(slow), env=env, tasks=tasks, mode="async", steps=8)
    with Store.read(tmp_path) as store:
        played = [(t.task_id, t.reward) for t in store.trajectories(purpose="train")]
    assert Counter(told) == Counter(played)


async def test_steps_that_are_not_finite_are_left_out_counted_and_told(tmp_path):
    class Breaks(BanditLearner):
        async def update(self, batch):
            before = self.logits
            metrics = await super().update(batch)
            if len(self.batches) in (2, 3, 4):
                self.logits = before
                metrics = {**metrics, "skipped": 1.0}
            return metrics

    policy = BanditPolicy()
    _, _, metrics = await train(
        tmp_path, policy=policy, learner=Breaks(tmp_path), steps=6, sampler="curriculum"
    )
    assert [metrics[step]["skipped_not_finite"] for step in range(1, 7)] == [0, 1, 1, 1, 0, 0]
    assert policy.updates == [0, 1, 2, 3]
    with Store.read(tmp_path) as store:
        told = [(data["step"], data["name"]) for _, _, data in store.event_rows(WARNING)]
    assert told == [(2, "not_finite"), (4, "unchanged")]
    assert [metrics[step]["warnings"] for step in range(1, 7)] == [0, 1, 0, 1, 0, 0]


def test_sampler_is_a_function_of_the_count():
    source = words(train=10).tasks
    one, other = Uniform(source, 3, 100), Uniform(source, 3, 100)
    order = [one.draw(count).id for count in range(30)]
    assert [other.draw(count).id for count in reversed(range(30))] == order[::-1]
    for turn in range(3):
        assert len(set(order[10 * turn : 10 * turn + 10])) == 10
    assert order[:10] != order[10:20]
    assert len(Uniform(source, 3, 4).tasks) == 4
