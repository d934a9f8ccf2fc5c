"""A causal language model with what the learner and the sampler need around it.

`load_model(spec)` gives the same weights in every process: base weights from the folder, fresh
adapters from the spec's seed. What is trained is then handed over as one safetensors file, named
by a hash of its tensors' bytes, so that whoever loads it can prove what it holds.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from quintain.errors import ConfigError
from quintain.policies.local.folders import model_folder, probe_ids
from quintain.policies.local.logprobs import logits_head, token_logprobs
from quintain.policies.local.lora import inject, merged_state
from quintain.policies.local.spec import ModelSpec
from quintain.policies.local.template import Template
from quintain.policies.local.toolcalls import tool_format

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


class Model:
    """A module, its chat template, and the ways its trained weights travel."""

    def __init__(
        self, spec: ModelSpec, folder: Path, module: nn.Module, template: Template
    ) -> None:
        self.spec = spec
        self.folder = folder
        """Where base weights and tokenizer came from."""
        self.module = module
        self.template = template
        self.max_context: int = min(spec.max_context, _positions(module))

    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained, by name; tied ones once."""
        return {
            name: parameter
            for name, parameter in self.module.named_parameters()
            if parameter.requires_grad
        }

    def hash(self) -> str:
        """A hash of the trainable parameters as they are in memory: see `weights_hash`."""
        return weights_hash(self.trainable())

    def probe(self) -> list[float]:
        """Log-probabilities of a fixed sequence under the present weights, in nats."""
        ids = torch.tensor([probe_ids(self.template.vocabulary_size)], device=self.device)
        with torch.no_grad():
            logprobs = token_logprobs(
                self.module, ids, torch.ones_like(ids, dtype=torch.bool), temperature=1.0
            )
        return [float(value) for value in logprobs[0, 1:]]

    @property
    def device(self) -> torch.device:
        """Where the module lives."""
        found: torch.device = next(self.module.parameters()).device
        return found

    def save(self, path: Path) -> str:
        """Writes the trainable parameters, complete or not at all; returns their hash.

        The file is a safetensors file with hash and probe (`Model.probe`) in its metadata.
        """
        path = Path(path)
        tensors = {
            name: parameter.detach().to("cpu").contiguous()
            for name, parameter in self.trainable().items()
        }
        digest = weights_hash(tensors)
        metadata = {"hash": digest, "probe": json.dumps(self.probe())}
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(descriptor)
        try:
            save_file(tensors, temporary, metadata=metadata)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return digest

    def load(self, path: Path) -> str:
        """Replaces the trainable parameters by a file's; returns the hash of what is now in use.

        Raises:
            ConfigError: the file's names or shapes are not the model's, or its tensors are not
                what its hash says.
        """
        own = self.trainable()
        try:
            with safe_open(str(path), framework="pt", device="cpu") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except Exception as error:
            raise ConfigError(f"cannot read weights from {path}: {error}") from error
        missing, unknown = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
        if missing or unknown:
            raise ConfigError(
                f"{path} holds other parameters than this model trains: "
                f"missing {missing[:3]}, unknown {unknown[:3]} "
                f"({len(missing)} and {len(unknown)} in all); was it saved with another lora rank?"
            )
        for name, tensor in tensors.items():
            if tensor.shape != own[name].shape:
                raise ConfigError(
                    f"{path}: {name} has shape {tuple(tensor.shape)}, "
                    f"the model's is {tuple(own[name].shape)}"
                )
        digest = weights_hash(tensors)
        if metadata.get("hash", digest) != digest:
            raise ConfigError(
                f"{path} says its weights hash to {metadata['hash']}, they hash to {digest}: "
                "the file is damaged"
            )
        with torch.no_grad():
            for name, tensor in tensors.items():
                own[name].copy_(tensor)
        return self._in_use(tensors, digest)

    def _in_use(self, tensors: Mapping[str, torch.Tensor], digest: str) -> str:
        """The hash of the parameters in memory, which is `digest` if they are these tensors.

        Where a parameter is kept in another dtype than the file's, bytes cannot be compared: the
        file's hash is returned when every value is the file's, rounded.
        """
        own = self.trainable()
        if all(own[name].dtype == tensor.dtype for name, tensor in tensors.items()):
            return self.hash()
        equal = all(
            torch.equal(own[name].detach().cpu(), tensor.to(own[name].dtype))
            for name, tensor in tensors.items()
        )
        return digest if equal else self.hash()

    def export(self, folder: Path) -> None:
        """Writes a Hugging Face folder, adapters folded in, that transformers loads as it is."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with torch.device("meta"):
            plain = type(self.module)(self.module.config)
        plain.load_state_dict(merged_state(self.module), strict=True, assign=True)
        plain.tie_weights()
        plain.generation_config = self.module.generation_config
        plain.save_pretrained(folder)
        for name in TOKENIZER_FILES:
            if (self.folder / name).is_file():
                shutil.copyfile(self.folder / name, folder / name)


def weights_hash(tensors: Mapping[str, torch.Tensor]) -> str:
    """Hex BLAKE2b of names, dtypes, shapes and bytes, in the order of the names."""
    hasher = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name].detach().to("cpu").contiguous()
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        hasher.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def load_model(spec: ModelSpec, *, tools: str = "tags") -> Model:
    """Builds the model that a spec describes, ready to sample from and to train.

    Args:
        spec: what to load.
        tools: how tool calls are written: see `toolcalls.tool_format`.

    Raises:
        ConfigError: it cannot be had, and what to do.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    if spec.threads is not None:
        torch.set_num_threads(spec.threads)
    folder = model_folder(spec)
    try:
        module = AutoModelForCausalLM.from_pretrained(
            str(folder),
            dtype=getattr(torch, spec.dtype),
            attn_implementation="sdpa",
            local_files_only=True,
        )
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"transformers cannot load {folder}: {error}") from error
    module.to(spec.device)
    # Dropout would make the learner's log-probabilities another policy's than the sampler's.
    module.eval()
    _check_head(module)
    _check_window(module, spec)
    if spec.lora is not None:
        inject(module, spec.lora, spec.lora_scale, spec.seed)
    return Model(spec, folder, module, Template(folder, tool_format(tools)))


def _positions(module: nn.Module) -> int:
    return int(getattr(module.config.get_text_config(), "max_position_embeddings", 1 << 30))


def _check_head(module: nn.Module) -> None:
    """Refuses a model whose logits `logits_head` does not reproduce."""
    ids = torch.tensor([probe_ids(module.config.get_text_config().vocab_size)[:4]])
    ids = ids.to(next(module.parameters()).device)
    with torch.no_grad():
        theirs = module(input_ids=ids, use_cache=False).logits.float()
        hidden: Any = module.base_model(input_ids=ids, use_cache=False).last_hidden_state
        ours = logits_head(module)(hidden[0]).float()[None]
    if not torch.allclose(ours, theirs, atol=1e-3, rtol=1e-2):
        raise ConfigError(
            f"{type(module).__name__} changes its logits after the output layer in a way that is "
            "not known here: it cannot be trained exactly"
        )


def _check_window(module: nn.Module, spec: ModelSpec) -> None:
    config = module.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True) and spec.max_context > window:
        raise ConfigError(
            f"{type(module).__name__} attends over a window of {window} tokens: "
            f"set max_context to {window} or less (it is {spec.max_context})"
        )
