"""Who is told what every rollout is doing, while it does it: for timelines and early cancels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

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
