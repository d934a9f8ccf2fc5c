"""A supervised warm start: next-token training on what the assistant says in demonstrations.

A model fresh from `tiny` has no signal to learn from: every reward is 0. A short supervised phase
on demonstrations of the environment gives it the format, and reinforcement learning the rest. The
loss is on the assistant's tokens alone, the token that ends each turn among them; tokens are put
together exactly as a session of the sampler does it.

AdamW with a linear rise over the first twentieth of the steps and a cosine fall to a tenth.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from quintain.errors import ConfigError
from quintain.messages import Message, ToolSpec
from quintain.policies.local.cache import build_once
from quintain.policies.local.logprobs import token_logprobs
from quintain.policies.local.model import Model, load_model
from quintain.policies.local.spec import ModelSpec
from quintain.record import digest

Conversations = Sequence[Sequence[Message]]
_LAYOUT = "1"


def warm_start(
    model: Model,
    conversations: Conversations,
    *,
    steps: int = 400,
    lr: float = 3e-3,
    seed: int = 0,
    batch: int = 32,
    tools: Sequence[ToolSpec] = (),
) -> list[float]:
    """Trains the model in place; returns the mean loss (nats a token) of each step.

    Args:
        model: its trainable parameters are trained.
        conversations: demonstrations; every assistant turn is learned.
        steps: optimiser steps.
        lr: highest learning rate.
        seed: of the order of the demonstrations.
        batch: conversations a step.
        tools: what the demonstrations may call, for formats that tell the model of them.

    Raises:
        ConfigError: no demonstration fits the model's context.
    """
    rows = _rows(model, conversations, tools)
    parameters = list(model.trainable().values())
    optimiser = torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    order = random.Random(seed)
    losses: list[float] = []
    pool: list[int] = []
    for step in range(steps):
        while len(pool) < batch:
            pool += order.sample(range(len(rows)), len(rows))
        chosen, pool = pool[:batch], pool[batch:]
        for group in optimiser.param_groups:
            group["lr"] = lr * _schedule(step, steps)
        loss = _loss(model, [rows[place] for place in chosen])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


def warm_started(
    spec: ModelSpec,
    conversations: Conversations,
    *,
    steps: int = 400,
    lr: float = 3e-3,
    seed: int = 0,
    batch: int = 32,
    tools: Sequence[ToolSpec] = (),
    tool_format: str = "tags",
    root: Path | None = None,
) -> ModelSpec:
    """The spec of the warm-started model: a folder in the user's cache, trained now if need be.

    The folder is keyed by everything that goes in: model, demonstrations and settings. All
    parameters are trained in float32, whatever the spec's adapters and dtype, which remain as they
    are in the spec that is returned.
    """
    plain = replace(spec, lora=None, lora_alpha=None, dtype="float32")
    said = [[message.model_dump(mode="json") for message in talk] for talk in conversations]
    told = [tool.model_dump(mode="json") for tool in tools]
    source = [spec.source, spec.seed, spec.max_context]
    key = digest(_LAYOUT, source, said, told, tool_format, [steps, lr, seed, batch])

    def build(folder: Path) -> None:
        model = load_model(plain, tools=tool_format)
        warm_start(model, conversations, steps=steps, lr=lr, seed=seed, batch=batch, tools=tools)
        model.export(folder)

    return replace(spec, source=str(build_once(f"warm-{key}", build, root=root)))


def _rows(
    model: Model, conversations: Conversations, tools: Sequence[ToolSpec]
) -> list[tuple[list[int], list[bool]]]:
    rows = []
    for talk in conversations:
        ids, mask = model.template.conversation(talk, tools)
        if len(ids) <= model.max_context and any(mask):
            rows.append((ids, mask))
    if not rows:
        raise ConfigError(
            f"none of the {len(conversations)} demonstrations has an assistant turn within "
            f"{model.max_context} tokens (max_context)"
        )
    return rows


def _schedule(step: int, steps: int) -> float:
    warm = max(1, steps // 20)
    if step < warm:
        return (step + 1) / warm
    return 0.55 + 0.45 * math.cos(math.pi * (step - warm) / max(1, steps - warm))


def _loss(model: Model, rows: list[tuple[list[int], list[bool]]]) -> torch.Tensor:
    """Minus the mean log-probability of the assistant's tokens of a batch."""
    width = max(len(ids) for ids, _ in rows)
    ids_BT = torch.zeros(len(rows), width, dtype=torch.long)
    real_BT = torch.zeros(len(rows), width, dtype=torch.bool)
    where_BT = torch.zeros(len(rows), width, dtype=torch.bool)
    for row, (ids, mask) in enumerate(rows):
        ids_BT[row, : len(ids)] = torch.tensor(ids)
        real_BT[row, : len(ids)] = True
        where_BT[row, : len(ids)] = torch.tensor(mask)
    where_BT[:, 0] = False
    device = model.device
    logprobs_BT = token_logprobs(
        model.module,
        ids_BT.to(device),
        real_BT.to(device),
        temperature=1.0,
        where_BT=where_BT.to(device),
    )
    loss: torch.Tensor = -logprobs_BT.sum() / where_BT.sum()
    return loss
