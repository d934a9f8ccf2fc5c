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

from quintain.batch import Batch, Float
from quintain.protocols import Metrics
from quintain.training.advantages import Estimator, Float64, has_signal
from quintain.training.algorithms import Aggregation
from quintain.training.counts import Counts
from quintain.training.groups import Group, Row, rows, sampled_tokens

Overlong = Literal["keep", "mask", "penalise", "soft"]


@dataclass(frozen=True, slots=True)
class Packing:
    """How groups become a batch."""

    estimator: Estimator
    aggregation: Aggregation = "token"
    constant_tokens: int = 1024
    """With `constant`: the length by which each trajectory's summed loss is divided."""
    overlong: Overlong = "keep"
    """What becomes of a trajectory that a limit cut short: trained with the reward that the
    verifier gave, masked (it keeps its place in the baseline), or its reward lowered; `soft` lowers
    the reward of long ones before they reach the limit."""
    overlong_penalty: float = 0.5
    """With `penalise`: taken off the reward; with `soft`: at most."""
    overlong_tokens: int = 1024
    """With `soft`: sampled tokens at which the whole penalty is due."""
    overlong_buffer: int = 256
    """With `soft`: sampled tokens before that over which it rises from 0."""
    compares: bool = True
    """Whether equal rewards in a group say nothing: see `Algorithm.compares`."""
    max_row_tokens: int = 8192
    """Longer rows are cut at the end; what is cut still counts in the denominator."""
    max_staleness: int | None = None
    """Tokens more versions behind than this are masked; None: no bound."""


def group_rewards(group: Group, packing: Packing) -> Float64:
    """The rewards that the baseline sees: the verifier's, less the penalty for long ones.

    `soft` is DAPO's overlong punishment: with n sampled tokens, limit L and buffer C the reward
    falls by penalty · clip((n − (L − C))/C, 0, 1). Yu et al. 2025, arXiv:2503.14476, equation 13.
    """
    rewards_G = group.rewards_G
    if packing.overlong == "penalise":
        cut_G = np.array([t is not None and t.stop.truncated for t in group.trajectories])
        rewards_G = np.where(cut_G, rewards_G - packing.overlong_penalty, rewards_G)
    if packing.overlong == "soft":
        length_G = np.array([0 if t is None else sampled_tokens(t) for t in group.trajectories])
        beyond_G = (length_G - packing.overlong_tokens) / packing.overlong_buffer + 1
        rewards_G = rewards_G - packing.overlong_penalty * beyond_G.clip(0, 1)
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
    count = Counts()
    chosen: list[tuple[Row, float, int, int, bool]] = []
    for place, group in enumerate(groups):
        rewards_G = group_rewards(group, packing)
        advantages_G = packing.estimator(rewards_G)
        signal = not packing.compares or has_signal(rewards_G)
        for member, trajectory in group.members:
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
    return batch, count.metrics(groups)


def _assemble(
    chosen: list[tuple[Row, float, int, int, bool]],
    packing: Packing,
    version: int,
    count: Counts,
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
        ages_T = np.maximum(version - versions_T, 0)
        stale_T = np.zeros_like(sampled_T)
        if packing.max_staleness is not None:
            stale_T = sampled_T & (ages_T > packing.max_staleness)
        loss_T = sampled_T & ~stale_T & (not cut_off)
        loss_T[:1] = False  # nothing predicts the first token of a row
        count.row(index, ages_T, sampled_T, stale_T, loss_T)
        token_ids_BT[b, :size] = row.token_ids[:size]
        attention_BT[b, :size] = True
        logprobs_BT[b, :size] = row.logprobs[:size]
        version_BT[b, :size] = versions_T
        advantages_BT[b, :size] = np.where(sampled_T, advantage, 0.0)
        loss_BT[b, :size] = loss_T
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
        denominator=_denominator(count, packing),
    )


def _denominator(count: Counts, packing: Packing) -> float:
    if packing.aggregation == "token":
        return float(count.sampled)
    if packing.aggregation == "sequence":
        return float(count.trajectories)
    return float(count.trajectories * packing.constant_tokens)


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
        returns_BT=cut(batch.returns_BT),
    )
