"""Faults that users of other trainers reported, of tokens and updates; each must stay impossible.

Those of the asynchronous loop are in `test_peers_faults_async.py`.
"""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra 'train' (torch)")

from quintain.envs.environment import Environment  # noqa: E402
from quintain.errors import PolicyError  # noqa: E402
from quintain.messages import Sampling, user  # noqa: E402
from quintain.policies.local import tiny  # noqa: E402
from quintain.policies.local.model import load_model  # noqa: E402
from quintain.policies.local.spec import ModelSpec  # noqa: E402
from quintain.protocols import Published  # noqa: E402
from quintain.rollouts import Host  # noqa: E402
from quintain.store import Store  # noqa: E402
from quintain.training.advantages import dr_grpo  # noqa: E402
from quintain.training.bandit import BanditLearner, BanditPolicy  # noqa: E402
from quintain.training.batching import Packing, pack  # noqa: E402
from quintain.training.config import LearnerOptions, TrainConfig  # noqa: E402
from quintain.training.groups import Group, rows  # noqa: E402
from quintain.training.guards import Watch  # noqa: E402
from quintain.training.learner import LocalLearner  # noqa: E402
from quintain.training.packing import lay_out, plan  # noqa: E402
from quintain.training.run import run_training  # noqa: E402
from quintain.trajectory import Observation  # noqa: E402
from words import words  # noqa: E402

from .builders import group, span, trajectory  # noqa: E402

SPEC = ModelSpec("tiny", dtype="float32")
PACKING = Packing(estimator=dr_grpo)


class Chatter:
    """Three turns, with a user who answers whatever the policy says."""

    tools = ()

    def __init__(self, task, world, sandbox, seed):
        self.opening = task.prompt
        self.turns = 0

    async def reset(self):
        return Observation(messages=self.opening)

    async def respond(self, action):
        self.turns += 1
        if self.turns == 3:
            return Observation(terminated=True)
        return Observation(messages=(user("go on, with the next 12 of them"),))

    async def close(self):
        pass


async def letter(text):
    return text[:1].isalpha()


async def run(folder, policy, **settings):
    environment = Environment(
        [{"id": f"t{i}", "prompt": f"say {i}", "split": "train"} for i in range(8)],
        letter,
        name="chatter",
        episode=Chatter,
        sampling=Sampling(max_tokens=5, temperature=0.9, top_p=0.95),
    )
    config = TrainConfig(
        **{"mode": "sync", "groups_per_step": 4, "group_size": 4, "learner_threads": 1, **settings}
    )
    with Store.begin(folder, kind="train", identity={}) as store:
        async with Host(environment, policy, store=store) as host:
            await run_training(config, host, store)
        steps = {}
        for step, name, value in store.metric_rows():
            steps.setdefault(step, {})[name] = value
        return steps, list(store.trajectories(purpose="train"))


async def test_a_turn_is_tokenised_again_and_the_tokens_trained_are_not_those_sampled(tmp_path):
    """TRL #5224."""
    policy = tiny(threads=1)
    try:
        steps, played = await run(tmp_path, policy, steps=1, min_signal=0.0, refill_groups=0)
    finally:
        await policy.close()
    template = load_model(SPEC).template
    assert len(played) == 16
    differs = 0
    for one in played:
        (row,) = rows(one)  # three turns, one uninterrupted row
        spans = [s for step in one.steps for s in step.action.tokens]
        assert len(spans) == 3
        sampled = [token for each in spans for token in each.token_ids]
        assert [t for t, mine in zip(row.token_ids, row.sampled, strict=True) if mine] == sampled
        # What the user said is in the row and carries no loss.
        said = template.encode("go on, with the next 12 of them")
        text = ",".join(map(str, row.token_ids))
        assert text.count(",".join(map(str, said))) == 2
        for each in spans:
            differs += template.encode(template.decode(each.token_ids)) != list(each.token_ids)
    # The noise of an untrained model seldom survives decoding and encoding: a trainer that did so
    # would train other tokens. Here the learner finds the very numbers of the sampler.
    assert differs > 0
    if "logprob_gap_max" in steps[1]:
        assert steps[1]["logprob_gap_max"] < 1e-4


async def test_adapters_are_trained_and_never_reach_the_sampler(tmp_path):
    """verl #7495."""
    policy = tiny(threads=1, lora=4)
    try:
        steps, _ = await run(tmp_path, policy, steps=3, lr=0.02, min_signal=0.0)
    finally:
        await policy.close()
    learned = [row for row in steps.values() if "loss" in row]
    assert len(learned) >= 2
    # Every step's tokens are sampled by the weights of the step before: were they the first ones,
    # the learner would disagree about all of them.
    assert all(row["logprob_gap_max"] < 1e-4 for row in learned)
    assert max(row["grad_norm"] for row in learned) > 0


