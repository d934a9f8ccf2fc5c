import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from quintain.errors import ConfigError, ContextOverflow, PolicyError
from quintain.messages import Sampling, assistant, user
from quintain.policies.local import Local, ModelSpec
from quintain.policies.local.logprobs import token_logprobs
from quintain.policies.local.model import load_model
from quintain.protocols import Policy, Published

from .conftest import CALC, stir

SPEC = ModelSpec("tiny", dtype="float32", threads=1, lora=4, max_context=300)


@pytest.fixture(scope="module")
def policy():
    """One process for the tests of this file that leave its weights alone."""
    found = Local(SPEC, max_tokens=9)
    yield found
    asyncio.run(found.close())


def row(actions):
    """Ids, behaviour log-probabilities and sampled places of a session's actions."""
    ids, logprobs, own = [], [], []
    for action in actions:
        for span in action.tokens:
            ids += [*span.prompt_delta_ids, *span.token_ids]
            logprobs += [0.0] * len(span.prompt_delta_ids) + list(span.logprobs)
            own += [False] * len(span.prompt_delta_ids) + [True] * len(span.token_ids)
    return torch.tensor([ids]), torch.tensor([logprobs]), torch.tensor([own])


async def play(policy, session, turns=3, sampling=None, seed=0):
    messages, actions = [user(f"Hello {session}")], []
    for turn in range(turns):
        action = await policy.act(
            messages,
            tools=[CALC],
            sampling=sampling or Sampling(),
            seed=seed + turn,
            session=session,
        )
        actions.append(action)
        messages += [action.message, user(f"Go on {turn}")]
    return messages, actions


async def test_it_is_a_policy_and_torch_stays_in_its_own_process(policy):
    assert isinstance(policy, Policy)
    action = await policy.act(
        [user("Hi")], tools=[], sampling=Sampling(max_tokens=3), seed=1, session="first"
    )
    (span,) = action.tokens
    assert len(span.token_ids) == len(span.logprobs) == action.usage.completion_tokens <= 3
    assert span.policy_version == 0
    assert not span.restart
    assert action.usage.prompt_tokens == len(span.prompt_delta_ids)


async def test_a_sessions_tokens_are_one_row_that_the_learner_agrees_with(policy):
    learner = load_model(SPEC)
    played = await asyncio.gather(*(play(policy, f"agree {n}", seed=10 * n) for n in range(5)))
    for messages, actions in played:
        assert not any(span.restart for action in actions for span in action.tokens)
        ids, logprobs, own = row(actions)
        with torch.no_grad():
            found = token_logprobs(
                learner.module, ids, torch.ones_like(own), temperature=1.0, where_BT=own
            )
        torch.testing.assert_close(found, logprobs, atol=1e-4, rtol=0)
        spoken = learner.template.decode(ids[0].tolist())
        said = "".join(message.text for message in messages)
        if "<|" not in said:
            assert learner.template.render(messages[:-1], generate=False).startswith(spoken)


async def test_turns_cut_by_length_are_closed_by_the_template(policy):
    _, actions = await play(policy, "cut", turns=2, sampling=Sampling(max_tokens=1))
    end = load_model(SPEC).template.encode("<|end|>")[0]
    first, second = (action.tokens[0] for action in actions)
    assert actions[0].finish == ("stop" if first.token_ids[-1] == end else "length")
    if actions[0].finish == "length":
        assert second.prompt_delta_ids[0] == end


async def test_sampled_text_is_never_encoded_again(policy):
    """Bytes that are no UTF-8, as an untrained model says them, survive as the ids they were."""
    messages, actions = await play(policy, "bytes", turns=4, sampling=Sampling(max_tokens=30))
    assert any("�" in message.text for message in messages)
    assert not any(span.restart for action in actions for span in action.tokens)


async def test_threads_can_change_while_it_samples(policy):
    playing = asyncio.create_task(play(policy, "threads", turns=4, seed=3))
    await policy.use_threads(2)
    await policy.use_threads(None)
    _, actions = await playing
    ids, logprobs, own = row(actions)
    model = load_model(SPEC)
    with torch.no_grad():
        again, _ = token_logprobs(
            model.module, ids, torch.ones_like(ids, dtype=torch.bool), temperature=1.0,
            with_entropy=True,
        )  # fmt: skip
    assert (again - logprobs)[own].abs().max() < 1e-4


async def test_an_edited_history_begins_a_new_row(policy):
    messages, _ = await play(policy, "edited", turns=1)
    messages[1] = assistant("something else")
    action = await policy.act(messages, tools=[], sampling=Sampling(), seed=5, session="edited")
    (span,) = action.tokens
    assert span.restart
    template = load_model(SPEC).template
    assert list(span.prompt_delta_ids) == template.prompt_ids(messages)


async def test_equal_seeds_give_equal_samples(policy):
    async def sample(seed, session):
        action = await policy.act(
            [user("Same")], tools=[], sampling=Sampling(), seed=seed, session=session
        )
        return action.tokens[0].token_ids

    assert await sample(4, "a") == await sample(4, "b")
    assert await sample(4, "c") != await sample(5, "d")


async def test_a_conversation_that_does_not_fit_is_a_limit(policy):
    with pytest.raises(ContextOverflow, match="max_context"):
        await policy.act([user("é" * 200)], tools=[], sampling=Sampling(), seed=0, session="long")
    action = await policy.act(
        [user("é" * 147)], tools=[], sampling=Sampling(max_tokens=50), seed=0, session="nearly"
    )
    assert action.usage.completion_tokens <= 300 - action.usage.prompt_tokens


