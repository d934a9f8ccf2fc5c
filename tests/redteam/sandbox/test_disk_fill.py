"""Attack: fill the disk (the control: 100 MB), with data, with empty files, with one huge hole."""

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