async def test_a_sampler_that_keeps_old_weights_is_found_at_once(tmp_path):
    """verl #7495: it looked like staleness for a whole run."""
    spec = ModelSpec("tiny", dtype="float32", lora=4, threads=1)
    one = LocalLearner(spec, LearnerOptions(lr=0.05, threads=1), tmp_path / "w")
    policy = tiny(threads=1, lora=4)
    try:
        first = one.current()
        await policy.start()
        await policy.update(first)
        with torch.no_grad():
            for parameter in one.parameters.values():
                parameter.add_(0.05)
        second = one.publish()
        # Another file is delivered than the one that was announced.
        with pytest.raises(PolicyError, match="published as"):
            await policy.update(Published(second.version, first.path, second.hash))
        await policy.update(second)
        assert policy.version == second.version
    finally:
        await policy.close()
    # And where nothing proves it, disagreement about fresh tokens is told.
    fresh = {"grad_norm": 1.0, "ess": 0.9, "staleness_max": 0.0, "logprob_gap_mean": 0.5}
    assert [warned.name for warned in Watch().see(fresh)] == ["mismatch"]


def test_one_cancelled_rollout_takes_its_whole_group_with_it():
    """prime-rl #2960."""
    members = [trajectory([span([1], [10 + i])], reward=float(i % 2)) for i in range(4)]
    whole, _ = pack([group(*members)], PACKING, version=0)
    cancelled = (None, *members[1:])
    batch, metrics = pack([Group(0, cancelled)], PACKING, version=0)
    assert metrics["trajectories"] == 3
    assert sorted(batch.token_ids_BT[batch.loss_mask_BT].tolist()) == [11, 12, 13]
    # The baseline is that of those that are known: 2 of 3 passed.
    assert np.allclose(batch.advantages_BT[batch.loss_mask_BT], [1 / 3, -2 / 3, 1 / 3])
    # A member that was trained before, or is too old now, keeps its place in the baseline.
    later = Group(0, tuple(members), chosen=(True, False, False, False))
    batch, _ = pack([later], PACKING, version=0)
    assert batch.token_ids_BT[batch.loss_mask_BT].tolist() == [10]
    assert np.allclose(batch.advantages_BT[batch.loss_mask_BT], -0.5)
    assert whole.denominator == 4


def test_packed_rows_see_each_other_and_lose_the_border(tmp_path):
    """open-instruct #1642: attention and loss across the borders of packed documents."""
    random = np.random.default_rng(2)

    prompt = random.integers(0, 250, 12).tolist()
    members = [
        trajectory(
            [span(prompt, random.integers(0, 250, 3).tolist())],
            [span([7], random.integers(0, 250, 2).tolist())],
            reward=float(member % 2),
        )
        for member in range(4)
    ]
    batch, _ = pack([group(*members)], PACKING, version=0)
    one = LocalLearner(SPEC, LearnerOptions(threads=1, micro_tokens=500), tmp_path / "w")
    ((packed,),) = plan(batch, 500)
    assert len(packed.rows) == 4
    layout = lay_out(batch, [packed])
    # The first token after a border is predicted by the prompt's end, not by the row before it.
    starts = [12 + 6 * row for row in range(4)]
    assert layout.source_PL[0, starts].tolist() == [11] * 4
    before = one.logprobs(batch)
    # Whatever stands in one row changes nothing in the others, to the last bit.
    changed = batch.token_ids_BT.copy()
    changed[0, 12:] = (changed[0, 12:] + 5) % 250
    after = one.logprobs(replace(batch, token_ids_BT=changed))
    assert (after[1:] == before[1:]).all()
    assert (after[0] != before[0])[batch.loss_mask_BT[0]].all()
    narrow = LearnerOptions(threads=1, micro_tokens=20)
    alone = LocalLearner(SPEC, narrow, tmp_path / "v").logprobs(batch)
    assert np.abs(alone - before).max() < 1e-5


async def test_reward_loss_and_gradient_are_0_and_nobody_says_so(tmp_path):
    """verl #5211."""

    async def never(text):
        return False

    config = TrainConfig(steps=4, mode="sync", groups_per_step=2, group_size=4)
    with Store.begin(tmp_path, kind="train", identity={}) as store:
        learner = BanditLearner(tmp_path)
        async with Host(words(never), BanditPolicy(), store=store) as host:
            await run_training(config, host, store, learner=learner)
        told = [data["name"] for _, _, data in store.event_rows("training.warning")]
        skipped = [value for _, name, value in store.metric_rows() if name == "skipped_quiet"]
    assert told == ["equal_groups", "unchanged"]
    assert skipped == [1.0] * 4
    assert learner.batches == []  # an optimiser step of nothing but momentum is not taken


def test_a_gradient_of_exactly_0_is_told(tmp_path):
    """verl #5211: a real update whose parts cancel."""
    members = [trajectory([span([1, 2], [5])], reward=float(i % 2)) for i in range(2)]
    batch, metrics = pack([group(*members)], PACKING, version=0)
    batch.advantages_BT[:] = 0.0
    one = LocalLearner(SPEC, LearnerOptions(threads=1), tmp_path / "w")
    metrics.update(one.update(batch))
    assert metrics["grad_norm"] == 0.0
    assert "no_gradient" in [warned.name for warned in Watch().see(metrics)]
