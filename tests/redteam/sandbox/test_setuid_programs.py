"""Attack: a set-uid program, to become someone else."""

from __future__ import annotations

import os
import shutil

SCRIPT = "cp /usr/bin/id ./id && chmod 4755 ./id && ./id -u"


async def test_setuid(tmp_path, sandbox, unprotected, as_root):
    copy = tmp_path / "id"
    shutil.copy("/usr/bin/id", copy)
    copy.chmod(0o4755)
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    control = unprotected(["setpriv", "--reuid=54321", "--clear-groups", str(copy), "-u"])
    assert control.stdout.strip() == "0", control
    run = await sandbox.exec(["sh", "-c", SCRIPT])
    assert run.text.strip() == "1000", run
    await sandbox.write("mine", b"", mode=0o4755)
    assert os.getuid() == 0


async def test_mounts_know_no_setuid(sandbox, native_only):
    mounts = (await sandbox.exec(["cat", "/proc/mounts"])).text
    for line in mounts.splitlines():
        assert "nosuid" in line.split()[3], line
