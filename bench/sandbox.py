"""How long a fresh sandbox takes, beside a plain subprocess and bubblewrap.

    python bench/sandbox.py [--runs 100] [--launcher c]

Every row alternates its contestants in one event loop, so that noise falls on all of them alike;
medians are compared as ratios. `bwrap` gets the host's `/usr` read-only and all namespaces; it has
no control group, no system-call filter and no capped writable layer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import time
from collections.abc import Awaitable, Callable

from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec

TRUE = ["/usr/bin/true"]
PYTHON = ["/usr/bin/python3", "-c", "print(1)"]
BWRAP = [
    "bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr",
    "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
    "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
]  # fmt: skip


async def plain(argv: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    await process.communicate()
    assert process.returncode == 0, argv


async def native(backend: NativeBackend, spec: SandboxSpec, argv: list[str]) -> None:
    sandbox = await backend.open(spec)
    run = await sandbox.exec(argv)
    await sandbox.close()
    assert run.ok, run


async def measure(contestants: dict[str, Callable[[], Awaitable[None]]], runs: int) -> dict:
    for run in contestants.values():
        await run()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(runs):
        for name, run in contestants.items():
            start = time.perf_counter()
            await run()
            times[name].append(1000 * (time.perf_counter() - start))
    return {
        name: (statistics.median(row), statistics.quantiles(row, n=10)[0])
        for name, row in times.items()
    }


async def rate(run: Callable[[], Awaitable[None]], seconds: float, width: int) -> float:
    """Runs a second, `width` at once."""
    end, done = time.perf_counter() + seconds, 0

    async def worker() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await run()
            done += 1

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(width)))
    return done / (time.perf_counter() - start)


def show(what: str, found: dict[str, tuple[float, float]]) -> None:
    print(f"\n{what}: median ms (p10), and the native sandbox over each")
    mine = found["native"]
    for name, (median, low) in found.items():
        ratio = f"{mine[0] / median:5.2f}x ({mine[1] / low:.2f}x)" if name != "native" else ""
        print(f"  {name:12s} {median:8.2f} ({low:.2f})   {ratio}")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--launcher", default="auto", choices=["auto", "c", "python"])
    parser.add_argument("--seconds", type=float, default=3.0, help="of each throughput row")
    options = parser.parse_args()
    backend = NativeBackend(launcher=options.launcher)
    spec = SandboxSpec()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for what, argv in (("fresh create + true + destroy", TRUE), ("fresh python3 -c", PYTHON)):
        contestants = {
            "native": lambda argv=argv: native(backend, spec, argv),
            "plain": lambda argv=argv: plain(argv),
        }
        if shutil.which("bwrap"):
            contestants["bwrap"] = lambda argv=argv: plain([*BWRAP, *argv])
        show(what, await measure(contestants, options.runs))
    print("\nsustained fresh true, 8 at once, per second")
    rows = {"native": lambda: native(backend, spec, TRUE), "plain": lambda: plain(TRUE)}
    if shutil.which("bwrap"):
        rows["bwrap"] = lambda: plain([*BWRAP, *TRUE])
    for name, run in rows.items():
        print(f"  {name:12s} {await rate(run, options.seconds, 8):8.0f}")
    box = await backend.open(spec)
    command = await measure({"exec": lambda: box.exec(TRUE)}, options.runs)
    print("\none more `true` in an open sandbox: median ms (p10)")
    print(f"  {command['exec'][0]:.2f} ({command['exec'][1]:.2f})")
    shell = await box.session()

    async def start_shell() -> None:
        other = await box.session()
        await other.run("true")
        await other.close()

    rows_ms = await measure({"start": start_shell, "run": lambda: shell.run("true")}, options.runs)
    print("\npersistent shell: start, first command and end; one more command: median ms (p10)")
    print("  " + "   ".join(f"{median:.2f} ({low:.2f})" for median, low in rows_ms.values()))
    await box.close()
    await backend.close()


if __name__ == "__main__":
    asyncio.run(main())
