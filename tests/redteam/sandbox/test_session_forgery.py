"""Attack: a command of a session forges the next one's exit code, value or output.

A session's status is the candidate's own word, and says so: its shell and its interpreter can be
made to lie. What must hold is that the lie stays inside: the owner neither breaks nor waits, and
`exec`, which judges use, tells the truth.
"""

from __future__ import annotations

import pytest

SHELL = {
    "answers ahead": "(while :; do echo 0 >/proc/$$/fd/5; done) 2>/dev/null & sleep 0.2",
    "junk on the answers": "head -c 300000 /dev/zero >&5; echo x >/proc/$$/fd/5",
    "closes the answers": "exec 5>&-; kill -9 $$",
    "eats the words": "cat /proc/$$/fd/4 & sleep 0.1",
    "writes its own script": "chmod 777 /proc/self/fd/6; echo 'exit 0' > /proc/self/fd/6",
    "overrides what it uses": "printf() { echo 0; }; .() { :; }; read() { :; }; trap '' USR1",
}
PYTHON = {
    "answers ahead": (
        "import os, threading\ndef lie():\n  while True: os.write(5, b'1 1 0 0\\n1')\n"
        "threading.Thread(target=lie, daemon=True).start()"
    ),
    "junk on the answers": "import os; os.write(5, b'\\0' * 300000)",
    "huge sizes": "import os; os.write(5, b'1 99999999999999999999 0 0\\n')",
    "negative sizes": "import os; os.write(5, b'1 -5 -5 0\\n')",
    "closes everything": "import os; os.closerange(0, 100)",
    "patches repr and exec": "import builtins; builtins.repr = builtins.exec = lambda *a: 'lie'",
    "another process answers": (
        "import os\nif not os.fork():\n  while True: os.write(5, b'1 1 0 0\\n1')"
    ),
}  # fmt: skip


async def truth(sandbox):
    run = await sandbox.exec(["sh", "-c", "echo out; exit 3"])
    assert (run.exit_code, run.text) == (3, "out\n")


@pytest.mark.parametrize("lie", SHELL)
async def test_shell(sandbox, lie):
    shell = await sandbox.session()
    await shell.run(SHELL[lie], timeout_s=3)
    for _ in range(3):
        run = await shell.run("exit 7", timeout_s=1)
        assert run.exit_code in (0, 7, -9, 124, 1, 2, 126, 127) or run.exit_code < 0
    await truth(sandbox)
    await shell.close()
    run = await sandbox.exec(["sh", "-c", "ls /proc | grep -c '^[0-9]'"])
    assert int(run.text) <= 5, "closing the session ends all that it started"


@pytest.mark.parametrize("lie", PYTHON)
async def test_python(sandbox, lie):
    python = await sandbox.python()
    await python.run(PYTHON[lie], timeout_s=3)
    for _ in range(3):
        run = await python.run("1 / 0", timeout_s=1)
        assert len(run.value) + len(run.error) < 10_000
    await truth(sandbox)
    await python.close()
    run = await sandbox.exec(["sh", "-c", "ls /proc | grep -c '^[0-9]'"])
    assert int(run.text) <= 5
