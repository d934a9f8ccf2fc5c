"""The learner: owns the weights and the optimiser; one batch in, one step, metrics out.

AdamW with warm-up and a bound on the gradient's norm. A batch is worked through in micro-batches
of a fixed number of tokens; their losses add up because the mean is in the token weights. A loss
or gradient that is not finite changes nothing and is told. Weights are published as a safetensors
file renamed into place, under a version and a hash.

Where parameters are stored in 16 bits, the optimiser works on float32 copies: a step of 1e-5 would
round to nothing in bfloat16. The reference of a KL penalty is the model as it was loaded: with
adapters, the same one with them switched off; without, a frozen copy.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from quintain.batch import Batch
from quintain.errors import ConfigError, TrainingError
from quintain.policies.local.logprobs import token_logprobs
from quintain.policies.local.lora import adapters_off
from quintain.policies.local.model import Model, load_model
from quintain.policies.local.spec import ModelSpec
from quintain.protocols import Metrics, Published
from quintain.training.batching import select, token_weights
from quintain.training.config import LearnerOptions
from quintain.training.critic import ValueHead, states, targets, value_loss
from quintain.training.losses import Sums, TokenArrays, join, policy_loss, summarise
from quintain.training.packing import Layout, lay_out, plan


class LocalLearner:
    """Trains a local model.

    Args:
        spec: the model.
        options: how to learn.
        folder: where published weights go; only the newest few are kept.
    """

    def __init__(self, spec: ModelSpec, options: LearnerOptions, folder: Path) -> None:
        # The spec's own thread count is that of the generation process.
        spec = replace(spec, threads=options.threads)
        torch.manual_seed(options.seed)
        self.options = options
        self.folder = Path(folder)
        self.model: Model = load_model(
            spec if options.device is None else replace(spec, device=options.device)
        )
        self.device = self.model.device
        self.parameters: dict[str, Tensor] = dict(self.model.trainable())
        if not self.parameters:
            raise ConfigError(f"{spec} has no trainable parameter")
        self.masters = {
            name: parameter
            if parameter.dtype == torch.float32
            else parameter.detach().float().clone()
            for name, parameter in self.parameters.items()
        }
        self.head: ValueHead | None = None
        if options.critic is not None:
            width = self.model.module.config.get_text_config().hidden_size
            self.head = ValueHead(width, self.device)
        self.frozen = self.model.module
        """Computes the reference of a KL penalty."""
        if options.loss.kl_coefficient and spec.lora is None:
            self.frozen = copy.deepcopy(self.model.module).requires_grad_(False)
        groups: list[dict[str, Any]] = [{"params": list(self.masters.values()), "lr": options.lr}]
        if self.head is not None and options.critic is not None:
            decay = {"lr": options.critic.lr, "weight_decay": 0.0}
            groups.append({"params": list(self.head.parameters()), **decay})
        self.rates = [group["lr"] for group in groups]
        self.optimiser = torch.optim.AdamW(
            groups, betas=options.betas, weight_decay=options.weight_decay
        )
        self.version = 0
        self.updates = 0

    # --- learning ----------------------------------------------------------------------------

    def update(self, batch: Batch) -> Metrics:
        """One step on the batch (`updates_per_batch` of them).

        Returns:
            Metrics; `skipped` is 1 when a loss or gradient was not finite and nothing changed.
        """
        started = time.monotonic()
        layouts = self._layouts(batch)
        batch, metrics = self._prepare(batch, layouts)
        sums: Sums = {}
        for _ in range(self.options.updates_per_batch):
            loss, sums = self._backward(batch, layouts)
            metrics.update({"loss": loss, **self._step(loss)})
            if metrics["skipped"]:
                break
        metrics.update(summarise(sums))
        seconds = time.monotonic() - started
        metrics["learner_tokens"] = float(sum(layout.token_ids_PL.size for layout in layouts))
        metrics["learner_tokens_per_s"] = metrics["learner_tokens"] / max(seconds, 1e-9)
        metrics["learner_s"] = seconds
        return metrics

    def _layouts(self, batch: Batch) -> list[Layout]:
        return [lay_out(batch, packs) for packs in plan(batch, self.options.micro_tokens)]

    def _prepare(self, batch: Batch, layouts: list[Layout]) -> tuple[Batch, Metrics]:
        """The batch with all that is fixed during the update: p, the reference, the critic's."""
        loss, critic = self.options.loss, self.options.critic
        found: dict[str, Any] = {}
        metrics: Metrics = {}
        # With one update p is the policy of its only pass.
        proximal = (
            batch.proximal_logprobs_BT is None
            and self.options.updates_per_batch > 1
            and loss.objective == "decoupled"
        )
        if critic is not None:
            everywhere = replace(batch, loss_mask_BT=states(batch))
            same = bool((everywhere.loss_mask_BT == batch.loss_mask_BT).all())
            logprobs_BT, values_BT = self._evaluate(
                everywhere, layouts if same else self._layouts(everywhere)
            )
            aims, metrics = targets(batch, values_BT, critic)
            found["advantages_BT"] = aims.advantages_BT
            found["values_BT"], found["returns_BT"] = aims.values_BT, aims.returns_BT
        elif proximal:
            logprobs_BT, _ = self._evaluate(batch, layouts)
        if proximal:
            found["proximal_logprobs_BT"] = logprobs_BT
        if loss.kl_coefficient and batch.reference_logprobs_BT is None:
            with self._as_at_the_start():
                found["reference_logprobs_BT"], _ = self._evaluate(batch, layouts)
        return replace(batch, **found), metrics

    @contextmanager
    def _as_at_the_start(self) -> Iterator[None]:
        """While open, `_forward` is that of the weights that were loaded."""
        trained, self.model.module = self.model.module, self.frozen
        try:
            with adapters_off(self.frozen):
                yield
        finally:
            self.model.module = trained

    def logprobs(self, batch: Batch) -> np.ndarray:
        """Log-probabilities of the batch's tokens with loss under the current weights, nats."""
        return self._evaluate(batch, self._layouts(batch))[0]

    def reference_logprobs(self, batch: Batch) -> np.ndarray:
        """The same under the weights that were loaded.

        Raises:
            ConfigError: all parameters are trained, and without a KL penalty no copy was kept.
        """
        if self.frozen is self.model.module and self.model.spec.lora is None:
            raise ConfigError("a reference is kept when kl_coefficient is above 0")
        with self._as_at_the_start():
            return self.logprobs(batch)

    def _evaluate(self, batch: Batch, layouts: list[Layout]) -> tuple[np.ndarray, np.ndarray]:
        """Log-probabilities of the tokens with loss, and the critic's values (else 0)."""
        out_BT = np.zeros((2, *batch.token_ids_BT.shape), dtype=np.float32)
        with torch.no_grad():
            for layout in layouts:
                found = self._forward(layout, with_entropy=False)
                rows = np.array(layout.rows)[layout.row_N]
                for kind, part_PL in enumerate(found):
                    values = part_PL[torch.from_numpy(layout.where_PL).to(part_PL.device)]
                    out_BT[kind, rows, layout.column_N] = values.float().cpu().numpy()
        return out_BT[0], out_BT[1]

    def _forward(self, layout: Layout, *, with_entropy: bool = True) -> tuple[Tensor, ...]:
        """Log-probabilities, if wanted entropies, and if there is a critic values."""
        found = token_logprobs(
            self.model.module,
            torch.from_numpy(layout.token_ids_PL).to(self.device),
            torch.from_numpy(layout.attention_PL).to(self.device),
            temperature=self.options.temperature,
            top_p=self.options.top_p,
            top_k=self.options.top_k,
            min_p=self.options.min_p,
            with_entropy=with_entropy,
            where_BT=torch.from_numpy(layout.where_PL).to(self.device),
            position_ids_BT=torch.from_numpy(layout.position_ids_PL).to(self.device),
            source_BT=torch.from_numpy(layout.source_PL).to(self.device),
            value_head=self.head,
        )
        return found if isinstance(found, tuple) else (found,)

    def _backward(self, batch: Batch, layouts: list[Layout]) -> tuple[float, Sums]:
        """Gradients of the whole batch's loss, summed into the parameters."""
        self.model.module.zero_grad(set_to_none=True)
        if self.head is not None:
            self.head.zero_grad(set_to_none=True)
        weights_BT = token_weights(batch, self.options.aggregation)
        total, sums = 0.0, Sums()
        for layout in layouts:
            loss, more = self._layout_loss(batch, layout, weights_BT)
            loss.backward()
            total += float(loss.detach())
            sums = join(sums, more)
        return total, sums

    def _layout_loss(
        self, batch: Batch, layout: Layout, weights_BT: np.ndarray
    ) -> tuple[Tensor, Sums]:
        """The loss of one micro-batch, with gradient."""
        found = self._forward(layout)
        rows = np.array(layout.rows)
        part = select(batch, rows)
        shape = part.token_ids_BT.shape
        place = (
            torch.from_numpy(layout.row_N).to(self.device),
            torch.from_numpy(layout.column_N).to(self.device),
        )
        where = torch.from_numpy(layout.where_PL).to(self.device)
        empty = torch.zeros(shape, dtype=torch.float32, device=self.device)
        logprobs_BT, entropy_BT, *values = (
            empty.index_put(place, each_PL[where]) for each_PL in found
        )
        arrays = TokenArrays(
            mask_BT=self._tensor(part.loss_mask_BT),
            weights_BT=self._tensor(weights_BT[rows, : shape[1]]),
            advantages_BT=self._tensor(part.advantages_BT),
            behaviour_BT=self._tensor(part.behaviour_logprobs_BT),
            proximal_BT=self._maybe(part.proximal_logprobs_BT),
            reference_BT=self._maybe(part.reference_logprobs_BT),
        )
        loss, sums = policy_loss(logprobs_BT, arrays, self.options.loss, entropy_BT.detach())
        critic, old_BT, returns_BT = self.options.critic, part.values_BT, part.returns_BT
        if critic is not None and old_BT is not None and returns_BT is not None:
            more, value_sums = value_loss(
                values[0],
                self._tensor(old_BT),
                self._tensor(returns_BT),
                arrays.mask_BT,
                arrays.weights_BT,
                critic,
            )
            loss, sums = loss + more, {**sums, **value_sums}
        return loss, sums

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _maybe(self, array: np.ndarray | None) -> Tensor | None:
        return None if array is None else self._tensor(array)

    def _step(self, loss: float) -> Metrics:
        """The optimiser's step, unless something is not finite."""
        for name, master in self.masters.items():
            gradient = self.parameters[name].grad
            if master is not self.parameters[name]:
                master.grad = None if gradient is None else gradient.float()
        norms = [
            float(torch.nn.utils.clip_grad_norm_(group["params"], self.options.max_grad_norm))
            for group in self.optimiser.param_groups
        ]
        warm = min(1.0, (self.updates + 1) / max(1, self.options.warmup_steps))
        out = {"grad_norm": norms[0], "lr": self.options.lr * warm, "skipped": 0.0}
        if self.head is not None:
            out["value_grad_norm"] = norms[1]
        if not np.isfinite([loss, *norms]).all():
            self.optimiser.zero_grad(set_to_none=True)
            return {**out, "skipped": 1.0}
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = rate * warm
        self.optimiser.step()
        self.updates += 1
        with torch.no_grad():
            for name, master in self.masters.items():
                if master is not self.parameters[name]:
                    self.parameters[name].copy_(master)
        return out

    @property
    def _optimised(self) -> dict[str, Tensor]:
        """All that the optimiser moves, by name: the policy's parameters and the value head's."""
        head = {} if self.head is None else dict(self.head.named_parameters(prefix="value_head"))
        return {**self.masters, **head}

    # --- weights out, state in and out -------------------------------------------------------

    def publish(self) -> Published:
        """Writes the current weights under the next version."""
        self.version += 1
        return self._write()

    def current(self) -> Published:
        """Writes the current weights under the version that they have."""
        return self._write()

    def _write(self, keep: int = 3) -> Published:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"v{self.version:08d}.safetensors"
        name = self.model.save(path)
        for old in sorted(self.folder.glob("v*.safetensors"))[:-keep]:
            old.unlink(missing_ok=True)
        return Published(self.version, path, name)

    def save(self, folder: Path) -> Published:
        """A checkpoint: weights, optimiser, random state, counters; renamed into place.

        Files: `model.safetensors`, `optimiser.safetensors`, `learner.json`; nothing pickled.
        """
        folder = Path(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}.part")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        digest = self.model.save(temporary / "model.safetensors")
        save_file(self._optimiser_state(), temporary / "optimiser.safetensors")
        counters = {"version": self.version, "updates": self.updates, "hash": digest, "format": 1}
        (temporary / "learner.json").write_text(json.dumps(counters))
        for path in (*temporary.iterdir(), temporary):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        return Published(self.version, folder / "model.safetensors", digest)

    def _optimiser_state(self) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {"random": torch.get_rng_state()}
        for name, master in self._optimised.items():
            if master is not self.parameters.get(name):
                out[f"master/{name}"] = master.detach().contiguous()
            for key, value in self.optimiser.state.get(master, {}).items():
                out[f"{key}/{name}"] = value.detach().contiguous()
        return out

    def restore(self, folder: Path) -> Published:
        """Goes on from a checkpoint.

        Raises:
            TrainingError: it is incomplete or of another model.
        """
        folder = Path(folder)
        try:
            counters = json.loads((folder / "learner.json").read_text())
            state = load_file(folder / "optimiser.safetensors")
            self.model.load(folder / "model.safetensors")
        except (OSError, ValueError, KeyError) as error:
            raise TrainingError(f"cannot restore the checkpoint {folder}: {error}") from error
        self.version, self.updates = int(counters["version"]), int(counters["updates"])
        torch.set_rng_state(state.pop("random"))
        # `load` may have replaced the parameters; the optimiser must hold the ones in use.
        for name, parameter in self.model.trainable().items():
            if parameter is not self.parameters[name]:
                raise TrainingError(f"loading weights replaced the parameter {name}")
        for name, master in self._optimised.items():
            if f"master/{name}" in state:
                with torch.no_grad():
                    master.copy_(state[f"master/{name}"])
            elif master is not self.parameters.get(name):
                raise TrainingError(
                    f"the checkpoint {folder} holds no {name}: it is of another run"
                )
            kept = {key: state[f"{key}/{name}"] for key in _ADAM if f"{key}/{name}" in state}
            if kept:
                # torch keeps the step count on the CPU and the moments where the parameter is.
                self.optimiser.state[master] = {
                    key: value if key == "step" else value.to(master.device)
                    for key, value in kept.items()
                }
        return Published(self.version, folder / "model.safetensors", str(counters["hash"]))


_ADAM = ("step", "exp_avg", "exp_avg_sq")
