"""Replays repeat what was stored and notice where the world answers otherwise."""

from __future__ import annotations

import pytest

import quintain as q
from quintain.errors import ConfigError, PolicyError
from quintain.messages import (
    Sampling,
    TextPart,
    ToolCall,
    ToolResult,
    assistant,
    tool_results,
    user,
)
from quintain.policies.replay import Replay
from quintain.trajectory import Action, Observation, Step, StopReason, Trajectory


def answered(text):
    return tool_results(ToolResult(call_id="c", name="f", content=(TextPart(text=text),)))


def stored(task="t", prompt="2+3?", result="5", sample=0):
    return Trajectory(
        environment="e",
        task_id=task,
        policy="p",
        purpose="eval",
        sample_index=sample,
        opening=Observation(messages=(user(prompt),)),
        steps=(
            Step(
                action=Action(message=assistant("", ToolCall(id="c", name="f"))),
                observation=Observation(messages=(answered(result),)),
            ),
            Step(
                action=Action(message=assistant(f"It is {result} ({sample}).")),
                observation=Observation(terminated=True),
            ),
        ),
        stop=StopReason.DONE,
    )


async def play(policy, prompt, result, session="s"):
    """Two turns in a world that answers the call with `result`."""
    messages = [user(prompt)]
    for _ in range(2):
        action = await policy.act(messages, tools=(), sampling=Sampling(), seed=0, session=session)
        messages += [action.message, answered(result)]
    return messages


async def test_the_same_world_gives_the_same_trajectory():
    policy = Replay(stored())
    messages = await play(policy, "2+3?", "5")
    assert tuple(messages[:-1]) == stored().messages
    assert policy.divergence is None
    with pytest.raises(PolicyError, match="has 2 steps and the episode asks for one more"):
        await policy.act(messages, tools=(), sampling=Sampling(), seed=0, session="s")


async def test_the_first_difference_is_named(caplog):
    policy = Replay(stored())
    await play(policy, "2+3?", "6")
    found = policy.divergence
    assert (found.task_id, found.step, found.index) == ("t", 1, 2)
    assert str(found) == "task 't', step 1, message 2: expected tool '5', got tool '6'"
    assert "replay diverges" in caplog.text
    strict = Replay(stored(), strict=True)
    with pytest.raises(PolicyError, match="expected tool '5', got tool '6'") as caught:
        await play(strict, "2+3?", "6")
    assert not caught.value.retryable


async def test_another_opening_diverges_at_once():
    policy = Replay(stored())
    await play(policy, "2+4?", "5")
    assert (policy.divergence.step, policy.divergence.index) == (0, 0)
    missing = Replay(stored())
    await missing.act([], tools=(), sampling=Sampling(), seed=0, session="s")
    assert missing.divergence.got is None


async def test_a_whole_run_finds_its_trajectory_by_the_opening():
    run = [stored("a", "1+1?", "2"), stored("b", "2+2?", "4", 0), stored("b", "2+2?", "4", 1)]
    policy = Replay(run)
    assert (await play(policy, "2+2?", "4", "s1"))[3].text == "It is 4 (0)."
    assert (await play(policy, "1+1?", "2", "s2"))[3].text == "It is 2 (0)."
    assert (await play(policy, "2+2?", "4", "s3"))[3].text == "It is 4 (1)."
    with pytest.raises(PolicyError, match="2 of 3 stored trajectories open with these messages"):
        await play(policy, "2+2?", "4", "s4")
    assert not policy.divergences


async def test_a_stored_rollout_is_replayed_in_its_environment():
    """As debugging does it: a real environment, the stored actions, the same verdict."""
    answers = {"value": "5"}

    async def look(place: str) -> str:
        """Looks somewhere."""
        return f"{place}: {answers['value']}"

    async def right(text, answer):
        return text == answer

    env = q.Environment(
        [{"id": "t", "prompt": "What is there?", "answer": "5", "split": "eval"}],
        right,
        name="looking",
        tools=[look],
    )
    call = assistant("", ToolCall(id="c", name="look", arguments={"place": "here"}))
    played = await q.arollout(env, q.scripted([call, "5"]))
    assert played.outcome == "solved"
    policy = Replay(played)
    again = await q.arollout(env, policy)
    assert again.messages == played.messages
    assert (again.outcome, policy.divergence) == ("solved", None)
    answers["value"] = "6"
    policy = Replay(played)
    changed = await q.arollout(env, policy)
    assert changed.outcome == "solved"  # the stored action, whatever the world says now
    assert "expected tool 'here: 5', got tool 'here: 6'" in str(policy.divergence)
    strict = await q.arollout(env, Replay(played, strict=True), retries=0)
    assert strict.outcome == "policy_error"


async def test_nothing_to_replay_and_close_twice():
    with pytest.raises(ConfigError, match="no trajectory"):
        Replay([])
    policy = Replay(stored())
    await play(policy, "2+3?", "5")
    await policy.close()
    await policy.close()
    await play(policy, "2+3?", "5")
