"""How long sandboxes take, how many there can be, and what they weigh, beside peers.

    python bench/sandbox.py [--only true,python,…] [--full] [--launcher c]

Every row alternates its contestants in one event loop, so that noise falls on all of them alike;
medians are compared as ratios. `bwrap` gets the host's `/usr` read-only and all namespaces; it has
no control group, no system-call filter and no capped writable layer. A peer that is not there
(`bwrap`, the package `sandlock`, an engine named by DOCKER_HOST) is left out and named.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quintain.errors import QuintainError
from quintain.sandbox import wire
from quintain.sandbox.native import NativeBackend
from quintain.sandbox.pool import Pool
from quintain.sandbox.running import NativeSandbox
from quintain.task import SandboxSpec

TRUE = ["/usr/bin/true"]
PYTHON = ["/usr/bin/python3", "-c", "print(1)"]
BWRAP = [
    "bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr",
    "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
    "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
]  # fmt: skip
HEAVY = ("numpy", "pytest")
FORKS = """
import sys, time, sandlock
readable = ["/usr", "/lib", "/lib64", "/etc", sys.base_prefix, sys.prefix]
template = sandlock.Sandbox(fs_readable=readable, init_fn=lambda: None,
                            work_fn=lambda number: __import__("os").write(1, b"x") and None)
start = time.perf_counter()
clones = template.fork(int(sys.argv[1]))
counted = sandlock.Sandbox(fs_readable=readable).reduce(["/usr/bin/wc", "-c"], clones)
assert int(counted.stdout) == int(sys.argv[1]), counted
print(time.perf_counter() - start)
"""
SPEC = SandboxSpec()
Run = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Bench:
    """What every row gets."""

    backend: NativeBackend
    full: bool
    launcher: str

    def count(self, quick: int, full: int) -> int:
        """How often, or how many."""
        return full if self.full else quick


async def plain(argv: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    await process.communicate()
    assert process.returncode == 0, argv


async def native(backend: NativeBackend, argv: list[str]) -> None:
    sandbox = await backend.open(SPEC)
    run = await sandbox.exec(argv)
    await sandbox.close()
    assert run.ok, run


async def first_byte(box: NativeSandbox, argv: list[str], flags: int = 0) -> None:
    """Starts a command and waits for the first byte that it writes; it goes on."""
    read, write = os.pipe()
    report, told = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    number, _ = box.link.ask(
        wire.EXEC, box._request(argv, None, None, None, flags), (null, write, null, told)
    )
    box.link.forget(number)
    for fd in (write, told, null):
        os.close(fd)
    loop.add_reader(read, lambda: readable.done() or readable.set_result(None))
    async with asyncio.timeout(120):
        await readable
    loop.remove_reader(read)
    assert os.read(read, 1), argv
    os.close(read)
    os.close(report)


def sandlock(argv: list[str]) -> Run | None:
    if importlib.util.find_spec("sandlock") is None:
        return None
    import sandlock as peer

    readable = ["/usr", "/lib", "/lib64", "/etc"]

    async def run() -> None:
        box = peer.Sandbox(fs_readable=readable, max_memory="512M", max_processes=128)
        assert (await asyncio.to_thread(box.run, argv)).success

    return run


def docker(argv: list[str]) -> Run | None:
    """With the first image that the engine lists; it needs Python at /usr/bin/python3."""
    if not (os.environ.get("DOCKER_HOST") and shutil.which("docker")):
        return None
    listing = ["docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}"]
    images = subprocess.run(listing, capture_output=True, text=True).stdout.split()
    if not images:
        return None
    return lambda: plain(["docker", "run", "--rm", "--network=none", images[0], *argv])


async def measure(contestants: dict[str, Run], runs: int) -> dict[str, list[float]]:
    """Milliseconds of each, alternated."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for run in contestants.values():
        await run()
    gc.collect()
    for _ in range(runs):
        for name, run in contestants.items():
            start = time.perf_counter()
            await run()
            times[name].append(1000 * (time.perf_counter() - start))
    return times


def show(times: dict[str, list[float]], bars: dict[str, str]) -> None:
    """Medians, and the first contestant over each of the others."""
    mine, *others = times
    median = statistics.median(times[mine])
    print(f"  {mine:12s} {median:9.2f} ms   p10 {statistics.quantiles(times[mine], n=10)[0]:.2f}")
    for name in others:
        other = statistics.median(times[name])
        low = statistics.quantiles(times[name], n=10)[0]
        bar = f"   bar {bars[name]}" if name in bars else ""
        print(f"  {name:12s} {other:9.2f} ms   p10 {low:.2f}   ratio {median / other:.3f}{bar}")


def present(**found: Run | None) -> dict[str, Run]:
    for name, run in found.items():
        if run is None:
            print(f"  {name:12s} is not there: left out")
    return {name: run for name, run in found.items() if run is not None}


