"""Soak: thousands of episodes by several owners that are killed at random moments; what is left?

    python tests/soak/soak_sandbox.py --episodes 20000 --kills 200 --owners 2

An episode opens a sandbox, runs a few commands, sometimes a shell, a timeout, a flood of output,
processes or files, sometimes a snapshot, and closes it. Owners die by SIGKILL at random moments,
in the middle of whatever they do. Listings of processes, mounts, control groups, namespaces,
folders and System V objects are taken before and after; the exit code is 1 if anything is left, or
if the episodes failed otherwise than by a kill.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from soak.listing import holder, left, listing, marked

SIDE_BY_SIDE = 4
"""Episodes at once in one owner."""
SETTLE_S = 2.0
"""How long what a killed owner had may take to be gone."""
PATIENCE_S = 30.0
"""How long what is left at the end is watched: a leak stays."""


async def episode(backend, spec, rng, mark):
    """One sandbox's life; raises when it does not do what it should."""
    box = await backend.open(spec)
    try:
        run = await box.exec(["sh", "-c", "echo $0; pwd"], env={"MARK": mark})
        assert run.text == "sh\n/work\n", run
        for _ in range(rng.randrange(3)):
            await ACTS[rng.randrange(len(ACTS))](box, mark)
    finally:
        await box.close()


async def _files(box, mark):
    await box.write("a/b", mark)
    assert (await box.read("a/b")).decode() == mark


async def _detached(box, mark):
    script = f"setsid sleep 600 {mark} >/dev/null 2>&1 & exec sleep 0"
    run = await box.exec(["sh", "-c", script], env={"MARK": mark})
    assert run.exit_code in (0, 1), run


async def _timeout(box, mark):
    run = await box.exec(["sleep", "600"], env={"MARK": mark}, timeout_s=0.05)
    assert run.killed == "timeout", run


async def _flood(box, _mark):
    run = await box.exec(["sh", "-c", "head -c 2000000 /dev/zero"])
    assert run.truncated, run


async def _forks(box, mark):
    script = "i=0; while [ $i -lt 60 ]; do sleep 600 & i=$((i+1)); done"
    run = await box.exec(["sh", "-c", script], env={"MARK": mark}, timeout_s=2)
    assert run.exit_code != 127, run


async def _fill(box, _mark):
    run = await box.exec(["sh", "-c", "head -c 30000000 /dev/zero > /tmp/fill; rm /tmp/fill"])
    assert run.exit_code == 0, run


async def _shell(box, mark):
    shell = await box.session()
    await shell.run(f"export MARK={mark}; sleep 600 & cd /tmp")
    assert (await shell.run("pwd")).text == "/tmp\n"
    await shell.close()


async def _snapshot(box, mark):
    await box.write("kept", mark)
    with await box.snapshot() as taken:
        await box.write("kept", "changed")
        await box.restore(taken)
    assert (await box.read("kept")).decode() == mark


ACTS = (_files, _files, _detached, _timeout, _flood, _forks, _fill, _shell, _snapshot)


async def own(number, seed, mark):
    """An owner's life: episodes side by side until there are enough; a line for each."""
    from quintain.sandbox.native import NativeBackend
    from quintain.task import SandboxSpec

    rng = random.Random(seed)
    spec = SandboxSpec(memory_mb=64, disk_mb=16, max_pids=32, max_output_bytes=100_000)
    backend = NativeBackend()
    left_to_do = iter(range(number))

    async def work():
        for _ in left_to_do:
            await episode(backend, spec, rng, mark)
            os.write(1, b".")

    await asyncio.gather(*(work() for _ in range(SIDE_BY_SIDE)))
    await backend.close()


