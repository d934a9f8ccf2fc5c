"""The smallest real thing that can be trained: a softmax over eight words, in NumPy.

It samples, publishes, restores and learns as a language model does, in microseconds, so that the
loops can be tested for what they do with time, order and failure.
"""

import asyncio
import json
from dataclasses import dataclass

import numpy as np

from quintain.envs.environment import Environment
from quintain.errors import TrainingError
from quintain.messages import assistant
from quintain.policies.local.spec import ModelSpec
from quintain.protocols import Published
from quintain.record import digest
from quintain.trajectory import Action, TokenSpan, Usage

WORDS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen")


def softmax(logits):
    shifted = np.exp(logits - logits.max())
    return shifted / shifted.sum()


def load(path):
    return np.array(json.loads(path.read_text()), dtype=np.float64)


class BanditPolicy:
    """Says one word; `delay(task text, seed)` gives the seconds that it takes."""

    name = "bandit"

    def __init__(self, delay=None):
        self.version = 0
        self.spec = ModelSpec("bandit")
        self.logits = np.zeros(len(WORDS))
        self.delay = delay
        self.updates = []
        self.calls = 0

    async def act(self, messages, *, tools, sampling, seed, session):
        self.calls += 1
        logits, version = self.logits, self.version
        if self.delay is not None:
            await asyncio.sleep(self.delay(messages[-1].text, seed))
        p = softmax(logits)
        choice = int(np.random.default_rng(seed).choice(len(WORDS), p=p))
        return Action(
            message=assistant(WORDS[choice]),
            tokens=(
                TokenSpan(
                    prompt_delta_ids=(len(WORDS),),
                    token_ids=(choice,),
                    logprobs=(float(np.log(p[choice])),),
                    policy_version=version,
                ),
            ),
            usage=Usage(calls=1, prompt_tokens=1, completion_tokens=1),
        )

    async def update(self, published):
        self.logits = load(published.path)
        self.version = published.version
        self.updates.append(published.version)


@dataclass
class BanditLearner:
    """Policy gradient on the logits; `work_s` is what an update takes."""

    folder: object
    lr: float = 4.0
    work_s: float = 0.0

    def __post_init__(self):
        self.logits = np.zeros(len(WORDS))
        self.version = 0
        self.batches = []

    async def update(self, batch):
        if self.work_s:
            await asyncio.sleep(self.work_s)
        self.batches.append(batch)
        p = softmax(self.logits)
        gradient = np.zeros(len(WORDS))
        for b, t in zip(*np.nonzero(batch.loss_mask_BT), strict=True):
            token = batch.token_ids_BT[b, t]
            weight = min(p[token] / np.exp(batch.behaviour_logprobs_BT[b, t]), 2.0)
            direction = -p
            direction[token] += 1
            gradient += weight * batch.advantages_BT[b, t] * direction / batch.denominator
        self.logits = self.logits + self.lr * gradient
        return {"skipped": 0.0, "learner_s": self.work_s, "loss": 0.0}

    def _write(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(self.logits.tolist()))
        part.replace(path)
        return Published(self.version, path, digest(self.logits.tolist()))

    async def publish(self):
        self.version += 1
        return await self.current()

    async def current(self):
        return self._write(self.folder / "weights" / f"v{self.version}.json")

    async def save(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "version").write_text(str(self.version))
        return self._write(folder / "model.json")

    async def restore(self, folder):
        try:
            self.logits = load(folder / "model.json")
            self.version = int((folder / "version").read_text())
        except OSError as error:
            raise TrainingError(str(error)) from error
        return Published(self.version, folder / "model.json", digest(self.logits.tolist()))


def environment(verifier=None, tasks=24, **settings):
    """Rewards the word `cat`."""

    async def says_cat(text):
        return text == "cat"

    return Environment(
        [{"id": f"t{i}", "prompt": f"task {i}", "split": "train"} for i in range(tasks)],
        verifier or says_cat,
        name="words",
        **settings,
    )
