"""Attack: make a device node and read the disk through it (here: the null device)."""

from __future__ import annotations

CODE = """
import os, stat, sys
os.mknod(sys.argv[1], 0o666 | stat.S_IFCHR, os.makedev(1, 3))
print("made", os.open(sys.argv[1], os.O_RDWR))
"""


async def test_make_a_node(tmp_path, sandbox, unprotected, python, as_root):
    control = unprotected(python(CODE, tmp_path / "node", inside=False))
    assert control.stdout.startswith("made")
    for folder in ("/work", "/tmp", "/dev", "/dev/shm"):
        run = await sandbox.exec(python(CODE, f"{folder}/node", inside=True))
        assert "PermissionError" in run.error_text, run


async def test_only_harmless_devices_are_there(sandbox):
    # Not `find -type`: where a device is mounted on a file, it believes the folder's entry.
    script = 'for f in /dev/* /dev/*/*; do test -b "$f" -o -c "$f" && echo "$f"; done; true'
    run = await sandbox.exec(["sh", "-c", script])
    allowed = {"null", "zero", "full", "random", "urandom", "tty", "pts/ptmx"}
    found = {line.removeprefix("/dev/") for line in run.text.split()}
    links = {"fd/0", "fd/1", "fd/2", "stdin", "stdout", "stderr", "ptmx"}
    assert found - links == allowed
