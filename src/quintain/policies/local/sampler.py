"""Draws tokens, one seeded stream of random numbers per sequence.

A sequence's n-th token is drawn with the n-th number of its own stream, by inverting the
cumulative distribution; so a sample depends on its seed and its own logits alone. What is not
promised: logits themselves differ in the last bits with the other rows of the batch (matrix kernels
block differently), and a draw that falls on the border between two tokens may then go the other
way. Equal batches in equal order give equal bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from quintain.policies.local.logprobs import process_logits

_BLOCK = 256


def choose(
    logits_RV: torch.Tensor,
    uniforms: Sequence[float],
    *,
    temperature: float,
    top_p: float,
    top_k: int,
    min_p: float = 0.0,
) -> tuple[list[int], list[float]]:
    """One token a row, and its log-probability as sampled.

    Args:
        logits_RV: one row a sequence.
        uniforms: in [0, 1), one a row; unused when greedy.
        temperature: 0 is greedy, with the log-probability under temperature 1.
        top_p: see `process_logits`.
        top_k: see `process_logits`.
        min_p: see `process_logits`.
    """
    logprobs_RV = process_logits(
        logits_RV, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p
    )
    if temperature == 0.0:
        chosen_R = logprobs_RV.argmax(-1)
    else:
        chosen_R = _invert(logprobs_RV.exp(), uniforms)
    picked = logprobs_RV.gather(1, chosen_R[:, None])[:, 0]
    return chosen_R.tolist(), picked.tolist()


def _invert(probabilities_RV: torch.Tensor, uniforms: Sequence[float]) -> torch.Tensor:
    """The first token whose cumulative probability exceeds the uniform, in two levels of sums."""
    rows, size = probabilities_RV.shape
    spare = -size % _BLOCK
    if spare:
        probabilities_RV = torch.nn.functional.pad(probabilities_RV, (0, spare))
    padded = probabilities_RV.view(rows, -1, _BLOCK)
    block_RN = padded.sum(-1).double().cumsum(-1)
    target_R = torch.tensor(uniforms, dtype=torch.float64, device=padded.device) * block_RN[:, -1]
    block_R = torch.searchsorted(block_RN, target_R[:, None], right=True)[:, 0]
    block_R = block_R.clamp(max=block_RN.shape[1] - 1)
    index = torch.arange(rows, device=padded.device)
    before_R = torch.where(block_R > 0, block_RN[index, (block_R - 1).clamp(min=0)], 0.0)
    inside_RB = padded[index, block_R].double().cumsum(-1)
    place_R = torch.searchsorted(inside_RB, (target_R - before_R)[:, None], right=True)[:, 0]
    # Rounding may point just past the last token with probability, never at one without.
    last_R = (padded[index, block_R] > 0).int().mul(
        torch.arange(1, _BLOCK + 1, device=padded.device)
    ).amax(-1) - 1
    return block_R * _BLOCK + torch.minimum(place_R, last_R)
