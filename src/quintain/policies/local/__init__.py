"""Local language models: load, sample with exact tokens, take new weights.

Nothing here imports torch before a model is loaded: names that need it are fetched when asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quintain.policies.local.policy import Local, local, smollm2, tiny
from quintain.policies.local.spec import ModelSpec

if TYPE_CHECKING:
    from quintain.policies.local.logprobs import process_logits, token_logprobs
    from quintain.policies.local.model import Model, load_model
    from quintain.policies.local.supervised import warm_start, warm_started

__all__ = [
    "Local",
    "Model",
    "ModelSpec",
    "load_model",
    "local",
    "process_logits",
    "smollm2",
    "tiny",
    "token_logprobs",
    "warm_start",
    "warm_started",
]


def __getattr__(name: str) -> Any:
    if name in ("process_logits", "token_logprobs"):
        from quintain.policies.local import logprobs

        return getattr(logprobs, name)
    if name in ("Model", "load_model"):
        from quintain.policies.local import model

        return getattr(model, name)
    if name in ("warm_start", "warm_started"):
        from quintain.policies.local import supervised

        return getattr(supervised, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
