"""Attack: a file of many gigabytes (all hole) for the owner to read into memory."""

from __future__ import annotations

import os

import pytest


async def test_sparse(tmp_path, open_sandbox):
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(80 << 20)
    assert len((tmp_path / "sparse").read_bytes()) == 80 << 20, "the control reads it all"
    os.unlink(tmp_path / "sparse")
    sandbox = await open_sandbox(disk_mb=80)
    await sandbox.exec(["truncate", "-s", "60M", "sparse"])
    with pytest.raises(OSError, match="62914560 bytes"):
        await sandbox.read("sparse")
    assert len(await sandbox.read("sparse", max_bytes=300 << 20)) == 60 << 20
