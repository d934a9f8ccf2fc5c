"""Where a model's files are, and what can be read of them without torch."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from quintain.errors import ConfigError
from quintain.policies.local.smollm2_weights import smollm2_folder
from quintain.policies.local.spec import ModelSpec
from quintain.policies.local.tiny_weights import tiny_folder

PROBE_TOKENS = 16


def model_folder(spec: ModelSpec) -> Path:
    """The folder behind `spec.source`; built-in models are made now if need be.

    Raises:
        ConfigError: there is no such folder, or the weights are not installed.
    """
    if spec.source == "smollm2":
        return smollm2_folder()
    if spec.source == "tiny":
        return tiny_folder(spec.seed)
    folder = Path(spec.source).expanduser()
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"{spec.source!r} is no model: expected 'smollm2', 'tiny' or a Hugging Face folder "
            "(with config.json, safetensors and tokenizer.json)"
        )
    return folder


def probe_ids(vocabulary_size: int) -> list[int]:
    """Token ids spread over the vocabulary, the same in every process."""
    return [(place * 7919 + 13) % vocabulary_size for place in range(PROBE_TOKENS)]


def saved_probe(path: Path) -> list[float]:
    """The log-probabilities that the learner had for the probe when it saved the file.

    A safetensors file begins with the length of its header (8 bytes) and the header, which is JSON.
    """
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        metadata = json.loads(file.read(length)).get("__metadata__", {})
    return [float(value) for value in json.loads(metadata.get("probe", "[]"))]
