"""Attack: dead processes that nobody collects, until there is no room for more."""

from __future__ import annotations

UNWAITED = """
import os
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            os._exit(0)
        made += 1
except OSError:
    pass
print(made)
"""
ORPHANED = """
import os
for _ in range(300):
    pid = os.fork()
    if pid == 0:
        if os.fork():
            os._exit(0)
        os._exit(0)
    os.waitpid(pid, 0)
print("done")
"""


async def test_zombies(open_sandbox, any_launcher, unprotected, python):
    assert unprotected(python(UNWAITED, inside=False)).stdout.strip() == "200"
    sandbox = await open_sandbox(max_pids=40)
    run = await sandbox.exec(python(UNWAITED, inside=True))
    assert int(run.text) < 40
    run = await sandbox.exec(python(ORPHANED, inside=True), timeout_s=30)
    assert run.text == "done\n", run
    assert (await sandbox.exec(["echo", "room"])).text == "room\n"
