"""Groups that are judged together: when, with whom, and what happens when a member is lost."""

import asyncio

import pytest

import quintain as q
from quintain.errors import PolicyError, VerifierError
from quintain.rollouts.host import Host
from quintain.rollouts.schedule import rollout_group
from quintain.store import Store
from quintain.verdict import Outcome, Verdict


class Longest:
    """Rewards the longest text of the group; alone it abstains."""

    name, kind = "longest", "heuristic"

    def __init__(self, failures=0):
        self.groups, self.failures = [], failures

    async def judge(self, context):
        return Verdict.abstain("alone").signed(self.name, self.kind)

    async def judge_group(self, contexts):
        self.groups.append([context.trajectory.text for context in contexts])
        if self.failures:
            self.failures -= 1
            raise RuntimeError("not today")
        longest = max(len(context.trajectory.text) for context in contexts)
        return [
            Verdict.of(len(context.trajectory.text) == longest).signed(self.name, self.kind)
            for context in contexts
        ]


def environment(verifier):
    return q.Environment([{"id": "t", "prompt": "Say much.", "split": "train"}], verifier)


def growing(messages, tools, seed):
    return "x" * (1 + seed % 50)


async def play(verifier, policy, indexes=(0, 1, 2, 3), *, slots=None, **host):
    env = environment(verifier)
    settings = {"retries": 1, "backoff_s": 0.01, **host}
    async with Host(env, policy, **settings) as surroundings:
        return await rollout_group(env.tasks.get("t"), indexes, surroundings, slots=slots)


async def test_the_group_is_judged_at_once():
    verifier = Longest()
    group = await play(verifier, q.scripted(growing))
    lengths = [len(trajectory.text) for trajectory in group]
    assert verifier.groups == [[trajectory.text for trajectory in group]]
    assert [t.reward for t in group] == [float(n == max(lengths)) for n in lengths]


async def test_fewer_slots_than_members():
    """A member that waits gives its place back: nobody is left waiting for a place."""
    verifier = Longest()
    slots = asyncio.Semaphore(1)
    async with asyncio.timeout(30):
        groups = await asyncio.gather(
            *(play(verifier, q.scripted(growing), slots=slots) for _ in range(3))
        )
    assert [len(group) for group in verifier.groups] == [4, 4, 4]
    assert all(t.outcome in (Outcome.SOLVED, Outcome.FAILED) for group in groups for t in group)
    assert slots._value == 1


async def test_a_member_that_is_lost_is_not_waited_for():
    calls = []

    def fails_once(messages, tools, seed):
        calls.append(seed)
        if len(calls) == 2:
            raise PolicyError("gone")
        return growing(messages, tools, seed)

    verifier = Longest()
    group = await play(verifier, q.scripted(fails_once), retries=0)
    outcomes = [trajectory.outcome for trajectory in group]
    assert outcomes.count(Outcome.POLICY_ERROR) == 1
    assert [len(group) for group in verifier.groups] == [3]


async def test_a_group_that_could_not_be_judged_is_played_again():
    verifier = Longest(failures=1)
    group = await play(verifier, q.scripted(growing))
    assert [len(group) for group in verifier.groups] == [4, 4]
    assert [trajectory.attempt for trajectory in group] == [1, 1, 1, 1]
    assert sum(trajectory.reward for trajectory in group) >= 1
    group = await play(Longest(failures=9), q.scripted(growing))
    assert [trajectory.outcome for trajectory in group] == [Outcome.VERIFIER_ERROR] * 4
    assert group[0].error.type == VerifierError.__name__


async def test_members_of_the_store_are_compared_with_and_keep_their_verdict(tmp_path):
    async def run(indexes):
        verifier = Longest()
        store = Store.begin(tmp_path / "run", kind="train", identity={}, resume=True)
        try:
            group = await play(verifier, q.scripted(growing), indexes, store=store)
        finally:
            store.close()
        return verifier.groups, {t.sample_index: t.reward for t in group}

    first_groups, first = await run((0, 1))
    second_groups, second = await run((0, 1, 2, 3))
    assert [len(group) for group in (*first_groups, *second_groups)] == [2, 4]
    assert {index: second[index] for index in first} == first


async def test_a_rollout_alone_is_judged_alone():
    env = environment(Longest())
    trajectory = await q.arollout(env, q.scripted("x"))
    assert trajectory.outcome is Outcome.ABSTAINED


async def test_one_that_waits_too_long_fails():
    async def slow(messages, tools, seed):
        await asyncio.sleep(0.02 if seed % 2 else 3)
        return "x"

    group = await play(Longest(), q.scripted(slow), range(6), gather_s=0.2, retries=0)
    late = [t for t in group if t.outcome is Outcome.VERIFIER_ERROR]
    assert late
    assert all("was not judged within" in t.error.message for t in late)
    assert any(t.outcome is not Outcome.VERIFIER_ERROR for t in group)


async def test_cancelling_leaves_nothing():
    class Never(Longest):
        async def judge_group(self, contexts):
            await asyncio.sleep(3600)

    before = asyncio.all_tasks()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await play(Never(), q.scripted(growing))
    assert asyncio.all_tasks() == before
