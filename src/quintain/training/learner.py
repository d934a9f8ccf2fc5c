"""The learner: owns the weights and the optimiser; one batch in, one step, metrics out.

AdamW with warm-up and a bound on the gradient's norm. A batch is worked through in micro-batches
of a fixed number of tokens; their losses add up because the mean is in the token weights. A loss
or gradient that is not finite changes nothing and is told. Weights are published as a safetensors
file renamed into place, under a version and a hash.

Where parameters are stored in 16 bits, the optimiser works on float32 copies: a step of 1e-5 would
round to nothing in bfloat16.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from quintain.batch import Batch
from quintain.errors import ConfigError, TrainingError
from quintain.policies.local.logprobs import token_logprobs
from quintain.policies.local.model import Model, load_model
from quintain.policies.local.spec import ModelSpec
from quintain.protocols import Metrics, Published
from quintain.training.batching import select, token_weights
from quintain.training.config import LearnerOptions
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
        self.optimiser = torch.optim.AdamW(
            list(self.masters.values()),
            lr=options.lr,
            betas=options.betas,
            weight_decay=options.weight_decay,
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
        micro = plan(batch, self.options.micro_tokens)
        layouts = [lay_out(batch, packs) for packs in micro]
        proximal_BT = self._proximal(batch, layouts)
        sums: Sums = {}
        metrics: Metrics = {}
        for _ in range(self.options.updates_per_batch):
            loss, sums = self._backward(batch, layouts, proximal_BT)
            metrics = {"loss": loss, **self._step(loss)}
            if metrics["skipped"]:
                break
        metrics.update(summarise(sums))
        metrics["learner_tokens"] = float(sum(layout.token_ids_PL.size for layout in layouts))
        metrics["learner_s"] = time.monotonic() - started
        return metrics

    def _proximal(self, batch: Batch, layouts: list[Layout]) -> Tensor | None:
        """Log-probabilities at the start of the update; None when that is the first pass itself."""
        if batch.proximal_logprobs_BT is not None:
            return torch.from_numpy(batch.proximal_logprobs_BT)
        if self.options.updates_per_batch == 1 or self.options.loss.objective == "ppo":
            return None
        return torch.from_numpy(self._logprobs(batch, layouts))

    def logprobs(self, batch: Batch) -> np.ndarray:
        """Log-probabilities of the batch's tokens with loss under the current weights, nats."""
        return self._logprobs(
            batch, [lay_out(batch, packs) for packs in plan(batch, self.options.micro_tokens)]
        )

    def _logprobs(self, batch: Batch, layouts: list[Layout]) -> np.ndarray:
        out_BT = np.zeros(batch.token_ids_BT.shape, dtype=np.float32)
        with torch.no_grad():
            for layout in layouts:
                part_PL, _ = self._forward(layout)
                values = part_PL[torch.from_numpy(layout.where_PL).to(part_PL.device)]
                rows = np.array(layout.rows)[layout.row_N]
                out_BT[rows, layout.column_N] = values.float().cpu().numpy()
        return out_BT

    def _forward(self, layout: Layout) -> tuple[Tensor, Tensor]:
        logprobs_PL, entropy_PL = token_logprobs(
            self.model.module,
            torch.from_numpy(layout.token_ids_PL).to(self.device),
            torch.from_numpy(layout.attention_PL).to(self.device),
            temperature=self.options.temperature,
            top_p=self.options.top_p,
            top_k=self.options.top_k,
            with_entropy=True,
            where_BT=torch.from_numpy(layout.where_PL).to(self.device),
            position_ids_BT=torch.from_numpy(layout.position_ids_PL).to(self.device),
            source_BT=torch.from_numpy(layout.source_PL).to(self.device),
        )
        return logprobs_PL, entropy_PL.detach()

    def _backward(
        self, batch: Batch, layouts: list[Layout], proximal_BT: Tensor | None
    ) -> tuple[float, Sums]:
        """Gradients of the whole batch's loss, summed into the parameters."""
        for parameter in self.parameters.values():
            parameter.grad = None
        weights_BT = token_weights(batch, self.options.aggregation)
        total, sums = 0.0, Sums()
        for layout in layouts:
            logprobs_PL, entropy_PL = self._forward(layout)
            rows = np.array(layout.rows)
            part = select(batch, rows)
            shape = part.token_ids_BT.shape
            place = (
                torch.from_numpy(layout.row_N).to(self.device),
                torch.from_numpy(layout.column_N).to(self.device),
            )
            where = torch.from_numpy(layout.where_PL).to(self.device)
            empty = torch.zeros(shape, dtype=torch.float32, device=self.device)
            arrays = TokenArrays(
                mask_BT=self._tensor(part.loss_mask_BT),
                weights_BT=self._tensor(weights_BT[rows, : shape[1]]),
                advantages_BT=self._tensor(part.advantages_BT),
                behaviour_BT=self._tensor(part.behaviour_logprobs_BT),
                proximal_BT=None
                if proximal_BT is None
                else proximal_BT[torch.from_numpy(rows), : shape[1]].to(self.device),
                reference_BT=None
                if part.reference_logprobs_BT is None
                else self._tensor(part.reference_logprobs_BT),
            )
            loss, more = policy_loss(
                empty.index_put(place, logprobs_PL[where]),
                arrays,
                self.options.loss,
                empty.index_put(place, entropy_PL[where]),
            )
            loss.backward()
            total += float(loss.detach())
            sums = join(sums, more)
        return total, sums

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _step(self, loss: float) -> Metrics:
        """The optimiser's step, unless something is not finite."""
        for name, master in self.masters.items():
            gradient = self.parameters[name].grad
            if master is not self.parameters[name]:
                master.grad = None if gradient is None else gradient.float()
        norm = float(
            torch.nn.utils.clip_grad_norm_(list(self.masters.values()), self.options.max_grad_norm)
        )
        rate = self.options.lr * min(1.0, (self.updates + 1) / max(1, self.options.warmup_steps))
        out = {"grad_norm": norm, "lr": rate, "skipped": 0.0}
        if not (np.isfinite(loss) and np.isfinite(norm)):
            self.optimiser.zero_grad(set_to_none=True)
            return {**out, "skipped": 1.0}
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        self.updates += 1
        with torch.no_grad():
            for name, master in self.masters.items():
                if master is not self.parameters[name]:
                    self.parameters[name].copy_(master)
        return out

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
        for name, master in self.masters.items():
            if master is not self.parameters[name]:
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
        for name, master in self.masters.items():
            if f"master/{name}" in state:
                with torch.no_grad():
                    master.copy_(state[f"master/{name}"])
            kept = {key: state[f"{key}/{name}"] for key in _ADAM if f"{key}/{name}" in state}
            if kept:
                # torch keeps the step count on the CPU and the moments where the parameter is.
                self.optimiser.state[master] = {
                    key: value if key == "step" else value.to(master.device)
                    for key, value in kept.items()
                }
        return Published(self.version, folder / "model.safetensors", str(counters["hash"]))


_ADAM = ("step", "exp_avg", "exp_avg_sq")
