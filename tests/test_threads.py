"""User functions beside the loop: what one of them does never reaches the others or the run."""

import asyncio
import contextvars
import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from quintain import threads
from quintain.errors import EnvironmentFault
from quintain.threads import DeadlinePassed, in_thread


async def test_returns_what_the_function_returns():
    assert await in_thread(lambda a, b: a + b, 2, 3, timeout_s=10) == 5


async def test_raises_what_the_function_raises():
    def fails():
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        await in_thread(fails, timeout_s=10)


async def test_runs_beside_the_loop_with_the_callers_context():
    name = contextvars.ContextVar("name", default="nobody")
    name.set("caller")
    seen = await in_thread(lambda: (name.get(), threading.get_ident()), timeout_s=10)
    assert seen[0] == "caller"
    assert seen[1] != threading.get_ident()


async def test_a_stuck_function_holds_up_nobody():
    release = threading.Event()
    stuck = [asyncio.create_task(in_thread(release.wait, timeout_s=0.2)) for _ in range(40)]
    try:
        results = await asyncio.gather(
            *(in_thread(lambda n=n: n, timeout_s=10) for n in range(100))
        )
        assert results == list(range(100))
        for task in stuck:
            with pytest.raises(DeadlinePassed):
                await task
    finally:
        release.set()


async def test_a_timeout_of_the_functions_own_is_not_the_deadline():
    def slow_peer():
        raise TimeoutError("the peer did not answer")

    with pytest.raises(TimeoutError, match="peer") as caught:
        await in_thread(slow_peer, timeout_s=10)
    assert not isinstance(caught.value, DeadlinePassed)


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        StopIteration(),
    ],
)
async def test_an_exit_of_the_functions_own_ends_nothing(error):
    def leaves():
        raise error

    with pytest.raises(RuntimeError, match=type(error).__name__):
        await in_thread(leaves, timeout_s=10)
    assert await in_thread(lambda: "alive", timeout_s=10) == "alive"


async def test_cancelling_the_wait_returns_at_once():
    release = threading.Event()
    task = asyncio.create_task(in_thread(release.wait, timeout_s=None))
    await asyncio.sleep(0.05)
    task.cancel()
    try:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 5)
    finally:
        release.set()


async def test_threads_are_used_again():
    before = {t.ident for t in threading.enumerate()}
    for _ in range(200):
        await in_thread(lambda: None, timeout_s=10)
    fresh = [t for t in threading.enumerate() if t.ident not in before]
    assert len(fresh) <= 3


async def test_at_the_cap_a_call_fails_instead_of_waiting(monkeypatch):
    monkeypatch.setattr(threads, "_threads", threads._Threads())
    monkeypatch.setattr(threads, "MAX_THREADS", 2)
    release = threading.Event()
    waiting = [asyncio.create_task(in_thread(release.wait, timeout_s=30)) for _ in range(2)]
    await asyncio.sleep(0)
    try:
        with pytest.raises(EnvironmentFault, match="2 user functions are stuck"):
            await in_thread(lambda: 1, timeout_s=30)
    finally:
        release.set()
        await asyncio.gather(*waiting)
    assert await in_thread(lambda: 1, timeout_s=30) == 1


def test_a_thread_outlives_the_loop_that_called_it(monkeypatch):
    monkeypatch.setattr(threads, "_threads", threads._Threads())
    release, ended = threading.Event(), threading.Event()

    def late():
        release.wait()
        ended.set()

    async def gives_up():
        with pytest.raises(DeadlinePassed):
            await in_thread(late, timeout_s=0.05)

    asyncio.run(gives_up())
    release.set()
    assert ended.wait(10)
    for _ in range(20):
        assert asyncio.run(in_thread(lambda: "here", timeout_s=10)) == "here"


def test_an_idle_thread_leaves_and_the_next_call_gets_a_new_one(monkeypatch):
    monkeypatch.setattr(threads, "_threads", threads._Threads())
    monkeypatch.setattr(threads, "_IDLE_S", 0.05)
    for _ in range(20):
        assert asyncio.run(in_thread(lambda: "here", timeout_s=10)) == "here"
        time.sleep(0.04)
    deadline = time.monotonic() + 10
    while threads._threads._total and time.monotonic() < deadline:
        time.sleep(0.02)
    assert threads._threads._total == 0
    assert threads._threads._idle == 0


def test_a_forked_child_has_threads_of_its_own():
    asyncio.run(in_thread(lambda: None, timeout_s=10))
    child = os.fork()
    if child == 0:
        answer = asyncio.run(in_thread(lambda: 7, timeout_s=10))
        os._exit(answer)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def test_a_stuck_function_does_not_hold_up_the_exit():
    program = textwrap.dedent("""
        import asyncio, time
        from quintain.threads import in_thread
        async def main():
            try:
                await in_thread(time.sleep, 3600, timeout_s=0.1)
            except TimeoutError:
                print("gave up")
        asyncio.run(main())
    """)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout == "gave up\n"
