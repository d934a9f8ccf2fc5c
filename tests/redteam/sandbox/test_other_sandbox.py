"""Attack: a neighbour's files, memory, environment and processes."""

from __future__ import annotations

import asyncio
import subprocess

SEARCH = """
import os, sys
mine = str(os.getpid())
for pid in os.listdir("/proc"):
    for name in ("environ", "cmdline"):
        try:
            data = open(f"/proc/{pid}/{name}", "rb").read()
        except OSError:
            continue
        if pid != mine and b"SES" + b"AME" in data:
            print("found", pid, name)
"""


async def test_neighbour(open_sandbox, unprotected, python):
    with subprocess.Popen(["sleep", "60"], env={"WORD": "SESAME"}) as victim:
        control = unprotected(python(SEARCH, inside=False))
        victim.kill()
    assert f"found {victim.pid} environ" in control.stdout
    neighbour, attacker = await open_sandbox(), await open_sandbox()
    busy = asyncio.create_task(neighbour.exec(["sleep", "5"], env={"WORD": "SESAME"}))
    await neighbour.write("secret", "SESAME")
    run = await attacker.exec(python(SEARCH, inside=True))
    assert run.text == "", run
    run = await attacker.exec(
        ["grep", "-rs", "SESAME", "/work", "/tmp", "/dev/shm", "/home", "/run"]
    )
    assert run.text == "", run
    await neighbour.close()
    await asyncio.gather(busy, return_exceptions=True)
