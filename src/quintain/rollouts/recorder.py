"""Keeps what happens in an episode, so that a limit or a fault loses nothing that was recorded."""

from __future__ import annotations

import time

from quintain.messages import Sampling, ToolSpec
from quintain.record import Json, derive_seed
from quintain.trajectory import Action, Event, Observation, Step, Usage


class EpisodeRecorder:
    """The `Recorder` of one rollout.

    Args:
        session: names the rollout to the policy.
        seed: of the rollout; each call's seed is derived from it.
        sampling: how the policy samples.
    """

    def __init__(self, session: str, seed: int, sampling: Sampling) -> None:
        self.session = session
        self.sampling = sampling
        self.usage = Usage()
        self.malformed = 0
        self.opening = Observation()
        self.tools: tuple[ToolSpec, ...] = ()
        self.taken: list[Step] = []
        self.events: list[Event] = []
        self.policy_s = 0.0
        self.env_s = 0.0
        self._seed = seed
        self._began = time.monotonic()

    @property
    def steps(self) -> int:
        """Steps recorded so far."""
        return len(self.taken)

    def seed(self, step: int) -> int:
        """The seed of the policy's call at a step."""
        return derive_seed(self._seed, step)

    def opened(self, observation: Observation, tools: tuple[ToolSpec, ...]) -> None:
        """Records the first observation."""
        self.opening = self._keep_events(observation)
        self.tools = tools

    def step(
        self, action: Action, observation: Observation, *, policy_s: float, env_s: float
    ) -> None:
        """Records a step."""
        self.taken.append(
            Step(
                action=action,
                observation=self._keep_events(observation),
                sampling=self.sampling,
                policy_s=policy_s,
                env_s=env_s,
            )
        )
        self.usage = self.usage + action.usage
        self.malformed += observation.malformed
        self.policy_s += policy_s
        self.env_s += env_s

    def event(self, kind: str, data: dict[str, Json] | None = None) -> None:
        """Records an event at this moment."""
        self.events.append(Event(kind=kind, at_s=time.monotonic() - self._began, data=data or {}))

    def _keep_events(self, observation: Observation) -> Observation:
        if not observation.events:
            return observation
        for event in observation.events:
            self.event(event.kind, event.data)
        return observation.model_copy(update={"events": ()})
