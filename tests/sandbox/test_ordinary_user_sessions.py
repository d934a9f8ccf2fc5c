"""Sessions, snapshots and folders in and out for an ordinary user."""

from __future__ import annotations

import pytest

KEEPING = """
import asyncio, os, sys
from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec

MAKE = r'''
mkdir -p d shut/in; echo x > d/f; ln d/f hard; ln -s d/f soft; mkfifo pipe; chmod 640 d/f
echo y > shut/in/y; ln shut/in/y linked; chmod 0 shut/in/y shut/in shut
truncate -s 5000000 sparse; echo tail >> sparse
'''
TELL = "ls -lRn /work; cat d/f soft; cat sparse | md5sum; du -k sparse"

async def main():
    backend = NativeBackend(launcher=sys.argv[1], allow_weaker=True)
    box = await backend.open(SandboxSpec())
    python, shell = await box.python(), await box.session()
    assert (await python.run("x = 20; x + 1")).value == "21"
    run = await python.run("while True: pass", timeout_s=0.5)
    assert (run.killed, run.restarted) == ("timeout", False), run
    assert (await python.run("x")).value == "20"
    run = await shell.run("X=1; sleep 100", timeout_s=0.5)
    assert run.killed == "timeout", run
    run = await shell.run(MAKE)
    assert run.ok, run
    await shell.run("while :; do echo $((n++)) > /tmp/n; done &")
    before = (await box.exec(["sh", "-c", TELL])).text
    snapshot = await box.snapshot()
    fork = await backend.open(snapshot.spec, snapshot=snapshot)
    after = await fork.exec(["sh", "-c", TELL])
    assert after.text == before, (before, after)
    again = await fork.snapshot()
    assert again.digest == snapshot.digest
    first = await box.read("/tmp/n")
    while await box.read("/tmp/n") in (b"", first):
        await asyncio.sleep(0.05)
    run = await fork.exec(["sh", "-c", "chmod 700 shut shut/in; cat linked shut/in/y"])
    assert "Permission denied" in run.error_text, run
    run = await fork.exec(["sh", "-c", "chmod 600 shut/in/y; cat linked; rm -r *"])
    assert run.text == "y\\n", run
    await fork.restore(snapshot)
    assert (await fork.exec(["sh", "-c", TELL])).text == before
    assert (await box.upload("/usr/lib/os-release", "up/")).files == 1
    done = await box.download("d", os.environ["HOME"] + "/down")
    assert (done.files, open(os.environ["HOME"] + "/down/f").read()) == (1, "x\\n")
    await backend.close()
    print("fine")

asyncio.run(main())
"""


@pytest.mark.parametrize("launcher", ["auto", "python"])
def test_sessions_and_snapshots(as_ordinary_user, launcher):
    done = as_ordinary_user(KEEPING, launcher)
    if "IsolationError" in done.stderr:
        pytest.skip("this host gives ordinary users no namespaces")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("fine\n")
