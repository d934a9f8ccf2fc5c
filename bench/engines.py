"""How long containers take, beside the native sandbox.

    python bench/engines.py [--runs 15] [--backends docker runc]

Every round opens one sandbox of each backend in turn, runs `true` in it twice and closes it, so
that noise falls on all alike. Backends that are not there are left out. Docker and Podman are found
by DOCKER_HOST and CONTAINER_HOST.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time

from quintain.errors import SandboxError
from quintain.registry import sandboxes
from quintain.task import SandboxSpec

NAMES = ("native", "runc", "crun", "docker", "podman", "gvisor")


async def once(backend) -> tuple[float, float]:
    start = time.perf_counter()
    box = await backend.open(SandboxSpec())
    assert (await box.exec(["true"])).ok
    first = time.perf_counter()
    assert (await box.exec(["true"])).ok
    second = time.perf_counter()
    await box.close()
    return second - first, time.perf_counter() - start - (second - first)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--backends", nargs="*", default=NAMES)
    options = parser.parse_args()
    backends = {}
    for name in options.backends:
        backend = sandboxes.get(name)()
        try:
            await once(backend)
            backends[name] = backend
        except SandboxError as error:
            print(f"  {name:8s} left out: {str(error)[:120]}")
            await backend.close()
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in backends}
    for _ in range(options.runs):
        for name, backend in backends.items():
            rows[name].append(await once(backend))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; median ms (fastest)")
    print(f"  {'':8s} {'open + true + close':>22s} {'one more true':>20s}")
    for name, row in rows.items():
        cells = [sorted(1000 * value for value in column) for column in zip(*row, strict=True)]
        shown = [f"{statistics.median(cell):8.1f} ({cell[0]:.1f})" for cell in cells]
        print(f"  {name:8s} {shown[1]:>22s} {shown[0]:>20s}")
        await backends[name].close()


asyncio.run(main())
