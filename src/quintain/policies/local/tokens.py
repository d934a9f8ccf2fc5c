"""`TokenPolicy`: a policy that samples from weights that it was given, exact in every token.

The model runs in a process of its own, started at the first call: an `Engine`. This side keeps, for
each session, the token ids so far: the next turn's prompt is those ids and then only what the
template puts after them. Nothing that was sampled is ever encoded again. When the conversation
handed in does not continue what the session has, a new row begins (`TokenSpan.restart`).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from quintain.errors import ConfigError, ContextOverflow, PolicyError
from quintain.messages import Message, Sampling, ToolSpec
from quintain.policies.local.sessions import Prompt, Sessions
from quintain.policies.local.spec import ModelSpec
from quintain.policies.local.template import Template
from quintain.policies.local.toolcalls import tool_format
from quintain.protocols import Published
from quintain.record import Json, derive_seed
from quintain.trajectory import Action, Finish, TokenSpan, Usage

LOAD_S = 900.0
"""Deadline of loading a model, its one-time conversion included."""


class Engine(Protocol):
    """Whatever samples tokens, in a process of its own.

    Operations are messages with an `op`: "load", "generate", "update", "counters", "forget". A
    future fails with `PolicyError` when the process dies before it answers.
    """

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        ...

    def number(self) -> int:
        """A fresh number for a request."""
        ...

    def ask(self, message: Json) -> Future[Json]:
        """Sends an operation; the future holds its answer."""
        ...

    def submit(self, message: Json, numbers: list[int]) -> list[Future[Json]]:
        """Sends a message that is answered once for each of the numbers."""
        ...

    def drop(self, number: int) -> None:
        """Nobody waits for that answer any more; it need not be computed."""
        ...

    def close(self) -> None:
        """Ends the process and waits for it."""
        ...


class TokenPolicy:
    """What every policy over weights of its own shares; `_spawn` says where they run.

    Args:
        spec: which model.
        name: how it is called in records; None: the source's last part.
        max_tokens: sampled in one call where `Sampling.max_tokens` says nothing.
        tool_format: "tags" or "json": see `quintain.policies.local.toolcalls`.
        settings: what else the engine is told when it loads the model.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        name: str | None = None,
        max_tokens: int = 256,
        tool_format: str = "tags",
        settings: dict[str, Any] | None = None,
    ) -> None:
        if max_tokens < 1:
            raise ConfigError("max_tokens is at least 1")
        self.spec = spec
        self.name = name or Path(spec.source).name
        self.version = 0
        self.tool_format = _checked(tool_format)
        self.max_tokens = max_tokens
        self.canary: dict[str, Json] = {}
        """What the engine said of the weights that it loaded last: hash and probes."""
        self._settings = settings or {}
        self._published: Published | None = None
        self._engine: Engine | None = None
        self._template: Template | None = None
        self._max_context = spec.max_context
        self._starting = threading.Lock()
        self._sessions = Sessions()

    def _spawn(self) -> Engine:
        """A new process, which is told next what to load."""
        raise NotImplementedError

    # --- acting ------------------------------------------------------------------------------

    async def act(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        seed: int,
        session: str,
    ) -> Action:
        """Samples one assistant message; equal seeds, weights and batches give equal samples.

        Raises:
            ContextOverflow: no room for a single token after the conversation.
            PolicyError: the engine's process died; the next call starts another.
            ConfigError: the model cannot be loaded, or the template refuses the conversation.
        """
        ready = self._running()
        if ready is None:
            ready = await asyncio.to_thread(self._ready)
        engine, template = ready
        prompt = self._sessions.prompt(session, template.render(messages, tools), template)
        room = self._max_context - len(prompt.ids)
        if room < 1:
            raise ContextOverflow(
                f"the conversation has {len(prompt.ids)} tokens; {self.name} takes "
                f"{self._max_context} with the answer (max_context)"
            )
        request = {
            "id": engine.number(),
            "session": session,
            "ids": prompt.ids,
            "max_tokens": min(sampling.max_tokens or self.max_tokens, room),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "seed": seed if sampling.seed is None else derive_seed(sampling.seed, seed),
            "end_ids": sorted(template.end_ids),
            "stop": sampling.stop,
        }
        answer = await self._ask(engine, session, request)
        segments = answer["segments"]
        sampled = [token for segment in segments for token in segment["ids"]]
        said = self._sessions.remember(session, prompt, sampled, template)
        turn = sum(message.role == "assistant" for message in messages)
        parts = template.tools.read(said, tools, turn)
        return _action(Message(role="assistant", content=parts), prompt, answer)

    async def _ask(self, engine: Engine, session: str, request: Json) -> Json:
        """The engine's answer; a caller that stops waiting also stops the engine."""
        try:
            return await self._answer(engine, session, request)
        except asyncio.CancelledError:
            engine.drop(request["id"])
            raise

    async def _answer(self, engine: Engine, session: str, request: Json) -> Json:
        (future,) = submit(engine, [request])
        return await future

    # --- weights -----------------------------------------------------------------------------

    async def update(self, published: Published) -> None:
        """Swaps the weights between two decode steps, and proves that they arrived.

        Sequences in flight go on under the new weights, their keys and values recomputed, in a
        new `TokenSpan` with the new version.

        Without a running engine the weights are only noted; the proof comes when one starts.

        Raises:
            PolicyError: the engine holds other weights than were published, or it died; the
                policy stays at its version.
        """
        engine = self._engine
        if engine is not None and engine.alive:
            message = {"op": "update", "published": _plain(published)}
            answer = await asyncio.wrap_future(engine.ask(message))
            try:
                self._check_weights(answer, published)
            except PolicyError:
                if "error" not in answer:
                    # It holds weights that nobody vouches for: the next call starts another, with
                    # the last ones that were proven.
                    await self.close()
                raise
        self._published = published
        self.version = published.version

    def _check_weights(self, answer: Json, published: Published) -> None:
        """Raises unless the engine's hash is the published one and its probe is the learner's."""
        if "error" in answer:
            raise PolicyError(f"version {published.version} was not taken: {answer['error']}")
        if answer["hash"] != published.hash:
            raise PolicyError(
                f"the sampler holds weights {answer['hash']}, "
                f"version {published.version} was published as {published.hash}"
            )
        ours, theirs = answer["probe"], answer["learner_probe"]
        gap = max((abs(a - b) for a, b in zip(ours, theirs, strict=False)), default=0.0)
        allowed = 1e-3 if self.spec.dtype == "float32" else 1.0
        if not gap <= allowed:
            raise PolicyError(
                f"under version {published.version} the sampler's log-probabilities of the probe "
                f"differ from the learner's by {gap:.3g} nats (allowed {allowed})"
            )
        self.canary = {**answer, "version": published.version, "gap": gap}

    # --- the process -------------------------------------------------------------------------

    def _running(self) -> tuple[Engine, Template] | None:
        """The engine, if it runs."""
        if self._engine is None or self._template is None or not self._engine.alive:
            return None
        return self._engine, self._template

    def _ready(self) -> tuple[Engine, Template]:
        """The running engine, started now if there is none; blocks, so never on the loop."""
        with self._starting:
            if (running := self._running()) is not None:
                return running
            if self._engine is not None:
                self._engine.close()
            engine = self._spawn()
            self._engine = engine
            published = self._published
            future = engine.ask(
                {
                    "op": "load",
                    "spec": asdict(self.spec),
                    "tools": self.tool_format,
                    "published": _plain(published) if published else None,
                    **self._settings,
                }
            )
            try:
                answer = _within(future, LOAD_S)
                if published is not None:
                    self._check_weights(answer, published)
            except BaseException:
                engine.close()
                self._engine = None
                raise
            self._max_context = answer["max_context"]
            if self._template is None:
                self._template = Template(Path(answer["folder"]), tool_format(self.tool_format))
            return engine, self._template

    async def start(self) -> None:
        """Loads the model now rather than at the first call."""
        await asyncio.to_thread(self._ready)

    @property
    def published(self) -> Published | None:
        """The weights that were taken last; None: those of the spec."""
        return self._published

    async def counters(self) -> dict[str, float]:
        """What the engine has computed since it started: see `engine.Counters`."""
        engine, _ = await asyncio.to_thread(self._ready)
        answer: dict[str, float] = await asyncio.wrap_future(engine.ask({"op": "counters"}))
        return answer

    async def close(self) -> None:
        """Ends the engine's process; a later call starts another."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(engine.close)


def submit(engine: Engine, requests: list[Json]) -> list[asyncio.Future[Json]]:
    """Hands requests over in one message, so that they are queued in this order."""
    numbers = [request["id"] for request in requests]
    futures = engine.submit({"op": "generate", "requests": requests}, numbers)
    return [asyncio.wrap_future(future) for future in futures]


def _action(message: Message, prompt: Prompt, answer: Json) -> Action:
    """The engine's answer as an action: one span for each version that sampled."""
    spans = tuple(
        TokenSpan(
            prompt_delta_ids=prompt.delta if place == 0 else (),
            token_ids=tuple(segment["ids"]),
            logprobs=tuple(segment["logprobs"]),
            policy_version=segment["version"],
            restart=prompt.restart and place == 0,
        )
        for place, segment in enumerate(answer["segments"])
    )
    finish: Finish = "length" if answer["finish"] == "length" else "stop"
    if message.tool_calls and finish == "stop":
        finish = "tool_calls"
    usage = Usage(
        calls=1,
        prompt_tokens=len(prompt.ids),
        completion_tokens=sum(len(span.token_ids) for span in spans),
        cached_tokens=answer["cached"],
    )
    return Action(message=message, tokens=spans, finish=finish, usage=usage)


def _within(future: Future[Json], seconds: float) -> Json:
    try:
        return future.result(timeout=seconds)
    except TimeoutError as error:
        raise PolicyError(f"the model was not loaded within {seconds:.0f} s") from error


def _plain(published: Published) -> dict[str, Any]:
    return {
        "version": published.version,
        "path": str(published.path),
        "hash": published.hash,
    }


def _checked(name: str) -> str:
    return tool_format(name).name