def bwrap(argv: list[str]) -> Run | None:
    return (lambda: plain([*BWRAP, *argv])) if shutil.which("bwrap") else None


async def row_true(bench: Bench) -> None:
    """Fresh create + `true` + destroy."""
    rows = present(
        native=lambda: native(bench.backend, TRUE),
        bwrap=bwrap(TRUE),
        plain=lambda: plain(TRUE),
    )
    show(await measure(rows, bench.count(100, 400)), {"bwrap": "≤ 1.0"})


async def row_python(bench: Bench) -> None:
    """Fresh `python3 -c`."""
    rows = present(
        native=lambda: native(bench.backend, PYTHON),
        plain=lambda: plain(PYTHON),
        sandlock=sandlock(PYTHON),
        bwrap=bwrap(PYTHON),
    )
    show(await measure(rows, bench.count(50, 200)), {"plain": "≤ 1.35", "sandlock": "≤ 0.6"})
    rows = present(native=lambda: native(bench.backend, PYTHON), docker=docker(PYTHON))
    if "docker" in rows:
        show(await measure(rows, bench.count(5, 20)), {"docker": "≤ 0.1"})


async def row_forks(bench: Bench) -> None:
    """Zygote forks, each in namespaces of its own: first byte from all."""
    count = bench.count(300, 1000)
    await (await bench.backend.warm(SPEC)).close()

    async def mine() -> None:
        boxes = []

        async def one() -> None:
            box = await bench.backend.warm(SPEC)
            boxes.append(box)
            await first_byte(box, ["import os; os.write(1, b'x')"], wire.IN_PLACE)

        gate = asyncio.Semaphore(16)

        async def gated() -> None:
            async with gate:
                await one()

        start = time.perf_counter()
        await asyncio.gather(*(gated() for _ in range(count)))
        times["native"].append(1000 * (time.perf_counter() - start))
        await asyncio.gather(*(box.close() for box in boxes))

    times: dict[str, list[float]] = {"native": [], "sandlock": []}
    for _ in range(2):
        await mine()
        if importlib.util.find_spec("sandlock") is not None:
            run = await asyncio.to_thread(
                subprocess.run, [sys.executable, "-c", FORKS, str(count)], capture_output=True
            )
            times["sandlock"].append(1000 * float(run.stdout or "nan"))
    print(f"  {count} forks")
    show({name: row for name, row in times.items() if row}, {"sandlock": "≤ 2 (shared policy)"})


async def row_zygote(bench: Bench) -> None:
    """A warm sandbox with numpy and pytest to its first byte, and a cold interpreter."""
    code = "import os, numpy, pytest; os.write(1, b'x')"
    spec = SandboxSpec(packages=HEAVY)
    try:
        await (await bench.backend.warm(spec, HEAVY)).close()
    except QuintainError as error:
        print(f"  no image with {' and '.join(HEAVY)}: {error}")
        return

    async def warm() -> None:
        opened.append(await bench.backend.warm(spec, HEAVY))
        await first_byte(opened[-1], [code], wire.IN_PLACE)

    async def cold() -> None:
        await first_byte(box, ["python3", "-c", code])

    async def forked() -> None:
        await first_byte(again, [code], wire.IN_PLACE)

    opened: list = []
    box, again = await bench.backend.open(spec), await bench.backend.warm(spec, HEAVY)
    rows = {"warm, fresh": warm, "cold, open": cold, "warm, open": forked}
    times = await measure(rows, bench.count(12, 40))
    show(times, {"cold, open": "≤ 0.05, its own sandbox included"})
    cold_ms, open_ms = (statistics.median(times[name]) for name in ("cold, open", "warm, open"))
    print(f"  in an open sandbox the fork is {cold_ms / open_ms:.0f} times faster")
    await asyncio.gather(*(one.close() for one in (*opened, box, again)))


async def row_pool(bench: Bench) -> None:
    """Acquire from the single-use pool, and a fresh sandbox."""
    pool = Pool(bench.backend, close_inner=False)
    await pool.fill(SPEC, 8)
    acquired: list[float] = []
    fresh: list[float] = []
    for _ in range(bench.count(60, 300)):
        for backend, row in ((pool, acquired), (bench.backend, fresh)):
            start = time.perf_counter()
            box = await backend.open(SPEC)
            row.append(1000 * (time.perf_counter() - start))
            assert (await box.exec(TRUE)).ok
            await box.close()
        while not any(shelf.ready for shelf in pool._shelves.values()):
            await asyncio.sleep(0.001)
    show({"acquire": acquired, "fresh": fresh}, {})
    print("  bar: acquire ≤ 1 ms median")
    await pool.close()


