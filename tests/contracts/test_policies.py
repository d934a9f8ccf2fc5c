"""Every shipped policy keeps the contract, and the suite notices one that does not."""

from __future__ import annotations

import pytest

from openai_server import OpenAIServer
from quintain.messages import Sampling, ToolCall, assistant, user
from quintain.policies.chat import Chat
from quintain.policies.replay import Replay
from quintain.policies.scripted import Scripted
from quintain.testing import check_policy
from quintain.trajectory import Action, Observation, Step, StopReason, TokenSpan, Trajectory, Usage


async def test_scripted():
    await check_policy(Scripted("yes"), deterministic=True)
    await check_policy(Scripted(["one", assistant("", ToolCall(id="c", name="f"))]))
    await check_policy(
        Scripted(lambda messages, tools, seed: f"{len(messages)} {seed}", tokens=True),
        deterministic=True,
        sampling=Sampling(),
    )


async def test_chat():
    async with OpenAIServer("yes") as server:
        await check_policy(Chat("m", server.base_url), deterministic=True)


async def test_replay():
    opening = user("Say one word.")
    steps = tuple(
        Step(
            action=Action(message=assistant(word), usage=Usage(calls=1)),
            observation=Observation(messages=(user("Another one."),)),
        )
        for word in ("yes", "no")
    )
    run = [
        Trajectory(environment="e", task_id="t", policy="p", purpose="eval", sample_index=i,
                   opening=Observation(messages=(opening,)), steps=steps, stop=StopReason.DONE)
        for i in range(3)
    ]  # fmt: skip
    policy = Replay(run)
    await check_policy(policy, deterministic=True)
    assert policy.divergence is None


class Wrong(Scripted):
    """A policy that breaks one promise."""

    def __init__(self, wrong):
        super().__init__("x")
        self.wrong = wrong
        self.count = 0

    async def act(self, messages, *, tools, sampling, seed, session):
        self.count += 1
        return self.wrong(self.count, messages)

    async def close(self):
        pass


def said(text="x", *calls, **more):
    return Action(message=assistant(text, *calls), **{"usage": Usage(calls=1), **more})


def span(**more):
    return TokenSpan(
        **{"prompt_delta_ids": (1,), "token_ids": (2,), "logprobs": (-0.1,), "policy_version": 0,
           **more}
    )  # fmt: skip


COUNTED = Usage(calls=1, completion_tokens=1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda n, m: m.append(user("more")) or said(), "act changed the messages"),
        (lambda n, m: "text", "act returns an Action"),
        (lambda n, m: Action(message=user("x")), "message is the assistant's"),
        (
            lambda n, m: said("", ToolCall(id="c", name="f"), ToolCall(id="c", name="g")),
            "ids of tool calls differ",
        ),
        (lambda n, m: said("", ToolCall(id="", name="f")), "every tool call has an id"),
        (lambda n, m: Action(message=assistant("x")), "counts its call"),
        (lambda n, m: said(str(n)), "equal seeds gave other answers"),
        (lambda n, m: said(tokens=(span(logprobs=(0.5,)),), usage=COUNTED), "at most 0"),
        (
            lambda n, m: said(tokens=(span(prompt_delta_ids=()),), usage=COUNTED),
            "brings its prompt",
        ),
        (lambda n, m: said(tokens=(span(restart=True),), usage=COUNTED), "is no restart"),
        (lambda n, m: said(tokens=(span(),)), "usage counts 0"),
    ],
)
async def test_the_suite_notices(wrong, message):
    with pytest.raises(AssertionError, match=message):
        await check_policy(Wrong(wrong), deterministic=True)
