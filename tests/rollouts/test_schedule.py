from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from quintain.envs.environment import Environment
from quintain.messages import assistant
from quintain.policies.scripted import Scripted
from quintain.protocols import JudgeContext
from quintain.rollouts import Budget, Host, Job, rollout_group, run_blocking, schedule
from quintain.rollouts.host import jobs_of
from quintain.rollouts.watchdog import Watchdog
from quintain.store import Store
from quintain.trajectory import Action, Usage
from quintain.verdict import Verdict


class Echo:
    name = "echo"
    kind = "formal"

    async def judge(self, context: JudgeContext) -> Verdict:
        return Verdict.of(context.trajectory.text == context.task.answer)


def environment(count: int = 20, **arguments: Any) -> Environment:
    rows = [{"id": f"t{n}", "prompt": str(n), "answer": str(n)} for n in range(count)]
    return Environment(tasks=rows, verifier=Echo(), name="echo", **arguments)


def echo(messages: Any, *_: Any) -> str:
    return str(messages[-1].text)


def begin(folder: Path, resume: bool = False) -> Store:
    return Store.begin(folder, kind="eval", identity={}, resume=resume)


PURPOSE = "eval:echo@v0"


async def test_every_sample_runs_once_within_the_bound(tmp_path: Path) -> None:
    running = most = 0

    async def script(messages: Any, *_: Any) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1
        return echo(messages)

    env = environment()
    seen = []
    with begin(tmp_path / "run") as store:
        async with Host(env, Scripted(script), store=store) as host:
            progress = await schedule(
                jobs_of(list(env.tasks), PURPOSE, 3), host, concurrency=5,
                on_done=lambda t, p: seen.append((t.task_id, t.sample_index)),
            )  # fmt: skip
        assert most == 5
        assert (progress.done, progress.total, progress.left_s) == (60, 60, 0.0)
        assert progress.outcomes == {"solved": 60}
        assert len(set(seen)) == len(seen) == 60
        assert len(store.rows()) == 60


async def test_what_is_committed_is_not_run_again(tmp_path: Path) -> None:
    env = environment()
    jobs = jobs_of(list(env.tasks), PURPOSE, 2)
    with begin(tmp_path / "run") as store:
        async with Host(env, Scripted(echo), store=store) as host:
            await schedule(jobs[:25], host, concurrency=4)
    asked = 0

    def script(messages: Any, *_: Any) -> str:
        nonlocal asked
        asked += 1
        return echo(messages)

    with begin(tmp_path / "run", resume=True) as store:
        async with Host(env, Scripted(script), store=store) as host:
            progress = await schedule(jobs, host, concurrency=4)
    assert asked == 15
    assert (progress.done, progress.resumed) == (40, 25)


@pytest.mark.parametrize("budget", [Budget(max_cost_usd=0.10), Budget(max_tokens=100)])
async def test_a_budget_stops_admission_and_leaves_a_resumable_run(
    tmp_path: Path, budget: Budget
) -> None:
    action = Action(
        message=assistant("x"), usage=Usage(calls=1, completion_tokens=10, cost_usd=0.01)
    )
    env = environment(50)
    jobs = jobs_of(list(env.tasks), PURPOSE, 1)
    with begin(tmp_path / "run") as store:
        async with Host(env, Scripted(action), store=store, budget=budget) as host:
            progress = await schedule(jobs, host, concurrency=2)
    assert progress.stopped.startswith("budget: ")
    assert 10 <= progress.done <= 12, "what ran when it was reached is finished, nothing more"
    with begin(tmp_path / "run", resume=True) as store:
        async with Host(env, Scripted(action), store=store) as host:
            progress = await schedule(jobs, host, concurrency=2)
        assert (progress.done, progress.stopped) == (50, "")
        assert len(store.rows()) == 50


async def test_a_blocking_tool_does_not_hold_up_the_others() -> None:
    def slow() -> str:
        time.sleep(1.5)
        return "late"

    from quintain.messages import ToolCall

    env = environment(20, tools=[slow])

    def script(messages: Any, *_: Any) -> Any:
        if messages[-1].role == "user" and messages[-1].text == "0":
            return assistant("", ToolCall(id="1", name="slow"))
        return messages[0].text

    finished: list[str] = []
    async with Host(env, Scripted(script)) as host:
        await schedule(
            jobs_of(list(env.tasks), PURPOSE, 1), host, concurrency=2,
            on_done=lambda t, _: finished.append(t.task_id),
        )  # fmt: skip
    assert finished[-1] == "t0", "the others went on while it slept"
    assert len(finished) == 20


async def test_the_watchdog_names_what_blocks_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    def blocks_here() -> None:
        time.sleep(0.6)

    with caplog.at_level(logging.WARNING):
        async with Watchdog(patience_s=0.2) as watchdog:
            await asyncio.sleep(0.05)
            blocks_here()
            await asyncio.sleep(0.05)
    assert len(watchdog.blockages) == 1
    assert "blocks_here" in watchdog.blockages[0]


async def test_a_group_comes_back_in_order_and_is_not_sampled_twice(tmp_path: Path) -> None:
    env = environment()
    asked = 0

    def script(messages: Any, *_: Any) -> str:
        nonlocal asked
        asked += 1
        return echo(messages)

    with begin(tmp_path / "run") as store:
        async with Host(env, Scripted(script), store=store) as host:
            first = await rollout_group(env.tasks.get("t3"), range(8, 12), host)
            assert [t.sample_index for t in first] == [8, 9, 10, 11]
            again = await rollout_group(env.tasks.get("t3"), range(8, 16), host)
    assert asked == 8
    assert [t.sample_index for t in again] == list(range(8, 16))
    assert len({t.seed for t in again}) == 8


def test_ctrl_c_leaves_a_resumable_run(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(f"""
import asyncio, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_schedule import *

async def slow(messages, *_):
    await asyncio.sleep(0.05)
    return echo(messages)

async def main():
    env = environment(400)
    with begin(Path({str(tmp_path / "run")!r})) as store:
        async with Host(env, Scripted(slow), store=store) as host:
            print("ready", flush=True)
            await schedule(jobs_of(list(env.tasks), PURPOSE, 1), host, concurrency=4)

run_blocking(main())
""")
    process = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.6)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors
    with begin(tmp_path / "run", resume=True) as store:
        rows = store.rows()
        assert 0 < len(rows) < 400
        assert all(row.outcome == "solved" for row in rows)


async def test_blocking_calls_work_inside_a_running_loop() -> None:
    async def answer() -> int:
        await asyncio.sleep(0.01)
        return 42

    assert run_blocking(answer()) == 42
    with pytest.raises(ZeroDivisionError):
        run_blocking(_fails())


async def _fails() -> None:
    raise ZeroDivisionError


def test_blocking_calls_work_without_a_loop() -> None:
    async def answer() -> int:
        return 42

    assert run_blocking(answer()) == 42


async def test_jobs_take_every_task_before_any_second_sample() -> None:
    env = environment(3)
    order = [(job.task.id, job.sample_index) for job in jobs_of(list(env.tasks), PURPOSE, 2)]
    assert order == [("t0", 0), ("t1", 0), ("t2", 0), ("t0", 1), ("t1", 1), ("t2", 1)]
    assert Job(env.tasks.get("t0"), PURPOSE, 0).seed(1) != Job(
        env.tasks.get("t0"), PURPOSE, 1
    ).seed(1)