async def test_a_cancelled_call_leaves_the_engine_to_the_others(policy):
    slow = asyncio.create_task(
        policy.act([user("x")], tools=[], sampling=Sampling(max_tokens=250), seed=0, session="slow")
    )
    await asyncio.sleep(0.05)
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    before = (await policy.counters())["sampled_tokens"]
    await play(policy, "after", turns=1)
    assert (await policy.counters())["sampled_tokens"] - before <= 9


def test_it_works_from_one_event_loop_after_the_other(policy):
    first = asyncio.run(play(policy, "loops", turns=1, seed=3))
    second = asyncio.run(play(policy, "other loop", turns=1, seed=3))
    assert len(first[1]) == len(second[1]) == 1


async def test_lockstep_gives_equal_bits_whatever_arrives_first(policy):
    names = [f"lock {n}" for n in range(5)]

    async def one(name, delay, lockstep):
        await asyncio.sleep(delay)
        played = await play(policy, name, turns=2 + int(name[-1]) % 2, seed=int(name[-1]))
        lockstep.done(name)
        return [action.tokens for action in played[1]]

    runs = []
    for order in (range(5), range(5, 0, -1)):
        async with policy.lockstep(names) as lockstep:
            delays = [0.02 * place for place in order]
            runs.append(
                await asyncio.gather(
                    *(one(name, delay, lockstep) for name, delay in zip(names, delays, strict=True))
                )
            )
            assert lockstep.waves == 3
    clean = [
        [tuple((s.token_ids, s.logprobs) for s in spans) for session in run for spans in session]
        for run in runs
    ]
    assert clean[0] == clean[1]


async def test_weights_are_swapped_in_flight_and_proven(tmp_path):
    policy = Local(SPEC)
    learner = load_model(SPEC)
    try:
        await policy.start()
        calls = [
            asyncio.create_task(
                policy.act(
                    [user(f"n {n}")],
                    tools=[],
                    sampling=Sampling(max_tokens=200, top_k=40),
                    seed=n,
                    session=f"f {n}",
                )
            )
            for n in range(4)
        ]
        while (await policy.counters())["sampled_tokens"] < 20:
            await asyncio.sleep(0.01)
        stir(learner, 2)
        path = tmp_path / "1.safetensors"
        published = Published(1, path, learner.save(path))
        await policy.update(published)
        assert policy.version == 1
        assert policy.canary["hash"] == published.hash
        assert policy.canary["gap"] < 1e-4
        for action in await asyncio.gather(*calls):
            assert [span.policy_version for span in action.tokens] in ([0, 1], [0])
        missing = Published(2, tmp_path / "none", "x")
        with pytest.raises(PolicyError, match="cannot read"):
            await policy.update(missing)
        wrong = Published(2, path, "not its hash")
        with pytest.raises(PolicyError, match="not its hash"):
            await policy.update(wrong)
        assert policy.version == 1
        _, actions = await play(policy, "after", turns=1)
        assert [span.policy_version for span in actions[0].tokens] == [1]
    finally:
        await policy.close()


async def test_a_dead_engine_fails_what_is_in_flight_and_comes_back_with_its_weights(tmp_path):
    policy = Local(SPEC)
    learner = load_model(SPEC)
    stir(learner, 2)
    path = tmp_path / "7.safetensors"
    await policy.update(Published(7, path, learner.save(path)))
    try:
        await policy.start()
        old = policy._engine.pid
        call = asyncio.create_task(
            policy.act(
                [user("x")], tools=[], sampling=Sampling(max_tokens=280), seed=0, session="x"
            )
        )
        await asyncio.sleep(0.1)
        os.kill(old, signal.SIGKILL)
        with pytest.raises(PolicyError, match="signal 9"):
            await call
        messages, actions = await play(policy, "x", sampling=Sampling(max_tokens=20))
        assert policy._engine.pid != old
        ids, logprobs, own = row(actions)
        with torch.no_grad():
            found = token_logprobs(
                learner.module, ids, torch.ones_like(own), temperature=1.0, where_BT=own
            )
        torch.testing.assert_close(found, logprobs, atol=1e-4, rtol=0)
        assert {span.policy_version for a in actions for span in a.tokens} == {7}
        assert len(messages) == 7
    finally:
        await policy.close()


async def test_a_model_that_cannot_be_loaded_is_a_clear_error(tmp_path):
    policy = Local(ModelSpec(str(tmp_path)))
    with pytest.raises(ConfigError, match="is no model"):
        await play(policy, "x", turns=1)


OWNER = """
import asyncio, time
from quintain.messages import Sampling, user
from quintain.policies.local import tiny

async def main():
    policy = tiny(threads=1)
    await policy.start()
    print(policy._engine.pid, flush=True)
    await policy.act([user("x")], tools=[], sampling=Sampling(max_tokens=2000), seed=0, session="x")
    time.sleep(60)

asyncio.run(main())
"""


def test_the_engine_ends_with_an_owner_that_is_killed():
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    engine = int(owner.stdout.readline())
    assert Path(f"/proc/{engine}").exists()
    owner.kill()
    owner.communicate()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{engine}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{engine}").exists()
