"""The plain agent loop: the policy acts, the episode responds, until an end or a limit.

An action that was sampled is always recorded, also when a limit or a fault cuts the response to it
short: its tokens were paid for and it is part of what happened.
"""

from __future__ import annotations

import time

from quintain.errors import ContextOverflow, EnvironmentFault, PolicyError, boundary
from quintain.messages import Message, Sampling
from quintain.protocols import Episode, Policy, Recorder
from quintain.task import Limits
from quintain.trajectory import Action, Observation, StopReason


class Loop:
    """Drives an episode until it ends, the policy is done, or a limit is reached."""

    name = "loop"

    async def play(
        self, episode: Episode, policy: Policy, limits: Limits, record: Recorder
    ) -> StopReason:
        """Plays to the end or to a limit; the wall-clock limit is the caller's."""
        with boundary(EnvironmentFault, "reset"):
            observation = await episode.reset()
        tools = tuple(tool.spec for tool in episode.tools)
        record.opened(observation, tools)
        messages: list[Message] = list(observation.messages)
        if observation.terminated:
            return StopReason.TERMINATED
        while True:
            began = time.monotonic()
            try:
                with boundary(PolicyError, "act"):
                    action = await policy.act(
                        messages,
                        tools=tools,
                        sampling=_within(record, limits),
                        seed=record.seed(record.steps),
                        session=record.session,
                    )
            except ContextOverflow as overflow:
                record.event("policy.context_overflow", {"message": str(overflow)})
                return StopReason.MAX_CONTEXT
            acted = time.monotonic()
            observation = Observation()
            try:
                with boundary(EnvironmentFault, "respond"):
                    observation = await episode.respond(action)
            finally:
                ended = time.monotonic()
                record.step(action, observation, policy_s=acted - began, env_s=ended - acted)
            stop = _stop(action, observation, limits, record)
            if stop is not None:
                return stop
            messages.append(action.message)
            messages.extend(observation.messages)


def _within(record: Recorder, limits: Limits) -> Sampling:
    """The sampling, with no more tokens than the episode has left."""
    sampling = record.sampling
    if limits.max_tokens is None:
        return sampling
    left = max(1, limits.max_tokens - record.usage.completion_tokens)
    if sampling.max_tokens is not None and sampling.max_tokens <= left:
        return sampling
    return sampling.model_copy(update={"max_tokens": left})


def _stop(
    action: Action, observation: Observation, limits: Limits, record: Recorder
) -> StopReason | None:
    """Why the episode ends after this step; None: it goes on."""
    if observation.terminated:
        if action.message.tool_calls:
            return StopReason.TERMINATED
        return StopReason.MAX_TOKENS if action.finish == "length" else StopReason.DONE
    used = record.usage
    if limits.cost_usd is not None and used.cost_usd >= limits.cost_usd:
        return StopReason.COST
    if limits.max_tokens is not None and used.completion_tokens >= limits.max_tokens:
        return StopReason.MAX_TOKENS
    context = action.usage.prompt_tokens + action.usage.completion_tokens
    if limits.max_context_tokens is not None and context >= limits.max_context_tokens:
        return StopReason.MAX_CONTEXT
    if record.malformed >= limits.max_malformed:
        return StopReason.MALFORMED
    if record.steps >= limits.max_steps:
        return StopReason.MAX_STEPS
    return None
