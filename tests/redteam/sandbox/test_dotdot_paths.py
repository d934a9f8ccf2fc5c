"""Attack: `..` in the names of files that go in and out."""

from __future__ import annotations

from pathlib import Path

import pytest


async def test_downloads(tmp_path, sandbox):
    secret = tmp_path / "secret"
    secret.write_text("sesame")
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    assert (folder / "../../secret").read_text() == "sesame", "the control walks up"
    for start in ("", "/", "/work/"):
        with pytest.raises(FileNotFoundError):
            await sandbox.read(start + "../" * 30 + str(secret).lstrip("/"))
    assert b"sandbox:" in await sandbox.read("../../../../etc/passwd")


async def test_uploads(tmp_path, sandbox):
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "../up").write_text("x")
    assert (tmp_path / "up").exists(), "the control walks up"
    target = tmp_path / "target"
    await sandbox.write("../" * 30 + str(target).lstrip("/"), "x")
    assert not target.exists()
    assert not Path("/quintain-escape").exists()
