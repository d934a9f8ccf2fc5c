"""Attack: a process that outlives the timeout of its command, to work on unseen."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

HIDE = {
    "daemon": "setsid sh -c 'trap \"\" TERM INT HUP USR1; while :; do sleep 0.05; done' & sleep 60",
    "double fork": "(setsid sh -c '(while :; do sleep 0.05; done) &' &); sleep 60",
    "respawn": "f() { sleep 0.05; f & }; f & sleep 60",
    "stopped": "sh -c 'kill -STOP $$' & sleep 60",
}
PYTHON = """
import os, signal, time
for _ in range(3):
    if not os.fork():
        os.setsid()
        for number in range(1, 60):
            try: signal.signal(number, signal.SIG_IGN)
            except OSError: pass
        while True: time.sleep(0.05)
while True: pass
"""
COUNT = ["sh", "-c", "cat /proc/[0-9]*/stat | grep -E '[(](sleep|python3)[)]' | grep -vc ') Z'"]
"""The living; a dead child that its parent has not asked for is no survivor."""


def test_the_control_survives():
    """Without a sandbox, killing the command leaves its daemon."""
    script = "setsid sh -c 'echo $$; exec sleep 20' & sleep 20"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as command:
        daemon = int(command.stdout.readline())
        command.kill()
        command.stdout.close()
    time.sleep(0.1)
    os.kill(daemon, 0)
    os.kill(daemon, signal.SIGKILL)


@pytest.mark.parametrize("way", HIDE)
async def test_shell(open_sandbox, any_launcher, way):
    sandbox = await open_sandbox(max_pids=60)
    shell = await sandbox.session()
    await shell.run("V=5")
    run = await shell.run(HIDE[way], timeout_s=0.5)
    assert run.killed == "timeout"
    assert (await sandbox.exec(COUNT)).text.strip() == "0"
    assert (await shell.run("echo $V")).text == "5\n"


async def test_python(open_sandbox, any_launcher):
    sandbox = await open_sandbox()
    python = await sandbox.python()
    run = await python.run(PYTHON, timeout_s=0.7)
    assert (run.killed, run.restarted) == ("timeout", False), run
    assert (await sandbox.exec(COUNT)).text.strip() == "1", "the interpreter alone"
