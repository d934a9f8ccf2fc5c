import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from quintain.errors import ConfigError
from quintain.policies.local.folders import saved_probe
from quintain.policies.local.lora import LoraLinear, inject, merged_weight
from quintain.policies.local.model import load_model, weights_hash
from quintain.policies.local.spec import ModelSpec

from .conftest import SPEC, stir

IDS = torch.arange(5, 35)[None]


def logits(module):
    with torch.no_grad():
        return module(input_ids=IDS, use_cache=False).logits


def test_a_spec_gives_the_same_weights_every_time(model):
    assert load_model(SPEC).hash() == model.hash()
    other = load_model(ModelSpec("tiny", dtype="float32", threads=1, seed=1))
    assert other.hash() != model.hash()


def test_fresh_adapters_change_nothing_and_alone_are_trained(model):
    adapted = load_model(ModelSpec("tiny", dtype="float32", threads=1, lora=4))
    torch.testing.assert_close(logits(adapted.module), logits(model.module), atol=0, rtol=0)
    names = adapted.trainable()
    assert all(name.endswith(("lora_a", "lora_b")) for name in names)
    assert len(names) == 2 * 7 * adapted.module.config.num_hidden_layers
    adapted.module(input_ids=IDS).logits.sum().backward()
    for name, parameter in adapted.module.named_parameters():
        assert (parameter.grad is not None) == (name in names)


def test_a_merged_weight_computes_what_the_adapted_layer_computes(adapted):
    layers = [m for m in adapted.module.modules() if isinstance(m, LoraLinear)]
    for layer in layers[:7]:
        inputs = torch.randn(3, layer.base.in_features)
        with torch.no_grad():
            torch.testing.assert_close(
                torch.nn.functional.linear(inputs, merged_weight(layer), layer.base.bias),
                layer(inputs),
                atol=1e-5,
                rtol=1e-5,
            )


def test_adapters_need_a_linear_layer():
    with pytest.raises(ConfigError, match="no linear layer"):
        inject(torch.nn.Sequential(torch.nn.Embedding(2, 2)), 1, 1.0, 0)


def test_weights_travel_and_their_hash_with_them(adapted, tmp_path):
    path = tmp_path / "weights.safetensors"
    saved = adapted.save(path)
    other = load_model(adapted.spec)
    assert other.hash() != saved
    assert other.load(path) == other.hash() == adapted.hash() == saved
    torch.testing.assert_close(logits(other.module), logits(adapted.module), atol=0, rtol=0)
    assert saved_probe(path) == adapted.probe()
    assert [file.name for file in tmp_path.iterdir()] == ["weights.safetensors"]


def test_a_learner_in_float32_feeds_a_sampler_in_bfloat16(tmp_path):
    learner = load_model(SPEC)
    stir(learner, 3)
    saved = learner.save(tmp_path / "weights.safetensors")
    sampler = load_model(ModelSpec("tiny", dtype="bfloat16", threads=1))
    assert sampler.load(tmp_path / "weights.safetensors") == saved
    (name, theirs), *_ = learner.trainable().items()
    torch.testing.assert_close(sampler.trainable()[name], theirs.to(torch.bfloat16))


def test_weights_of_another_rank_are_refused_and_nothing_is_changed(adapted, tmp_path):
    path = tmp_path / "weights.safetensors"
    adapted.save(path)
    other = load_model(ModelSpec("tiny", dtype="float32", threads=1, lora=8))
    before = other.hash()
    with pytest.raises(ConfigError, match="shape"):
        other.load(path)
    plain = load_model(SPEC)
    with pytest.raises(ConfigError, match="lora rank"):
        plain.load(path)
    assert other.hash() == before


def test_weights_that_are_not_what_their_hash_says_are_refused(adapted, tmp_path):
    path = tmp_path / "weights.safetensors"
    saved = adapted.save(path)
    tensors = load_file(path)
    next(iter(tensors.values())).view(-1)[0] += 1.0
    save_file(tensors, path, metadata={"hash": saved})
    before = adapted.hash()
    with pytest.raises(ConfigError, match="hash"):
        adapted.load(path)
    assert adapted.hash() == before
    path.write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match="cannot read"):
        adapted.load(path)


def test_a_failed_save_leaves_the_old_file_and_nothing_else(adapted, tmp_path, monkeypatch):
    path = tmp_path / "weights.safetensors"
    saved = adapted.save(path)

    def full_disk(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr("quintain.policies.local.model.os.replace", full_disk)
    stir(adapted, 9)
    with pytest.raises(OSError, match="no space"):
        adapted.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["weights.safetensors"]
    assert weights_hash(load_file(path)) == saved


def test_an_exported_folder_is_the_adapted_model_for_transformers(adapted, tmp_path):
    adapted.export(tmp_path / "out")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    torch.testing.assert_close(logits(plain), logits(adapted.module), atol=1e-4, rtol=1e-4)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.decode(tokenizer("What is 263 plus 7?").input_ids) == "What is 263 plus 7?"
    again = load_model(ModelSpec(str(tmp_path / "out"), dtype="float32", threads=1))
    torch.testing.assert_close(logits(again.module), logits(plain), atol=0, rtol=0)


def test_a_folder_that_is_no_model_is_named(tmp_path):
    with pytest.raises(ConfigError, match="is no model"):
        load_model(ModelSpec(str(tmp_path)))


def test_a_broken_folder_is_a_clear_error(model, tmp_path):
    shutil.copytree(model.folder, tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="cannot load"):
        load_model(ModelSpec(str(tmp_path / "broken")))
