"""`check_policy`: what every policy must do."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from quintain.messages import (
    Message,
    Sampling,
    TextPart,
    ToolResult,
    ToolSpec,
    tool_results,
    user,
)
from quintain.protocols import Policy
from quintain.trajectory import Action


async def check_policy(
    policy: Policy,
    *,
    messages: Sequence[Message] | None = None,
    tools: Sequence[ToolSpec] = (),
    sampling: Sampling | None = None,
    deterministic: bool = False,
    calls: int = 2,
) -> None:
    """Checks a policy: it is closed at the end.

    It acts in two sessions at once; answers with an assistant message that has no tool results and
    distinct call ids; leaves its input alone; counts its calls; reports tokens that are finite,
    versioned and, over the turns of a session, a continuation; and may be closed twice.

    Args:
        policy: to be checked.
        messages: a conversation that it can answer; None: a short question.
        tools: offered to it.
        sampling: how to sample.
        deterministic: whether it promises equal answers for equal seeds.
        calls: turns in each session.
    """
    assert policy.name, "a policy has a name"
    assert policy.version >= 0, f"a policy's version is at least 0, got {policy.version}"
    opening = tuple(messages or (user("Say one word."),))
    sampling = sampling or Sampling(max_tokens=32)
    turns = [_policy_session(policy, opening, tools, sampling, f"check-{i}", calls) for i in (0, 1)]
    first, _ = await asyncio.gather(*turns)
    if deterministic:
        again = await _policy_session(policy, opening, tools, sampling, "check-2", calls)
        assert first == again, f"equal seeds gave other answers: {first} and {again}"
    close = getattr(policy, "close", None)
    if close is not None:
        await close()
        await close()


async def _policy_session(
    policy: Policy,
    opening: tuple[Message, ...],
    tools: Sequence[ToolSpec],
    sampling: Sampling,
    session: str,
    calls: int,
) -> list[Message]:
    """Plays some turns; returns what the policy said."""
    talk = list(opening)
    offered = list(tools)
    said: list[Message] = []
    for turn in range(calls):
        before = (tuple(talk), tuple(offered))
        action = await policy.act(
            talk, tools=offered, sampling=sampling, seed=1000 + turn, session=session
        )
        assert (tuple(talk), tuple(offered)) == before, "act changed the messages or the tools"
        assert isinstance(action, Action), f"act returns an Action, got {type(action).__name__}"
        message = action.message
        assert message.role == "assistant", f"an action's message is the assistant's, got {message}"
        assert not message.tool_results, "an assistant message holds no tool results"
        ids = [call.id for call in message.tool_calls]
        assert len(ids) == len(set(ids)), f"the ids of tool calls differ, got {ids}"
        assert all(ids), f"every tool call has an id, got {ids}"
        assert action.usage.calls >= 1, "an action counts its call in usage.calls"
        assert Action.model_validate_json(action.model_dump_json()) == action, "JSON changes it"
        _check_spans(action, turn, sampling)
        said.append(message)
        talk.append(message)
        if ids:
            talk.append(
                tool_results(
                    *(
                        ToolResult(call_id=call.id, name=call.name, content=(TextPart(text="ok"),))
                        for call in message.tool_calls
                    )
                )
            )
        else:
            talk.append(user("Another one."))
    return said


def _check_spans(action: Action, turn: int, sampling: Sampling) -> None:
    for index, span in enumerate(action.tokens):
        assert span.policy_version >= 0, f"a span's version is at least 0, got {span}"
        assert all(math.isfinite(value) and value <= 1e-4 for value in span.logprobs), (
            f"log-probabilities are finite and at most 0, got {span.logprobs}"
        )
        assert all(token >= 0 for token in (*span.prompt_delta_ids, *span.token_ids)), (
            f"token ids are not negative, got {span}"
        )
        if index == 0:
            assert span.prompt_delta_ids, "the first span of an action brings its prompt"
            assert turn or not span.restart, "the first span of a session is no restart"
        else:
            assert not span.prompt_delta_ids, "only the first span of an action brings a prompt"
    sampled = sum(len(span.token_ids) for span in action.tokens)
    if action.tokens and sampling.max_tokens is not None:
        assert sampled <= sampling.max_tokens, (
            f"at most {sampling.max_tokens} tokens were asked for, {sampled} came"
        )
        assert sampled == action.usage.completion_tokens, (
            f"{sampled} tokens came, usage counts {action.usage.completion_tokens}"
        )
