"""Faults that users of other asynchronous trainers reported; each must stay impossible here."""

import asyncio
import time

import pytest

from quintain.rollouts import Host
from quintain.store import Store
from quintain.training.bandit import BanditLearner, BanditPolicy
from quintain.training.buffer import Buffer
from quintain.training.config import TrainConfig
from quintain.training.run import run_training
from quintain.trajectory import TRAIN
from quintain.verifiers.function import verifier
from words import words

from .builders import span, trajectory

SMALL = {"groups_per_step": 3, "group_size": 4, "checkpoint_every": 2, "eval_every": 0}


async def train(folder, *, env=None, policy=None, learner=None, host=None, **settings):
    settings = {"steps": 10, "mode": "async", "max_staleness": 2, **SMALL, **settings}
    learner = learner or BanditLearner(folder, work_s=0.02)
    with Store.begin(folder, kind="train", identity={}, resume=True) as store:
        async with Host(env or words(), policy or BanditPolicy(), store=store, **(host or {})) as h:
            trainer = await run_training(TrainConfig(**settings), h, store, learner=learner)
        rows = store.metric_rows()
    return trainer, learner, rows


def oldest(learner, first=0):
    return max(
        int((version - batch.version_BT[batch.loss_mask_BT]).max())
        for version, batch in enumerate(learner.batches, start=first)
    )


async def test_staleness_is_unbounded_after_a_resume_because_counters_begin_at_0(tmp_path):
    """AReaL #1388."""
    running_at_once = []

    class Counting(BanditPolicy):
        running = 0

        async def act(self, *arguments, **call):
            self.running += 1
            running_at_once.append(self.running)
            try:
                await asyncio.sleep(0.005)
                return await super().act(*arguments, **call)
            finally:
                self.running -= 1

    begun = asyncio.create_task(train(tmp_path, policy=Counting()))
    with_store = None
    while with_store is None or not any(row.step >= 4 for row in with_store.checkpoints()):
        await asyncio.sleep(0.05)
        if with_store is None and (tmp_path / "run.sqlite").exists():
            with_store = Store.read(tmp_path)
    begun.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begun
    at = max(row.version for row in with_store.checkpoints())
    with_store.close()
    running_at_once.clear()
    trainer, learner, _ = await train(tmp_path, policy=Counting())
    assert trainer.step == 10
    assert oldest(learner, first=at) <= 2
    assert max(running_at_once) <= 3 * 3 * 4, "no more on their way than pacing allows"


def test_capacity_is_divided_twice_and_nothing_is_ever_admitted():
    """AReaL #1396: with a bound of 1, a group of 2 and one group a step something may start."""
    for per_step in (1, 2, 5):
        for size in (2, 8):
            for bound in (1, 4):
                buffer = Buffer(per_step, size, bound, 0, steps_left=100)
                started = 0
                while buffer.may_start:
                    buffer.start(started)
                    started += 1
                assert started == (bound + 1) * per_step, (per_step, size, bound)


def test_time_in_the_queue_is_not_counted_and_the_bound_is_off_by_one():
    """prime-rl #2674, #1902: what waits ages, and η versions are η, not η + 1."""
    from quintain.training.advantages import estimator
    from quintain.training.batching import Packing, pack

    buffer = Buffer(1, 2, max_staleness=2, refills=0, steps_left=9)
    buffer.start(0)
    buffer.start(1)
    for ticket in (0, 1):
        for place in (0, 1):
            buffer.put(ticket, place, trajectory([span([1], [2, 3], version=0)], reward=place))
    packing = Packing(estimator=estimator("grpo"), max_staleness=2)
    groups, _ = buffer.take()
    assert buffer.full, "a second one waits in the queue"
    for version, masked in ((2, 0.0), (3, 4.0)):
        batch, metrics = pack(groups, packing, version=version)
        assert metrics["tokens_stale"] == masked
        assert (batch is None) == (version == 3)


