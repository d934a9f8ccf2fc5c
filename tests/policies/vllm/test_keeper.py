"""Whatever becomes of the owner, what it started is gone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quintain.policies.vllm import keeper

# A command with a child in a session of its own, as a server's workers may be.
COMMAND = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
print(child.pid, flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(7)
"""
OWNER = """
import os, subprocess, sys, time
theirs, ours = os.pipe()
command = [sys.executable, "-c", sys.argv[2], "600"]
subprocess.Popen([sys.executable, sys.argv[1], str(theirs), *command], pass_fds=[theirs])
time.sleep(600)
"""


def gone(pid):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        stat = Path(f"/proc/{pid}/stat")
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def pipe():
    theirs, ours = os.pipe()
    with open(theirs, "rb"), open(ours, "wb") as owner:
        yield theirs, owner


def keep(theirs, seconds):
    return subprocess.Popen(
        [sys.executable, keeper.__file__, str(theirs), sys.executable, "-c", COMMAND, str(seconds)],
        pass_fds=[theirs],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_it_ends_as_the_command_does_and_leaves_no_grandchild(pipe):
    kept = keep(pipe[0], 0)
    grandchild = int(kept.stdout.readline())
    assert kept.wait(60) == 7
    assert gone(grandchild)
    kept.stdout.close()


def test_it_ends_everything_when_the_pipe_closes(pipe):
    kept = keep(pipe[0], 600)
    grandchild = int(kept.stdout.readline())
    pipe[1].close()
    assert kept.wait(60) == 128 + signal.SIGKILL
    assert gone(grandchild)
    kept.stdout.close()


def test_it_ends_everything_when_the_owner_is_killed():
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, keeper.__file__, COMMAND],
        stdout=subprocess.PIPE,
        text=True,
    )
    grandchild = int(owner.stdout.readline())
    owner.kill()
    owner.communicate()
    assert gone(grandchild)
