"""Folders of other architectures: sampled, trained whole and by adapters, in both precisions."""

import shutil

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra 'train' (torch)")
transformers = pytest.importorskip("transformers", reason="needs the extra 'train'")

from quintain.policies.local.decoder import AnyDecoder  # noqa: E402
from quintain.policies.local.engine import Engine, Request  # noqa: E402
from quintain.policies.local.model import TOKENIZER_FILES, load_model  # noqa: E402
from quintain.policies.local.spec import ModelSpec  # noqa: E402
from quintain.policies.local.tiny_weights import tiny_folder  # noqa: E402
from quintain.training.advantages import dr_grpo  # noqa: E402
from quintain.training.algorithms import CriticOptions, LossOptions  # noqa: E402
from quintain.training.batching import Packing, pack  # noqa: E402
from quintain.training.config import LearnerOptions  # noqa: E402
from quintain.training.learner import LocalLearner  # noqa: E402

from .builders import group, span, trajectory  # noqa: E402

SHAPES = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 48}
KINDS = {
    "gpt2": ("GPT2", {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 512}),
    "qwen2": ("Qwen2", {**SHAPES, "num_key_value_heads": 2, "intermediate_size": 64}),
    "mistral": (
        "Mistral",
        {**SHAPES, "num_key_value_heads": 2, "intermediate_size": 64, "sliding_window": None},
    ),
    "gpt_neox": ("GPTNeoX", {**SHAPES, "intermediate_size": 64}),
}


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    name, settings = KINDS[request.param]
    source = tiny_folder(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(tokenizer),
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
        **settings,
    )
    torch.manual_seed(1)
    made = tmp_path_factory.mktemp(request.param)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(made)
    for file in TOKENIZER_FILES:
        if (source / file).is_file():
            shutil.copyfile(source / file, made / file)
    return made


def sample(model, temperature=0.9, top_p=0.8):
    """Four samples of one prompt, as the sampler's engine makes them."""
    engine = Engine(AnyDecoder(model.module))
    for number in range(4):
        engine.submit(
            Request(
                id=number,
                session=str(number),
                ids=tuple(range(30, 50)),
                max_tokens=6,
                temperature=temperature,
                top_p=top_p,
                top_k=0,
                seed=number,
                end_ids=frozenset(),
            )
        )
    done = {}
    while engine.busy:
        done.update({each.id: each for each in engine.step()})
    return [done[number].segments[0] for number in range(4)]


def batch_of(segments):
    members = [
        trajectory([span(range(30, 50), segment.ids)], reward=float(number % 2))
        for number, segment in enumerate(segments)
    ]
    batch, _ = pack([group(*members)], Packing(estimator=dr_grpo), version=0)
    for row, segment in enumerate(segments):
        batch.behaviour_logprobs_BT[row, 20:26] = segment.logprobs
    return batch


@pytest.mark.parametrize("lora", [None, 4], ids=["full", "lora"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_is_sampled_trained_and_saved(folder, tmp_path, lora, dtype):
    spec = ModelSpec(str(folder), lora=lora, dtype=dtype, threads=1, max_context=256)
    options = LearnerOptions(
        loss=LossOptions(objective="ppo", kl_coefficient=0.01),
        critic=CriticOptions(whiten=False),
        lr=1e-3,
        threads=1,
        temperature=0.9,
        top_p=0.8,
    )
    sampler = load_model(spec)
    batch = batch_of(sample(sampler))
    one = LocalLearner(spec, options, tmp_path / "w")
    start = one.logprobs(batch)
    gap = np.abs(start - batch.behaviour_logprobs_BT)[batch.loss_mask_BT].max()
    assert gap < (1e-4 if dtype == "float32" else 0.2)
    before = one.model.hash()
    for _ in range(3):
        metrics = one.update(batch)
    assert metrics["skipped"] == 0
    assert metrics["grad_norm"] > 0
    moved = np.abs(one.logprobs(batch) - start)[batch.loss_mask_BT].max()
    assert moved > 10 * gap if dtype == "float32" else one.model.hash() != before
    # The reference is the model as it was loaded, adapters or not.
    assert np.abs(one.reference_logprobs(batch) - start).max() < 1e-6
    if lora:
        assert all("lora" in name for name in one.parameters)

    published = one.publish()
    assert sampler.load(published.path) == published.hash
    np.testing.assert_allclose(sampler.probe(), one.model.probe(), atol=1e-5)
    if dtype == "float32":
        again = batch_of(sample(sampler))
        gap = np.abs(one.logprobs(again) - again.behaviour_logprobs_BT)[again.loss_mask_BT].max()
        assert gap < 1e-4  # the sampler has the new weights, and computes what the learner does
        one.model.export(tmp_path / "exported")
        plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
        ids = torch.arange(30, 50)[None]
        with torch.no_grad():
            ours, theirs = one.model.module(input_ids=ids), plain(input_ids=ids)
        assert torch.allclose(ours.logits, theirs.logits, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("lora", [None, 4], ids=["full", "lora"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_learns_on_cuda_what_it_learns_on_the_cpu(folder, tmp_path, lora, dtype):
    spec = ModelSpec(str(folder), lora=lora, dtype=dtype, threads=1, max_context=256)
    batch = batch_of(sample(load_model(spec)))
    bound = 1e-3 if dtype == "float32" else 0.2
    found = {}
    for device in ("cpu", "cuda"):
        options = LearnerOptions(
            loss=LossOptions(kl_coefficient=0.01),
            critic=CriticOptions(),
            lr=1e-3,
            threads=1,
            temperature=0.9,
            top_p=0.8,
            device=device,
        )
        one = LocalLearner(spec, options, tmp_path / device)
        start = one.logprobs(batch)
        metrics = [one.update(batch) for _ in range(2)]
        one.save(tmp_path / f"{device}-checkpoint")
        other = LocalLearner(spec, options, tmp_path / f"{device}-other")
        other.restore(tmp_path / f"{device}-checkpoint")
        assert np.abs(other.logprobs(batch) - one.logprobs(batch)).max() < 1e-6
        found[device] = start, metrics[0]["loss"]
    assert np.abs(found["cpu"][0] - found["cuda"][0]).max() < bound
    assert abs(found["cpu"][1] - found["cuda"][1]) < bound
