"""Values and advantages of PPO: by hand, on a real tiny model, saved and restored."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra 'train' (torch)")

from quintain.errors import ConfigError, TrainingError  # noqa: E402
from quintain.policies.local.model import load_model  # noqa: E402
from quintain.policies.local.spec import ModelSpec  # noqa: E402
from quintain.training.advantages import reward  # noqa: E402
from quintain.training.algorithms import CriticOptions, LossOptions, algorithm  # noqa: E402
from quintain.training.batching import Packing, pack, token_weights  # noqa: E402
from quintain.training.config import LearnerOptions, TrainConfig  # noqa: E402
from quintain.training.critic import states, targets, value_loss  # noqa: E402
from quintain.training.learner import LocalLearner  # noqa: E402

from .builders import group, span, trajectory  # noqa: E402

SPEC = ModelSpec("tiny", dtype="float32")
PACKING = Packing(estimator=reward, compares=False)
PPO = LossOptions(objective="ppo", clip_high=0.2, dual_clip=None)


def split_and_stale():
    """A trajectory of two rows whose first token is too old, and one of a single row."""
    one = trajectory(
        [span([1, 2], [3, 4], version=0)], [span([9], [5], version=5, restart=True)], reward=1.0
    )
    other = trajectory([span([1, 2], [6], version=5)], reward=0.25)
    batch, _ = pack([group(one, other)], replace(PACKING, max_staleness=4), version=5)
    return batch


def test_a_chain_goes_through_rows_and_stale_tokens():
    batch = split_and_stale()
    assert batch.loss_mask_BT.tolist() == [
        [False] * 4,
        [False, True, False, False],
        [False, False, True, False],
    ]
    assert states(batch).sum() == 4
    values = np.zeros((3, 4), dtype=np.float32)
    values[0, 2], values[0, 3], values[1, 1], values[2, 2] = 0.1, 0.3, 0.6, 0.5
    found, metrics = targets(batch, values, CriticOptions(gae_lambda=0.5, whiten=False))
    # δ: 0.3 − 0.1, 0.6 − 0.3, 1 − 0.6; A of the last 0.4, before it 0.3 + 0.5·0.4, …
    assert found.advantages_BT[1, 1] == pytest.approx(0.4)
    assert found.advantages_BT[0, 3] == pytest.approx(0.5)
    assert found.advantages_BT[0, 2] == pytest.approx(0.45)
    assert found.advantages_BT[2, 2] == pytest.approx(-0.25)
    assert found.returns_BT[1, 1] == pytest.approx(1.0)
    assert found.returns_BT[2, 2] == pytest.approx(0.25)
    # over the tokens with loss: R = 1, 0.25; A = 0.4, −0.25
    assert metrics["explained_variance"] == pytest.approx(1 - 0.325**2 / 0.375**2)
    white, _ = targets(batch, values, CriticOptions(gae_lambda=0.5))
    assert white.advantages_BT[batch.loss_mask_BT] == pytest.approx([1.0, -1.0])
    assert (white.returns_BT == found.returns_BT).all()


def test_value_loss_by_hand():
    values = torch.tensor([[0.9, 0.5, 9.0]], requires_grad=True)
    loss, sums = value_loss(
        values,
        old_BT=torch.tensor([[0.5, 0.5, 0.0]]),
        returns_BT=torch.tensor([[1.0, 0.0, 0.0]]),
        mask_BT=torch.tensor([[True, True, False]]),
        weights_BT=torch.tensor([[0.5, 0.5, 0.0]]),
        options=CriticOptions(coefficient=0.2, clip=0.2),
    )
    # 0.9 went too far from 0.5: the loss is that of 0.7, without a gradient
    assert loss.item() == pytest.approx(0.2 * 0.5 * 0.5 * (0.3**2 + 0.5**2))
    loss.backward()
    assert values.grad[0].tolist() == pytest.approx([0.0, 0.2 * 0.5 * 0.5, 0.0])
    assert sums["value_clipped"] == 1


def make_batch(seed=0, reward_of=lambda ticket, member: float(member % 2), stale=False):
    random = np.random.default_rng(seed)

    def ids(count):
        return random.integers(0, 250, count).tolist()

    made = []
    for ticket in range(3):
        prompt = ids(20)
        members = [
            trajectory(
                [span(prompt, ids(4), logprob=-5.5, version=0)],
                [span(ids(3), ids(2), restart=member == 3, logprob=-5.5, version=5)],
                reward=reward_of(ticket, member),
            )
            for member in range(4)
        ]
        made.append(group(*members, ticket=ticket))
    packing = replace(PACKING, max_staleness=4 if stale else None)
    batch, _ = pack(made, packing, version=5)
    return batch


def learner(folder, spec=SPEC, critic=None, **options):
    options = {"loss": PPO, "lr": 1e-3, "threads": 1, **options}
    critic = critic or CriticOptions(whiten=False)
    return LocalLearner(spec, LearnerOptions(critic=critic, **options), folder)


@pytest.mark.parametrize("stale", [False, True])
def test_update_is_that_of_an_independent_implementation(tmp_path, stale):
    batch = make_batch(stale=stale)
    one = learner(tmp_path, micro_tokens=100, critic=CriticOptions(coefficient=0.5, whiten=False))
    start = torch.linspace(-0.3, 0.3, one.head.weight.numel())
    with torch.no_grad():
        one.head.weight.copy_(start)
        one.head.bias.fill_(0.1)
    metrics = one.update(batch)

    model = load_model(SPEC)
    weight, bias = start.clone().requires_grad_(), torch.tensor(0.1, requires_grad=True)
    weights = torch.tensor(token_weights(batch, "token"))
    loss = torch.zeros(())
    chains = {}
    for b, length in enumerate(batch.attention_mask_BT.sum(axis=1)):
        ids = torch.tensor(batch.token_ids_BT[b : b + 1, :length])
        out = model.module(input_ids=ids, output_hidden_states=True)
        values = out.hidden_states[-1][0] @ weight + bias
        logprobs = out.logits[0].log_softmax(-1)
        for t in np.flatnonzero(batch.version_BT[b] >= 0):
            chains.setdefault(batch.trajectory_B[b], []).append(
                (b, t, values[t - 1], logprobs[t - 1, ids[0, t]])
            )
    for chain in chains.values():
        for b, t, value, logprob in chain:
            reward = batch.advantages_BT[b, t]  # γ = λ = 1: the return is the reward
            advantage = reward - value.detach()
            ratio = (logprob - batch.behaviour_logprobs_BT[b, t]).exp()
            policy = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            loss = loss + weights[b, t] * (policy + 0.5 * 0.5 * (value - reward) ** 2)
    loss.backward()

    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    norm = torch.cat([p.grad.flatten() for p in model.trainable().values()]).norm()
    assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    head = torch.cat([weight.grad, bias.grad[None]]).norm()
    assert metrics["value_grad_norm"] == pytest.approx(head.item(), rel=1e-4)
    assert (batch.loss_mask_BT.sum() < (batch.version_BT >= 0).sum()) == stale


@pytest.mark.parametrize("lora", [None, 4])
def test_values_are_learned_and_go_on_after_a_restart(tmp_path, lora):
    spec = replace(SPEC, lora=lora)

    def easy_or_hard(ticket, member):
        return float(ticket != 1)  # a group's rewards are all equal: only a critic learns from it

    batch = make_batch(reward_of=easy_or_hard)
    options = {"lr": 1e-4, "critic": CriticOptions(lr=0.05), "max_grad_norm": 100.0}
    one = learner(tmp_path / "w", spec, **options)
    first = one.update(batch)
    assert first["explained_variance"] == pytest.approx(0.0)
    assert first["value_mean"] == 0.0
    for _ in range(12):
        last = one.update(batch)
    assert last["explained_variance"] > 0.5
    assert last["value_loss"] < 0.5 * first["value_loss"]
    assert "value_head.weight" not in one.model.trainable()

    one.save(tmp_path / "c")
    other = learner(tmp_path / "o", spec, **options)
    other.restore(tmp_path / "c")
    assert torch.equal(other.head.weight, one.head.weight)
    assert one.update(batch)["loss"] == other.update(batch)["loss"]
    assert torch.equal(other.head.weight, one.head.weight)
    assert other.model.hash() == one.model.hash()

    plain = LocalLearner(spec, LearnerOptions(threads=1), tmp_path / "p")
    plain.save(tmp_path / "without")
    with pytest.raises(TrainingError, match="value_head"):
        other.restore(tmp_path / "without")


def test_settings_of_a_run_with_a_critic():
    config = TrainConfig(algorithm="ppo", group_size=1, algorithm_options={"gae_lambda": 0.9})
    assert config.refills == 0
    assert config.signal_needed == 0
    assert config.resolved().critic.gae_lambda == 0.9
    assert not config.packing().compares
    with pytest.raises(ConfigError, match="group_size"):
        TrainConfig(group_size=1).resolved()
    with pytest.raises(ConfigError, match="gspo"):
        algorithm("gspo", advantage="gae")
    with pytest.raises(ConfigError, match="nme"):
        TrainConfig(algorithm_options={"nme": "x"}).resolved()
