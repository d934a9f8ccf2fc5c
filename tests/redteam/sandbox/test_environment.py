"""Attack: the owner's environment (keys live there) and open files."""

from __future__ import annotations

import os
import subprocess


async def test_variables(sandbox, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "sesame")
    assert b"sesame" in subprocess.run(["env"], capture_output=True).stdout
    run = await sandbox.exec(["sh", "-c", "env; cat /proc/[0-9]*/environ"])
    assert "sesame" not in run.text


async def test_descriptors(tmp_path, sandbox):
    secret = tmp_path / "secret"
    secret.write_text("sesame")
    script = "for n in $(seq 3 60); do cat /proc/self/fd/$n 2>/dev/null; done"
    with secret.open() as file:
        os.set_inheritable(file.fileno(), True)
        control = subprocess.run(
            ["sh", "-c", script], capture_output=True, close_fds=False, timeout=20
        )
        assert b"sesame" in control.stdout
        run = await sandbox.exec(["sh", "-c", script], timeout_s=10)
    assert "sesame" not in run.text
