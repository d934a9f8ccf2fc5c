"""Verdicts per second: mathematics beside math-verify, hidden cases beside a process per case.

    python bench/verifiers.py [--pairs 150] [--repeats 3] [--no-peer] [--only hostile]

- Integers, fractions and surds, each apart: a whole verdict of ours (extraction, gold check,
  comparison, in this process or a worker) against `verify(parse(gold), parse(answer))` of
  math-verify with its defaults, in one process. Half of the pairs are equal. math-verify is used
  from this environment, else installed into a temporary one, which is removed.
- Hostile answers: the CPU seconds that each costs, this process and its workers together.
- 100 cases of one function: one verdict (clean room, one forked process a case) against a fresh
  interpreter per case, plain and in a sandbox.
- Trivial calls in worker processes.

Medians over the repeats, the sides interleaved.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Awaitable, Callable
from pathlib import Path

from quintain import registry
from quintain.messages import assistant
from quintain.protocols import JudgeContext
from quintain.task import SandboxSpec, Task
from quintain.trajectory import Action, Observation, Step, StopReason, Trajectory
from quintain.verifiers.answer import Answer
from quintain.verifiers.tests import Tests
from quintain.verifiers.workers import WorkerPool

CASES = 100
PEER = """
import json, statistics, sys, time
from math_verify import parse, verify
for line in sys.stdin:
    times = []
    for gold, answer in json.loads(line):
        began = time.perf_counter()
        verify(parse("$" + gold + "$"), parse("$" + answer + "$"))
        times.append(time.perf_counter() - began)
    print(statistics.median(times), sum(times) / len(times), flush=True)
"""
HOSTILE = {
    "tower": "9^{9^{9^9}}",
    "deep tower": "2^{2^{2^{49}}}",
    "nested radicals": "\\sqrt{" * 40 + "2" + "}" * 40,
    "10^5 digits": "7" * 100_000,
    "binomial": "\\binom{10000000}{5000000}",
    "200 parentheses": "(" * 200 + "1" + ")" * 200,
    "400 radicals": "+".join(f"\\sqrt{{{n}}}" for n in range(1_000_003, 1_000_400)),
    "expansion": "(a+b+c+d)^{32}" * 20,
    "tangents": "\\tan(\\tan(\\tan(10^{900})))",
}


def pairs(kind: str, count: int) -> list[tuple[str, str]]:
    rng = random.Random(kind)
    made = []
    for number in range(count):
        a, b, other = rng.randint(2, 9999), rng.randint(2, 99), number % 2
        if kind == "integers":
            made.append((str(a), str(a + other)))
        elif kind == "fractions":
            made.append((f"\\frac{{{a}}}{{{b}}}", f"\\frac{{{3 * a}}}{{{3 * b + other}}}"))
        else:
            made.append((f"\\sqrt{{{4 * b}}}+{a}", f"{a + other}+2\\sqrt{{{b}}}"))
    return made


def context(task: Task, text: str, workers: WorkerPool, open_sandbox: Callable) -> JudgeContext:
    step = Step(action=Action(message=assistant(text)), observation=Observation())
    trajectory = Trajectory(
        environment="bench",
        task_id=task.id,
        policy="bench",
        purpose="bench",
        steps=(step,),
        stop=StopReason.DONE,
    )
    return JudgeContext(
        task=task,
        trajectory=trajectory,
        sandbox=None,
        open_sandbox=open_sandbox,
        workers=workers,
        deadline=time.monotonic() + 600,
    )


class Peer:
    """math-verify in a process of its own."""

    def __init__(self, folder: str) -> None:
        python = sys.executable
        if subprocess.run([python, "-c", "import math_verify"], capture_output=True).returncode:
            print("installing math-verify into a temporary environment …", flush=True)
            venv.create(folder, with_pip=True)
            python = str(Path(folder) / "bin" / "python")
            pip = [python, "-m", "pip", "install", "-q", "math-verify"]
            subprocess.run(pip, check=True)
        self.process = subprocess.Popen(
            [python, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.measure([("1", "1")])

    def measure(self, checks: list[tuple[str, str]]) -> tuple[float, float]:
        """Median and mean seconds of one check."""
        self.process.stdin.write(json.dumps(checks) + "\n")
        self.process.stdin.flush()
        median, mean = self.process.stdout.readline().split()
        return float(median), float(mean)

    def close(self) -> None:
        """Ends the process."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


async def ours(
    checks: list[tuple[str, str]], workers: WorkerPool, open_sandbox: Callable
) -> tuple[float, float]:
    verifier, times = Answer(), []
    for gold, answer in checks:
        asked = context(Task(id="t", prompt="q", answer=gold), answer, workers, open_sandbox)
        began = time.perf_counter()
        await verifier.judge(asked)
        times.append(time.perf_counter() - began)
    return statistics.median(times), statistics.mean(times)


