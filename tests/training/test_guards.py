"""Each warning is given by what it speaks of; the memory is a function of the steps seen."""

import pytest

from quintain.training.guards import AGAIN_STEPS, Watch

FINE = {
    "groups": 4.0,
    "groups_with_signal": 3.0,
    "grad_norm": 0.5,
    "entropy": 2.0,
    "length_mean": 40.0,
    "ratio_max": 1.2,
    "ess": 0.9,
    "staleness_max": 0.0,
    "logprob_gap_mean": 1e-5,
    "tokens_trained": 900.0,
    "reward": 0.4,
}
QUIET = {
    "groups": 4.0,
    "groups_with_signal": 0.0,
    "skipped_quiet": 1.0,
    "reward": 1.0,
    "length_mean": 40.0,
}


def names(watch, metrics):
    return [warned.name for warned in watch.see(metrics)]


def healthy(steps=8):
    watch = Watch()
    for _ in range(steps):
        assert watch.see(FINE) == []
    return watch


@pytest.mark.parametrize(
    ("changed", "name", "word"),
    [
        ({"entropy": 0.1}, "entropy", "nearly alike"),
        ({"length_mean": 130.0}, "length", "grew from 40 to 130"),
        ({"length_mean": 9.0}, "length", "shrank"),
        ({"ratio_max": 50.0}, "ratio", "50 times"),
        ({"ess": 0.05}, "ess", "5.0%"),
        ({"logprob_gap_mean": 0.4}, "mismatch", "0.40 nats"),
        ({"grad_norm": 0.0}, "no_gradient", "exactly 0"),
        ({"grad_norm": 30.0}, "gradient", "usually 0.5"),
        ({"skipped_not_finite": 1.0}, "not_finite", "left out"),
        ({"trajectories_split": 2.0}, "rewritten", "chat template"),
    ],
)
def test_a_cause_is_told_once_and_again_while_it_lasts(changed, name, word):
    watch = healthy()
    (warned,) = watch.see({**FINE, **changed})
    assert warned.name == name
    assert word in warned.message
    assert watch.see(FINE) == []
    assert names(watch, {**FINE, **changed}) == [name]
    if name != "gradient":  # its norm becomes the usual one
        told = [name in names(watch, {**FINE, **changed}) for _ in range(AGAIN_STEPS)]
        assert told == [False] * (AGAIN_STEPS - 1) + [True]


def test_old_data_may_differ_from_the_learner():
    assert names(healthy(), {**FINE, "logprob_gap_mean": 0.4, "staleness_max": 2.0}) == []


def test_steps_without_a_group_that_differs():
    watch = healthy()
    assert [names(watch, QUIET) for _ in range(4)] == [[], [], ["equal_groups", "unchanged"], []]
    watch = healthy()
    told = [warned.message for _ in range(3) for warned in watch.see(QUIET)]
    assert "all samples pass" in told[0]
    watch = healthy()
    told = [w.message for _ in range(3) for w in watch.see({**QUIET, "reward": 0.0})]
    assert "none passes" in told[0]


def test_a_critic_learns_from_groups_that_are_equal():
    watch = healthy()
    equal = {**FINE, "groups_with_signal": 0.0, "skipped_quiet": 0.0}
    assert all(names(watch, equal) == [] for _ in range(5))


def test_nothing_is_warned_of_before_it_can_be_known():
    watch = Watch()
    assert names(watch, {}) == []
    for scale in (0.01, 1.0, 0.01, 1.0, 0.5):
        assert names(watch, {**FINE, "entropy": scale, "length_mean": 100 * scale}) == []
