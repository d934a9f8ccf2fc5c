"""A language model of 0.9 million parameters, made on the spot: for tests and one-minute runs.

A Llama of 3 layers, written as an ordinary Hugging Face folder so that it goes through the same
code as any other model. Fresh from here it speaks noise: `warm_start` teaches it a task's format
first.

Its tokenizer keeps the model small and its sequences short, so that it learns in seconds: one token
for every number of up to three digits, for a few hundred English words, for each role and for
every byte, so that any text can be written.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
CONFIG: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 344,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "initializer_range": 0.08,
    # Short conversations: fast rotations tell neighbours apart from the first step on.
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
_WORDS = """
a able about add after again all also am an and another answer any are as ask at away back be
because before begin best between big both bring but by calc calculate calculator call can case
change check choose close code come compute correct could cost count day did different digit divide
divided do does done down each eight end equal equals error even every example expected false few
file find first five following for four from function get give given go good great group had half
has have he help her here high him his hour how i if in input integer into is it its just keep know
large last left less let letter like line list little long look low made make many may me mean
minus more most move much multiplied multiply must my name need new next nine no not nothing now
number numbers of off old on once one only open operation or order other our out output over part
path place plus point price print problem product put python question read remainder reply result
return right run said same say second see sequence set seven she should show side six small so
solve some square state step still string subtract such sum sure take tell ten text than that the
their them then there these they thing think this three time times to today tool total true try
turn two under until up us use user value very want was way we well were what when where which
while who why will with word words work world would write wrong year yes you your zero
"""
WORDS = _WORDS.split()
_LAYOUT = "2"
_PIECES = r"\d{1,3}| ?[A-Za-z]+|\s+(?!\S)|\s|[^\sA-Za-z\d]"


def tiny_folder(seed: int, *, root: Path | None = None) -> Path:
    """The folder of the tiny model with weights drawn from `seed`."""
    name = f"tiny-{digest(_LAYOUT, CONFIG, list(SPECIAL), TEMPLATE, WORDS, _PIECES, seed)}"
    return build_once(name, lambda folder: _build(folder, seed), root=root)


def _build(folder: Path, seed: int) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _tokenizer()
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
        with torch.no_grad():
            # Every head begins by writing what it reads, so that copying, which such tasks need
            # most, is there from the first step and only where to look has to be learned.
            for layer in model.model.layers:
                values = layer.self_attn.v_proj.weight
                torch.nn.init.orthogonal_(values)
                layer.self_attn.o_proj.weight.copy_(values.T)
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


def _tokenizer() -> Any:
    """Bytes, numbers and words; a piece of text that is a word is one token, else its bytes."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    whole = [f"{number:0{width}d}" for width in (2, 3) for number in range(10**width)]
    for word in WORDS:
        # "Ġ" is how byte-level tokenizers write a space.
        whole += [word, word.capitalize(), f"Ġ{word}"]
    symbols = dict.fromkeys([*sorted(pre_tokenizers.ByteLevel.alphabet()), *whole])
    vocabulary = {symbol: place for place, symbol in enumerate(symbols)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return tokenizer
