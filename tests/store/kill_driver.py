"""Runs a schedule in forked children that are killed at random moments, and checks the store.

Usage: kill_driver.py FOLDER KILLS. Prints one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from quintain.envs.environment import Environment
from quintain.messages import assistant
from quintain.rollouts import Host, Job, schedule
from quintain.store import Store
from quintain.trajectory import Action

TASKS, SAMPLES = 40, 10
PURPOSE = "eval:kill@v0"


class Slow:
    """Answers after a few milliseconds, and notes that it was asked."""

    name = "slow"
    version = 0

    def __init__(self, log: Path) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def act(self, messages, *, tools, sampling, seed, session):
        await asyncio.sleep(random.Random(seed).uniform(0.002, 0.02))
        os.write(self._log, f"{messages[-1].text}\n".encode())
        return Action(message=assistant(messages[-1].text))


class Same:
    """Passes everything."""

    name = "same"
    kind = "formal"

    async def judge(self, context):
        from quintain.verdict import Verdict

        return Verdict.of(True)


def child(folder: Path, log: Path) -> None:
    environment = Environment(
        tasks=[{"id": f"t{n}", "prompt": f"t{n}", "answer": ""} for n in range(TASKS)],
        verifier=Same(),
        name="kill",
    )

    async def main() -> None:
        with Store.begin(folder, kind="eval", identity={"tasks": TASKS}, resume=True) as store:
            jobs = [
                Job(environment.tasks.get(f"t{n}"), PURPOSE, sample)
                for sample in range(SAMPLES)
                for n in range(TASKS)
            ]
            async with Host(environment, Slow(log), store=store) as host:
                await schedule(jobs, host, concurrency=4)

    asyncio.run(main())


def wait_for_work(log: Path) -> None:
    deadline = time.monotonic() + 30
    while not (log.exists() and log.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.001)


def committed(folder: Path) -> set[tuple[str, int]]:
    with Store.read(folder) as store:
        return {(row.key.task_id, row.key.sample_index) for row in store.rows(purpose=PURPOSE)}


def main() -> None:
    folder, kills = Path(sys.argv[1]), int(sys.argv[2])
    dice = random.Random(7)
    before: set[tuple[str, int]] = set()
    lost: list[tuple[str, int]] = []
    repeated: list[str] = []
    killed = with_work = 0
    asked_in_all = 0
    while True:
        log = folder.with_name(f"log-{killed}-{time.monotonic_ns()}")
        pid = os.fork()
        if pid == 0:
            child(folder, log)
            os._exit(0)
        last = killed == kills
        if not last:
            # Most kills come while rollouts run, however slow the machine; some while it opens.
            if dice.random() < 0.8:
                wait_for_work(log)
            time.sleep(dice.uniform(0.0, 0.05))
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        asked = log.read_text().split() if log.exists() else []
        asked_in_all += len(asked)
        after = committed(folder) if (folder / "run.sqlite").exists() else set()
        lost += sorted(before - after)
        # Asked more often than samples were missing: something committed was run again.
        for task in {name for name in asked}:
            missing = SAMPLES - sum(1 for name, _ in before if name == task)
            if asked.count(task) > missing:
                repeated.append(task)
        if not last:
            killed += os.WIFSIGNALED(status)
            with_work += len(asked) > len(after - before)
        before = after
        if last:
            assert status == 0, f"the last run failed: {status}"
            break
    print(
        json.dumps(
            {
                "kills": killed,
                "kills_with_work_lost": with_work,
                "samples": TASKS * SAMPLES,
                "finals": len(before),
                "lost": lost,
                "repeated": repeated,
                "asked": asked_in_all,
            }
        )
    )


if __name__ == "__main__":
    main()
