"""Tokens per second of local generation, beside transformers' `generate` on the same model.

    python bench/generation.py [--batch 64] [--tokens 32] [--repeats 3] [--model smollm2]

Both sides run in this process, one after the other, interleaved over the repeats: the engine of
`quintain.policies.local` (continuous batching, lean decoder, seeded sampling with log-probabilities
recorded) and `model.generate` (which records none), in float32 and in bfloat16. No sequence ends
early, so that both sides sample batch × tokens tokens. Then the prefill of a group of 8 over two
turns, computed and asked for.

A processor without bfloat16 instructions runs bfloat16 several times slower than float32 on both
sides; the first line says which this is.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import torch

from quintain.policies.local.engine import Engine, Request
from quintain.policies.local.llama import decoder_for
from quintain.policies.local.model import Model, load_model
from quintain.policies.local.spec import ModelSpec, best_dtype


def prompts(model: Model, batch: int, length: int) -> list[list[int]]:
    rng = random.Random(0)
    size = model.template.vocabulary_size
    return [[rng.randrange(300, size) for _ in range(length)] for _ in range(batch)]


def ours(model: Model, rows: list[list[int]], tokens: int) -> tuple[float, float]:
    engine = Engine(decoder_for(model), slots=len(rows))
    began, cpu = time.perf_counter(), time.process_time()
    for number, ids in enumerate(rows):
        engine.submit(_request(number, ids, tokens))
    while engine.busy:
        engine.step()
    return _speeds(len(rows) * tokens, began, cpu)


def theirs(model: Model, rows: list[list[int]], tokens: int) -> tuple[float, float]:
    ids = torch.tensor(rows)
    began, cpu = time.perf_counter(), time.process_time()
    with torch.inference_mode():
        out = model.module.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
        )
    assert out.shape[1] == len(rows[0]) + tokens
    return _speeds(len(rows) * tokens, began, cpu)


def _speeds(tokens: int, began: float, cpu: float) -> tuple[float, float]:
    """Tokens per wall second and per CPU second since; the latter also holds on a busy machine."""
    return tokens / (time.perf_counter() - began), tokens / (time.process_time() - cpu)


def _request(number: int, ids: list[int], tokens: int, session: str = "") -> Request:
    return Request(
        id=number,
        session=session,
        ids=tuple(ids),
        max_tokens=tokens,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        seed=number,
        end_ids=frozenset(),
    )


def shared_prefill(model: Model, group: int, length: int, tokens: int) -> tuple[int, int]:
    """Prompt tokens computed and asked for, over two turns of a group with one prompt."""
    engine = Engine(decoder_for(model), slots=group)
    (prompt,) = prompts(model, 1, length)
    said: dict[int, list[int]] = {}
    for turn in range(2):
        for number in range(group):
            ids = prompt if turn == 0 else [*prompt, *said[number], *range(400, 415)]
            engine.submit(_request(number + turn * group, ids, tokens, f"s{number}"))
        while engine.busy:
            for done in engine.step():
                said[done.id % group] = [i for segment in done.segments for i in segment.ids]
    return engine.counters.prefilled_tokens, engine.counters.prompt_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    chosen = parser.parse_args()
    native = best_dtype("cpu") == "bfloat16"
    print(f"processor: {torch.backends.cpu.get_cpu_capability()}, bfloat16 native: {native}")
    found: dict[str, list[tuple[float, float]]] = {}
    for dtype in chosen.dtypes.split(","):
        spec = ModelSpec(chosen.model, dtype=dtype, threads=chosen.threads)
        model = load_model(spec)
        rows = prompts(model, chosen.batch, chosen.prompt)
        for _ in range(chosen.repeats):
            for name, side in (("quintain", ours), ("transformers", theirs)):
                found.setdefault(f"{name} {dtype}", []).append(side(model, rows, chosen.tokens))
    medians = {
        name: [statistics.median(column) for column in zip(*speeds, strict=True)]
        for name, speeds in found.items()
    }
    fastest = best_dtype("cpu")
    own = f"quintain {fastest if fastest in chosen.dtypes else chosen.dtypes}"
    for name, (wall, cpu) in medians.items():
        line = f"{name:24} {wall:7.1f} tokens/s, {cpu:7.1f} tokens per CPU second"
        if name.startswith("transformers"):
            line += f"; {own} is {medians[own][0] / wall:.2f} and {medians[own][1] / cpu:.2f} times"
        print(line)
    computed, asked = shared_prefill(model, 8, 150, 16)
    print(f"prefill, group of 8, two turns: {computed} of {asked} tokens ({computed / asked:.3f})")


if __name__ == "__main__":
    main()
