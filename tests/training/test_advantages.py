"""Advantages against hand-computed values and their algebra."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain.errors import ConfigError
from quintain.training.advantages import (
    dr_grpo,
    estimator,
    gae,
    grpo,
    has_signal,
    reward,
    rloo,
)

nan = float("nan")
COMPARING = {"dr_grpo": dr_grpo, "grpo": grpo, "rloo": rloo}
groups = st.lists(st.sampled_from([0.0, 0.25, 0.1, 1.0, nan]), min_size=1, max_size=16)


def test_hand_computed():
    rewards = np.array([1.0, 0.0, 0.0, 1.0, 0.0])
    assert np.allclose(dr_grpo(rewards), [0.6, -0.4, -0.4, 0.6, -0.4])
    deviation = np.sqrt(0.24)
    assert np.allclose(grpo(rewards, epsilon=0), np.array([0.6, -0.4, -0.4, 0.6, -0.4]) / deviation)
    assert np.allclose(rloo(rewards), [0.75, -0.5, -0.5, 0.75, -0.5])


def test_member_without_reward_leaves_the_baseline_alone():
    for name, function in COMPARING.items():
        with_fault = function(np.array([1.0, nan, 0.0, 0.0]))
        without = function(np.array([1.0, 0.0, 0.0]))
        assert np.isnan(with_fault[1]), name
        assert np.allclose(with_fault[[0, 2, 3]], without), name


def test_equal_rewards_give_exactly_zero():
    for function in COMPARING.values():
        assert function(np.array([0.1] * 7)).tolist() == [0.0] * 7
        assert not has_signal(np.array([0.1] * 7))
    assert not has_signal(np.array([1.0, nan, nan]))
    assert has_signal(np.array([1.0, nan, 0.0]))


@given(groups)
def test_algebra(rewards):
    rewards_G = np.array(rewards)
    missing = np.isnan(rewards_G)
    for function in COMPARING.values():
        advantages = function(rewards_G)
        assert (np.isnan(advantages) == missing).all()
        assert abs(np.nansum(advantages)) < 1e-6
        assert bool(np.nanmax(np.abs(np.append(advantages, 0.0))) > 0) == has_signal(rewards_G)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=10))
def test_rloo_is_the_mean_of_the_others(rewards):
    rewards_G = np.array(rewards)
    if has_signal(rewards_G):
        others = [(rewards_G.sum() - reward) / (len(rewards) - 1) for reward in rewards]
        assert np.allclose(rloo(rewards_G), rewards_G - np.array(others), atol=1e-9)


def test_a_critics_estimator_leaves_rewards_alone():
    assert np.array_equal(reward(np.array([1.0, nan])), [1.0, nan], equal_nan=True)
    assert estimator("gae") is reward


def test_gae_by_hand():
    rewards = np.array([[0.0, 0.0, 1.0], [0.5, 0.0, 0.0]])
    values = np.array([[0.2, 0.4, 0.6], [0.1, 0.0, 0.0]])
    found = gae(rewards, values, gamma=0.9, gae_lambda=0.5)
    # δ = 0.9·0.4 − 0.2, 0.9·0.6 − 0.4, 1 − 0.6; A_2 = 0.4, A_1 = 0.14 + 0.45·0.4, A_0 = 0.16 + …
    assert np.allclose(found[0], [0.16 + 0.45 * 0.32, 0.14 + 0.45 * 0.4, 0.4])
    assert np.allclose(found[1], [0.4, 0.0, 0.0])


@given(
    st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=1, max_size=9),
    st.floats(0.5, 1),
)
def test_gae_at_its_ends_is_the_return_and_the_temporal_difference(steps, gamma):
    rewards, values = np.array(steps).T
    after = np.append(values[1:], 0.0)
    one = gae(rewards[None], values[None], gamma=gamma, gae_lambda=1.0)[0]
    returns = [
        sum(gamma**k * r for k, r in enumerate(rewards[t:])) - values[t]
        for t in range(len(rewards))
    ]
    assert np.allclose(one, returns, atol=1e-9)
    zero = gae(rewards[None], values[None], gamma=gamma, gae_lambda=0.0)[0]
    assert np.allclose(zero, rewards + gamma * after - values, atol=1e-9)


def test_unknown_name():
    with pytest.raises(ConfigError, match="dr_grpo"):
        estimator("ppo2")


def test_works_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import quintain.training.advantages, quintain.training.batching\n"
        "assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
