"""Low-rank adapters: y = W x + (alpha / r) · B (A x), with W frozen (arXiv:2106.09685).

Small enough to read, and exact: `merged_weight` is the matrix that the sampler multiplies with, so
there is no second notion of what the adapted layer computes. A is drawn uniformly as in a linear
layer, B starts at 0, so a fresh adapter changes nothing. Both stay float32 under a bfloat16 model:
an optimiser step of 1e-4 would vanish in bfloat16's 8 bits of mantissa.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from quintain.errors import ConfigError

ROUTERS = ("gate", "router")
"""Last parts of the names of layers that choose experts; they stay as they are."""


class LoraLinear(nn.Module):  # type: ignore[misc]
    """A frozen linear layer with an adapter beside it; GPT-2's `Conv1D` is one too."""

    def __init__(self, base: nn.Module, rank: int, scale: float) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.scale = scale
        self.active = True
        device = base.weight.device
        self.transposed = not isinstance(base, nn.Linear)
        """Whether the base keeps its weight as inputs × outputs."""
        outputs, inputs = base.weight.T.shape if self.transposed else base.weight.shape
        self.lora_a = nn.Parameter(torch.empty(rank, inputs, device=device))
        self.lora_b = nn.Parameter(torch.zeros(outputs, rank, device=device))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The adapted layer's output, in the dtype of its input."""
        if not self.active:
            return self.base(inputs)
        low = nn.functional.linear(inputs, self.lora_a.to(inputs.dtype))
        return torch.add(
            self.base(inputs),
            nn.functional.linear(low, self.lora_b.to(inputs.dtype)),
            alpha=self.scale,
        )


def inject(module: nn.Module, rank: int, scale: float, seed: int) -> int:
    """Freezes `module` and puts an adapter on each linear layer of its body; returns how many.

    Output layer, embeddings and the routers of experts get none.

    Raises:
        ConfigError: the model has no linear layer.
    """
    module.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    found = _targets(module)
    if not found:
        raise ConfigError(
            f"{type(module).__name__} has no linear layer that an adapter could stand beside: "
            "train all its parameters (lora=None)"
        )
    for name, layer in found:
        adapted = LoraLinear(layer, rank, scale)
        bound = 1.0 / math.sqrt(adapted.lora_a.shape[1])
        drawn = torch.rand(adapted.lora_a.shape, generator=generator)
        with torch.no_grad():
            adapted.lora_a.copy_((drawn * 2.0 - 1.0) * bound)
        parent, _, last = name.rpartition(".")
        setattr(module.get_submodule(parent), last, adapted)
    return len(found)


def _targets(module: nn.Module) -> list[tuple[str, nn.Module]]:
    from transformers.pytorch_utils import Conv1D

    output = getattr(module, "get_output_embeddings", lambda: None)()
    return [
        (name, layer)
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear | Conv1D)
        and layer is not output
        and name.rpartition(".")[2] not in ROUTERS
    ]


@contextmanager
def adapters_off(module: nn.Module) -> Iterator[None]:
    """While open, the module computes as it did before it was adapted."""
    adapted = [layer for layer in module.modules() if isinstance(layer, LoraLinear)]
    for layer in adapted:
        layer.active = False
    try:
        yield
    finally:
        for layer in adapted:
            layer.active = True


def merged_weight(layer: nn.Module) -> torch.Tensor:
    """The weight that a linear layer multiplies with, its adapter folded in, in its own dtype."""
    if not isinstance(layer, LoraLinear):
        return layer.weight.detach()
    with torch.no_grad():
        delta = (layer.lora_b @ layer.lora_a) * layer.scale
        if layer.transposed:
            delta = delta.T
        return (layer.base.weight.float() + delta).to(layer.base.weight.dtype)


def merged_state(module: nn.Module) -> dict[str, torch.Tensor]:
    """The state of `module` as if it had never had adapters, them folded in."""
    adapted = {name: m for name, m in module.named_modules() if isinstance(m, LoraLinear)}
    state: dict[str, torch.Tensor] = {}
    for key, value in module.state_dict().items():
        owner, _, last = key.rpartition(".")
        if owner in adapted:
            continue  # lora_a, lora_b
        if owner.endswith(".base") and owner.removesuffix(".base") in adapted:
            name = owner.removesuffix(".base")
            folded = merged_weight(adapted[name]) if last == "weight" else value
            state[f"{name}.{last}"] = folded
        else:
            state[key] = value
    return state
