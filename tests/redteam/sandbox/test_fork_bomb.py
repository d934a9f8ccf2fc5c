"""Attack: start processes without end (the control: three hundred)."""

from __future__ import annotations

import asyncio
import signal

BOMB = """
import os, sys, time
made = 0
try:
    for _ in range(int(sys.argv[1])):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except OSError as error:
    print(error.strerror)
print(made, flush=True)
if len(sys.argv) > 2:
    os.killpg(0, 9)
sys.exit(made != int(sys.argv[1]))
"""


async def test_many_processes(open_sandbox, any_launcher, unprotected, python):
    control = unprotected(python(BOMB, 300, "end", inside=False), start_new_session=True)
    assert control.stdout.split()[-1] == "300", control
    assert control.returncode == -signal.SIGKILL
    sandbox = await open_sandbox(max_pids=40)
    run = await sandbox.exec(python(BOMB, 300, inside=True), timeout_s=20)
    assert 30 < int(run.text.split()[-1]) < 40, run
    assert run.killed == "pids", run


FAST = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


async def test_endless_bomb(open_sandbox, any_launcher):
    """A bomb that forks as fast as it can is gone after its time, and the sandbox lives on."""
    sandbox = await open_sandbox(max_pids=60)
    run = await sandbox.exec(["python3", "-c", FAST], timeout_s=1.5)
    assert run.killed == "timeout", run
    left = await sandbox.exec(["sh", "-c", "ls -d /proc/[0-9]* | wc -l"])
    assert int(left.text) <= 6, left


async def test_bomb_beside_another_command(open_sandbox, any_launcher):
    """Killing a bomb leaves alone what another command of the same sandbox does."""
    sandbox = await open_sandbox(max_pids=60)
    script = "sleep 4 & touch began; wait; echo done"
    innocent = asyncio.create_task(sandbox.exec(["sh", "-c", script]))
    while not (await sandbox.exec(["test", "-e", "began"])).ok:
        await asyncio.sleep(0.05)
    run = await sandbox.exec(["python3", "-c", FAST], timeout_s=1)
    assert run.killed == "timeout", run
    beside = await innocent
    assert beside.text == "done\n", beside