class Soak:
    """Starts owners, kills some of them, and counts."""

    def __init__(self, episodes, kills, seed):
        self.left = episodes
        self.kills = kills
        self.rng = random.Random(seed)
        self.mark = f"soak-{os.getpid()}-{seed}"
        self.done = Counter()
        self.slowest_s = 0.0
        self.errors = []

    async def keep(self, kill_every):
        """One owner after the other, until all episodes are done."""
        while self.left > 0:
            number = min(self.left, 2 * kill_every)
            self.left -= number
            number -= await self.owner(number, kill_every)
            self.left += max(0, number)

    async def owner(self, number, kill_every):
        """One owner; how many episodes it finished."""
        own_mark = f"{self.mark}-{self.rng.randrange(1 << 40):x}"
        process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--own", str(number), str(self.rng.randrange(1 << 30)),
            own_mark, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        kill_at = self.rng.randrange(1, 2 * kill_every) if self.kills > 0 else None
        finished, killed = 0, False
        while piece := await process.stdout.read(1):
            finished += len(piece)
            if not killed and kill_at is not None and finished >= kill_at:
                await asyncio.sleep(self.rng.random() * 0.05)
                process.send_signal(signal.SIGKILL)
                killed = True
                self.kills -= 1
        said = (await process.stderr.read()).decode()
        code = await process.wait()
        self.done["episodes"] += finished
        self.done["owners"] += 1
        if killed:
            self.done["killed"] += 1
            await self.settle(own_mark)
        elif code:
            self.errors.append(said[-2000:])
            self.left = 0
        return finished

    async def settle(self, mark):
        """Waits until nothing of a killed owner runs, and keeps the longest time."""

        began = time.monotonic()
        while True:
            running = await asyncio.to_thread(marked, [mark])
            took = time.monotonic() - began
            self.slowest_s = max(self.slowest_s, took)
            if not running:
                return
            if took > SETTLE_S:
                self.done["not gone in time"] += 1
                self.errors.append(f"after {took:.1f} s: {sorted(running)[:3]}")
                return
            await asyncio.sleep(0.02)


async def lasting(before, mark):
    """What is left and stays: what other programs hold for a moment goes meanwhile."""
    rest = left(before, listing([mark]))
    deadline = time.monotonic() + PATIENCE_S
    while rest and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        now = left(before, listing([mark]))
        rest = {kind: sorted(set(names) & set(now.get(kind, ()))) for kind, names in rest.items()}
        rest = {kind: names for kind, names in rest.items() if names}
    return rest


async def soak(episodes, kills, owners, seed):
    """Runs it; 0 if nothing is left."""
    from quintain.sandbox import cgroups

    before = listing([])
    began = time.monotonic()
    state = Soak(episodes, kills, seed)
    each = max(1, episodes // max(1, kills))
    await asyncio.gather(*(state.keep(each) for _ in range(owners)))
    took = time.monotonic() - began
    await asyncio.sleep(SETTLE_S)
    swept = cgroups.sweep(cgroups.find())
    rest = await lasting(before, state.mark)
    print(f"episodes {state.done['episodes']}, owners {state.done['owners']}, "
          f"killed {state.done['killed']}, {took:.0f} s, "
          f"{state.done['episodes'] / took:.0f} episodes/s")  # fmt: skip
    print(f"longest until a killed owner's processes were gone: {state.slowest_s:.2f} s; "
          f"late: {state.done['not gone in time']}")  # fmt: skip
    print(f"groups of owners that died together with their server, swept: {len(swept)}")
    kinds = sorted(before)
    print(f"{'kind':<20} {'before':>7} {'left':>5}")
    for kind in kinds:
        print(f"{kind:<20} {len(before[kind]):>7} {len(rest.get(kind, ())):>5}")
        for name in rest.get(kind, ())[:5]:
            print(f"    {name} {holder(name)}")
    for error in state.errors:
        print(error)
    return 1 if rest or state.errors else 0


def main():
    """Parses the command line."""
    if sys.argv[1:2] == ["--own"]:
        asyncio.run(own(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--owners", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    return asyncio.run(soak(asked.episodes, asked.kills, asked.owners, asked.seed))


if __name__ == "__main__":
    sys.exit(main())
