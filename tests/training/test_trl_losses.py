"""Loss and gradient of every parameter beside TRL's `GRPOTrainer`, on the same weights and batch.

Run by `make test-interop`, which puts TRL on the path.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra 'train' (torch)")
pytest.importorskip("trl", reason="needs TRL: make test-interop")

from quintain.policies.local.model import load_model  # noqa: E402
from quintain.policies.local.spec import ModelSpec  # noqa: E402
from quintain.training.advantages import dr_grpo  # noqa: E402
from quintain.training.algorithms import LossOptions  # noqa: E402
from quintain.training.batching import Packing, pack  # noqa: E402
from quintain.training.config import LearnerOptions  # noqa: E402
from quintain.training.learner import LocalLearner  # noqa: E402

from .builders import group, span, trajectory  # noqa: E402

pytestmark = pytest.mark.interop
SPEC = ModelSpec("tiny", dtype="float32")
LIMIT = 16
"""TRL's `max_completion_length`."""


@dataclass
class Case:
    theirs: dict[str, Any]
    ours: dict[str, Any] = field(default_factory=dict)
    aggregation: str = "token"
    importance: bool = False


PPO = {"objective": "ppo", "dual_clip": None, "clip_high": 0.2}
CASES = {
    "grpo": Case({"loss_type": "grpo"}, PPO, "sequence"),
    "bnpo": Case({"loss_type": "bnpo"}, PPO),
    "dapo": Case({"loss_type": "dapo"}, PPO),
    "dr_grpo": Case({"loss_type": "dr_grpo"}, PPO, "constant"),
    "bounds": Case(
        {"loss_type": "dapo", "epsilon_low": 0.1, "epsilon_high": 0.3},
        {**PPO, "clip_low": 0.1, "clip_high": 0.3},
    ),
    "dual clip": Case({"loss_type": "dapo", "delta": 1.5}, {**PPO, "dual_clip": 1.5}),
    "kl": Case(
        {"loss_type": "dapo", "beta": 0.3, "use_bias_correction_kl": False},
        {**PPO, "kl_coefficient": 0.3},
    ),
    "exact kl": Case(
        {"loss_type": "dapo", "beta": 0.3},
        {**PPO, "kl_coefficient": 0.3, "kl_estimator": "k3_exact"},
    ),
    "gspo": Case(
        {
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon_low": 0.02,
            "epsilon_high": 0.03,
        },
        {**PPO, "surrogate": "gspo", "clip_low": 0.02, "clip_high": 0.03},
        "sequence",
    ),
    "cispo": Case(
        {"loss_type": "cispo", "epsilon_high": 1.2},
        {**PPO, "surrogate": "cispo", "clip_low": 1.0, "clip_high": 0.2},
    ),
    "truncated importance": Case(
        {"loss_type": "dapo"},
        {"objective": "decoupled", "dual_clip": None, "clip_high": 0.2, "importance_cap": 1.2},
        importance=True,
    ),
}


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    model = load_model(SPEC)
    args = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trl")),
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=LIMIT,
        report_to=[],
    )
    return GRPOTrainer(
        model=model.module,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=args,
        train_dataset=Dataset.from_dict({"prompt": ["x"] * 8}),
        processing_class=AutoTokenizer.from_pretrained(model.folder),
    )


def trajectories():
    """Two groups of four, two turns each: prompt, sampled, observation, sampled."""
    random = np.random.default_rng(7)

    def ids(count):
        return random.integers(3, 250, count).tolist()

    groups = []
    for prompt_length in (12, 9):
        prompt = ids(prompt_length)
        groups.append(
            [
                (prompt, ids(random.integers(2, 6)), ids(3), ids(random.integers(1, 5)))
                for _ in "four"
            ]
        )
    return groups


