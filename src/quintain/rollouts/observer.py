"""Who is told what every rollout is doing, while it does it: for timelines and early cancels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from quintain.messages import Message
from quintain.protocols import Policy
from quintain.trajectory import Action

if TYPE_CHECKING:
    from quintain.rollouts.host import Job

Stage = Literal["queue", "setup", "policy", "environment", "verifier"]
"""Waiting for a place or for another attempt; sandbox and episode are opened; the policy samples;
tools, users and sandboxes respond; it is judged."""


class Observer(Protocol):
    """Told on the event loop, so it must be quick; it raises nothing."""

    def enters(self, job: Job, stage: Stage | None) -> None:
        """A rollout does something else from now on; None: it is over."""
        ...

    def acts(self, job: Job, action: Action) -> None:
        """The policy has given a rollout an action."""
        ...


class Watched:
    """A policy whose calls are told to an observer; everything else is the policy's own."""

    def __init__(self, policy: Policy, enters: Callable[[Stage], None], acts: Any) -> None:
        self._policy = policy
        self._enters = enters
        self._acts = acts

    async def act(self, messages: Sequence[Message], **call: Any) -> Action:
        """The policy's action."""
        self._enters("policy")
        try:
            action = await self._policy.act(messages, **call)
        finally:
            self._enters("environment")
        self._acts(action)
        return action

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)
