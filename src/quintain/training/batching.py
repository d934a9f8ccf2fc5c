"""Groups of trajectories to the rows of one `Batch`.

A row is one uninterrupted run of tokens: prompt, sampled, observation, sampled, … exactly as the
policy saw and sampled them; nothing is tokenised again. Where the prompt did not continue the
previous tokens (`TokenSpan.restart`) a new row begins that shares the trajectory's index, so every
sampled token is trained once and the trajectory counts once.

Loss falls on sampled tokens only. What the loss is divided by is counted *before* anything is
masked for being stale or truncated (AReaL): masking must make an update smaller, not the rest of
the batch louder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from quintain.batch import Batch, Bool, Float
from quintain.protocols import Metrics
from quintain.training.advantages import Estimator, Float64, has_signal
from quintain.training.algorithms import Aggregation
from quintain.trajectory import Trajectory

Overlong = Literal["keep", "mask", "penalise"]
DURATION_EDGES_S = (1.0, 10.0, 30.0, 100.0, 300.0)
"""Borders of the rollout durations by which masked tokens are counted."""


@dataclass(frozen=True, slots=True)
class Group:
    """The samples of one task that were drawn together."""

    ticket: int
    """Its number in the run, in the order admitted."""
    trajectories: tuple[Trajectory, ...]

    @property
    def rewards_G(self) -> Float64:
        """One reward a member; NaN where there is none."""
        return np.array(
            [np.nan if t.reward is None else t.reward for t in self.trajectories], dtype=np.float64
        )

    @property
    def faults(self) -> int:
        """Members that the host, not the candidate, spoiled."""
        return sum(1 for t in self.trajectories if t.outcome is not None and t.outcome.host_fault)

    @property
    def signal(self) -> bool:
        """Whether its rewards differ."""
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


@dataclass(frozen=True, slots=True)
class Packing:
    """How groups become a batch."""

    estimator: Estimator
    aggregation: Aggregation = "token"
    constant_tokens: int = 1024
    """With `constant`: the length by which each trajectory's summed loss is divided."""
    overlong: Overlong = "keep"
    """What becomes of a trajectory that a limit cut short: trained with the reward that the
    verifier gave, masked (it keeps its place in the baseline), or its reward lowered."""
    overlong_penalty: float = 0.5
    """With `penalise`: taken off the reward."""
    max_row_tokens: int = 8192
    """Longer rows are cut at the end; what is cut still counts in the denominator."""
    max_staleness: int | None = None
    """Tokens more versions behind than this are masked; None: no bound."""


def group_rewards(group: Group, packing: Packing) -> Float64:
    """The rewards that the baseline sees: the verifier's, less the penalty for cut-off ones."""
    rewards_G = group.rewards_G
    if packing.overlong == "penalise":
        cut_G = np.array([t.stop.truncated for t in group.trajectories])
        rewards_G = np.where(cut_G, rewards_G - packing.overlong_penalty, rewards_G)
    return rewards_G


def pack(
    groups: Sequence[Group], packing: Packing, *, version: int
) -> tuple[Batch | None, Metrics]:
    """Rows of every group that carries signal, and the counts of what was left out and why.

    Args:
        groups: whole groups; their order is the order of the rows.
        packing: how.
        version: the learner's version now; a token of version v has staleness `version − v`
            (0 for one sampled after a version that a resumed run has not reached again).

    Returns:
        The batch (None when no token carries loss) and its metrics.
    """
    count = _Counts()
    chosen: list[tuple[Row, float, int, int, bool]] = []
    for place, group in enumerate(groups):
        rewards_G = group_rewards(group, packing)
        advantages_G = packing.estimator(rewards_G)
        signal = has_signal(rewards_G)
        for member, trajectory in enumerate(group.trajectories):
            if np.isnan(rewards_G[member]):
                continue
            index = count.trajectories
            cut_off = packing.overlong == "mask" and trajectory.stop.truncated
            parts = rows(trajectory)
            count.trajectory(trajectory, parts, cut_off)
            if signal:
                chosen.extend(
                    (row, float(advantages_G[member]), index, place, cut_off) for row in parts
                )
    batch = _assemble(chosen, packing, version, count) if chosen else None
    return batch, count.metrics(groups, packing)


