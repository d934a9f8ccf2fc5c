"""Attack: signal a process outside (a victim that the test started)."""

from __future__ import annotations

import subprocess

CODE = "import os, sys; os.kill(int(sys.argv[1]) or os.getppid(), int(sys.argv[2]))"


async def test_victim(sandbox, unprotected, python):
    with subprocess.Popen(["sleep", "60"]) as victim:
        unprotected(python(CODE, victim.pid, 9, inside=False))
        assert victim.wait() == -9, "the control kills it"
    with subprocess.Popen(["sleep", "60"]) as victim:
        run = await sandbox.exec(python(CODE, victim.pid, 9, inside=True))
        assert "ProcessLookupError" in run.error_text, run
        assert victim.poll() is None
        victim.kill()


async def test_supervisor_and_minder(sandbox, any_launcher, python):
    for pid in (1, 0):
        run = await sandbox.exec(python(CODE, pid, 9, inside=True))
        assert "PermissionError" in run.error_text, run
    assert (await sandbox.exec(["echo", "alive"])).text == "alive\n"
