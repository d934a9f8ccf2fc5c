"""Log-probabilities of tokens, computed one way for the sampler and for the learner.

`process_logits` is the only place where temperature, min-p, top-k and top-p are applied. The
sampler draws from what it returns and records the drawn entry; the learner recomputes the same
entry with `token_logprobs` under its own weights. Their difference is then due to weights and
rounding alone.

Order: temperature, min-p, top-k, top-p, as vLLM applies them (transformers applies min-p last).
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

CHUNK = 512
"""Positions whose logits exist at one time: 512 × 49,152 float32 = 100 MB."""


def process_logits(
    logits_NV: torch.Tensor,
    *,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    keep_N: torch.Tensor | None = None,
) -> torch.Tensor:
    """The log-distribution that is sampled from.

    Args:
        logits_NV: of any float dtype; computed with in float32.
        temperature: 0 means greedy; its log-probabilities are those at temperature 1 without
            top-k and top-p (a point mass would say nothing).
        top_p: keeps the fewest most likely tokens whose probability reaches it.
        top_k: keeps that many; 0: all. Ties with the last one stay.
        min_p: keeps what is at least that share as likely as the likeliest; 0: all.
        keep_N: token ids that are kept whatever the cut: a token that was sampled under all but
            equal weights must not get −inf because it sat on the edge.

    Returns:
        float32 of shape N × V, nats, −inf where cut.
    """
    logits_NV = logits_NV.float()
    if temperature == 0.0:
        return torch.log_softmax(logits_NV, dim=-1)
    if temperature != 1.0:
        logits_NV = logits_NV / temperature
    if min_p > 0.0:
        least_N1 = logits_NV.amax(-1, keepdim=True) + math.log(min_p)
        logits_NV = _cut(logits_NV, logits_NV < least_N1, keep_N)
    if 0 < top_k < logits_NV.shape[-1]:
        smallest = torch.topk(logits_NV, top_k, dim=-1).values[:, -1:]
        logits_NV = _cut(logits_NV, logits_NV < smallest, keep_N)
    if top_p < 1.0:
        ordered, order = torch.sort(logits_NV, dim=-1, descending=True, stable=True)
        probabilities = torch.softmax(ordered, dim=-1)
        beyond = probabilities.cumsum(-1) - probabilities >= top_p
        beyond[:, 0] = False
        mask = torch.zeros_like(beyond).scatter(1, order, beyond)
        logits_NV = _cut(logits_NV, mask, keep_N)
    return torch.log_softmax(logits_NV, dim=-1)


def _cut(
    logits_NV: torch.Tensor, mask_NV: torch.Tensor, keep_N: torch.Tensor | None
) -> torch.Tensor:
    if keep_N is not None:
        mask_NV = mask_NV.scatter(1, keep_N[:, None], False)
    return logits_NV.masked_fill(mask_NV, float("-inf"))


def token_logprobs(
    module: nn.Module,
    token_ids_BT: torch.Tensor,
    attention_mask_BT: torch.Tensor,
    *,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    with_entropy: bool = False,
    where_BT: torch.Tensor | None = None,
    position_ids_BT: torch.Tensor | None = None,
    source_BT: torch.Tensor | None = None,
    value_head: nn.Module | None = None,
) -> Any:
    """Differentiable log-probabilities of the tokens, under the sampler's processing.

    Logits exist only where they are needed, `CHUNK` positions at a time; with more than one chunk
    each is recomputed in the backward pass.

    Args:
        module: a causal language model of transformers, adapters included.
        token_ids_BT: int64, right-padded.
        attention_mask_BT: True on real tokens; or B × 1 × T × T, True where position t may look
            at s (rows that share a prefix need it), and then `where_BT` is required.
        temperature: as sampled with.
        top_p: as sampled with.
        top_k: as sampled with.
        min_p: as sampled with.
        with_entropy: returns a pair, the second being the entropy in nats of the distribution
            that the token was drawn from.
        where_BT: the tokens whose log-probability is wanted; None: every real token but the first.
        position_ids_BT: None: 0, 1, 2, … along each row.
        source_BT: the position whose output predicts the token; None: t − 1.
        value_head: last hidden states (N × H) to N numbers; returns one array more, the last: its
            number for the state in which the token was drawn.

    Returns:
        float32 of shape B × T: position t speaks of the token at t given those before it; 0 at
        t = 0, on padding and wherever not wanted. With `with_entropy` or `value_head`, a tuple of
        such arrays.
    """
    if where_BT is None:
        if attention_mask_BT.ndim != 2:
            raise ValueError("a B × 1 × T × T mask needs where_BT")
        where_BT = attention_mask_BT.bool().clone()
        where_BT[:, 0] = False
    rows, columns = torch.nonzero(where_BT, as_tuple=True)
    sources = columns - 1 if source_BT is None else source_BT[rows, columns]
    targets = token_ids_BT[rows, columns]
    hidden_BTH, head = _hidden(module, token_ids_BT, attention_mask_BT, position_ids_BT)
    wanted_NH = hidden_BTH[rows, sources]

    def chunk(hidden_NH: torch.Tensor, target_N: torch.Tensor) -> torch.Tensor:
        logprobs_NV = process_logits(
            head(hidden_NH),
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            min_p=min_p,
            keep_N=target_N,
        )
        picked = logprobs_NV.gather(1, target_N[:, None])[:, 0]
        if not with_entropy:
            return picked[None]
        # Filled before the product: the gradient of 0 × −inf would be NaN even where not taken.
        finite_NV = logprobs_NV.masked_fill(torch.isinf(logprobs_NV), 0.0)
        terms = logprobs_NV.exp() * finite_NV
        return torch.stack([picked, -terms.sum(-1)])

    pieces = []
    spare = torch.is_grad_enabled() and wanted_NH.shape[0] > CHUNK
    for start in range(0, wanted_NH.shape[0], CHUNK):
        part = (wanted_NH[start : start + CHUNK], targets[start : start + CHUNK])
        pieces.append(checkpoint(chunk, *part, use_reentrant=False) if spare else chunk(*part))
    out = hidden_BTH.new_zeros(2 if with_entropy else 1, *token_ids_BT.shape, dtype=torch.float32)
    if pieces:
        out = out.index_put(
            (torch.arange(out.shape[0])[:, None], rows[None], columns[None]),
            torch.cat(pieces, dim=1),
        )
    found = list(out)
    if value_head is not None:
        found.append(torch.zeros_like(out[0]).index_put((rows, columns), value_head(wanted_NH)))
    return tuple(found) if len(found) > 1 else found[0]


def _hidden(
    module: nn.Module,
    token_ids_BT: torch.Tensor,
    attention_mask: torch.Tensor,
    position_ids_BT: torch.Tensor | None,
) -> tuple[torch.Tensor, Any]:
    """The last hidden states, and the function that makes logits of them."""
    if position_ids_BT is None:
        length = token_ids_BT.shape[1]
        position_ids_BT = torch.arange(length, device=token_ids_BT.device).expand_as(token_ids_BT)
    mask = attention_mask.bool()
    if mask.ndim == 2 and bool(mask.all()):
        # Without padding the causal kernel needs no mask; all ones says so to every model.
        mask = torch.ones_like(mask)
    body = module.base_model
    hidden_BTH = body(
        input_ids=token_ids_BT,
        attention_mask=mask,
        position_ids=position_ids_BT,
        use_cache=False,
    ).last_hidden_state
    return hidden_BTH, logits_head(module)


def logits_head(module: nn.Module) -> Any:
    """What turns last hidden states (N × H) into logits (N × V), as the model itself does.

    Some models scale or cap their logits after the output layer, by settings of these names;
    `load_model` compares with the model's own forward once and refuses what it cannot reproduce.
    """
    head = module.get_output_embeddings()
    config = module.config.get_text_config()
    cap = getattr(config, "final_logit_softcapping", None)
    multiply = getattr(config, "logit_scale", None)
    divide = getattr(config, "logits_scaling", None)
    if not (cap or multiply or divide):
        return head

    def adjusted(hidden_NH: torch.Tensor) -> torch.Tensor:
        logits_NV = head(hidden_NH)
        if multiply:
            logits_NV = logits_NV * multiply
        if divide:
            logits_NV = logits_NV / divide
        return torch.tanh(logits_NV / cap) * cap if cap else logits_NV

    return adjusted


def accepts(module: nn.Module, argument: str) -> bool:
    """Whether the model's forward names an argument."""
    return argument in inspect.signature(type(module).forward).parameters
