"""Models of other families, with random weights: sampled exactly, adapters included."""

import shutil

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from quintain.errors import ConfigError
from quintain.policies.local.decoder import AnyDecoder
from quintain.policies.local.engine import Engine
from quintain.policies.local.llama import LlamaDecoder, decoder_for
from quintain.policies.local.model import TOKENIZER_FILES, load_model
from quintain.policies.local.spec import ModelSpec
from quintain.policies.local.tiny_weights import tiny_folder

from .conftest import stir
from .test_engine import behaviour, finish, request, sampled

SIZES = {
    "vocab_size": 2304,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}
FAMILIES = {
    "gpt2": {"vocab_size": 2304, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "qwen2": SIZES,
    "qwen3": SIZES,
    "mistral": {**SIZES, "sliding_window": None},
    "gpt_neox": {k: v for k, v in SIZES.items() if k not in ("num_key_value_heads", "head_dim")},
}
LEAN = {"qwen2", "mistral"}
"""Those whose arithmetic is Llama's."""


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """A folder of one family, with the tiny model's tokenizer."""
    folder = tmp_path_factory.mktemp(request.param)
    config = AutoConfig.for_model(request.param, **FAMILIES[request.param])
    config.eos_token_id = config.bos_token_id = config.pad_token_id = None
    torch.manual_seed(1)
    module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    module.generation_config.eos_token_id = None
    module.save_pretrained(folder)
    for name in TOKENIZER_FILES:
        found = tiny_folder(0) / name
        if found.is_file() and name != "generation_config.json":
            shutil.copyfile(found, folder / name)
    return request.param, folder


def test_a_family_without_the_attention_kernel_is_refused(tmp_path):
    """Gemma 2 caps its attention scores, which the fused kernel cannot do."""
    config = AutoConfig.for_model("gemma2", **SIZES)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="scaled_dot_product"):
        load_model(ModelSpec(str(tmp_path), dtype="float32"))


def agree(model, decoder):
    """Sequences that join and leave a batch have the log-probabilities of the model's forward."""
    engine = Engine(decoder, slots=3)
    asked = [request(n, range(20 + n, 30 + 9 * n), max_tokens=3 + 2 * n) for n in range(6)]
    done = finish(engine, asked)
    again = [request(6, (*asked[5].ids, *sampled(done[5]), 4, 5), session="s5")]
    done |= finish(engine, again)
    assert done[6].cached >= len(asked[5].ids)
    for one in (*asked, *again):
        ids = torch.tensor([[*one.ids, *sampled(done[one.id])]])
        with torch.no_grad():
            logits = model.module(input_ids=ids, use_cache=False).logits[0].float()
        theirs = logits.log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[len(one.ids) - 1 :, 0]
        ours = torch.tensor(behaviour(done[one.id]))
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_it_samples_what_its_own_forward_says(family):
    name, folder = family
    model = load_model(ModelSpec(str(folder), dtype="float32", threads=1, max_context=256))
    agree(model, AnyDecoder(model.module))
    chosen = decoder_for(model)
    assert isinstance(chosen, LlamaDecoder if name in LEAN else AnyDecoder)
    agree(model, chosen)


def test_adapters_are_part_of_what_is_sampled(family):
    _, folder = family
    spec = ModelSpec(str(folder), dtype="float32", threads=1, max_context=256, lora=4)
    model = load_model(spec)
    stir(model, 3)
    agree(model, decoder_for(model))
