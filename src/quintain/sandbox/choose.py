"""Fresh, pooled or reused sandboxes: chosen from times measured on this machine.

A fresh sandbox for every rollout is the simplest and leaves nothing idle; a pool hides the wait but
holds sandboxes that nobody uses; reuse also saves the making, and needs proof after every use. So
the wait decides: what is quick is made fresh, what takes longer comes from a single-use pool, and
only what takes very long, and is reset in a fraction of that time, is reused.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Literal, cast

from quintain.protocols import Resettable, Sandbox, SandboxBackend
from quintain.task import SandboxSpec

Sandboxes = Literal["fresh", "pooled", "reused", "auto"]

QUICK_MS = 25.0
"""A wait that no rollout notices: the steps of most take seconds."""
LONG_MS = 1000.0
"""From here on even a pool's refilling costs more than proofs do."""
RESET_FRACTION = 0.25
TRIES = 5
ENOUGH_S = 3.0
"""When no further time is spent on measuring."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen, and why."""

    sandboxes: Literal["fresh", "pooled", "reused"]
    why: str
    measured_ms: dict[str, float]
    """Medians: "open" and "close", and "reset" with its proof where it was of interest."""


async def choose(backend: SandboxBackend, spec: SandboxSpec) -> Choice:
    """Opens and closes a few sandboxes and chooses.

    Raises:
        SandboxError: one did not come up.
    """
    await (await backend.open(spec)).close()  # what only the first one pays
    opens: list[float] = []
    closes: list[float] = []
    began = time.monotonic()
    while len(opens) < TRIES and time.monotonic() - began < ENOUGH_S:
        start = time.monotonic()
        sandbox = await backend.open(spec)
        opens.append(1000 * (time.monotonic() - start))
        start = time.monotonic()
        await sandbox.close()
        closes.append(1000 * (time.monotonic() - start))
    ms = {"open": statistics.median(opens), "close": statistics.median(closes)}
    told = f"a fresh sandbox takes {ms['open']:.1f} ms here"
    if ms["open"] <= QUICK_MS:
        return Choice("fresh", f"{told}, which no rollout notices (limit {QUICK_MS:g} ms)", ms)
    if ms["open"] > LONG_MS:
        sandbox = await backend.open(spec)
        try:
            if "reset" in sandbox.capabilities:
                sandbox, ms["reset"] = await _reset_ms(sandbox)
        finally:
            await sandbox.close()
        if ms.get("reset", ms["open"]) <= RESET_FRACTION * ms["open"]:
            why = f"{told}, a reset with its proof {ms['reset']:.1f} ms"
            return Choice("reused", why, ms)
    return Choice("pooled", f"{told}, which a single-use pool hides", ms)


async def _reset_ms(sandbox: Sandbox) -> tuple[Sandbox, float]:
    start = time.monotonic()
    sandbox = await cast(Resettable, sandbox).reset()
    await cast(Resettable, sandbox).survey()
    return sandbox, 1000 * (time.monotonic() - start)
