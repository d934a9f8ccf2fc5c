"""Groups of trajectories, and the rows of tokens that a trajectory is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quintain.training.advantages import Float64, has_signal
from quintain.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Group:
    """The samples of one task that were drawn together."""

    ticket: int
    """Its number in the run, in the order admitted."""
    trajectories: tuple[Trajectory | None, ...]
    """None: still running."""
    chosen: tuple[bool, ...] | None = None
    """Members to be trained now; None: all. The others are part of the baseline only."""

    @property
    def rewards_G(self) -> Float64:
        """One reward a member, as far as known; NaN where there is none."""
        rewards = [t.reward if t is not None else None for t in self.trajectories]
        return np.array([np.nan if r is None else r for r in rewards], dtype=np.float64)

    @property
    def members(self) -> list[tuple[int, Trajectory]]:
        """Those to be trained now, with their places."""
        return [
            (place, trajectory)
            for place, trajectory in enumerate(self.trajectories)
            if trajectory is not None and (self.chosen is None or self.chosen[place])
        ]

    @property
    def faults(self) -> int:
        """Members to be trained that the host, not the candidate, spoiled."""
        return sum(1 for _, t in self.members if t.outcome is not None and t.outcome.host_fault)

    @property
    def signal(self) -> bool:
        """Whether its rewards differ, as far as they are known."""
        return has_signal(self.rewards_G)


@dataclass(frozen=True, slots=True)
class Row:
    """One uninterrupted run of tokens of a trajectory; lists of one length."""

    token_ids: list[int]
    sampled: list[bool]
    logprobs: list[float]
    """0 where not sampled."""
    versions: list[int]
    """−1 where not sampled."""


def rows(trajectory: Trajectory) -> list[Row]:
    """The trajectory's tokens as rows; more than one where a prompt was rewritten."""
    out: list[Row] = []
    for step in trajectory.steps:
        for span in step.action.tokens:
            if not out or span.restart:
                out.append(Row([], [], [], []))
            row, before, new = out[-1], len(span.prompt_delta_ids), len(span.token_ids)
            row.token_ids.extend((*span.prompt_delta_ids, *span.token_ids))
            row.sampled.extend([False] * before + [True] * new)
            row.logprobs.extend((*[0.0] * before, *span.logprobs))
            row.versions.extend([-1] * before + [span.policy_version] * new)
    return [row for row in out if any(row.sampled)]


def sampled_tokens(trajectory: Trajectory) -> int:
    """How many tokens the policy sampled in it."""
    return sum(len(span.token_ids) for step in trajectory.steps for span in step.action.tokens)


def rewards_of(groups: Sequence[Group]) -> Float64:
    """Rewards of the members to be trained; NaN where there is none."""
    rewards = [t.reward for group in groups for _, t in group.members]
    return np.array([np.nan if r is None else r for r in rewards], dtype=np.float64)
