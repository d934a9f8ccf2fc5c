"""Losses against hand-computed values, an independent NumPy version, and finite differences."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs the extra 'train' (torch)")

from quintain.training.algorithms import LossOptions  # noqa: E402
from quintain.training.losses import (  # noqa: E402
    TokenArrays,
    join,
    policy_loss,
    summarise,
)


def arrays(behaviour, advantages, mask=None, weights=None, proximal=None, reference=None):
    behaviour = torch.tensor([behaviour], dtype=torch.float64)
    mask = torch.ones_like(behaviour, dtype=torch.bool) if mask is None else torch.tensor([mask])
    weights = mask.double() if weights is None else torch.tensor([weights], dtype=torch.float64)
    return TokenArrays(
        mask_BT=mask,
        weights_BT=weights,
        advantages_BT=torch.tensor([advantages], dtype=torch.float64),
        behaviour_BT=behaviour,
        proximal_BT=None if proximal is None else torch.tensor([proximal], dtype=torch.float64),
        reference_BT=None if reference is None else torch.tensor([reference], dtype=torch.float64),
    )


def logs(*probabilities):
    return [math.log(p) for p in probabilities]


def run(logprobs, given_arrays, **options):
    tensor = torch.tensor([logprobs], dtype=torch.float64, requires_grad=True)
    loss, sums = policy_loss(tensor, given_arrays, LossOptions(**options))
    (gradient,) = torch.autograd.grad(loss, tensor)
    return loss.item(), gradient[0].tolist(), summarise(sums)


def test_ppo_by_hand():
    # ratios 1.5, 0.5, 1.1, 5.0 with advantages 1, −1, 1, −1
    loss, gradient, metrics = run(
        logs(0.6, 0.2, 0.55, 0.5),
        arrays(logs(0.4, 0.4, 0.5, 0.1), [1.0, -1.0, 1.0, -1.0]),
        objective="ppo",
    )
    # 1.5 is clipped to 1.28; 0.5 to 0.8; 1.1 stays; 5 meets the dual clip at 3
    assert loss == pytest.approx(-1.28 + 0.8 - 1.1 + 3.0, abs=1e-9)
    assert gradient == pytest.approx([0.0, 0.0, -1.1, 0.0], abs=1e-9)
    assert metrics["clipped_high"] == metrics["clipped_low"] == metrics["clipped_dual"] == 0.25
    assert metrics["ratio_max"] == pytest.approx(5.0)


def test_ppo_without_dual_clip():
    loss, gradient, _ = run(logs(0.5), arrays(logs(0.1), [-1.0]), objective="ppo", dual_clip=None)
    assert loss == pytest.approx(5.0)
    assert gradient == pytest.approx([5.0])


def test_decoupled_by_hand():
    # p/µ = 0.5/0.1 = 5, capped at 2; π/p = 0.55/0.5 = 1.1; A = 1
    loss, gradient, metrics = run(logs(0.55), arrays(logs(0.1), [1.0], proximal=logs(0.5)))
    assert loss == pytest.approx(-2.2)
    assert gradient == pytest.approx([-2.2])
    assert metrics["importance_capped"] == 1.0
    assert run(logs(0.55), arrays(logs(0.1), [1.0], proximal=logs(0.5)), importance_cap=None)[
        0
    ] == pytest.approx(-5.5)


def test_single_update_needs_no_proximal():
    # π = p: value w·A, gradient −w·A
    loss, gradient, _ = run(logs(0.15, 0.3), arrays(logs(0.1, 0.6), [1.0, -2.0]))
    assert loss == pytest.approx(-1.5 + 1.0)
    assert gradient == pytest.approx([-1.5, 1.0])


def test_sequence_level_weight_is_the_product():
    _, gradient, _ = run(
        logs(0.15, 0.3), arrays(logs(0.1, 0.6), [1.0, 1.0]), importance_level="sequence"
    )
    assert gradient == pytest.approx([-0.75, -0.75])


def test_kl_to_reference():
    loss, gradient, _ = run(
        logs(0.5), arrays(logs(0.5), [0.0], reference=logs(0.25)), kl_coefficient=0.1
    )
    assert loss == pytest.approx(0.1 * (0.5 - math.log(0.5) - 1))
    assert gradient == pytest.approx([0.1 * (1 - 0.5)])
    with pytest.raises(ValueError, match="reference"):
        run(logs(0.5), arrays(logs(0.5), [0.0]), kl_coefficient=0.1)


def test_k1_has_the_gradient_of_a_reward():
    # log π − log reference = log 2; its plain gradient would be 1 whatever the distance
    loss, gradient, metrics = run(
        logs(0.5),
        arrays(logs(0.5), [0.0], reference=logs(0.25)),
        kl_coefficient=0.1,
        kl_estimator="k1",
    )
    assert loss == pytest.approx(0.1 * math.log(2))
    assert gradient == pytest.approx([0.1 * math.log(2)])
    assert metrics["kl_reference"] == pytest.approx(math.log(2))
    assert metrics["kl_reference_k3"] == pytest.approx(0.5 - math.log(0.5) - 1)


def test_exact_k3_has_the_gradient_of_the_divergence():
    """Summed over the whole distribution, against the derivative of KL(π ‖ reference)."""
    logits = torch.tensor([0.3, -0.2, 0.8], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.1, 0.4, -0.5], dtype=torch.float64).log_softmax(0)
    divergence = (logits.softmax(0) * (logits.log_softmax(0) - reference)).sum()
    (expected,) = torch.autograd.grad(divergence, logits)
    found = {}
    for estimator in ("k1", "k3_exact", "k3"):
        logprobs = logits.log_softmax(0)
        given = TokenArrays(
            mask_BT=torch.ones(1, 3, dtype=torch.bool),
            weights_BT=logprobs.exp().detach()[None],  # each token as often as it is sampled
            advantages_BT=torch.zeros(1, 3, dtype=torch.float64),
            behaviour_BT=logprobs.detach()[None],
            reference_BT=reference[None],
        )
        options = LossOptions(kl_coefficient=1.0, kl_estimator=estimator)
        loss, _ = policy_loss(logprobs[None], given, options)
        assert loss.item() == pytest.approx(divergence.item())
        (found[estimator],) = torch.autograd.grad(loss, logits)
    assert torch.allclose(found["k1"], expected)
    assert torch.allclose(found["k3_exact"], expected)
    assert not torch.allclose(found["k3"], expected)


def test_gspo_by_hand():
    # ratios 1.21 and 1: their geometric mean is 1.1, within the clip; a third token is masked
    mask = [True, True, False]
    given = arrays(logs(0.5, 0.5, 0.5), [2.0] * 3, mask=mask, weights=[0.25, 0.75, 0.0])
    loss, gradient, metrics = run(
        logs(0.605, 0.5, 0.1), given, objective="ppo", surrogate="gspo", clip_high=0.2
    )
    assert loss == pytest.approx(-1.1 * 2.0)
    # ∂s/∂log π of either token is s/2, whatever its own weight
    assert gradient == pytest.approx([-1.1, -1.1, 0.0])
    assert metrics["ratio_mean"] == pytest.approx(1.1)
    loss, gradient, metrics = run(
        logs(0.605, 0.5, 0.1), given, objective="ppo", surrogate="gspo", clip_high=0.05
    )
    assert loss == pytest.approx(-1.05 * 2.0)
    assert gradient == [0.0, 0.0, 0.0]
    assert metrics["clipped_high"] == 1.0


def test_cispo_by_hand():
    # ratios 8 (bounded to 5) and 0.5; no gradient is lost to the bound
    loss, gradient, metrics = run(
        logs(0.8, 0.2),
        arrays(logs(0.1, 0.4), [1.0, -2.0]),
        objective="ppo",
        surrogate="cispo",
        clip_low=1.0,
        clip_high=4.0,
    )
    assert loss == pytest.approx(-5.0 * math.log(0.8) + 2.0 * 0.5 * math.log(0.2))
    assert gradient == pytest.approx([-5.0, 1.0])
    assert (metrics["clipped_high"], metrics["clipped_low"]) == (0.5, 0.0)


def test_excess_importance_is_masked_when_asked():
    given = arrays(logs(0.1, 0.4), [1.0, 1.0], proximal=logs(0.5, 0.5))
    _, gradient, metrics = run(logs(0.5, 0.5), given, importance_excess="mask")
    assert gradient == pytest.approx([0.0, -1.25])
    assert metrics["importance_capped"] == 0.5


def test_masked_tokens_change_nothing_even_when_they_are_not_finite():
    given = arrays([math.log(0.1), math.nan, -math.inf], [1.0, 9.0, 9.0], mask=[True, False, False])
    logprobs = [math.log(0.15), -math.inf, math.nan]
    for surrogate in ("clip", "gspo", "cispo"):
        plain = run(logs(0.15), arrays(logs(0.1), [1.0]), surrogate=surrogate)
        masked = run(logprobs, given, surrogate=surrogate)
        assert masked[0] == plain[0]
        assert masked[1] == [*plain[1], 0.0, 0.0]
        assert masked[2] == plain[2]


def test_metrics_by_hand():
    _, _, metrics = run(logs(0.2, 0.1), arrays(logs(0.1, 0.2), [1.0, 1.0]))
    weights = np.array([2.0, 0.5])
    assert metrics["ess"] == pytest.approx(weights.sum() ** 2 / (2 * (weights**2).sum()))
    assert metrics["kl_behaviour"] == pytest.approx(0.0)
    assert metrics["kl_behaviour_k3"] == pytest.approx(0.25)
    assert metrics["logprob_gap_mean"] == pytest.approx(math.log(2))
    assert metrics["importance_max"] == pytest.approx(2.0)


def reference_loss(logprobs, behaviour, proximal, advantages, weights, options):
    """The same formulas, token by token in plain Python."""
    total = 0.0
    for lp, mu, prox, advantage, weight in zip(
        logprobs, behaviour, proximal, advantages, weights, strict=True
    ):
        ratio = math.exp(lp - (mu if options.objective == "ppo" else prox))
        low, high = 1 - options.clip_low, 1 + options.clip_high
        value = min(ratio * advantage, min(max(ratio, low), high) * advantage)
        if advantage < 0 and options.dual_clip is not None:
            value = max(value, options.dual_clip * advantage)
        if options.objective == "decoupled":
            value *= min(math.exp(prox - mu), options.importance_cap)
        total -= value * weight
    return total


numbers = st.lists(
    st.tuples(st.floats(-4, -0.05), st.floats(-4, -0.05), st.floats(-4, -0.05), st.floats(-2, 2)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(numbers, st.sampled_from(["ppo", "decoupled"]), st.sampled_from([None, 3.0]))
def test_value_and_gradient_agree_with_an_independent_version(tokens, objective, dual_clip):
    logprobs, behaviour, proximal, advantages = map(list, zip(*tokens, strict=True))
    options = LossOptions(objective=objective, dual_clip=dual_clip)
    weights = [1.0 / (3 + i) for i in range(len(tokens))]
    loss, gradient, _ = run(
        logprobs,
        arrays(behaviour, advantages, weights=weights, proximal=proximal),
        objective=objective,
        dual_clip=dual_clip,
    )
    rest = (behaviour, proximal, advantages, weights, options)
    assert loss == pytest.approx(reference_loss(logprobs, *rest), abs=1e-5)
    step = 1e-6
    for i in range(len(tokens)):
        up, down = list(logprobs), list(logprobs)
        up[i] += step
        down[i] -= step
        above, here, below = (reference_loss(x, *rest) for x in (up, logprobs, down))
        if abs((above - here) - (here - below)) > 1e-9:  # a kink of the clip lies in between
            continue
        assert gradient[i] == pytest.approx((above - below) / (2 * step), abs=1e-5)


def test_micro_batches_add_up():
    logprobs = torch.tensor([logs(0.2, 0.3), logs(0.6, 0.1)], dtype=torch.float64)
    behaviour = torch.tensor([logs(0.1, 0.3), logs(0.5, 0.4)], dtype=torch.float64)
    whole = TokenArrays(
        mask_BT=torch.tensor([[True, True], [False, True]]),
        weights_BT=torch.tensor([[0.2, 0.2], [0.0, 0.6]], dtype=torch.float64),
        advantages_BT=torch.tensor([[1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64),
        behaviour_BT=behaviour,
    )
    loss, sums = policy_loss(logprobs, whole, LossOptions())
    parts = []
    for b in range(2):
        part = TokenArrays(
            whole.mask_BT[b : b + 1],
            whole.weights_BT[b : b + 1],
            whole.advantages_BT[b : b + 1],
            behaviour[b : b + 1],
        )
        parts.append(policy_loss(logprobs[b : b + 1], part, LossOptions()))
    assert loss.item() == pytest.approx(sum(part.item() for part, _ in parts))
    assert summarise(join(parts[0][1], parts[1][1])) == pytest.approx(summarise(sums))
