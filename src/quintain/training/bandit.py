"""The smallest thing that can be trained: a softmax over eight words, in NumPy.

It samples, publishes, restores and learns as a language model does, in microseconds and without
torch, so that loops, pacing, resume and benchmarks can be looked at for what they do with time,
order and failure. Shipped, as `policies.scripted` is, for whoever tests a trainer of their own.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from quintain.batch import Batch
from quintain.errors import TrainingError
from quintain.messages import Message, Sampling, ToolSpec, assistant
from quintain.policies.local.spec import ModelSpec
from quintain.protocols import Metrics, Published
from quintain.record import digest
from quintain.training.advantages import Float64
from quintain.trajectory import Action, TokenSpan, Usage

WORDS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen")
Delay = Callable[[str, int], float]
"""Seconds that a call takes, of the last message's text and the call's seed."""


def softmax(logits: Float64) -> Float64:
    """exp(x) / Σ exp(x)."""
    raised = np.exp(logits - logits.max())
    return np.asarray(raised / raised.sum())


class BanditPolicy:
    """Says one of `WORDS`.

    Args:
        delay: how long a call takes; None: no time.
    """

    name = "bandit"

    def __init__(self, delay: Delay | None = None) -> None:
        self.version = 0
        self.spec = ModelSpec("bandit")
        self.logits: Float64 = np.zeros(len(WORDS))
        self.delay = delay
        self.updates: list[int] = []
        """Versions that it was given, in order."""
        self.calls = 0

    async def act(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        seed: int,
        session: str,
    ) -> Action:
        """Samples a word with the weights of the moment when it is asked."""
        self.calls += 1
        logits, version = self.logits, self.version
        if self.delay is not None:
            await asyncio.sleep(self.delay(messages[-1].text, seed))
        likely = softmax(logits)
        if sampling.temperature == 0:
            choice = int(likely.argmax())
        else:
            choice = random.Random(seed).choices(range(len(WORDS)), likely.tolist())[0]
        span = TokenSpan(
            prompt_delta_ids=(len(WORDS),),
            token_ids=(choice,),
            logprobs=(float(np.log(likely[choice])),),
            policy_version=version,
        )
        usage = Usage(calls=1, prompt_tokens=1, completion_tokens=1)
        return Action(message=assistant(WORDS[choice]), tokens=(span,), usage=usage)

    def at(self, published: Published | None) -> BanditPolicy:
        """Another one, at those weights."""
        other = BanditPolicy(self.delay)
        if published is not None:
            other.logits, other.version = _load(published.path), published.version
        return other

    async def update(self, published: Published) -> None:
        """Samples with these weights from now on."""
        self.logits = _load(published.path)
        self.version = published.version
        self.updates.append(published.version)


class BanditLearner:
    """Policy gradient on the logits, truncated importance sampling included.

    Args:
        folder: where weights go.
        lr: of plain gradient ascent.
        work_s: seconds that an update takes besides, without blocking.
    """

    def __init__(self, folder: Path | str, *, lr: float = 4.0, work_s: float = 0.0) -> None:
        self.folder = Path(folder)
        self.lr = lr
        self.work_s = work_s
        self.logits: Float64 = np.zeros(len(WORDS))
        self.version = 0
        self.batches: list[Batch] = []
        """All that it was given."""

    async def update(self, batch: Batch) -> Metrics:
        """One step."""
        await asyncio.sleep(self.work_s)
        self.batches.append(batch)
        likely = softmax(self.logits)
        rows, columns = np.nonzero(batch.loss_mask_BT)
        tokens = batch.token_ids_BT[rows, columns]
        behaviour = np.exp(batch.behaviour_logprobs_BT[rows, columns])
        weights = np.minimum(likely[tokens] / behaviour, 2.0)
        gains = weights * batch.advantages_BT[rows, columns] / batch.denominator
        gradient = np.bincount(tokens, weights=gains, minlength=len(WORDS)) - gains.sum() * likely
        self.logits = self.logits + self.lr * gradient
        return {"skipped": 0.0, "learner_s": self.work_s}

    async def publish(self) -> Published:
        """Writes the weights under the next version."""
        self.version += 1
        return await self.current()

    async def current(self) -> Published:
        """Writes the weights under their version."""
        return self._write(self.folder / "weights" / f"v{self.version}.json")

    async def save(self, folder: Path) -> Published:
        """Writes a checkpoint."""
        published = self._write(folder / "model.safetensors")
        (folder / "version").write_text(str(self.version))
        return published

    async def restore(self, folder: Path) -> Published:
        """Goes on from a checkpoint."""
        path = folder / "model.safetensors"
        try:
            self.logits = _load(path)
            self.version = int((folder / "version").read_text())
        except OSError as error:
            raise TrainingError(f"cannot restore {folder}: {error}") from error
        return Published(self.version, path, digest(self.logits.tolist()))

    def _write(self, path: Path) -> Published:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(self.logits.tolist()))
        part.replace(path)
        return Published(self.version, path, digest(self.logits.tolist()))


def _load(path: Path) -> Float64:
    return np.array(json.loads(path.read_text()), dtype=np.float64)
