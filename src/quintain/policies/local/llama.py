"""A lean forward pass for models of the Llama family: fused projections, adapters folded in.

The same arithmetic as transformers' LlamaForCausalLM, written for one purpose: decode many rows
against `Slots`. Query, key and value projections are one matrix, and so are gate and up; grouped
queries share their keys without copies; logits are made for last tokens alone. The weights are
copies, taken by `refresh` after every update, with adapters folded in.

`fits` decides by doing: a model whose logits this does not reproduce runs through `AnyDecoder`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from quintain.policies.local.decoder import AnyDecoder, Decoder, Rows, pad_left, reach
from quintain.policies.local.folders import probe_ids
from quintain.policies.local.kv import Slots
from quintain.policies.local.lora import LoraLinear, merged_weight
from quintain.policies.local.model import Model

PACK = 1 << 20
"""Elements from which a matrix is laid out for the processor's kernels once rather than at every
call: a fifth of the time of decoding 64 rows."""


class _Linear:
    """A linear layer whose weight may be kept in the layout that its kernel wants."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._bias = bias
        self._packed = _pack(weight)
        # The head's weight is the embedding, which stays anyway; others are needed in one form.
        self._weight = weight if self._packed is None else None

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        if self._packed is None:
            return F.linear(inputs, self._weight, self._bias)
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, self._packed, self._bias, "none", [], ""
        )
        return out


def _pack(weight: torch.Tensor) -> torch.Tensor | None:
    """The weight in oneDNN's layout; None where that does not exist or does not pay."""
    if weight.device.type != "cpu" or weight.numel() < PACK:
        return None
    try:
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, 64)
    except (AttributeError, RuntimeError):
        return None  # a torch built without oneDNN, or a dtype that it does not take here
    return packed


@dataclass(frozen=True, slots=True)
class _Layer:
    before_attention: torch.Tensor
    query_key_value: _Linear
    out: _Linear
    before_mlp: torch.Tensor
    gate_up: _Linear
    down: _Linear


