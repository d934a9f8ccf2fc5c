"""Continuous batching: requests join and leave between decode steps, prefixes are computed once.

One step: (1) *admit*: waiting requests take free slots. Each begins with the longest prefix that a
running or a kept sequence has computed already; of several newcomers that share a beginning one
goes first and the others copy from it. (2) *decode*: one token for every running sequence.

New weights (`update`) come between steps. Keys and values of the old ones are dropped; sequences in
flight keep their tokens, recompute their keys and values under the new weights, and go on in a new
segment that carries the new version.

Sources: Orca (OSDI 2022) for iteration-level batching, SGLang's RadixAttention (arXiv:2312.07104)
for shared prefixes, PipelineRL (arXiv:2509.19128) for updates in flight.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from quintain.policies.local.decoder import Decoder, Rows
from quintain.policies.local.kv import Prefixes, Slots, common_prefix, longer_prefix
from quintain.policies.local.sampler import choose

SHARE = 8
"""Tokens that waiting for another newcomer's prefix must save."""


@dataclass(frozen=True, slots=True)
class Request:
    """One call: continue these tokens."""

    id: int
    session: str
    ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    end_ids: frozenset[int]
    stop: tuple[str, ...] = ()
    min_p: float = 0.0


@dataclass(slots=True)
class Segment:
    """Tokens sampled under one version of the weights."""

    version: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Finished:
    """What became of a request."""

    id: int
    segments: tuple[Segment, ...]
    finish: str
    """"stop" or "length"."""
    cached: int
    """Prompt tokens that did not have to be computed."""


@dataclass(slots=True)
class Counters:
    """Since the start: what was computed, and how long that took."""

    prompt_tokens: int = 0
    """Asked for."""
    prefilled_tokens: int = 0
    """Computed, recomputations after updates included."""
    sampled_tokens: int = 0
    steps: int = 0
    busy_s: float = 0.0