async def mathematics(
    options: argparse.Namespace, workers: WorkerPool, open_sandbox: Callable
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        peer = None if options.no_peer else Peer(folder)
        print(f"{'mathematics':14} {'ours p50':>12} {'math-verify':>12} {'ratio':>8}   checks/s")
        for kind in ("integers", "fractions", "surds"):
            checks = pairs(kind, options.pairs)
            mine, theirs = [], []
            for _ in range(options.repeats):
                mine.append(await ours(checks, workers, open_sandbox))
                if peer is not None:
                    theirs.append(peer.measure(checks))
            p50 = statistics.median(median for median, _ in mine)
            rate = 1 / statistics.median(mean for _, mean in mine)
            line = f"{kind:14} {p50 * 1e6:9.0f} µs"
            if peer is None:
                print(f"{line} {'':12} {'':8}   {rate:.0f}")
                continue
            other = statistics.median(median for median, _ in theirs)
            slow = 1 / statistics.median(mean for _, mean in theirs)
            print(f"{line} {other * 1e6:9.0f} µs {other / p50:7.1f}×   {rate:.0f} / {slow:.0f}")
        if peer is not None:
            peer.close()


async def hostile(open_sandbox: Callable) -> None:
    idle = statistics.median([(await metered("0", open_sandbox))[0] for _ in range(3)])
    print(
        f"\n{'hostile answer':18} {'CPU s':>8}   verdict (a pool's start, {idle:.2f} s, taken off)"
    )
    for name, answer in HOSTILE.items():
        cost, verdict = await metered(answer, open_sandbox)
        print(f"{name:18} {cost - idle:8.3f}   {verdict}")


def spent() -> float:
    """CPU seconds of this process and of every descendant that was waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


async def metered(answer: str, open_sandbox: Callable) -> tuple[float, str]:
    """CPU seconds of one answer in a pool of its own, whose processes end before the count."""
    began, verifier = spent(), Answer(cpu_s=0.2)
    async with WorkerPool(2) as workers:
        task = Task(id="t", prompt="q", answer="1+\\sqrt{\\pi+1}")
        await verifier.judge(context(task, "\\boxed{\\sqrt{\\pi+1}+2}", workers, open_sandbox))
        box = f"\\boxed{{{answer}}}"
        verdict = await verifier.judge(context(task, box, workers, open_sandbox))
    return spent() - began, f"{verdict.outcome.value}: {verdict.explanation[:60]}"


async def median_of(repeats: int, call: Callable[[], Awaitable[None]]) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        await call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


async def functions(
    options: argparse.Namespace, workers: WorkerPool, open_sandbox: Callable
) -> None:
    cases = [{"input": [number], "expected": number * number} for number in range(CASES)]
    task = Task(id="t", prompt="q", answer={"entry_point": "f", "cases": cases})
    code = "def f(n):\n    return n * n\n"
    script = f"import json, sys\n{code}print(json.dumps(f(*json.load(sys.stdin))))"
    argv = ["python3", "-I", "-c", script]
    # The sandbox's own interpreter, not a shim that happens to be first on the PATH.
    interpreter = shutil.which("python3", path="/usr/bin:/bin") or sys.executable

    async def verdict() -> None:
        asked = context(task, f"```python\n{code}```", workers, open_sandbox)
        assert (await Tests().judge(asked)).passed

    async def plain() -> None:
        for number in range(CASES):
            run = subprocess.run(
                [interpreter, *argv[1:]], input=f"[{number}]", capture_output=True, text=True
            )
            assert int(run.stdout) == number * number

    async def sandboxed() -> None:
        room = await open_sandbox(SandboxSpec())
        for number in range(CASES):
            run = await room.exec(argv, stdin=f"[{number}]")
            assert int(run.stdout) == number * number
        await room.close()

    await verdict()
    mine, fresh, rooms = [], [], []
    for _ in range(options.repeats):
        mine.append(await median_of(1, verdict))
        fresh.append(await median_of(1, plain))
        rooms.append(await median_of(1, sandboxed))
    base = statistics.median(mine)
    print(f"\n{CASES} cases of a function: one verdict {base * 1e3:.0f} ms")
    for name, times in (("a fresh interpreter a case", fresh), ("the same, in a sandbox", rooms)):
        print(f"  {name:28} {statistics.median(times) * 1e3:7.0f} ms  "
              f"{statistics.median(times) / base:5.1f}×")  # fmt: skip


async def calls(workers: WorkerPool) -> None:
    await workers.run(abs, -1, cpu_s=1, wall_s=30)
    began = time.perf_counter()
    count = 1000
    await asyncio.gather(*(workers.run(abs, -n, cpu_s=1, wall_s=60) for n in range(count)))
    rate = count / (time.perf_counter() - began)
    print(f"\nworker processes: {rate:.0f} trivial calls/s, a forked process each")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--only", choices=("math", "hostile", "functions", "calls"))
    options = parser.parse_args()
    backend = registry.sandboxes.get("native")()
    try:
        async with WorkerPool() as workers:
            rows = {
                "math": lambda: mathematics(options, workers, backend.open),
                "hostile": lambda: hostile(backend.open),
                "functions": lambda: functions(options, workers, backend.open),
                "calls": lambda: calls(workers),
            }
            for name, row in rows.items():
                if options.only in (None, name):
                    await row()
    finally:
        await backend.close()


if __name__ == "__main__":
    asyncio.run(main())
