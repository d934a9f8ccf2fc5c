"""Every estimator against tables, brute force and simulation."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain import statistics as q


# Two-sided 95 % and 99 % critical values as printed in any t table.
@pytest.mark.parametrize(
    ("p", "df", "expected"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.30265),
        (0.975, 5, 2.57058),
        (0.975, 10, 2.22814),
        (0.975, 30, 2.04227),
        (0.975, 120, 1.97993),
        (0.995, 1, 63.6567),
        (0.995, 4, 4.60409),
        (0.995, 60, 2.66028),
        (0.95, 7, 1.89458),
        (0.9995, 3, 12.9240),
    ],
)
def test_t_quantile_table(p, df, expected):
    assert q.t_quantile(p, df) == pytest.approx(expected, rel=1e-5)
    assert q.t_quantile(1 - p, df) == pytest.approx(-expected, rel=1e-5)


def test_t_closed_forms_and_limit():
    for t in (0.1, 1.0, 7.0, 100.0):
        assert q.t_tail(t, 1) == pytest.approx(0.5 - math.atan(t) / math.pi, rel=1e-9)
        assert q.t_tail(t, 2) == pytest.approx(0.5 - t / (2 * math.sqrt(2 + t * t)), rel=1e-6)
    assert q.t_quantile(0.975, 1e6) == pytest.approx(q.normal_quantile(0.975), rel=1e-5)
    assert q.t_quantile(0.5, 3) == 0.0


@given(st.floats(0.001, 0.999), st.floats(0.5, 500))
def test_t_quantile_inverts_the_tail(p, df):
    assert 1 - q.t_tail(q.t_quantile(p, df), df) == pytest.approx(p, abs=1e-9)


@given(st.integers(1, 40), st.integers(1, 40), st.fractions(0, 1))
def test_beta_cdf_is_a_binomial_sum(a, b, x):
    n = a + b - 1
    exact = sum(math.comb(n, j) * x**j * (1 - x) ** (n - j) for j in range(a, n + 1))
    assert q.beta_cdf(float(x), a, b) == pytest.approx(float(exact), abs=1e-11)


def test_wilson_known_values():
    # Newcombe 1998, table I: 81/263, 15/148, 0/20, 1/29 by the score method.
    for successes, n, low, high in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ]:
        interval = q.wilson(successes, n)
        assert interval.low == pytest.approx(low, abs=6e-5)
        assert interval.high == pytest.approx(high, abs=6e-5)


def test_clopper_pearson_known_values():
    # Newcombe 1998, table I, exact method.
    for successes, n, low, high in [
        (81, 263, 0.2527, 0.3676),
        (15, 148, 0.0578, 0.1617),
        (0, 20, 0.0, 0.1684),
        (1, 29, 0.0009, 0.1776),
    ]:
        interval = q.clopper_pearson(successes, n)
        assert interval.low == pytest.approx(low, abs=6e-5)
        assert interval.high == pytest.approx(high, abs=6e-5)


@given(st.integers(0, 60), st.integers(1, 60), st.sampled_from([0.8, 0.95, 0.99]))
def test_proportion_intervals_hold_their_value(successes, n, confidence):
    successes = min(successes, n)
    for make in (q.wilson, q.clopper_pearson):
        interval = make(successes, n, confidence)
        assert 0.0 <= interval.low <= interval.value <= interval.high <= 1.0
        mirror = make(n - successes, n, confidence)
        assert mirror.low == pytest.approx(1 - interval.high, abs=1e-9)


def test_nothing_seen():
    for make in (q.wilson, q.clopper_pearson):
        interval = make(0, 0)
        assert math.isnan(interval.value)
        assert (interval.low, interval.high) == (0.0, 1.0)
    assert q.upper_bound(0, 0) == 1.0


@given(st.integers(1, 5000), st.sampled_from([0.9, 0.95, 0.99]))
def test_zero_of_n_bound_is_exact(n, confidence):
    bound = q.upper_bound(0, n, confidence)
    assert (1 - bound) ** n == pytest.approx(1 - confidence, rel=1e-9)
    assert q.trials_for_bound(bound * 1.000001, confidence) <= n
    assert q.trials_for_bound(bound * 0.999, confidence) > n - 1


@given(st.integers(0, 30), st.integers(1, 30))
def test_upper_bound_solves_the_binomial_tail(successes, n):
    successes = min(successes, n - 1)
    bound = q.upper_bound(successes, n)
    tail = sum(math.comb(n, i) * bound**i * (1 - bound) ** (n - i) for i in range(successes + 1))
    assert tail == pytest.approx(0.05, abs=1e-9)


def test_rule_of_three_and_bad_counts():
    assert q.upper_bound(0, 1000) == pytest.approx(3 / 1000, rel=0.01)
    assert q.trials_for_bound(0.01) == 299
    for bad in ((3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="0 <= successes <= n"):
            q.wilson(*bad)
    with pytest.raises(ValueError, match="confidence"):
        q.wilson(1, 2, 1.0)


def brute_pass(outcomes, k, every):
    """Over all ways to choose k of the samples: does any (or does every one) pass?"""
    chosen = list(itertools.combinations(outcomes, k))
    hits = sum((all if every else any)(c) for c in chosen)
    return Fraction(hits, len(chosen))


@given(st.integers(1, 9), st.integers(0, 9), st.integers(1, 9))
def test_pass_k_by_brute_force(n, c, k):
    c = min(c, n)
    outcomes = [True] * c + [False] * (n - c)
    if k > n:
        assert q.pass_at_k_of_task(n, c, k) is None
        assert q.pass_hat_k_of_task(n, c, k) is None
        return
    assert q.pass_at_k_of_task(n, c, k) == pytest.approx(float(brute_pass(outcomes, k, False)))
    assert q.pass_hat_k_of_task(n, c, k) == pytest.approx(float(brute_pass(outcomes, k, True)))


@given(st.integers(1, 3000), st.data())
def test_pass_at_k_equals_the_binomial_form(n, data):
    c = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    exact = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
    assert q.pass_at_k_of_task(n, c, k) == pytest.approx(float(exact), abs=1e-9)
    exact = Fraction(math.comb(c, k), math.comb(n, k))
    assert q.pass_hat_k_of_task(n, c, k) == pytest.approx(float(exact), abs=1e-9)


def test_pass_at_k_counts_tasks_with_too_few_samples():
    out = q.pass_at_k([(4, 2), (4, 0), (1, 1), (0, 0)], k=2)
    assert (out.tasks, out.skipped) == (2, 2)
    assert out.value == pytest.approx((5 / 6 + 0) / 2)
    assert "2 with fewer than 2 samples" in str(out)
    none = q.pass_at_k([(1, 1)], k=2)
    assert math.isnan(none.value)
    assert none.interval.method == "none"
    with pytest.raises(ValueError, match="k is at least 1"):
        q.pass_at_k([(1, 1)], k=0)


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=2, max_size=20))
def test_pass_at_1_is_the_mean_by_task(samples):
    by_task = {i: [float(s) for s in task] for i, task in enumerate(samples)}
    counts = [(len(task), sum(task)) for task in samples]
    mean = q.clustered_mean(by_task, bounds=(0.0, 1.0))
    one = q.pass_at_k(counts, 1).interval
    assert one.value == pytest.approx(mean.value)
    assert one.low == pytest.approx(mean.low)
    assert one.high == pytest.approx(mean.high)


def test_mean_by_hand():
    # Task means 0.5, 1, 0, 0.5: mean 0.5, sd sqrt(1/6), SE sqrt(1/24), t(3) = 3.18245.
    interval = q.clustered_mean({"a": [0, 1], "b": [1, 1], "c": [0, 0], "d": [1, 0]})
    assert interval.value == 0.5
    assert interval.n == 4
    assert interval.half_width == pytest.approx(3.182446 * math.sqrt(1 / 24), rel=1e-6)


@given(st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=2, max_size=12))
def test_both_weightings_agree_on_equal_groups(samples):
    by_task = dict(enumerate(samples))
    a = q.clustered_mean(by_task)
    b = q.clustered_mean(by_task, weighting="samples")
    assert a.value == pytest.approx(b.value, abs=1e-12)
    assert a.low == pytest.approx(b.low, abs=1e-6)


def test_sample_weighting_by_hand():
    # CR1: G/(G-1) * sum of squared cluster residual sums / N^2.
    by_task = {"a": [1.0, 1.0, 1.0], "b": [0.0]}
    interval = q.clustered_mean(by_task, weighting="samples")
    assert interval.value == 0.75
    error = math.sqrt(2 * ((3 * 0.25) ** 2 + 0.75**2) / 16)
    assert interval.half_width == pytest.approx(12.7062 * error, rel=1e-4)


def test_no_spread_is_not_certainty():
    ones = q.clustered_mean({i: [1.0] for i in range(20)}, bounds=(0.0, 1.0))
    exact = q.clopper_pearson(20, 20)
    assert (ones.value, ones.high) == (1.0, 1.0)
    assert ones.low == pytest.approx(exact.low)
    half = q.clustered_mean({i: [0.0, 1.0] for i in range(20)}, bounds=(0.0, 1.0))
    assert half.low < 0.5 < half.high
    # Rounding is no spread: the same three rewards in another order.
    rounded = q.clustered_mean(
        {0: [0.1, 0.2, 0.3], 1: [0.3, 0.2, 0.1], 2: [0.2, 0.3, 0.1]}, bounds=(0.0, 1.0)
    )
    assert rounded.method == "no-spread"
    assert rounded.low < 0.1
    one = q.clustered_mean({"only": [1.0, 0.0, 1.0]}, bounds=(0.0, 1.0))
    assert (one.low, one.high, one.method) == (0.0, 1.0, "none")
    none = q.clustered_mean({}, bounds=(0.0, 1.0))
    assert math.isnan(none.value)


def test_interval_covers_as_often_as_it_says():
    # 40 tasks of differing difficulty, 4 samples each, true mean 0.4.
    generator = np.random.default_rng(7)
    covered_clustered = covered_naive = 0
    trials = 1500
    for _ in range(trials):
        p = generator.beta(0.8, 1.2, size=40)
        x = generator.random((40, 4)) < p[:, None]
        by_task = {i: row.astype(float).tolist() for i, row in enumerate(x)}
        covered_clustered += not q.clustered_mean(by_task, bounds=(0.0, 1.0)).excludes(0.4)
        covered_naive += not q.wilson(int(x.sum()), x.size).excludes(0.4)
    assert 0.93 <= covered_clustered / trials <= 0.97
    # The control: taking samples for independent is what goes wrong.
    assert covered_naive / trials < 0.9


def test_paired_by_hand():
    a = {"1": [0, 0], "2": [1, 0], "3": [1, 1], "x": [1]}
    b = {"1": [1, 0], "2": [1, 1], "3": [1, 1], "y": [0], "x": []}
    out = q.paired(a, b)
    assert (out.better, out.worse, out.tied, out.only_a, out.only_b) == (2, 0, 1, 1, 1)
    assert out.difference.value == pytest.approx(1 / 3)
    d = [0.5, 0.5, 0.0]
    half = 4.302653 * np.std(d, ddof=1) / math.sqrt(3)
    assert out.difference.low == pytest.approx(1 / 3 - half, rel=1e-5)
    assert out.difference.high == 1.0  # clipped: rewards differ by 1 at most
    assert out.p_permutation == 0.5  # 2 of the 4 sign flips are as extreme
    assert out.p_sign == 0.5
    assert (out.mean_a, out.mean_b) == (pytest.approx(0.5), pytest.approx(5 / 6))
    assert "2 better, 0 worse, 1 tied" in str(out)


rewards = st.lists(st.floats(0, 1), min_size=1, max_size=3)
runs = st.dictionaries(st.integers(0, 30), rewards, min_size=2, max_size=15)


@given(runs, runs)
@settings(max_examples=60, deadline=None)
def test_paired_is_antisymmetric(a, b):
    forward, back = q.paired(a, b), q.paired(b, a)
    assert forward.tasks == back.tasks == len(set(a) & set(b))
    assert (forward.better, forward.worse) == (back.worse, back.better)
    if forward.tasks:
        assert forward.difference.value == pytest.approx(-back.difference.value, abs=1e-12)
        assert forward.difference.low == pytest.approx(-back.difference.high, abs=1e-9)
        assert forward.p_permutation == pytest.approx(back.p_permutation)
    assert 0 < forward.p_permutation <= 1
    assert 0 < forward.p_sign <= 1


def test_a_run_against_itself_is_a_tie_with_room_for_doubt():
    a = {i: [float(i % 2)] for i in range(30)}
    out = q.paired(a, a)
    assert out.difference.value == 0.0
    assert out.difference.low < 0 < out.difference.high
    assert out.p_permutation == out.p_sign == 1.0
    assert out.tied == 30


def test_three_wins_out_of_three_are_no_proof():
    out = q.paired({i: [0.0] for i in range(3)}, {i: [1.0] for i in range(3)})
    assert out.difference.value == 1.0
    assert not out.difference.excludes(0.0)
    assert out.p_permutation == 0.25


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9))
def test_permutation_by_brute_force(d):
    flips = [
        abs(sum(s * x for s, x in zip(signs, d, strict=True)))
        for signs in itertools.product((-1, 1), repeat=len(d))
    ]
    expected = sum(f >= abs(sum(d)) for f in flips) / len(flips)
    assert q.sign_flip_test(d) == pytest.approx(expected)


def test_random_permutations_agree_with_all_of_them():
    generator = np.random.default_rng(3)
    d = generator.normal(0.3, 1.0, size=14).tolist()
    exact = q.sign_flip_test(d)
    sampled = q.sign_flip_test(d, permutations=10_000)
    assert sampled != exact
    assert sampled == pytest.approx(exact, abs=0.02)
    assert q.sign_flip_test(d, permutations=10_000) == sampled  # seeded


def test_sign_test():
    assert q.sign_test(0, 0) == 1.0
    assert q.sign_test(5, 0) == pytest.approx(2 / 32)
    assert q.sign_test(3, 3) == 1.0
    assert 0 < q.sign_test(3000, 2000) < 1e-20


def test_p_values_hold_their_level():
    generator = np.random.default_rng(11)
    low = sum(
        q.sign_flip_test(generator.normal(size=10).tolist(), permutations=1024) <= 0.05
        for _ in range(1000)
    )
    assert low <= 75


def test_power_agrees_with_itself_and_with_simulation():
    n = q.tasks_needed(0.1, between_sd=0.2, within_sd=0.4, samples=4)
    assert q.detectable_effect(n, between_sd=0.2, within_sd=0.4, samples=4) <= 0.1
    assert q.detectable_effect(n - 1, between_sd=0.2, within_sd=0.4, samples=4) > 0.1
    assert q.paired_power(0.1, n, between_sd=0.2, within_sd=0.4, samples=4) == pytest.approx(
        0.8, abs=0.01
    )
    # More samples help, but never below what the tasks' own spread asks for.
    assert q.tasks_needed(0.1, between_sd=0.2, within_sd=0.4, samples=1000) >= 31
    generator = np.random.default_rng(5)
    seen = 0
    for _ in range(600):
        d = generator.normal(0.1, 0.2, size=n)
        a = {i: (generator.normal(0.0, 0.4, size=4)).tolist() for i in range(n)}
        b = {i: (x + generator.normal(0.0, 0.4, size=4)).tolist() for i, x in enumerate(d)}
        seen += q.paired(a, b, bounds=None, permutations=2).difference.low > 0
    assert seen / 600 == pytest.approx(0.8, abs=0.07)
    with pytest.raises(ValueError, match="never be noticed"):
        q.tasks_needed(0.0, between_sd=1, within_sd=1)
