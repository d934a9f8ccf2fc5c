"""One forward pass over a mixed batch of sequences that have keys and values cached.

`AnyDecoder` drives any causal model of transformers through its own forward: its cache argument
is an object of ours that writes into `Slots`, and masks and positions are given explicitly, so
that rows of different lengths share a batch. Adapters run as they are in the module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from transformers.cache_utils import Cache

from quintain.policies.local.kv import Shape, Slots
from quintain.policies.local.logprobs import accepts


@dataclass(frozen=True, slots=True)
class Rows:
    """What one forward pass computes: for each row its slot, the tokens cached and the new ones."""

    slots: Sequence[int]
    cached: Sequence[int]
    new: Sequence[Sequence[int]]
    """Token ids at positions cached, cached + 1, …; at least one."""

    @property
    def longest(self) -> int:
        """Positions of the longest row after the pass."""
        return max(c + len(n) for c, n in zip(self.cached, self.new, strict=True))


class Decoder(Protocol):
    """Runs rows through the model; writes their keys and values; logits of each last token."""

    shape: Shape

    def forward(self, rows: Rows, slots: Slots) -> torch.Tensor:
        """Logits of shape R × V after each row's last new token."""
        ...

    def refresh(self) -> None:
        """Takes over the module's present weights."""
        ...


class _SlotCache(Cache):  # type: ignore[misc]
    """The cache that the model's layers see: new keys and values in, all of a row's out."""

    def __init__(self, rows: Rows, slots: Slots) -> None:
        super().__init__(layers=[])
        self._rows = rows
        self._slots = slots
        self._length = rows.longest
        self._width = max(len(new) for new in rows.new)
        self._index = torch.tensor(rows.slots, device=slots.shape.device)
        packed = list(rows.slots) == list(range(len(rows.slots)))
        self._packed = len(rows.slots) if packed else 0
        self._positions = torch.tensor(rows.cached, device=slots.shape.device)

    def update(
        self, key_states: Any, value_states: Any, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        out = []
        pairs = ((self._slots.keys, key_states), (self._slots.values, value_states))
        for arrays, new in pairs:
            array = arrays[layer_idx]
            if self._width == 1:
                array[self._index, :, self._positions] = new[:, :, 0]
            else:
                for row, slot in enumerate(self._rows.slots):
                    count, cached = len(self._rows.new[row]), self._rows.cached[row]
                    array[slot, :, cached : cached + count] = new[row, :, self._width - count :]
            if self._packed:
                out.append(array[: self._packed, :, : self._length])
            else:
                out.append(array[self._index, :, : self._length])
        return out[0], out[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._length - self._width


class AnyDecoder:
    """Any causal model, through its own forward."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._cache_argument = "cache" if accepts(module, "cache") else "past_key_values"
        config = module.config.get_text_config()
        heads = config.num_attention_heads
        parameter = next(module.parameters())
        self.shape = Shape(
            layers=config.num_hidden_layers,
            heads=getattr(config, "num_key_value_heads", None) or heads,
            width=getattr(config, "head_dim", None) or config.hidden_size // heads,
            dtype=parameter.dtype,
            device=parameter.device,
        )

    def refresh(self) -> None:
        """Nothing to do: the module itself is what runs."""

    def forward(self, rows: Rows, slots: Slots) -> torch.Tensor:
        """Logits of shape R × V after each row's last new token."""
        slots.reserve(rows.longest)
        ids_RT, positions_RT = pad_left(rows, self.shape.device)
        mask = reach(positions_RT, rows.longest)
        with torch.inference_mode():
            out = self._module(
                input_ids=ids_RT,
                attention_mask=mask,
                position_ids=positions_RT,
                use_cache=True,
                logits_to_keep=1,
                **{self._cache_argument: _SlotCache(rows, slots)},
            )
        logits: torch.Tensor = out.logits[:, -1]
        return logits


def pad_left(rows: Rows, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """New ids and their positions, R × T, right-aligned so that every row's last token is at −1."""
    width = max(len(new) for new in rows.new)
    ids = [[0] * (width - len(new)) + list(new) for new in rows.new]
    positions = [
        [0] * (width - len(new)) + list(range(cached, cached + len(new)))
        for cached, new in zip(rows.cached, rows.new, strict=True)
    ]
    return torch.tensor(ids, device=device), torch.tensor(positions, device=device)


def reach(positions_RT: torch.Tensor, length: int) -> torch.Tensor:
    """R × 1 × T × L, True where the query at a position may look at key l."""
    keys_L = torch.arange(length, device=positions_RT.device)
    return (keys_L <= positions_RT[:, :, None])[:, None]