class _Sequence:
    """A request and how far it has come."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.ids = list(request.ids)
        self.cached = 0
        """Leading ids whose keys and values are in the slot."""
        self.reused: int | None = None
        self.segments: list[Segment] = []
        self.random = random.Random(request.seed)

    @property
    def sampled(self) -> int:
        return len(self.ids) - len(self.request.ids)


class Engine:
    """Samples many sequences at once from one decoder.

    Args:
        decoder: the model.
        slots: sequences decoded at once.
        prefix_bytes: bound on kept keys and values.
        decode_text: ids to text, for stop strings.
        prefill_tokens: new prompt tokens computed in one pass.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        slots: int = 64,
        prefix_bytes: int = 1 << 29,
        decode_text: Callable[[Sequence[int]], str] | None = None,
        prefill_tokens: int = 2048,
    ) -> None:
        self.version = 0
        self.counters = Counters()
        self._decoder = decoder
        self._slots = Slots(decoder.shape, slots)
        self._prefixes = Prefixes(prefix_bytes)
        self._decode_text = decode_text
        self._prefill_tokens = prefill_tokens
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        """The sequence in slot s is at index s."""

    @property
    def busy(self) -> bool:
        """Whether any request is not finished."""
        return bool(self._waiting or self._running)

    def submit(self, request: Request) -> None:
        """Queues a request."""
        self.counters.prompt_tokens += len(request.ids)
        self._waiting.append(_Sequence(request))

    def cancel(self, request_id: int) -> None:
        """Drops a request, wherever it is; unknown ids are finished ones."""
        self._waiting = deque(s for s in self._waiting if s.request.id != request_id)
        for slot, sequence in enumerate(self._running):
            if sequence.request.id == request_id:
                self._leave(slot)
                return

    def forget(self) -> None:
        """Drops all kept prefixes."""
        self._prefixes.clear()

    def update(self, version: int) -> None:
        """The decoder's weights have changed: see the module's docstring."""
        self.version = version
        self._prefixes.clear()
        for sequence in reversed(self._running):
            sequence.cached = 0
            self._waiting.appendleft(sequence)
        self._running.clear()

    def step(self) -> list[Finished]:
        """Admits what fits, then samples one token for every running sequence."""
        began = time.monotonic()
        done = self._admit()
        rows = len(self._running)
        if rows:
            logits = self._decoder.forward(
                Rows(
                    slots=range(rows),
                    cached=[s.cached for s in self._running],
                    new=[s.ids[s.cached :] for s in self._running],
                ),
                self._slots,
            )
            done += self._advance(list(range(rows)), logits)
        self.counters.steps += 1
        self.counters.busy_s += time.monotonic() - began
        return done

    # --- admitting ---------------------------------------------------------------------------

    def _admit(self) -> list[Finished]:
        done: list[Finished] = []
        computed = 0
        while self._waiting and computed < self._prefill_tokens:
            newcomers = self._next_round()
            if not newcomers:
                break
            # One token left to compute is a decode step: it goes along with the others there.
            slots = [
                s for s in newcomers if len(self._running[s].ids) - self._running[s].cached > 1
            ]
            for batch in self._batches(slots):
                rows = Rows(
                    slots=batch,
                    cached=[self._running[s].cached for s in batch],
                    new=[self._running[s].ids[self._running[s].cached :] for s in batch],
                )
                count = sum(len(new) for new in rows.new)
                computed += count
                self.counters.prefilled_tokens += count
                logits = self._decoder.forward(rows, self._slots)
                done += self._advance(batch, logits, leave=False)
            self.counters.prefilled_tokens += len(newcomers) - len(slots)
        for finished_slot in [
            slot for slot, s in enumerate(self._running) if self._finish_of(s) is not None
        ][::-1]:
            self._leave(finished_slot)
        return done

    def _next_round(self) -> list[int]:
        """Places waiting sequences into slots, with what is computed of their beginning.

        A sequence that shares more with one placed in this round than with anything computed
        stays in the queue for the next round, when it can copy.
        """
        placed: list[int] = []
        arrays: list[np.ndarray] = []
        later: list[_Sequence] = []
        budget = self._prefill_tokens
        while self._waiting and len(self._running) < self._slots.slots and budget > 0:
            sequence = self._waiting.popleft()
            ids = np.asarray(sequence.ids)
            have, copy, source = self._computed(ids, len(self._running) - len(placed))
            enough = have + SHARE - 1
            if enough < len(ids) - 1 and any(
                longer_prefix(other, ids, enough) > enough for other in arrays
            ):
                later.append(sequence)
                continue
            slot = len(self._running)
            self._slots.reserve(len(ids))
            if copy is not None:
                self._slots.put(slot, copy, have)
            elif have:
                self._slots.move(source, slot, have)
            sequence.cached = have
            if sequence.reused is None:
                sequence.reused = min(have, len(sequence.request.ids))
            self._running.append(sequence)
            placed.append(slot)
            arrays.append(ids)
            budget -= len(ids) - have
        self._waiting.extendleft(reversed(later))
        return placed

    def _computed(self, ids: np.ndarray, running: int) -> tuple[int, object, int]:
        """The longest computed beginning: its length, and the kept copy or the slot it is in.

        The last token is always computed anew: its logits are what is wanted.
        """
        length, copy = self._prefixes.find(ids)
        source = -1
        for slot in range(running):
            other = self._running[slot]
            # A list, looked at once before it is made an array: see `longer_prefix`.
            if length < min(other.cached, len(ids)) and other.ids[length] == ids[length]:
                shared = common_prefix(np.asarray(other.ids[: other.cached]), ids)
                if shared > length:
                    length, copy, source = shared, None, slot
        return min(length, len(ids) - 1), copy, source

    def _batches(self, slots: list[int]) -> list[list[int]]:
        """Slots in batches of like lengths, so that little is computed on padding."""
        batches: list[list[int]] = []
        width = 0
        ordered = sorted(
            slots, key=lambda s: (self._running[s].cached - len(self._running[s].ids), s)
        )
        for slot in ordered:
            new = len(self._running[slot].ids) - self._running[slot].cached
            if batches and new * 2 > width and (len(batches[-1]) + 1) * width <= 1024:
                batches[-1].append(slot)
            else:
                batches.append([slot])
                width = new
        return batches

    # --- sampling ----------------------------------------------------------------------------

    def _advance(self, slots: list[int], logits: object, leave: bool = True) -> list[Finished]:
        """Draws the next token of each row; returns (and unless told otherwise frees) the done."""
        groups: dict[tuple[float, float, int, float], list[int]] = {}
        for row, slot in enumerate(slots):
            request = self._running[slot].request
            how = (request.temperature, request.top_p, request.top_k, request.min_p)
            groups.setdefault(how, []).append(row)
        done: list[Finished] = []
        left: list[int] = []
        for (temperature, top_p, top_k, min_p), rows in groups.items():
            uniforms = [self._running[slots[row]].random.random() for row in rows]
            tokens, logprobs = choose(
                logits[rows] if len(rows) < len(slots) else logits,  # type: ignore[index]
                uniforms,
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
                min_p=min_p,
            )
            for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
                sequence = self._running[slots[row]]
                sequence.cached = len(sequence.ids)
                sequence.ids.append(token)
                if not sequence.segments or sequence.segments[-1].version != self.version:
                    sequence.segments.append(Segment(self.version))
                sequence.segments[-1].ids.append(token)
                sequence.segments[-1].logprobs.append(logprob)
                self.counters.sampled_tokens += 1
                finish = self._finish_of(sequence)
                if finish is not None:
                    done.append(
                        Finished(
                            sequence.request.id,
                            tuple(sequence.segments),
                            finish,
                            sequence.reused or 0,
                        )
                    )
                    left.append(slots[row])
        if leave:
            for slot in sorted(left, reverse=True):
                self._leave(slot)
        return done

    def _finish_of(self, sequence: _Sequence) -> str | None:
        """Why the sequence is over, or None."""
        if not sequence.sampled:
            return None
        request = sequence.request
        if sequence.ids[-1] in request.end_ids:
            return "stop"
        if request.stop and self._decode_text is not None:
            # A stop string is at most a few dozen tokens long, and has just been completed.
            tail = self._decode_text(sequence.ids[-min(sequence.sampled, 64) :])
            if any(text in tail for text in request.stop):
                return "stop"
        return "length" if sequence.sampled >= request.max_tokens else None

    def _leave(self, slot: int) -> None:
        """Frees a slot, keeping what was computed; the last row moves into the hole."""
        sequence = self._running[slot]
        if sequence.request.session and sequence.cached:
            ids = np.asarray(sequence.ids[: sequence.cached])
            self._prefixes.keep(
                sequence.request.session, ids, self._slots.take(slot, sequence.cached)
            )
        last = len(self._running) - 1
        if slot != last:
            self._slots.move(last, slot, self._running[last].cached)
            self._running[slot] = self._running[last]
        self._running.pop()