class LlamaDecoder:
    """Rows through a Llama-like module's weights.

    Args:
        module: has the parts of transformers' LlamaForCausalLM.
        max_context: positions that rotations are kept for.
    """

    def __init__(self, module: nn.Module, max_context: int) -> None:
        config = module.config
        self.shape = AnyDecoder(module).shape
        self._module = module
        self._heads: int = config.num_attention_heads
        self._epsilon: float = config.rms_norm_eps
        with torch.no_grad():
            like = module.model.embed_tokens.weight[:1][None]
            positions = torch.arange(max_context, device=like.device)[None]
            cosine, sine = module.model.rotary_emb(like, positions)
        self._cosine, self._sine = cosine[0], sine[0]
        self._layers: list[_Layer] = []
        self.refresh()

    def refresh(self) -> None:
        """Takes over the module's present weights."""
        body = self._module.model
        self._embedding = body.embed_tokens.weight.detach()
        self._head = _linear(self._module.lm_head)
        self._norm = body.norm.weight.detach()
        self._layers = [
            _Layer(
                layer.input_layernorm.weight.detach(),
                _linear(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
                _linear(layer.self_attn.o_proj),
                layer.post_attention_layernorm.weight.detach(),
                _linear(layer.mlp.gate_proj, layer.mlp.up_proj),
                _linear(layer.mlp.down_proj),
            )
            for layer in body.layers
        ]

    def forward(self, rows: Rows, slots: Slots) -> torch.Tensor:
        """Logits of shape R × V after each row's last new token."""
        slots.reserve(rows.longest)
        with torch.inference_mode():
            ids_RT, positions_RT = pad_left(rows, self.shape.device)
            place = _Place(rows, slots, positions_RT)
            cosine = self._cosine[positions_RT][:, :, None]
            sine = self._sine[positions_RT][:, :, None]
            hidden = F.embedding(ids_RT, self._embedding)
            for number, layer in enumerate(self._layers):
                normed = self._normalise(hidden, layer.before_attention)
                attended = self._attend(normed, layer, number, (cosine, sine), place)
                hidden = hidden + layer.out(attended)
                normed = self._normalise(hidden, layer.before_mlp)
                gate, up = layer.gate_up(normed).chunk(2, -1)
                hidden = hidden + layer.down(F.silu(gate) * up)
            last: torch.Tensor = self._head(self._normalise(hidden[:, -1], self._norm))
            return last

    def _normalise(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(hidden, (hidden.shape[-1],), weight, self._epsilon)

    def _attend(
        self,
        normed: torch.Tensor,
        layer: _Layer,
        number: int,
        rotation: tuple[torch.Tensor, torch.Tensor],
        place: _Place,
    ) -> torch.Tensor:
        """Attention of the new tokens over their rows, R × T × (heads · width)."""
        rows, width = normed.shape[:2]
        shape = self.shape
        mixed = layer.query_key_value(normed).view(rows, width, -1, shape.width)
        turned = _rotate(mixed[:, :, : self._heads + shape.heads], *rotation)
        query = turned[:, :, : self._heads]
        place.write(number, turned[:, :, self._heads :], mixed[:, :, self._heads + shape.heads :])
        keys, values = place.read(number)
        if width == 1:
            # The queries that share a key-value head stand as rows of one query matrix.
            grouped = query.reshape(rows, shape.heads, -1, shape.width)
            out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=place.mask)
            return out.reshape(rows, 1, -1)
        out = F.scaled_dot_product_attention(
            query.transpose(1, 2), keys, values, attn_mask=place.mask, enable_gqa=True
        )
        return out.transpose(1, 2).reshape(rows, width, -1)


class _Place:
    """Where a pass's keys and values go in the slots, and what its rows see."""

    def __init__(self, rows: Rows, slots: Slots, positions_RT: torch.Tensor) -> None:
        device = positions_RT.device
        self._rows, self._slots = rows, slots
        self._length = rows.longest
        self._width = positions_RT.shape[1]
        self._index = torch.tensor(list(rows.slots), device=device)
        self._cached = torch.tensor(list(rows.cached), device=device)
        self._packed = list(rows.slots) == list(range(len(rows.slots)))
        self.mask = reach(positions_RT, self._length)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Stores a layer's new keys and values, R × T × heads × width."""
        for arrays, new in ((self._slots.keys, keys), (self._slots.values, values)):
            array = arrays[layer]
            if self._width == 1:
                array[self._index, :, self._cached] = new[:, 0]
                continue
            for row, slot in enumerate(self._rows.slots):
                count, cached = len(self._rows.new[row]), self._rows.cached[row]
                fresh = new[row, self._width - count :].transpose(0, 1)
                array[slot, :, cached : cached + count] = fresh

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's keys and values of the rows, R × heads × L × width."""
        keys, values = self._slots.keys[layer], self._slots.values[layer]
        if self._packed:
            count = len(self._rows.slots)
            return keys[:count, :, : self._length], values[:count, :, : self._length]
        return keys[self._index, :, : self._length], values[self._index, :, : self._length]


def _rotate(states: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = states.chunk(2, -1)
    return states * cosine + torch.cat((-second, first), -1) * sine


def _linear(*layers: nn.Module) -> _Linear:
    """Linear layers over the same input as one, their adapters folded in."""
    plain = [layer.base if isinstance(layer, LoraLinear) else layer for layer in layers]
    weights = [merged_weight(layer) for layer in layers]
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    biases = [layer.bias for layer in plain]
    if all(bias is None for bias in biases):
        return _Linear(weight, None)
    filled = [
        torch.zeros_like(weight[:, 0]) if bias is None else bias.detach()
        for bias, weight in zip(biases, weights, strict=True)
    ]
    return _Linear(weight, torch.cat(filled))


def fits(model: Model) -> Decoder | None:
    """The lean decoder, when it reproduces the model's own logits; else None."""
    try:
        decoder = LlamaDecoder(model.module, model.max_context)
    except AttributeError:
        return None  # another architecture: a part of that name is not there
    ids = probe_ids(model.template.vocabulary_size)
    rows = Rows(slots=[0], cached=[0], new=[ids])
    try:
        ours = decoder.forward(rows, Slots(decoder.shape, 1, len(ids))).float()
    except (RuntimeError, TypeError):
        return None  # its parts have the names but not the shapes
    with torch.no_grad():
        inputs = torch.tensor([ids], device=model.device)
        theirs = model.module(input_ids=inputs, use_cache=False).logits[:, -1].float()
    exact = model.spec.dtype == "float32"
    close = torch.allclose(ours, theirs, atol=1e-3 if exact else 0.5, rtol=1e-3 if exact else 0.05)
    return decoder if close else None


def decoder_for(model: Model) -> Decoder:
    """The fastest decoder that computes what the model computes."""
    return fits(model) or AnyDecoder(model.module)
