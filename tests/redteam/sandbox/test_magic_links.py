"""Attack: links of `/proc` that lead to open files and roots of other processes."""

from __future__ import annotations

from pathlib import Path

import pytest


async def test_magic_links_are_not_followed(tmp_path, sandbox):
    secret = tmp_path / "secret"
    secret.write_text("sesame")
    with secret.open() as file:
        link = Path(f"/proc/self/fd/{file.fileno()}")
        assert link.read_text() == "sesame", "the control follows it"
    for path in (
        "/proc/1/root/etc/hostname",
        "/proc/self/root/etc/hostname",
        "/proc/self/fd/0",
        "/proc/self/exe",
        "/proc/1/cwd/etc/hostname",
        "/dev/stdin",
    ):
        with pytest.raises(OSError, match=r"."):
            await sandbox.read(path)
    for name in ("status", "environ", "maps", "mem"):
        with pytest.raises(OSError, match=r"."):
            await sandbox.read(f"/proc/1/{name}")
