"""Rows that begin alike, computed once: the prompt of a group is not read G times.

The rows of a group share their prompt. They are laid out as one longer row

::

    prompt | rest of row 1 | rest of row 2 | …

in which a token sees the prompt and its own rest, and positions start anew after the prompt in
each rest. Every log-probability is what it would be in a row alone; a group of eight with a prompt
of 150 tokens and answers of 30 costs 390 tokens in place of 1,440. Tokens of one row never see
another row: documents do not leak into each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quintain.batch import Batch, Bool, Int

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pack:
    """Rows of one group laid out behind one prefix."""

    rows: tuple[int, ...]
    """Rows of the batch."""
    ends: tuple[int, ...]
    """Where each row ends: after its last token with loss."""
    prefix: int
    """Tokens that all the rows begin with."""

    @property
    def length(self) -> int:
        """Tokens of the packed row."""
        return self.prefix + sum(end - self.prefix for end in self.ends)


@dataclass(frozen=True, slots=True)
class Layout:
    """A micro-batch: P packed rows of L tokens, and where each token with loss came from."""

    token_ids_PL: Int
    attention_PL: Bool
    """P × L (padding only) when every pack is a single row, else P × 1 × L × L."""
    position_ids_PL: Int
    where_PL: Bool
    """Tokens with loss."""
    source_PL: Int
    """The position whose output predicts the token."""
    rows: tuple[int, ...]
    """Rows of the batch that are in here, ascending."""
    row_N: Index
    """Of each token with loss, in the order of `where_PL`: its row as an index into `rows`."""
    column_N: Index
    """… and its place in that row."""


def plan(batch: Batch, budget: int) -> list[list[Pack]]:
    """Packs of the batch's rows, gathered into micro-batches of at most `budget` tokens.

    A row longer than the budget makes a micro-batch of its own. The plan depends on the batch
    alone, so that equal batches give equal sums.
    """
    ends_B = _ends(batch)
    packs: list[Pack] = []
    for group in dict.fromkeys(batch.group_B.tolist()):
        members = [b for b in np.flatnonzero(batch.group_B == group).tolist() if ends_B[b]]
        packs.extend(_pack_group(batch, members, ends_B, budget))
    packs.sort(key=lambda pack: (-pack.length, pack.rows))
    micro: list[list[Pack]] = []
    for pack in packs:
        # Sorted by length: the first of a micro-batch is its longest, hence its width.
        if micro and (len(micro[-1]) + 1) * micro[-1][0].length <= budget:
            micro[-1].append(pack)
        else:
            micro.append([pack])
    return micro


def _ends(batch: Batch) -> list[int]:
    """Where each row ends: after its last token with loss; 0: nothing to train in it."""
    width = batch.loss_mask_BT.shape[1]
    last_B = width - batch.loss_mask_BT[:, ::-1].argmax(axis=1)
    return [int(end) for end in np.where(batch.loss_mask_BT.any(axis=1), last_B, 0)]


def _pack_group(
    batch: Batch, members: Sequence[int], ends_B: Sequence[int], budget: int
) -> list[Pack]:
    packs: list[Pack] = []
    current: list[int] = []
    prefix = 0
    for row in members:
        shared = _shared(batch, [*current, row], ends_B) if current else _prompt(batch, row)
        grown = shared + sum(ends_B[b] - shared for b in (*current, row))
        apart = prefix + sum(ends_B[b] - prefix for b in current) + ends_B[row]
        if current and (grown > budget or grown > 0.9 * apart):
            packs.append(_pack(current, ends_B, prefix))
            current, shared = [], _prompt(batch, row)
        current.append(row)
        prefix = shared
    if current:
        packs.append(_pack(current, ends_B, prefix))
    return packs


def _pack(rows: Sequence[int], ends_B: Sequence[int], prefix: int) -> Pack:
    return Pack(tuple(rows), tuple(ends_B[b] for b in rows), prefix)


def _prompt(batch: Batch, row: int) -> int:
    """Tokens before the first one with loss."""
    return int(batch.loss_mask_BT[row].argmax())


def _shared(batch: Batch, rows: Sequence[int], ends_B: Sequence[int]) -> int:
    """How many tokens the rows begin with alike, none of them with loss."""
    limit = min(min(_prompt(batch, row), ends_B[row] - 1) for row in rows)
    first = batch.token_ids_BT[rows[0], :limit]
    for row in rows[1:]:
        differs = np.flatnonzero(batch.token_ids_BT[row, :limit] != first[:limit])
        if differs.size:
            limit = min(limit, int(differs[0]))
    return limit


def lay_out(batch: Batch, packs: Sequence[Pack]) -> Layout:
    """The arrays of one micro-batch."""
    width = max(pack.length for pack in packs)
    shape = (len(packs), width)
    token_ids_PL = np.zeros(shape, dtype=np.int64)
    position_ids_PL = np.zeros(shape, dtype=np.int64)
    where_PL = np.zeros(shape, dtype=np.bool_)
    source_PL = np.zeros(shape, dtype=np.int64)
    segment_PL = np.full(shape, -1, dtype=np.int64)
    row_PL = np.zeros(shape, dtype=np.int64)
    column_PL = np.zeros(shape, dtype=np.int64)
    rows = tuple(sorted(row for pack in packs for row in pack.rows))
    place = {row: index for index, row in enumerate(rows)}
    for p, pack in enumerate(packs):
        prefix = pack.prefix
        token_ids_PL[p, :prefix] = batch.token_ids_BT[pack.rows[0], :prefix]
        position_ids_PL[p, :prefix] = np.arange(prefix)
        segment_PL[p, :prefix] = 0
        start = prefix
        for segment, (row, end) in enumerate(zip(pack.rows, pack.ends, strict=True), start=1):
            stop = start + end - prefix
            token_ids_PL[p, start:stop] = batch.token_ids_BT[row, prefix:end]
            position_ids_PL[p, start:stop] = np.arange(prefix, end)
            where_PL[p, start:stop] = batch.loss_mask_BT[row, prefix:end]
            source_PL[p, start:stop] = np.arange(start - 1, stop - 1)
            source_PL[p, start] = prefix - 1
            segment_PL[p, start:stop] = segment
            row_PL[p, start:stop] = place[row]
            column_PL[p, start:stop] = np.arange(prefix, end)
            start = stop
    return Layout(
        token_ids_PL=token_ids_PL,
        attention_PL=_attention(segment_PL, alone=all(len(pack.rows) == 1 for pack in packs)),
        position_ids_PL=position_ids_PL,
        where_PL=where_PL,
        source_PL=source_PL,
        rows=rows,
        row_N=row_PL[where_PL],
        column_N=column_PL[where_PL],
    )


def _attention(segment_PL: Index, *, alone: bool) -> Bool:
    """Who may look at whom: causally, at the prefix and at its own segment."""
    if alone:
        return np.asarray(segment_PL >= 0)
    width = segment_PL.shape[1]
    causal = np.tril(np.ones((width, width), dtype=np.bool_))
    query, key = segment_PL[:, :, None], segment_PL[:, None, :]
    seen = ((query == key) | (key == 0)) & (query >= 0) & (key >= 0) & causal
    # Padding looks at itself: a row of the softmax without any entry would be NaN.
    seen |= np.eye(width, dtype=np.bool_)
    return np.asarray(seen[:, None])
