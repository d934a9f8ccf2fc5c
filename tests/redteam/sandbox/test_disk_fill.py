"""Attack: fill the disk (the control: 100 MB), with data."""

from __future__ import annotations

FILL = """
import os, sys
with open(os.path.join(sys.argv[1], "fill"), "wb") as file:
    for _ in range(100):
        file.write(bytes(1 << 20))
print("filled")
"""


async def test_data(tmp_path, open_sandbox, any_launcher, unprotected, python):
    control = unprotected(python(FILL, tmp_path, inside=False))
    assert control.stdout.strip() == "filled"
    assert (tmp_path / "fill").stat().st_size == 100 << 20
    (tmp_path / "fill").unlink()
    sandbox = await open_sandbox(disk_mb=16)
    for place in ("/work", "/tmp", "/dev/shm", "/home/sandbox", "/var/tmp"):
        run = await sandbox.exec(python(FILL, place, inside=True))
        assert run.exit_code == 1, run
        assert "No space left" in run.error_text or "File too large" in run.error_text, run
        await sandbox.exec(["rm", "-f", f"{place}/fill"])
    assert (await sandbox.exec(["sh", "-c", "echo ok > /work/small"])).ok
