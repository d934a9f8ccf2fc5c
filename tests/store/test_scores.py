"""Scores against a count by hand, for any mix of outcomes."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.store import TrajectoryRow
from quintain.store.scores import Scores
from quintain.trajectory import TrajectoryKey
from quintain.verdict import Outcome


def row(task, sample, outcome, *, final=True, attempt=0, cost_usd=0.0):
    reward = {Outcome.SOLVED: 1.0, Outcome.FAILED: 0.0}.get(outcome)
    return TrajectoryRow(
        key=TrajectoryKey("eval", "e", f"t{task}", sample, attempt),
        final=final,
        outcome=str(outcome),
        reward=reward,
        stop="done",
        steps=1,
        total_s=1.0,
        cost_usd=cost_usd,
    )


samples = st.lists(
    st.lists(st.sampled_from(list(Outcome)), min_size=1, max_size=4), min_size=1, max_size=8
)


def by_hand(tasks, k, strict):
    """pass@k: over all choices of k of a task's samples, does any solve it? Then over tasks."""
    values = []
    for outcomes in tasks:
        judged = [o for o in outcomes if strict or o.judged]
        chosen = list(itertools.combinations(judged, k))
        if chosen:
            values.append(sum(Outcome.SOLVED in c for c in chosen) / len(chosen))
    return sum(values) / len(values) if values else None


@given(samples, st.integers(1, 4), st.booleans())
@settings(max_examples=150, deadline=None)
def test_scores_by_hand(tasks, k, strict):
    rows = [row(t, s, o) for t, outcomes in enumerate(tasks) for s, o in enumerate(outcomes)]
    scores = Scores.of(rows)
    expected = by_hand(tasks, k, strict)
    found = scores.pass_at(k, excluded_as_failures=strict)
    assert found.tasks + found.skipped == scores.tasks == len(tasks)
    if expected is None:
        assert found.tasks == 0
    else:
        assert found.value == pytest.approx(expected)
        assert 0.0 <= found.interval.low <= found.value + 1e-9
        assert found.value - 1e-9 <= found.interval.high <= 1.0
    if k == 1 and expected is not None:
        assert scores.mean(excluded_as_failures=strict).value == pytest.approx(expected)
    everything = [o for outcomes in tasks for o in outcomes]
    assert scores.outcomes == {o: everything.count(o) for o in Outcome}
    assert scores.excluded == sum(not o.judged for o in everything)
    assert scores.samples == len(everything)
    # Counting the excluded as failures never makes a score better.
    strict_score = scores.pass_at(1, excluded_as_failures=True)
    solved = sum(Outcome.SOLVED in outcomes for outcomes in tasks)
    assert strict_score.value <= solved / len(tasks) + 1e-9


def test_attempts_that_are_not_final_do_not_count():
    rows = [
        row(0, 0, Outcome.INFRA_ERROR, final=False),
        row(0, 0, Outcome.SOLVED, attempt=1, cost_usd=2.0),
    ]
    scores = Scores.of(rows)
    assert scores.samples == 1
    assert scores.pass_at(1).value == 1.0
    assert scores.cost_usd == 2.0


def test_warnings_say_what_a_reader_has_to_know():
    assert Scores.of([]).warnings == ["no sample was run"]
    broken = Scores.of([row(0, 0, Outcome.POLICY_ERROR), row(1, 0, Outcome.ABSTAINED)])
    assert broken.warnings == ["none of 2 samples was judged: 1 abstained, 1 policy_error"]
    clean = Scores.of([row(t, 0, Outcome.SOLVED) for t in range(100)])
    assert clean.warnings == []
    # One in a hundred left out moves the score little: no warning of a gap.
    one = Scores.of([*clean.rows[1:], row(0, 0, Outcome.SOLVED), row(0, 1, Outcome.INFRA_ERROR)])
    assert one.warnings == []
    many = Scores.of([*clean.rows, *(row(t, 1, Outcome.INFRA_ERROR) for t in range(50))])
    assert many.warnings == [
        "50 of 150 samples left out (50 infra_error): "
        "pass@1 is 1.000 without them and 0.750 with them as failures"
    ]


def test_comparison_uses_the_rewards_of_both():
    a = Scores.of([row(t, 0, Outcome.FAILED) for t in range(6)])
    b = Scores.of([row(t, 0, Outcome.SOLVED if t else Outcome.INFRA_ERROR) for t in range(7)])
    compared = a.compare(b)
    assert Counter(better=compared.better, only_a=compared.only_a, only_b=compared.only_b) == {
        "better": 5,
        "only_a": 1,
        "only_b": 1,
    }
