"""The learner on a real, tiny model: against an independent update; saved and restored."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra 'train' (torch)")

from quintain.errors import TrainingError  # noqa: E402
from quintain.policies.local.model import load_model  # noqa: E402
from quintain.policies.local.spec import ModelSpec  # noqa: E402
from quintain.training.advantages import dr_grpo  # noqa: E402
from quintain.training.algorithms import LossOptions  # noqa: E402
from quintain.training.batching import Packing, pack, token_weights  # noqa: E402
from quintain.training.config import LearnerOptions  # noqa: E402
from quintain.training.learner import LocalLearner  # noqa: E402

from .builders import group, span, trajectory  # noqa: E402

SPEC = ModelSpec("tiny", dtype="float32")


def make_batch(seed=0, groups=3):
    """Multi-turn rows with a shared prompt, one of them split by a restart."""
    random = np.random.default_rng(seed)

    def ids(count):
        return random.integers(0, 250, count).tolist()

    made = []
    for ticket in range(groups):
        prompt = ids(20)
        members = [
            trajectory(
                [span(prompt, ids(4), logprob=-5.0)],
                [span(ids(3), ids(2), restart=member == 3, logprob=-5.5)],
                reward=float(member % 2),
            )
            for member in range(4)
        ]
        made.append(group(*members, ticket=ticket))
    batch, _ = pack(made, Packing(estimator=dr_grpo), version=0)
    return batch


def learner(tmp_path, **options):
    return LocalLearner(SPEC, LearnerOptions(lr=1e-3, threads=1, **options), tmp_path / "weights")


def naive_logprobs(module, batch):
    """One row at a time through the model's own forward."""
    out = torch.zeros(batch.token_ids_BT.shape)
    for b, length in enumerate(batch.attention_mask_BT.sum(axis=1)):
        ids = torch.tensor(batch.token_ids_BT[b : b + 1, :length])
        logits = module(input_ids=ids).logits[0, :-1]
        out[b, 1:length] = logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    return out


def test_logprobs_of_packed_rows_are_those_of_rows_alone(tmp_path):
    batch = make_batch()
    one = learner(tmp_path, micro_tokens=200)
    with torch.no_grad():
        expected = naive_logprobs(one.model.module, batch).numpy()
    found = one.logprobs(batch)
    assert np.abs((found - expected)[batch.loss_mask_BT]).max() < 1e-5
    assert (found[~batch.loss_mask_BT] == 0).all()


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
@pytest.mark.parametrize("micro_tokens", [60, 5000])
def test_update_is_that_of_an_independent_implementation(tmp_path, micro_tokens, aggregation):
    batch = make_batch()
    if aggregation == "sequence":
        batch = replace(batch, denominator=12.0)
    one = learner(tmp_path, micro_tokens=micro_tokens, aggregation=aggregation, max_grad_norm=0.05)
    metrics = one.update(batch)

    model = load_model(SPEC)
    optimiser = torch.optim.AdamW(
        model.trainable().values(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0
    )
    logprobs = naive_logprobs(model.module, batch)
    behaviour = torch.tensor(batch.behaviour_logprobs_BT)
    advantages = torch.tensor(batch.advantages_BT)
    weight = (logprobs.detach() - behaviour).exp().clamp(max=2.0)
    weights = torch.tensor(token_weights(batch, aggregation))
    loss = -(weight * advantages * (logprobs - logprobs.detach()).exp() * weights).sum()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.trainable().values(), 0.05)
    optimiser.step()

    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    for name, parameter in model.trainable().items():
        assert torch.allclose(one.parameters[name], parameter, atol=1e-5), name


def test_several_updates_on_one_batch_clip_around_its_start(tmp_path):
    batch = make_batch()
    one = learner(tmp_path, updates_per_batch=4)
    start = one.logprobs(batch)
    metrics = one.update(batch)
    after = one.logprobs(batch)
    assert metrics["ratio_max"] > 1.0
    moved = (after - start)[batch.loss_mask_BT]
    rising = batch.advantages_BT[batch.loss_mask_BT] > 0
    assert moved[rising].mean() > 0 > moved[~rising].mean()


def test_not_finite_changes_nothing_and_is_told(tmp_path):
    batch = make_batch()
    one = learner(tmp_path)
    before = one.model.hash()
    broken = batch.advantages_BT.copy()
    broken[batch.loss_mask_BT] = np.inf
    metrics = one.update(replace(batch, advantages_BT=broken))
    assert metrics["skipped"] == 1.0
    assert one.model.hash() == before
    assert not one.optimiser.state
    assert one.update(batch)["skipped"] == 0.0
    assert one.model.hash() != before


def test_restored_learner_goes_on_alike(tmp_path):
    one = learner(tmp_path, warmup_steps=4)
    one.update(make_batch(0))
    one.publish()
    saved = one.save(tmp_path / "step_000001")
    one.update(make_batch(1))
    end = one.publish()

    other = learner(tmp_path / "other", warmup_steps=4)
    restored = other.restore(tmp_path / "step_000001")
    assert (restored.version, restored.hash) == (1, saved.hash)
    assert other.model.hash() == saved.hash
    other.update(make_batch(1))
    again = other.publish()
    assert (again.version, again.hash) == (2, end.hash)
    assert again.path.exists()


def test_incomplete_checkpoint_is_refused(tmp_path):
    one = learner(tmp_path)
    one.save(tmp_path / "c")
    (tmp_path / "c" / "optimiser.safetensors").unlink()
    with pytest.raises(TrainingError, match="cannot restore"):
        one.restore(tmp_path / "c")


