"""Packed rows lay out every token with loss once, with what predicts it."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.training.advantages import dr_grpo
from quintain.training.batching import Packing, pack
from quintain.training.packing import lay_out, plan

from .builders import group, span, trajectory

PACKING = Packing(estimator=dr_grpo)


def batch_of(*groups):
    batch, _ = pack(groups, PACKING, version=0)
    return batch


def test_prompt_is_laid_out_once():
    batch = batch_of(
        group(
            trajectory([span([1, 2, 3], [4, 5])], [span([6], [7])], reward=1.0),
            trajectory([span([1, 2, 3], [8])]),
        )
    )
    ((one,),) = plan(batch, budget=100)
    assert (one.prefix, one.length) == (3, 3 + 4 + 1)
    layout = lay_out(batch, [one])
    assert layout.token_ids_PL.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8]]
    assert layout.position_ids_PL.tolist() == [[0, 1, 2, 3, 4, 5, 6, 3]]
    assert layout.where_PL.tolist() == [[False] * 3 + [True, True, False, True, True]]
    assert layout.source_PL[layout.where_PL].tolist() == [2, 3, 5, 2]
    seen = layout.attention_PL[0, 0]
    assert seen[7].tolist() == [True] * 3 + [False] * 4 + [True]
    assert seen[4].tolist() == [True] * 5 + [False] * 3
    assert layout.row_N.tolist() == [0, 0, 0, 1]
    assert layout.column_N.tolist() == [3, 4, 6, 3]


def test_rows_without_a_common_start_stay_apart():
    batch = batch_of(
        group(trajectory([span([1, 2], [4])], reward=1.0), trajectory([span([9, 2], [8])]))
    )
    ((one, other),) = plan(batch, budget=100)
    assert one.rows == (0,)
    assert other.rows == (1,)
    layout = lay_out(batch, [one, other])
    assert layout.attention_PL.ndim == 2


def test_budget_splits_a_group():
    members = [trajectory([span([1] * 10, [2] * 5)], reward=i % 2) for i in range(8)]
    batch = batch_of(group(*members))
    micro = plan(batch, budget=30)
    assert sorted(row for packs in micro for one in packs for row in one.rows) == list(range(8))
    assert all(len(packs) * packs[0].length <= 30 for packs in micro)


spans = st.builds(
    span,
    st.lists(st.integers(1, 2), min_size=1, max_size=6),
    st.lists(st.integers(3, 5), min_size=1, max_size=4),
    restart=st.booleans(),
)
members = st.lists(st.lists(spans, min_size=1, max_size=3), min_size=2, max_size=5)


@settings(max_examples=150, deadline=None)
@given(st.lists(members, min_size=1, max_size=3), st.integers(8, 60))
def test_every_loss_token_once_and_with_its_own_past(groups, budget):
    batch = batch_of(
        *(
            group(*(trajectory(steps, reward=float(i == 0)) for i, steps in enumerate(each)))
            for each in groups
        )
    )
    found = np.zeros_like(batch.loss_mask_BT, dtype=int)
    for packs in plan(batch, budget):
        layout = lay_out(batch, packs)
        rows = np.array(layout.rows)
        np.add.at(found, (rows[layout.row_N], layout.column_N), 1)
        tokens = zip(*np.nonzero(layout.where_PL), layout.row_N, layout.column_N, strict=True)
        for p, position, row, column in tokens:
            source = layout.source_PL[p, position]
            if layout.attention_PL.ndim == 2:
                past = np.arange(layout.token_ids_PL.shape[1]) <= source
            else:
                past = layout.attention_PL[p, 0, source]
            # What the predicting position sees is exactly the row's own past, in order.
            seen = layout.token_ids_PL[p, past]
            assert seen.tolist() == batch.token_ids_BT[rows[row], :column].tolist()
            assert layout.position_ids_PL[p, past].tolist() == list(range(column))
            assert layout.token_ids_PL[p, position] == batch.token_ids_BT[rows[row], column]
    assert (found == batch.loss_mask_BT).all()
