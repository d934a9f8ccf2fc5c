"""How much faster a microVM starts from a snapshot than it boots, both in turn, in one run.

    python bench/microvm.py --rounds 5

Medians of seconds until a first `true` has ended, and their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

from quintain.sandbox.microvm.backend import MicrovmBackend
from quintain.task import SandboxSpec

SPEC = SandboxSpec(memory_mb=256, disk_mb=64, startup_s=120)


async def _start(backend: MicrovmBackend) -> float:
    began = time.perf_counter()
    box = await backend.open(SPEC)
    await box.exec(["true"], timeout_s=120)
    took = time.perf_counter() - began
    await box.close()
    return took


async def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    rounds = options.parse_args().rounds
    kept, booted = MicrovmBackend(), MicrovmBackend(templates=False)
    try:
        await _start(kept)  # makes the snapshot
        await _start(booted)  # makes the disks
        rows = [(await _start(booted), await _start(kept)) for _ in range(rounds)]
        forks = []
        for _ in range(rounds):
            box = await kept.open(SPEC)
            began = time.perf_counter()
            await (await box.fork()).close()
            forks.append(time.perf_counter() - began)
            await box.close()
    finally:
        await kept.close()
        await booted.close()
    boot, restore = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"boot {boot:.2f} s, from a snapshot {restore:.2f} s: {boot / restore:.1f} times faster")
    print(f"fork of a running one {statistics.median(forks):.2f} s")


if __name__ == "__main__":
    asyncio.run(main())
