"""Attack: `rm -rf /` (the control: in a throw-away root)."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

ATTACK = ["rm", "-rf", "--no-preserve-root", "/usr/bin", "/etc", "/dev", "/work", "/home", "/"]


@pytest.fixture
def throwaway(tmp_path):
    """A root with nothing but `rm`, what it needs, and something to lose."""
    if os.geteuid() != 0 or not shutil.which("chroot"):
        pytest.skip("the control changes its root, which needs root and chroot")
    root = tmp_path / "root"
    (root / "data").mkdir(parents=True)
    (root / "data" / "precious").write_text("x")
    program = shutil.which("rm")
    needed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    files = [word for word in needed.split() if word.startswith("/")]
    for file in [program, *files]:
        target = root / file.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(file), target)
    return root


async def test_remove(throwaway, tmp_path, sandbox, any_launcher, unprotected):
    control = unprotected(["chroot", str(throwaway), shutil.which("rm"), *ATTACK[1:]])
    assert not (throwaway / "data" / "precious").exists(), control
    canary = tmp_path / "canary"
    canary.write_text("alive")
    before = sorted(os.listdir("/usr"))
    await sandbox.write("/work/file", "x")
    run = await sandbox.exec(ATTACK, timeout_s=8)
    assert not run.ok
    assert "Read-only file system" in run.error_text
    assert sorted(os.listdir("/usr")) == before
    assert canary.read_text() == "alive"
    after = await sandbox.exec(["sh", "-c", "ls -A /work; echo lives"])
    assert after.text == "lives\n", after