def batches(module, aggregation):
    """Our batch and TRL's inputs, with behaviour log-probabilities scattered around the model's."""
    packing = Packing(dr_grpo, aggregation=aggregation, constant_tokens=LIMIT)
    groups = [
        group(
            *(
                trajectory([span(p, a)], [span(o, b)], reward=float(i in (0, 3)))
                for i, (p, a, o, b) in enumerate(members)
            ),
            ticket=ticket,
        )
        for ticket, members in enumerate(trajectories())
    ]
    batch, _ = pack(groups, packing, version=0)
    random = torch.Generator().manual_seed(3)
    flat = [member for members in trajectories() for member in members]
    widths = max(len(p) for p, *_ in flat), max(len(a) + len(o) + len(b) for _, a, o, b in flat)
    inputs = {
        name: torch.zeros(len(flat), width, dtype=torch.long)
        for name, width in (
            ("prompt_ids", widths[0]),
            ("prompt_mask", widths[0]),
            ("completion_ids", widths[1]),
            ("completion_mask", widths[1]),
            ("tool_mask", widths[1]),
        )
    }
    logprobs = torch.zeros(len(flat), widths[1])
    behaviour = np.zeros_like(batch.behaviour_logprobs_BT)
    for row, (p, a, o, b) in enumerate(flat):
        rest = [*a, *o, *b]
        inputs["prompt_ids"][row, -len(p) :] = torch.tensor(p)
        inputs["prompt_mask"][row, -len(p) :] = 1
        inputs["completion_ids"][row, : len(rest)] = torch.tensor(rest)
        inputs["completion_mask"][row, : len(rest)] = 1
        inputs["tool_mask"][row, : len(rest)] = torch.tensor(
            [1] * len(a) + [0] * len(o) + [1] * len(b)
        )
        with torch.no_grad():
            logits = module(input_ids=torch.tensor([[*p, *rest]])).logits[0, len(p) - 1 : -1]
        own = logits.log_softmax(-1).gather(1, torch.tensor(rest)[:, None])[:, 0]
        scattered = own + 0.3 * torch.randn(len(rest), generator=random)
        logprobs[row, : len(rest)] = scattered
        behaviour[row, len(p) : len(p) + len(rest)] = scattered.numpy()
    behaviour[~batch.loss_mask_BT] = 0.0
    mask = inputs["completion_mask"] * inputs["tool_mask"]
    inputs["advantages"] = torch.tensor([0.5, -0.5, -0.5, 0.5] * 2)
    inputs["old_per_token_logps"] = logprobs
    inputs["num_items_in_batch"] = mask.sum().float()
    return replace(batch, behaviour_logprobs_BT=behaviour), inputs


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_trls(trainer, tmp_path, monkeypatch, name):
    case = CASES[name]
    defaults = {"epsilon_low": 0.2, "epsilon_high": 0.2, "beta": 0.0, "delta": None}
    for key, value in {**defaults, **case.theirs}.items():
        in_args = key in ("delta", "use_bias_correction_kl")
        monkeypatch.setattr(trainer.args if in_args else trainer, key, value)
    if "importance_sampling_level" not in case.theirs:
        monkeypatch.setattr(trainer, "importance_sampling_level", "token")
    model = trainer.model.eval()
    batch, inputs = batches(model, case.aggregation)
    if "beta" in case.theirs:
        shifted = inputs["old_per_token_logps"] - 0.2
        inputs["ref_per_token_logps"] = shifted
        batch = replace(batch, reference_logprobs_BT=batch.behaviour_logprobs_BT - 0.2)
    if case.importance:
        # p is where TRL's old policy is; the sampler's numbers differ from it.
        gap = 0.4 * torch.randn(
            inputs["old_per_token_logps"].shape, generator=torch.Generator().manual_seed(5)
        )
        monkeypatch.setattr(trainer, "use_vllm", True)
        monkeypatch.setattr(trainer, "vllm_importance_sampling_correction", True)
        inputs["importance_sampling_ratio"] = gap.exp().clamp(max=1.2)
        proximal = batch.behaviour_logprobs_BT.copy()
        sampled = proximal.copy()
        trained = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        sampled[batch.loss_mask_BT] -= gap[trained].numpy()
        batch = replace(batch, proximal_logprobs_BT=proximal, behaviour_logprobs_BT=sampled)
    model.zero_grad()
    theirs = trainer._compute_loss(model, inputs)
    theirs.backward()

    options = LearnerOptions(
        loss=LossOptions(**case.ours),
        aggregation=case.aggregation,
        max_grad_norm=1e9,
        micro_tokens=150,
        threads=1,
    )
    one = LocalLearner(SPEC, options, tmp_path)
    metrics = one.update(batch)
    assert metrics["loss"] == pytest.approx(theirs.item(), abs=1e-5)
    largest = 0.0
    for key, parameter in model.named_parameters():
        if key in one.parameters:
            difference = (one.parameters[key].grad - parameter.grad).abs().max().item()
            assert difference < 1e-5, key
            largest = max(largest, parameter.grad.abs().max().item())
    assert largest > 1e-2  # there was something to agree on
    if name in ("bounds", "gspo", "dual clip", "cispo"):
        assert max(v for k, v in metrics.items() if k.startswith("clipped")) > 0.05