def test_only_the_newest_published_weights_are_kept(tmp_path):
    one = learner(tmp_path)
    for _ in range(5):
        last = one.publish()
    assert last.version == 5
    assert len(list((tmp_path / "weights").iterdir())) == 3


def test_sixteen_bit_weights_learn_through_float32_copies(tmp_path):
    spec = replace(SPEC, dtype="bfloat16")
    one = LocalLearner(spec, LearnerOptions(lr=1e-6, threads=1), tmp_path / "w")
    before = {name: value.clone() for name, value in one.masters.items()}
    for _ in range(2):
        one.update(make_batch())
    name = next(iter(before))
    assert one.masters[name].dtype == torch.float32
    # Each step is far below bfloat16's resolution and yet not lost.
    assert (one.masters[name] - before[name]).abs().max() > 0
    one.save(tmp_path / "c")
    other = LocalLearner(spec, LearnerOptions(lr=1e-6, threads=1), tmp_path / "o")
    other.restore(tmp_path / "c")
    assert torch.equal(other.masters[name], one.masters[name])


def test_lora_trains_the_adapters_only(tmp_path):
    spec = replace(SPEC, lora=4)
    one = LocalLearner(spec, LearnerOptions(lr=1e-3, threads=1), tmp_path / "w")
    assert all("lora" in name for name in one.parameters)
    before = one.logprobs(make_batch())
    one.update(make_batch())
    assert np.abs(one.logprobs(make_batch()) - before).max() > 1e-4


def test_objective_ppo_without_importance(tmp_path):
    one = learner(tmp_path, loss=LossOptions(objective="ppo"))
    metrics = one.update(make_batch())
    assert "importance_capped" not in metrics
    assert 0 < metrics["ess"] <= 1
    vocabulary = one.model.module.config.vocab_size
    assert metrics["entropy"] == pytest.approx(np.log(vocabulary), rel=0.1)


@pytest.mark.parametrize("lora", [None, 4])
def test_a_kl_penalty_holds_the_policy_at_its_start(tmp_path, lora):
    spec = replace(SPEC, lora=lora)
    batch = make_batch()

    def after(coefficient):
        options = LearnerOptions(
            loss=LossOptions(kl_coefficient=coefficient), lr=3e-3, threads=1, seed=1
        )
        one = LocalLearner(spec, options, tmp_path / f"{coefficient}")
        start = one.logprobs(batch)
        for _ in range(6):
            metrics = one.update(batch)
        return one, start, metrics

    one, start, metrics = after(50.0)
    # The reference is what was loaded, however far training has gone.
    assert np.abs(one.reference_logprobs(batch) - start).max() < 1e-6
    assert np.abs(one.logprobs(batch) - start).max() > 1e-3
    assert metrics["kl_reference_k3"] > 0
    free, _, _ = after(0.0)

    def distance(learner):
        return np.abs(learner.logprobs(batch) - start)[batch.loss_mask_BT].mean()

    assert distance(one) < 0.5 * distance(free)
    # A restored learner keeps the reference of the start, not of the checkpoint.
    one.save(tmp_path / "c")
    other = LocalLearner(spec, one.options, tmp_path / "o")
    other.restore(tmp_path / "c")
    assert np.abs(other.reference_logprobs(batch) - start).max() < 1e-6
    assert (other.logprobs(batch) == one.logprobs(batch)).all()


def test_kl_gradient_is_that_of_an_independent_implementation(tmp_path):
    batch = make_batch()
    moved = learner(tmp_path / "m")
    for _ in range(3):
        moved.update(batch)
    moved.save(tmp_path / "c")
    one = learner(tmp_path / "a", loss=LossOptions(kl_coefficient=0.3))
    one.restore(tmp_path / "c")
    metrics = one.update(batch)

    start, model = load_model(SPEC), load_model(SPEC)
    model.load(tmp_path / "c" / "model.safetensors")
    logprobs = naive_logprobs(model.module, batch)
    reference = naive_logprobs(start.module, batch).detach()
    weight = (logprobs.detach() - torch.tensor(batch.behaviour_logprobs_BT)).exp().clamp(max=2.0)
    policy = -weight * torch.tensor(batch.advantages_BT) * (logprobs - logprobs.detach()).exp()
    penalty = (reference - logprobs).exp() - (reference - logprobs) - 1
    loss = ((policy + 0.3 * penalty) * torch.tensor(token_weights(batch, "token"))).sum()
    loss.backward()
    norm = torch.cat([p.grad.flatten() for p in model.trainable().values()]).norm()
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)


def test_the_rate_warms_up_and_the_gradient_is_bounded(tmp_path):
    one = learner(tmp_path, warmup_steps=4, max_grad_norm=1e-6)
    rates, moves = [], []
    for _ in range(6):
        before = one.logprobs(make_batch())
        metrics = one.update(make_batch())
        rates.append(metrics["lr"])
        norm = torch.cat([m.grad.flatten() for m in one.masters.values()]).norm()
        assert metrics["grad_norm"] > 1e-3
        assert norm.item() <= 1e-6 * 1.001
        moves.append(np.abs(one.logprobs(make_batch()) - before).max())
    assert rates == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3])
    assert all(move > 0 for move in moves)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_agrees_with_the_cpu(tmp_path):
    batch = make_batch()
    cpu, cuda = learner(tmp_path / "a"), learner(tmp_path / "b", device="cuda")
    assert np.abs(cpu.logprobs(batch) - cuda.logprobs(batch)).max() < 1e-3
    assert cpu.update(batch)["loss"] == pytest.approx(cuda.update(batch)["loss"], abs=1e-3)
    cuda.save(tmp_path / "c")
    cpu.restore(tmp_path / "c")
    assert cpu.model.hash() == cuda.model.hash()
