"""What one batch is made of, counted: rewards, lengths, staleness, what was masked and whose.

Counts by the rollouts' duration show whether slow tasks are trained as often as fast ones; a bound
on staleness that quietly censors the hard tasks shows here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quintain.batch import Bool, Int
from quintain.protocols import Metrics
from quintain.training.groups import Group, Row, rewards_of
from quintain.trajectory import Trajectory

DURATION_EDGES_S = (1.0, 10.0, 30.0, 100.0, 300.0)
"""Borders of the rollout durations by which masked tokens are counted."""


class Counts:
    """Running counts of one `pack`; `metrics` gives them names."""

    def __init__(self) -> None:
        self.trajectories = 0
        self.sampled = 0
        self.overlong = 0
        self.cut = 0
        self.stale = 0
        self.trained = 0
        self.durations: list[float] = []
        self.lengths: list[int] = []
        self.split = 0
        self.staleness: list[Int] = []
        self.stale_by_duration = np.zeros(len(DURATION_EDGES_S) + 1)
        self.sampled_by_duration = np.zeros(len(DURATION_EDGES_S) + 1)
        self.loud = 0
        self.in_batch: set[int] = set()
        self.fresh: set[int] = set()

    def trajectory(self, trajectory: Trajectory, parts: list[Row], cut_off: bool) -> None:
        """Counts a trajectory that has a reward."""
        tokens = sum(sum(row.sampled) for row in parts)
        self.trajectories += 1
        self.sampled += tokens
        self.overlong += tokens if cut_off else 0
        self.split += len(parts) > 1
        self.lengths.append(tokens)
        self.durations.append(trajectory.timing.total_s)

    def row(self, index: int, ages_T: Int, sampled_T: Bool, stale_T: Bool, loss_T: Bool) -> None:
        """Counts a row of a trajectory in a group with signal.

        Args:
            index: of the trajectory, in the order in which `trajectory` was called.
            ages_T: staleness of each token, in versions.
            sampled_T: which tokens were sampled.
            stale_T: which of them are too old.
            loss_T: which of them are trained.
        """
        bucket = self._bucket(index)
        self.staleness.append(ages_T[sampled_T])
        self.loud += int(sampled_T.sum())
        self.stale += int(stale_T.sum())
        self.trained += int(loss_T.sum())
        self.sampled_by_duration[bucket] += sampled_T.sum()
        self.stale_by_duration[bucket] += stale_T.sum()
        self.in_batch.add(index)
        if (sampled_T & ~stale_T).any():
            self.fresh.add(index)

    def _bucket(self, index: int) -> int:
        return int(np.searchsorted(DURATION_EDGES_S, self.durations[index], side="right"))

    def metrics(self, groups: Sequence[Group]) -> Metrics:
        """All counts by name."""
        rewards = rewards_of(groups)
        known = rewards[~np.isnan(rewards)]
        sampled = max(1, self.sampled)
        out: Metrics = {
            "groups": float(len(groups)),
            "groups_with_signal": float(sum(g.signal for g in groups)),
            "trajectories": float(self.trajectories),
            "trajectories_without_reward": float(np.isnan(rewards).sum()),
            "trajectories_split": float(self.split),
            "host_faults": float(sum(g.faults for g in groups)),
            "tokens_sampled": float(self.sampled),
            "tokens_trained": float(self.trained),
            "tokens_stale": float(self.stale),
            "share_stale": self.stale / max(1, self.loud),
            "share_masked": 1 - self.trained / max(1, self.loud),
            "share_overlong": self.overlong / sampled,
            "share_cut": self.cut / sampled,
        }
        if known.size:
            out["reward"] = float(known.mean())
            out["reward_std"] = float(known.std())
        if self.lengths:
            out["length_mean"] = float(np.mean(self.lengths))
            out["length_median"] = float(np.median(self.lengths))
            out["length_max"] = float(max(self.lengths))
            out["rollout_s_mean"] = float(np.mean(self.durations))
            out["rollout_s_max"] = float(max(self.durations))
        ages = np.concatenate(self.staleness) if self.staleness else np.zeros(0, dtype=np.int64)
        if ages.size:
            out["staleness_mean"] = float(ages.mean())
            out["staleness_max"] = float(ages.max())
            for age, tokens in zip(*np.unique(ages, return_counts=True), strict=True):
                out[f"staleness/{int(age)}"] = float(tokens)
        out.update(self._by_duration())
        return out

    def _by_duration(self) -> Metrics:
        """Of groups with signal: whether slow rollouts are trained as often as fast ones."""
        rollouts = np.zeros(len(DURATION_EDGES_S) + 1)
        fresh = np.zeros_like(rollouts)
        for index in self.in_batch:
            rollouts[self._bucket(index)] += 1
            fresh[self._bucket(index)] += index in self.fresh
        out: Metrics = {}
        for bucket in np.flatnonzero(rollouts).tolist():
            label = duration_label(bucket)
            out[f"rollouts_by_duration/{label}"] = float(rollouts[bucket])
            out[f"fresh_by_duration/{label}"] = float(fresh[bucket])
            out[f"tokens_by_duration/{label}"] = float(self.sampled_by_duration[bucket])
            out[f"stale_by_duration/{label}"] = float(self.stale_by_duration[bucket])
        return out


def cancelled(durations_s: Sequence[float]) -> Metrics:
    """Rollouts that were cancelled because they could not be of use any more, by duration."""
    out: Metrics = {"cancelled": float(len(durations_s))}
    for seconds in durations_s:
        label = duration_label(int(np.searchsorted(DURATION_EDGES_S, seconds, side="right")))
        name = f"cancelled_by_duration/{label}"
        out[name] = out.get(name, 0.0) + 1
    return out


def duration_label(bucket: int) -> str:
    """The name of a bucket of rollout durations, such as `1-10s`."""
    if bucket == 0:
        return f"0-{DURATION_EDGES_S[0]:g}s"
    if bucket == len(DURATION_EDGES_S):
        return f"{DURATION_EDGES_S[-1]:g}s+"
    return f"{DURATION_EDGES_S[bucket - 1]:g}-{DURATION_EDGES_S[bucket]:g}s"
