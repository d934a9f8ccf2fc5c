"""Attack: files without number, each empty (the control: 4,500)."""

from __future__ import annotations


async def test_inodes(tmp_path, open_sandbox, unprotected, python):
    code = (
        "import os, sys\nn = 0\n"
        "try:\n"
        "    while n < 4500: open(f'{sys.argv[1]}/{n}', 'w').close(); n += 1\n"
        "except OSError as error: print(error.strerror)\n"
        "print(n)"
    )
    control = unprotected(python(code, tmp_path, inside=False))
    assert control.stdout.split()[-1] == "4500"
    sandbox = await open_sandbox(disk_mb=4)
    run = await sandbox.exec(python(code, "/tmp", inside=True), timeout_s=30)
    assert int(run.text.split()[-1]) < 4200, run
    assert "No space left" in run.text
