"""The policy as one rollout sees it: its calls are told, and made again when its process died.

A policy keeps what a session has said so far on this side of its process. When that process dies
(out of memory, killed), the same call can be made again of the next one: the rollout loses nothing
but the tokens that were being sampled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from quintain.errors import PolicyRestarts
from quintain.messages import Message
from quintain.protocols import Policy, Recorder
from quintain.rollouts.observer import Stage
from quintain.trajectory import Action

logger = logging.getLogger(__name__)
CALLS = 3
"""Times that one call is made while processes die under it; then it is a fault of the policy."""
CALLED_AGAIN = "policy.called_again"
"""Event of a trajectory."""


class Acting:
    """A policy whose calls are one rollout's; everything but `act` is the policy's own.

    Args:
        policy: who acts.
        record: takes an event for each call that was made again.
        enters: told what the rollout does.
        acted: told the policy's actions.
    """

    def __init__(
        self,
        policy: Policy,
        record: Recorder,
        enters: Callable[[Stage], None],
        acted: Callable[[Action], None] | None = None,
    ) -> None:
        self._policy = policy
        self._record = record
        self._enters = enters
        self._acted = acted

    async def act(self, messages: Sequence[Message], **call: Any) -> Action:
        """The policy's action."""
        self._enters("policy")
        try:
            action = await self._act(messages, call)
        finally:
            self._enters("environment")
        if self._acted is not None:
            self._acted(action)
        return action

    async def _act(self, messages: Sequence[Message], call: dict[str, Any]) -> Action:
        for _ in range(CALLS - 1):
            try:
                return await self._policy.act(messages, **call)
            except PolicyRestarts as error:
                logger.warning("%s", error)
                self._record.event(CALLED_AGAIN, {"why": str(error)[:500]})
        return await self._policy.act(messages, **call)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)
