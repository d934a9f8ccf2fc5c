"""The learner's process: calls, its own errors, its death, and its owner's."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quintain.errors import ConfigError, TrainingError
from quintain.training.learner_process import LearnerProcess


class Echo:
    """Not a model: answers the client's calls in ways that show what went over."""

    def update(self, batch):
        if batch == "fail":
            raise ZeroDivisionError("no batch")
        if batch == "config":
            raise ConfigError("no such thing")
        if batch == "die":
            print("last words", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if batch == "exit":
            os._exit(7)
        if isinstance(batch, float):
            time.sleep(batch)
        return {"got": batch, "pid": os.getpid()}


def broken():
    raise ConfigError("no such model")


async def test_calls_run_elsewhere_and_the_loop_stays_free():
    learner = await LearnerProcess.start(Echo)
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    answer = await learner.update(0.5)
    ticking.cancel()
    assert answer["pid"] == learner.pid != os.getpid()
    assert ticks > 10
    await learner.close()
    await learner.close()


async def test_errors_come_over_and_the_learner_lives_on():
    learner = await LearnerProcess.start(Echo)
    with pytest.raises(TrainingError, match="ZeroDivisionError: no batch"):
        await learner.update("fail")
    with pytest.raises(ConfigError, match="no such thing"):
        await learner.update("config")
    assert (await learner.update("x"))["got"] == "x"
    await learner.close()


async def test_factory_error_is_raised():
    with pytest.raises(ConfigError, match="no such model"):
        await LearnerProcess.start(broken)


async def test_death_names_its_cause():
    learner = await LearnerProcess.start(Echo)
    with pytest.raises(TrainingError, match=r"(?s)SIGKILL.*during update.*last words"):
        await learner.update("die")
    await learner.close()
    learner = await LearnerProcess.start(Echo)
    with pytest.raises(TrainingError, match="exited with code 7"):
        await learner.update("exit")
    await learner.close()


async def test_cancelled_call_ends_the_process():
    learner = await LearnerProcess.start(Echo)
    call = asyncio.create_task(learner.update(30.0))
    await asyncio.sleep(0.2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    with pytest.raises(TrainingError):
        await learner.update("x")
    await learner.close()


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_dies_with_its_owner_in_mid_call():
    code = (
        "import asyncio, os, signal\n"
        "from training.test_learner_process import Echo\n"
        "from quintain.training.learner_process import LearnerProcess\n"
        "async def main():\n"
        "    learner = await LearnerProcess.start(Echo)\n"
        "    asyncio.create_task(learner.update(60.0))\n"
        "    await asyncio.sleep(0.3)\n"
        "    print(learner.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    deadline = time.monotonic() + 20
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)
