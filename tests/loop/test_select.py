"""Selection: strict dominance, ties kept, gaps refused, one deterministic choice."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.errors import ConfigError
from quintain.loop.select import Candidate, dominates, pareto_front, pick


def candidate(step, **scores):
    return Candidate(step, step, scores)


def test_equal_checkpoints_stay_in_together_and_the_least_trained_is_picked():
    a, b = candidate(5, one=0.5, two=0.5), candidate(9, one=0.5, two=0.5)
    assert not dominates(a, b)
    assert pareto_front([b, a]) == [a, b]
    best, why = pick([b, a])
    assert best is a
    assert "least trained" in why


def test_same_candidate_loaded_twice_does_not_eliminate_itself():
    assert len(pareto_front([candidate(1, one=0.5), candidate(1, one=0.5)])) == 2


def test_front_and_choice():
    base = candidate(0, math=0.2, code=0.6)
    better = candidate(10, math=0.7, code=0.5)
    worse = candidate(20, math=0.6, code=0.5)
    assert pareto_front([worse, better, base]) == [base, better]
    best, why = pick([base, better, worse])
    assert best is better
    assert "none dominates" in why
    assert "dominates the other 1" in pick([better, worse])[1]


def test_missing_and_not_measured_scores_are_named():
    with pytest.raises(ConfigError, match="step 7"):
        pareto_front([candidate(0, one=1.0, two=1.0), candidate(7, one=1.0)])
    with pytest.raises(ConfigError, match=r"step 3 has no score in 'one'"):
        pick([candidate(3, one=float("nan"))])
    with pytest.raises(ConfigError, match="no evaluated checkpoint"):
        pick([])


scores = st.fixed_dictionaries({"a": st.sampled_from([0, 0.5, 1]), "b": st.sampled_from([0, 1])})
candidates = st.lists(scores, min_size=1, max_size=6).map(
    lambda found: [Candidate(step, step, each) for step, each in enumerate(found)]
)


@given(candidates)
def test_front_is_never_empty_and_the_choice_ignores_the_order(found):
    front = pareto_front(found)
    assert front
    for one, other in itertools.product(front, repeat=2):
        assert not dominates(one, other)
    for each in found:
        assert each in front or any(dominates(one, each) for one in front)
    assert pick(found)[0] == pick(found[::-1])[0]
