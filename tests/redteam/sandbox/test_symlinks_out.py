"""Attack: a symbolic link that leads the owner's reads and writes to the host."""

from __future__ import annotations

import contextlib
import os

import pytest


async def test_read_through_a_link(tmp_path, sandbox):
    secret = tmp_path / "secret"
    secret.write_text("sesame")
    shared = tmp_path / "shared"
    shared.mkdir()
    os.symlink(secret, shared / "answer")
    assert (shared / "answer").read_text() == "sesame", "the control reads through it"
    for target in (secret, f"/proc/1/root{secret}", f"/proc/self/root{secret}", "/" + "../" * 30):
        await sandbox.exec(["ln", "-sfn", str(target), "/work/answer"])
        with pytest.raises(OSError, match=r"."):
            await sandbox.read("answer")


async def test_write_through_a_link(tmp_path, sandbox):
    shared = tmp_path / "shared"
    shared.mkdir()
    target = tmp_path / "target"
    os.symlink(target, shared / "out")
    (shared / "out").write_text("x")
    assert target.read_text() == "x", "the control writes through it"
    target.unlink()
    await sandbox.exec(["ln", "-s", str(tmp_path), "/work/folder"])
    await sandbox.exec(["ln", "-s", "/etc", "/work/etc"])
    with contextlib.suppress(OSError):
        await sandbox.write("folder/target", "x")
    assert not target.exists()
    with pytest.raises(OSError, match=r"Read-only|Permission denied"):
        await sandbox.write("etc/passwd", "x")