async def row_reset(bench: Bench) -> None:
    """What reuse saves: reset, reset with its proof, and close + open of a fresh one."""
    reused, other = await bench.backend.open(SPEC), await bench.backend.open(SPEC)
    fresh = await reused.survey()

    async def reset() -> None:
        nonlocal reused
        reused = await reused.reset()

    async def proved() -> None:
        await reset()
        found = await reused.survey()
        assert [name for name in fresh if found[name] != fresh[name]] in ([], ["groups"])

    async def anew() -> None:
        nonlocal other
        await other.close()
        other = await bench.backend.open(SPEC)

    rows: dict[str, Run] = {"reset": reset, "reset, proved": proved, "fresh": anew}
    show(await measure(rows, bench.count(40, 200)), {})
    await reused.close()
    await other.close()


async def row_shell(bench: Bench) -> None:
    """A persistent shell: start to first result; one more command."""
    box = await bench.backend.open(SPEC)
    shell = await box.session()

    async def start() -> None:
        other = await box.session()
        await other.run("true")
        ended.append(other)

    ended: list = []
    rows: dict[str, Run] = {"start": start, "command": lambda: shell.run("true")}
    for name, row in (await measure(rows, bench.count(40, 60))).items():
        low = statistics.quantiles(row, n=10)[0]
        bar = {"start": 10, "command": 3}[name]
        print(f"  {name:12s} {statistics.median(row):9.2f} ms   p10 {low:.2f}   bar ≤ {bar} ms")
    await box.close()


async def rate(run: Run, seconds: float, width: int) -> float:
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


async def row_rate(bench: Bench) -> None:
    """Sustained fresh `true` on all cores, a second."""
    cores = len(os.sched_getaffinity(0))
    rows = present(
        native=lambda: native(bench.backend, TRUE),
        bwrap=bwrap(TRUE),
        plain=lambda: plain(TRUE),
    )
    rates: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(bench.count(3, 8)):
        for name, run in rows.items():
            rates[name].append(await rate(run, bench.count(1, 4), 4 * cores))
    mine = statistics.median(rates["native"])
    for name, row in rates.items():
        found = statistics.median(row)
        bar = "   bar ≥ 1.5" if name == "bwrap" else ""
        ratio = "" if name == "native" else f"   ratio {mine / found:.2f}{bar}"
        print(f"  {name:12s} {found:9.0f} a second, {found / cores:.0f} a core{ratio}")


def available_kb() -> int:
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":", 1) for line in file)
    return int(fields["MemAvailable"].split()[0])


async def row_density(bench: Bench) -> None:
    """Live at once, each with a network namespace of its own and a live process."""
    shells, pythons = bench.count(400, 4000), bench.count(100, 1000)
    await density(bench, "shells", shells, ["sh", "-c", "read line"], 0.6)
    code = "import sys; sys.stdin.read()"
    await density(bench, "pythons", pythons, ["python3", "-c", code], 1.5)


async def density(bench: Bench, what: str, count: int, argv: list[str], bar_mb: float) -> None:
    backend = NativeBackend(launcher=bench.launcher)
    await (await backend.open(SPEC)).close()
    gc.collect()
    before = available_kb()
    boxes, runs = [], []
    start = time.perf_counter()
    read, write = os.pipe()
    null = os.open("/dev/null", os.O_WRONLY)
    for _ in range(count):
        box = await backend.open(SPEC)
        boxes.append(box)
        report, told = os.pipe()
        box.start_command(argv, (read, null, null, told))
        os.close(told)
        runs.append(report)
    up_s = time.perf_counter() - start
    await asyncio.sleep(1.0)
    fell = (before - available_kb()) / 1024
    print(
        f"  {count} {what}: {fell / count:.3f} MB each (bar ≤ {bar_mb} at --full), "
        f"opened at {count / up_s:.0f} a second"
    )
    for fd in (read, write, null):
        os.close(fd)
    start = time.perf_counter()
    for chunk in range(0, count, 50):
        await asyncio.gather(*(box.close() for box in boxes[chunk : chunk + 50]))
    print(f"  closed at {count / (time.perf_counter() - start):.0f} a second")
    for fd in runs:
        os.close(fd)
    await backend.close()


ROWS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    "true": row_true,
    "python": row_python,
    "forks": row_forks,
    "zygote": row_zygote,
    "pool": row_pool,
    "reset": row_reset,
    "shell": row_shell,
    "rate": row_rate,
    "density": row_density,
}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help=f"rows, of {', '.join(ROWS)}")
    parser.add_argument("--full", action="store_true", help="as many runs as the bars name")
    parser.add_argument("--launcher", default="auto", choices=["auto", "c", "python"])
    options = parser.parse_args()
    chosen = [name for name in options.only.split(",") if name] or list(ROWS)
    unknown = [name for name in chosen if name not in ROWS]
    if unknown:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name in chosen:
        row = ROWS[name]
        print(f"\n{name}: {(row.__doc__ or '').splitlines()[0]}")
        backend = NativeBackend(launcher=options.launcher)
        try:
            await row(Bench(backend, options.full, options.launcher))
        finally:
            await backend.close()


if __name__ == "__main__":
    asyncio.run(main())
