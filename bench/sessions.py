"""How long a session's start and one command take, and a fork, beside plain programs.

    python bench/sessions.py [--runs 30] [--launcher c]

Every row alternates its contestants in one event loop; medians (and the first decile) are compared
as ratios. A plain `bash -c true` and `python3 -c 1` say what the machine can do at all.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable

from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec

BASH = ["bash", "--noprofile", "--norc", "-c", "true"]
PYTHON = ["/usr/bin/python3", "-c", "1"]


async def plain(argv: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.DEVNULL)
    assert await process.wait() == 0, argv


async def row(what: str, contestants: dict[str, Callable[[], Awaitable[None]]], runs: int) -> None:
    """Prints the medians, and the first contestant's ratio to each other."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(runs + 1):
        for name, run in contestants.items():
            start = time.perf_counter()
            await run()
            if turn:
                times[name].append(1000 * (time.perf_counter() - start))
    medians = {name: statistics.median(found) for name, found in times.items()}
    first = next(iter(medians.values()))
    parts = [
        f"{name} {medians[name]:.2f} ({statistics.quantiles(found, n=10)[0]:.2f})"
        + ("" if medians[name] == first else f" → {first / medians[name]:.2f}x")
        for name, found in times.items()
    ]
    print(f"{what:32s} " + "   ".join(parts))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--launcher", default="auto", choices=["auto", "c", "python"])
    options = parser.parse_args()
    backend = NativeBackend(launcher=options.launcher, allow_weaker=True)
    box = await backend.open(SandboxSpec())
    shell, python = await box.session(), await box.python()

    async def start_shell() -> None:
        other = await box.session()
        await other.run("true")
        await other.close()

    async def start_python() -> None:
        other = await box.python()
        await other.run("1")
        await other.close()

    async def run_shell() -> None:
        await shell.run("true")

    async def run_python() -> None:
        await python.run("1 + 1")

    async def execute() -> None:
        await box.exec(["true"])

    async def fork() -> None:
        await (await box.fork()).close()

    async def fresh() -> None:
        await (await backend.open(SandboxSpec())).close()

    async def snapshot() -> None:
        (await box.snapshot()).close()

    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; median ms (first decile)")
    runs = options.runs
    await row(
        "shell: start, true, end", {"shell": start_shell, "bash -c": lambda: plain(BASH)}, runs
    )
    await row("shell: one command", {"shell": run_shell, "exec": execute}, runs)
    await row(
        "Python: start, cell, end",
        {"python": start_python, "python3 -c": lambda: plain(PYTHON)},
        runs,
    )
    await row("Python: one cell", {"python": run_python, "exec": execute}, runs)
    for size, count in ((65536, 16), (4096, 256)):
        for number in range(count):
            await box.write(f"{size}/{number % 4}/{number}", os.urandom(size))
        what = f"fork, +1 MB in {count} files"
        await row(what, {"fork": fork, "fresh": fresh, "snapshot": snapshot}, runs)
    await box.close()
    await backend.close()


if __name__ == "__main__":
    asyncio.run(main())
