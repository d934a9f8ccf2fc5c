"""What sandboxes of a backend cost here: time and memory, measured on a few."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from pathlib import Path

from quintain.protocols import Sandbox, SandboxBackend
from quintain.record import Json
from quintain.task import SandboxSpec

LATENCY_RUNS = 7
SLOW_MS = 100.0
"""Where a fresh sandbox takes longer, fewer are opened."""
BATCH, SLOW_BATCH = 60, 3
SHARE = 0.8
"""Of the memory that is free, for sandboxes."""
LEAST_MB = 0.1
"""Less than that is the noise of other programs: no estimate then."""


async def latency(
    backend: SandboxBackend, spec: SandboxSpec, within_s: float = math.inf
) -> dict[str, float]:
    """Medians over a few runs, in ms: a fresh sandbox from open to closed, and its parts.

    Args:
        backend: opens them.
        spec: what to open.
        within_s: after half of it, what there is has to do.
    """
    rows: list[tuple[float, float, float]] = []
    began = time.perf_counter()
    while len(rows) < LATENCY_RUNS:
        start = time.perf_counter()
        sandbox = await backend.open(spec)
        opened = time.perf_counter()
        await sandbox.exec(["true"])
        ran = time.perf_counter()
        await sandbox.close()
        rows.append((opened - start, ran - opened, time.perf_counter() - ran))
        if len(rows) >= 3 and 1000 * sum(rows[-1]) > SLOW_MS:
            break
        if time.perf_counter() - began + sum(rows[-1]) > within_s / 2:
            break
        await asyncio.sleep(0)
    names = ("open", "exec_true", "close")
    parts = {
        name: round(1000 * statistics.median(column), 2)
        for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }
    return {**parts, "fresh_true": round(1000 * statistics.median(map(sum, rows)), 2)}


async def density(backend: SandboxBackend, spec: SandboxSpec, fresh_ms: float) -> dict[str, Json]:
    """How much memory an open sandbox with a sleeping shell takes, and how many fit.

    An estimate: the fall of MemAvailable over a small batch, which other programs disturb.

    Args:
        backend: opens them.
        spec: what to open.
        fresh_ms: time of a fresh one; a slow backend opens fewer.
    """
    count = BATCH if fresh_ms <= SLOW_MS else SLOW_BATCH
    opened: list[Sandbox] = []
    commands: list[asyncio.Task[object]] = []
    before = available_mb()
    try:
        for _ in range(count):
            sandbox = await backend.open(spec)
            opened.append(sandbox)
            commands.append(asyncio.ensure_future(sandbox.exec(["sh", "-c", "sleep 60 & wait"])))
        await asyncio.sleep(0.1 + fresh_ms / 1000)
        each = (before - available_mb()) / count
    finally:
        await asyncio.gather(*(sandbox.close() for sandbox in opened))
        await asyncio.gather(*commands, return_exceptions=True)
    if each < LEAST_MB:
        return {}
    return {"memory_mb_each": round(each, 2), "fits": int(SHARE * before / each), "batch": count}


def available_mb() -> float:
    """Memory that this machine has for new programs; 0 where that is not told."""
    table = Path("/proc/meminfo")
    lines = table.read_text().splitlines() if table.exists() else []
    found = next((line for line in lines if line.startswith("MemAvailable:")), "x 0")
    return int(found.split()[1]) / 1024
