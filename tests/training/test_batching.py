"""Rows, masks, denominators and staleness."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.training.advantages import dr_grpo, reward
from quintain.training.batching import Packing, group_rewards, pack, select, token_weights
from quintain.training.groups import Group, rows
from quintain.trajectory import StopReason

from .builders import group, span, trajectory

PACKING = Packing(estimator=dr_grpo)


def test_multi_turn_row_is_prompt_sampled_observation_sampled():
    one = trajectory([span([1, 2], [3])], [span([4, 5], [6, 7], version=2)], reward=1.0)
    (row,) = rows(one)
    assert row.token_ids == [1, 2, 3, 4, 5, 6, 7]
    assert row.sampled == [False, False, True, False, False, True, True]
    assert row.versions == [-1, -1, 0, -1, -1, 2, 2]
    assert row.logprobs == [0, 0, -1, 0, 0, -1, -1]


def test_restart_begins_a_row_of_the_same_trajectory():
    one = trajectory([span([1], [2])], [span([1, 9, 4], [5], restart=True)], reward=1.0)
    other = trajectory([span([1], [2])], reward=0.0)
    batch, metrics = pack([group(one, other)], PACKING, version=0)
    assert batch.token_ids_BT.tolist() == [[1, 2, 0, 0], [1, 9, 4, 5], [1, 2, 0, 0]]
    assert batch.trajectory_B.tolist() == [0, 0, 1]
    assert batch.loss_mask_BT.sum() == 3
    assert metrics["trajectories_split"] == 1
    weights = token_weights(batch, "sequence")
    sequence, _ = pack(
        [group(one, other)], Packing(estimator=dr_grpo, aggregation="sequence"), version=0
    )
    weights = token_weights(sequence, "sequence")
    per_trajectory = np.bincount(sequence.trajectory_B, weights=weights.sum(axis=1))
    assert np.allclose(per_trajectory, 0.5)


def test_fault_is_neither_trained_nor_in_the_baseline_nor_in_the_denominator():
    good, bad, fault = (
        trajectory([span([1], [2, 3])], reward=1.0),
        trajectory([span([1], [4])], reward=0.0),
        trajectory([span([1], [5, 5, 5])], reward=None),
    )
    batch, metrics = pack([group(good, fault, bad)], PACKING, version=0)
    assert batch.denominator == 3
    assert 5 not in batch.token_ids_BT
    assert np.allclose(batch.advantages_BT[0, 1:3], 0.5)
    assert metrics["host_faults"] == 1
    assert metrics["trajectories_without_reward"] == 1


def test_silent_group_counts_in_the_denominator_but_has_no_rows():
    loud = group(trajectory([span([1], [2])], reward=1.0), trajectory([span([1], [3])]))
    silent = group(trajectory([span([1], [4, 4])]), trajectory([span([1], [5, 5])]))
    batch, metrics = pack([loud, silent], PACKING, version=0)
    assert batch.denominator == 6
    assert len(batch.token_ids_BT) == 2
    assert (metrics["groups"], metrics["groups_with_signal"]) == (2, 1)
    assert pack([silent], PACKING, version=0)[0] is None


def test_stale_tokens_are_masked_and_the_member_keeps_its_place():
    old = trajectory([span([1], [2], version=0)], [span([9], [3], version=5)], reward=1.0)
    new = trajectory([span([1], [4], version=5)], reward=0.0, total_s=20.0)
    packing = Packing(estimator=dr_grpo, max_staleness=4)
    batch, metrics = pack([group(old, new)], packing, version=5)
    assert batch.loss_mask_BT.tolist() == [[False, False, False, True], [False, True, False, False]]
    assert batch.denominator == 3
    assert np.allclose(batch.advantages_BT[1, 1], -0.5)
    assert metrics["share_stale"] == pytest.approx(1 / 3)
    assert metrics["stale_by_duration/0-1s"] == 1
    assert metrics["stale_by_duration/10-30s"] == 0
    assert metrics["staleness/5"] == 1
    assert metrics["staleness/0"] == 2
    exactly, _ = pack([group(old, new)], packing, version=4)
    assert exactly.loss_mask_BT.sum() == 3


def test_overlong_choices():
    cut = trajectory([span([1], [2, 2])], reward=1.0, stop=StopReason.MAX_TOKENS)
    fine = trajectory([span([1], [3])], reward=1.0)
    bad = trajectory([span([1], [4])], reward=0.0)
    keep, _ = pack([group(cut, fine, bad)], PACKING, version=0)
    assert keep.loss_mask_BT.sum() == 4
    mask, metrics = pack(
        [group(cut, fine, bad)], Packing(estimator=dr_grpo, overlong="mask"), version=0
    )
    assert mask.loss_mask_BT.sum() == 2
    assert mask.denominator == 4
    assert np.allclose(mask.advantages_BT, keep.advantages_BT)
    assert metrics["share_overlong"] == 0.5
    lower, metrics = pack(
        [group(cut, fine, bad)], Packing(estimator=dr_grpo, overlong="penalise"), version=0
    )
    assert np.allclose(lower.advantages_BT[:, 1], [0.0, 0.5, -0.5])
    assert metrics["reward"] == pytest.approx(2 / 3)


def test_soft_overlong_punishment_by_hand():
    lengths = [2, 4, 5, 6, 9]
    members = [trajectory([span([1], [2] * n)], reward=1.0) for n in lengths]
    packing = Packing(
        estimator=dr_grpo,
        overlong="soft",
        overlong_penalty=0.8,
        overlong_tokens=6,
        overlong_buffer=2,
    )
    found = group_rewards(group(*members), packing)
    assert np.allclose(found, [1.0, 1.0, 0.6, 0.2, 0.2])
    batch, metrics = pack([group(*members)], packing, version=0)
    assert np.allclose(batch.advantages_BT[0, 1], 0.4)
    assert metrics["reward"] == 1.0


def test_a_group_of_equal_rewards_is_trained_where_nothing_is_compared():
    silent = group(
        trajectory([span([1], [4, 4])], reward=1.0), trajectory([span([1], [5])], reward=1.0)
    )
    batch, _ = pack([silent], Packing(estimator=reward, compares=False), version=0)
    assert batch.loss_mask_BT.sum() == 3
    assert (batch.advantages_BT[batch.loss_mask_BT] == 1.0).all()


def test_long_rows_are_cut_and_counted():
    long = trajectory([span([1], [2] * 9)], reward=1.0)
    short = trajectory([span([1], [3])], reward=0.0)
    batch, metrics = pack(
        [group(long, short)], Packing(estimator=dr_grpo, max_row_tokens=4), version=0
    )
    assert batch.token_ids_BT.shape == (2, 4)
    assert batch.denominator == 10
    assert metrics["share_cut"] == 0.6


def test_a_token_without_a_predictor_is_not_trained():
    batch, _ = pack(
        [
            group(
                trajectory([span([], [2, 3])], reward=1.0),
                trajectory([span([1], [3])], reward=0.0),
            )
        ],
        PACKING,
        version=0,
    )
    assert batch.loss_mask_BT.tolist() == [[False, True], [False, True]]


def test_select_keeps_the_denominator_and_trims():
    batch, _ = pack(
        [
            group(
                trajectory([span([1], [2] * 5)], reward=1.0),
                trajectory([span([1], [3])], reward=0.0),
            )
        ],
        PACKING,
        version=0,
    )
    part = select(batch, np.array([1]))
    assert part.token_ids_BT.tolist() == [[1, 3]]
    assert part.denominator == batch.denominator


spans = st.builds(
    span,
    st.lists(st.integers(1, 99), min_size=1, max_size=4),
    st.lists(st.integers(100, 199), min_size=0, max_size=5),
    version=st.integers(0, 6),
    restart=st.booleans(),
    logprob=st.floats(-5, 0),
)
trajectories = st.builds(
    lambda steps, reward, total: trajectory(*steps, reward=reward, total_s=total),
    st.lists(st.lists(spans, min_size=1, max_size=2), min_size=1, max_size=3),
    st.sampled_from([0.0, 1.0, None]),
    st.floats(0, 400),
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(trajectories, min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(0, 8),
    st.integers(0, 4),
    st.sampled_from(["token", "sequence", "constant"]),
)
def test_every_sampled_token_is_trained_exactly_once_unless_a_reason_is_counted(
    members, version, bound, aggregation
):
    groups = [Group(ticket, tuple(each)) for ticket, each in enumerate(members)]
    packing = Packing(estimator=dr_grpo, aggregation=aggregation, max_staleness=bound)
    batch, metrics = pack(groups, packing, version=version)
    judged = [t for g in groups for t in g.trajectories if t.reward is not None]
    sampled = sum(len(s.token_ids) for t in judged for x in t.steps for s in x.action.tokens)
    assert metrics["tokens_sampled"] == sampled
    loud = [t for g in groups if g.signal for t in g.trajectories if t.reward is not None]
    fresh = sum(
        len(s.token_ids)
        for t in loud
        for x in t.steps
        for s in x.action.tokens
        if version - s.policy_version <= bound
    )
    assert metrics["tokens_trained"] == fresh
    if batch is None:
        assert fresh == 0
        return
    assert ((batch.token_ids_BT >= 100) == (batch.version_BT >= 0)).all()
    assert not (batch.loss_mask_BT & (batch.version_BT < 0)).any()
    assert (version - batch.version_BT[batch.loss_mask_BT] <= bound).all()
    weights = token_weights(batch, aggregation)
    assert ((weights > 0) == batch.loss_mask_BT).all()
    assert weights.sum() <= 1 + 1e-5
