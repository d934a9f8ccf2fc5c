"""`ModelSpec`: which model, in which precision, with which adapters. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from quintain.errors import ConfigError

Dtype = Literal["float32", "bfloat16"]

BUILTIN = ("smollm2", "tiny")
"""Names that `ModelSpec.source` takes besides a folder."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything needed to build the same model in another process; picklable and hashable."""

    source: str
    """A Hugging Face folder, or one of `BUILTIN`."""
    lora: int | None = None
    """Rank of the low-rank adapters; None: all parameters are trained."""
    lora_alpha: float | None = None
    """The adapters' output is scaled by alpha / rank; None: alpha = 2 × rank."""
    dtype: Dtype = "bfloat16"
    threads: int | None = None
    """Of the process that loads it; None: torch's own choice."""
    seed: int = 0
    """Of whatever is drawn at load time: fresh adapters, and the weights of `tiny`."""
    max_context: int = 2048
    """Tokens of prompt and answer together; never more than the model has positions for."""
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.lora is not None and self.lora < 1:
            raise ConfigError(f"lora is a rank of at least 1 or None, got {self.lora}")
        if self.dtype not in ("float32", "bfloat16"):
            raise ConfigError(f"dtype is 'float32' or 'bfloat16', got {self.dtype!r}")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads is at least 1 or None, got {self.threads}")
        if self.max_context < 2:
            raise ConfigError(f"max_context is at least 2, got {self.max_context}")

    @property
    def tool_format(self) -> str:
        """How the model is shown tools where nothing else is said; see `toolcalls`."""
        return "tags" if self.source in BUILTIN else "json"

    @property
    def lora_scale(self) -> float:
        """alpha / rank; 0 without adapters."""
        if self.lora is None:
            return 0.0
        alpha = 2.0 * self.lora if self.lora_alpha is None else self.lora_alpha
        return alpha / self.lora


def best_dtype(device: str) -> Dtype:
    """bfloat16 on an accelerator or a processor with instructions for it, else float32."""
    if device != "cpu":
        return "bfloat16"
    listed = Path("/proc/cpuinfo")
    text = listed.read_text("utf-8", "replace") if listed.is_file() else ""
    features = next(
        (line for line in text.splitlines() if line.startswith(("flags", "Features"))), ""
    ).split()
    native = {"avx512_bf16", "amx_bf16", "bf16"} & set(features)
    return "bfloat16" if native else "float32"