async def test_handing_weights_over_under_load_blocks_the_rollouts_for_ever(tmp_path):
    """verl #7990: every place is taken, every call in flight, weights come at every step."""

    class Slow(BanditPolicy):
        async def update(self, published):
            await asyncio.sleep(0.02)
            await super().update(published)

    policy = Slow(lambda text, seed: 0.01 + seed % 7 * 0.005)
    async with asyncio.timeout(120):
        trainer, _, _ = await train(tmp_path, policy=policy, max_concurrent_rollouts=2)
    assert policy.updates == list(range(trainer.version + 1))
    assert trainer.step == 10


async def test_a_staleness_of_0_schedules_nothing(tmp_path):
    """TRL #5656: it is the synchronous trainer, to the bit."""
    async with asyncio.timeout(120):
        zero, learner, _ = await train(tmp_path / "zero", mode="auto", max_staleness=0)
        plain, other, _ = await train(tmp_path / "sync", mode="sync", max_staleness=4)
    assert zero.step == plain.step == 10
    assert (learner.logits == other.logits).all()
    assert oldest(learner) == 0


async def test_a_reward_function_that_blocks_freezes_every_rollout(tmp_path):
    """prime-rl #1482: synchronous functions run beside the loop, where they hold up nobody."""
    ticks = 0

    def blocks(text):
        time.sleep(0.05)
        return text == "cat"

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    trainer, _, rows = await train(tmp_path, env=words(blocks), steps=4)
    ticking.cancel()
    rollouts = sum(value for _, name, value in rows if name == "trajectories")
    assert trainer.step == 4
    # One after the other they block for `rollouts` × 0.05 s, in which the loop would tick no more.
    assert ticks > 10
    assert rollouts >= 48


async def test_a_reward_function_in_an_endless_loop_is_not_stopped_by_a_timeout(tmp_path):
    """verl #288: the wait for it ends, the sample has no reward, training goes on."""
    calls = []

    def loops(text):
        calls.append(text)
        if len(calls) == 3:
            end = time.monotonic() + 12
            while time.monotonic() < end:  # beyond the deadline here, and for ever in earnest
                sum(range(1000))
        return text == "cat"

    async with asyncio.timeout(120):
        trainer, _, _ = await train(
            tmp_path,
            env=words(verifier(loops, in_process=True)),
            steps=3,
            max_fault_share=1.0,
            host={"judge_s": 4.0, "retries": 0},
        )
    assert trainer.step == 3
    with Store.read(tmp_path) as store:
        faults = [t.error.type for t in store.trajectories(purpose=TRAIN) if t.error]
    assert faults == ["VerifierError"]


async def test_a_verifier_that_hangs_holds_its_place_for_ever(tmp_path):
    """What can't be trained any more is cancelled, counted by duration, and blocks nobody."""

    async def hangs(task, trajectory):
        if task.id == "train3" and trajectory.sample_index == 0:
            await asyncio.sleep(3600)
        return trajectory.sample_index % 2 == 0

    async with asyncio.timeout(120):
        trainer, _, rows = await train(
            tmp_path, env=words(hangs), steps=20, host={"judge_s": 3600.0}, max_staleness=1
        )
    assert trainer.step == 20
    assert sum(value for _, name, value in rows if name == "cancelled") == 1
    assert sum(v for _, name, v in rows if name.startswith("cancelled_by_duration/")) == 1
    with Store.read(tmp_path) as store:
        left = [group for group in store.groups() if group.consumed_step is None]
        assert len(left) <= 1, "the group that was started in place of the cancelled sample"
        assert all(group.task_id != "train3" for group in left)
        missing = [
            (group.task_id, index)
            for group in store.groups()
            for index in group.sample_indexes
            if not any(row.key.sample_index == index for row in store.rows(task_id=group.task_id))
        ]
    assert missing == [("train3", 0)]