class _Counts:
    """Running counts of one `pack`."""

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
        self.staleness: list[np.ndarray] = []
        self.stale_by_duration = np.zeros(len(DURATION_EDGES_S) + 1)
        self.sampled_by_duration = np.zeros(len(DURATION_EDGES_S) + 1)

    def trajectory(self, trajectory: Trajectory, parts: list[Row], cut_off: bool) -> None:
        tokens = sum(sum(row.sampled) for row in parts)
        self.trajectories += 1
        self.sampled += tokens
        self.overlong += tokens if cut_off else 0
        self.split += len(parts) > 1
        self.lengths.append(tokens)
        self.durations.append(trajectory.timing.total_s)

    def denominator(self, packing: Packing) -> float:
        if packing.aggregation == "token":
            return float(self.sampled)
        if packing.aggregation == "sequence":
            return float(self.trajectories)
        return float(self.trajectories * packing.constant_tokens)

    def metrics(self, groups: Sequence[Group], packing: Packing) -> Metrics:
        rewards = np.concatenate([g.rewards_G for g in groups]) if groups else np.zeros(0)
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
            "share_stale": self.stale / sampled,
            "share_overlong": self.overlong / sampled,
            "share_cut": self.cut / sampled,
        }
        if known.size:
            out["reward"] = float(known.mean())
            out["reward_std"] = float(known.std())
        if self.lengths:
            out["length_mean"] = float(np.mean(self.lengths))
            out["length_max"] = float(max(self.lengths))
            out["rollout_s_mean"] = float(np.mean(self.durations))
            out["rollout_s_max"] = float(max(self.durations))
        ages = np.concatenate(self.staleness) if self.staleness else np.zeros(0, dtype=np.int64)
        if ages.size:
            out["staleness_mean"] = float(ages.mean())
            out["staleness_max"] = float(ages.max())
            for age, tokens in zip(*np.unique(ages, return_counts=True), strict=True):
                out[f"staleness/{int(age)}"] = float(tokens)
        for bucket, tokens in enumerate(self.sampled_by_duration):
            if tokens:
                label = duration_label(bucket)
                out[f"tokens_by_duration/{label}"] = float(tokens)
                out[f"stale_by_duration/{label}"] = float(self.stale_by_duration[bucket])
        return out


def duration_label(bucket: int) -> str:
    """The name of a bucket of rollout durations, such as `1-10s`."""
    if bucket == 0:
        return f"0-{DURATION_EDGES_S[0]:g}s"
    if bucket == len(DURATION_EDGES_S):
        return f"{DURATION_EDGES_S[-1]:g}s+"
    return f"{DURATION_EDGES_S[bucket - 1]:g}-{DURATION_EDGES_S[bucket]:g}s"


def _assemble(
    chosen: list[tuple[Row, float, int, int, bool]],
    packing: Packing,
    version: int,
    count: _Counts,
) -> Batch | None:
    width = min(max(len(row.token_ids) for row, *_ in chosen), packing.max_row_tokens)
    shape = (len(chosen), width)
    token_ids_BT = np.zeros(shape, dtype=np.int64)
    attention_BT = np.zeros(shape, dtype=np.bool_)
    loss_BT = np.zeros(shape, dtype=np.bool_)
    logprobs_BT = np.zeros(shape, dtype=np.float32)
    advantages_BT = np.zeros(shape, dtype=np.float32)
    version_BT = np.full(shape, -1, dtype=np.int64)
    for b, (row, advantage, index, _, cut_off) in enumerate(chosen):
        size = min(len(row.token_ids), width)
        count.cut += sum(row.sampled[size:])
        sampled_T = np.array(row.sampled[:size], dtype=np.bool_)
        versions_T = np.array(row.versions[:size], dtype=np.int64)
        stale_T = _stale(versions_T, sampled_T, version, packing, count, index)
        token_ids_BT[b, :size] = row.token_ids[:size]
        attention_BT[b, :size] = True
        logprobs_BT[b, :size] = row.logprobs[:size]
        version_BT[b, :size] = versions_T
        advantages_BT[b, :size] = np.where(sampled_T, advantage, 0.0)
        loss_BT[b, :size] = sampled_T & ~stale_T & (not cut_off)
    loss_BT[:, :1] = False
    count.trained = int(loss_BT.sum())
    if not count.trained:
        return None
    return Batch(
        token_ids_BT=token_ids_BT,
        attention_mask_BT=attention_BT,
        loss_mask_BT=loss_BT,
        behaviour_logprobs_BT=logprobs_BT,
        advantages_BT=advantages_BT,
        version_BT=version_BT,
        trajectory_B=np.array([index for _, _, index, _, _ in chosen], dtype=np.int64),
        group_B=np.array([place for _, _, _, place, _ in chosen], dtype=np.int64),
        denominator=count.denominator(packing),
    )


