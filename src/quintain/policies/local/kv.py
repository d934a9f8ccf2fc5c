"""Keys and values of the sequences being decoded, and of prefixes worth keeping.

`Slots` holds the running sequences: one row each, position p of a sequence at index p, rows packed
at the front so that a decode step reads a plain slice. `Prefixes` keeps copies of finished
sequences (a session's next turn continues them, the other members of a group begin with them),
the least recently used dropped beyond a bound in bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shape:
    """Of one model's cache."""

    layers: int
    heads: int
    """Key-value heads."""
    width: int
    """Of one head."""
    dtype: torch.dtype
    device: torch.device


class Slots:
    """Rows of keys and values, K: a list over layers of arrays S × heads × M × width."""

    def __init__(self, shape: Shape, slots: int, capacity: int = 256) -> None:
        self.shape = shape
        self.slots = slots
        self.capacity = capacity
        self.keys = [self._new(capacity) for _ in range(shape.layers)]
        self.values = [self._new(capacity) for _ in range(shape.layers)]

    def _new(self, capacity: int) -> torch.Tensor:
        # Zeros, not empty: a masked key still takes part in 0 × value, and NaN would spread.
        shape = self.shape
        return torch.zeros(
            self.slots,
            shape.heads,
            capacity,
            shape.width,
            dtype=shape.dtype,
            device=shape.device,
        )

    def reserve(self, length: int) -> None:
        """Makes room for sequences of that length."""
        if length <= self.capacity:
            return
        while self.capacity < length:
            self.capacity *= 2
        for arrays in (self.keys, self.values):
            for layer, old in enumerate(arrays):
                new = self._new(self.capacity)
                new[:, :, : old.shape[2]] = old
                arrays[layer] = new

    def move(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` positions of a row to another row."""
        for arrays in (self.keys, self.values):
            for array in arrays:
                array[target, :, :length] = array[source, :, :length]

    def take(self, slot: int, length: int) -> torch.Tensor:
        """A copy of a row's first positions: layers × 2 × heads × length × width."""
        shape = self.shape
        out = torch.empty(
            shape.layers,
            2,
            shape.heads,
            length,
            shape.width,
            dtype=shape.dtype,
            device=shape.device,
        )
        for layer in range(shape.layers):
            out[layer, 0] = self.keys[layer][slot, :, :length]
            out[layer, 1] = self.values[layer][slot, :, :length]
        return out

    def put(self, slot: int, kept: torch.Tensor, length: int) -> None:
        """Writes the first `length` positions of a kept copy into a row."""
        for layer in range(self.shape.layers):
            self.keys[layer][slot, :, :length] = kept[layer, 0, :, :length]
            self.values[layer][slot, :, :length] = kept[layer, 1, :, :length]


def common_prefix(left: Ids, right: Ids) -> int:
    """How many leading ids two sequences share."""
    length = min(len(left), len(right))
    different = np.flatnonzero(left[:length] != right[:length])
    return int(different[0]) if len(different) else length


def longer_prefix(left: Ids, right: Ids, than: int) -> int:
    """How many leading ids two sequences share, when more than `than`; else `than`.

    Most pairs differ early: one look at the first place that matters spares the comparison.
    """
    if min(len(left), len(right)) <= than or left[than] != right[than]:
        return than
    return max(than, common_prefix(left, right))


class Prefixes:
    """Kept copies, found by the longest common beginning of their ids.

    Args:
        max_bytes: beyond it the least recently used are dropped.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._kept: OrderedDict[str, tuple[Ids, torch.Tensor]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, ids: Ids) -> tuple[int, torch.Tensor | None]:
        """The kept copy that shares the longest beginning with `ids`, and how long that is."""
        best, name = 0, ""
        for key, (kept, _) in self._kept.items():
            length = longer_prefix(kept, ids, best)
            if length > best:
                best, name = length, key
        if not best:
            return 0, None
        self._kept.move_to_end(name)
        return best, self._kept[name][1]

    def keep(self, name: str, ids: Ids, copy: torch.Tensor) -> None:
        """Keeps a copy under a name, in place of what the name had."""
        self.drop(name)
        size = copy.numel() * copy.element_size()
        if size > self.max_bytes:
            return
        self._kept[name] = (ids, copy)
        self.bytes += size
        while self.bytes > self.max_bytes:
            _, (_, oldest) = self._kept.popitem(last=False)
            self.bytes -= oldest.numel() * oldest.element_size()

    def drop(self, name: str) -> None:
        """Forgets the copy of that name, if there is one."""
        found = self._kept.pop(name, None)
        if found is not None:
            self.bytes -= found[1].numel() * found[1].element_size()

    def clear(self) -> None:
        """Forgets everything: the weights have changed."""
        self._kept.clear()
        self.bytes = 0
