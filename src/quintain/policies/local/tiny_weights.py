"""A language model of 0.8 million parameters, made on the spot: for tests and one-minute runs.

A Llama of 4 layers over bytes, with one token per role, written as an ordinary Hugging Face folder
so that it goes through the same code as any other model. Fresh from here it speaks noise:
`warm_start` teaches it a task's format first.
"""

from __future__ import annotations

import json
from pathlib import Path

from quintain.policies.local.cache import build_once
from quintain.record import digest

SPECIAL = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'tool' %}{{ '<|tool|>' }}"
    "{% else %}{{ '<|' + message['role'] + '|>' }}{% endif %}"
    "{{ message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
CONFIG = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 344,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
_LAYOUT = "1"


def tiny_folder(seed: int, *, root: Path | None = None) -> Path:
    """The folder of the tiny model with weights drawn from `seed`."""
    name = f"tiny-{digest(_LAYOUT, CONFIG, list(SPECIAL), TEMPLATE, seed)}"
    return build_once(name, lambda folder: _build(folder, seed), root=root)


def _build(folder: Path, seed: int) -> None:
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: place for place, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    end = tokenizer.token_to_id(SPECIAL[0])
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
        **CONFIG,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[0],
        "pad_token": SPECIAL[0],
        "model_max_length": CONFIG["max_position_embeddings"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), "utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
