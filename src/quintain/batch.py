"""The arrays that a learner reads: B rows of up to T tokens, right-padded.

A row is one uninterrupted run of tokens of one trajectory (prompt, sampled, observation, sampled,
…). Position t of every array speaks of the token at t; what predicts it stands at t − 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]
Float = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one update trains on."""

    token_ids_BT: Int
    attention_mask_BT: Bool
    """False on padding."""
    loss_mask_BT: Bool
    """True on tokens that the policy sampled and that are trained; never on prompt, template,
    observation or padding."""
    behaviour_logprobs_BT: Float
    """Nats, as sampled; 0 where not sampled."""
    advantages_BT: Float
    version_BT: Int
    """Policy version that sampled the token; −1 where not sampled."""
    trajectory_B: Int
    """Index of the trajectory; a split trajectory has several rows and counts once."""
    group_B: Int
    """Index of the group (the G samples of one task)."""
    denominator: float
    """What the summed loss is divided by, counted before any masking for staleness."""
    proximal_logprobs_BT: Float | None = None
    reference_logprobs_BT: Float | None = None
    values_BT: Float | None = None
    """A critic's, at the start of the update."""
    returns_BT: Float | None = None
    """What its values should become."""

    def __post_init__(self) -> None:
        shape = self.token_ids_BT.shape
        for name in (
            "attention_mask_BT",
            "loss_mask_BT",
            "behaviour_logprobs_BT",
            "advantages_BT",
            "version_BT",
            "proximal_logprobs_BT",
            "reference_logprobs_BT",
            "values_BT",
            "returns_BT",
        ):
            array = getattr(self, name)
            if array is not None and array.shape != shape:
                raise ValueError(f"{name} has shape {array.shape}, token_ids_BT {shape}")
        for name in ("trajectory_B", "group_B"):
            if getattr(self, name).shape != shape[:1]:
                raise ValueError(f"{name} has shape {getattr(self, name).shape}, B is {shape[0]}")
        if self.loss_mask_BT[:, :1].any():
            raise ValueError("the first token of a row has nothing that predicts it")
        if not self.denominator > 0:
            raise ValueError(f"the denominator is positive, got {self.denominator}")

    @property
    def trained_tokens(self) -> int:
        """How many tokens carry loss."""
        return int(self.loss_mask_BT.sum())