def _stale(
    versions_T: np.ndarray,
    sampled_T: Bool,
    version: int,
    packing: Packing,
    count: _Counts,
    index: int,
) -> Bool:
    """Which sampled tokens are older than the bound; counted by the rollout's duration."""
    ages_T = np.maximum(version - versions_T, 0)
    stale_T = np.zeros_like(sampled_T)
    if packing.max_staleness is not None:
        stale_T = sampled_T & (ages_T > packing.max_staleness)
    bucket = int(np.searchsorted(DURATION_EDGES_S, count.durations[index], side="right"))
    count.staleness.append(ages_T[sampled_T])
    count.stale += int(stale_T.sum())
    count.stale_by_duration[bucket] += stale_T.sum()
    count.sampled_by_duration[bucket] += sampled_T.sum()
    return stale_T


def token_weights(batch: Batch, aggregation: Aggregation) -> Float:
    """The weight of each token in the summed loss, 0 where there is no loss.

    - `token`: 1/N, N the sampled tokens of the whole batch: every token counts the same (DAPO,
      arXiv:2503.14476).
    - `sequence`: 1/(n·|o_i|): every trajectory counts the same (GRPO, arXiv:2402.03300).
    - `constant`: 1/(n·L): neither length nor batch changes a token's weight (Dr. GRPO,
      arXiv:2503.20783).

    |o_i| is the number of sampled tokens of the trajectory over all its rows, stale ones
    included, tokens beyond `max_row_tokens` not.
    """
    weights_BT = batch.loss_mask_BT.astype(np.float32) / np.float32(batch.denominator)
    if aggregation == "sequence":
        sampled_B = (batch.version_BT >= 0).sum(axis=1)
        lengths = np.bincount(batch.trajectory_B, weights=sampled_B)
        lengths_B = lengths.astype(np.float32)[batch.trajectory_B].clip(1)
        weights_BT = (weights_BT / lengths_B[:, None]).astype(np.float32)
    return np.asarray(weights_BT, dtype=np.float32)


def select(batch: Batch, rows_b: np.ndarray) -> Batch:
    """Some rows of a batch, trimmed to the longest of them; the denominator stays."""
    width = int(batch.attention_mask_BT[rows_b].sum(axis=1).max())

    def cut(array: np.ndarray | None) -> np.ndarray | None:
        return None if array is None else array[rows_b, :width]

    return Batch(
        token_ids_BT=batch.token_ids_BT[rows_b, :width],
        attention_mask_BT=batch.attention_mask_BT[rows_b, :width],
        loss_mask_BT=batch.loss_mask_BT[rows_b, :width],
        behaviour_logprobs_BT=batch.behaviour_logprobs_BT[rows_b, :width],
        advantages_BT=batch.advantages_BT[rows_b, :width],
        version_BT=batch.version_BT[rows_b, :width],
        trajectory_B=batch.trajectory_B[rows_b],
        group_B=batch.group_B[rows_b],
        denominator=batch.denominator,
        proximal_logprobs_BT=cut(batch.proximal_logprobs_BT),
        reference_logprobs_BT=cut(batch.reference_logprobs_BT),
        values_BT=cut(batch.values_BT),
    )
