"""Attack: the classic way out of a changed root (the control: root can do it)."""

from __future__ import annotations

ESCAPE = """
import os, sys
os.makedirs("a", exist_ok=True)
here = os.open(".", os.O_RDONLY)
if len(sys.argv) > 1:
    os.chroot(".")
os.chroot("a")
os.fchdir(here)
for _ in range(60):
    os.chdir("..")
os.chroot(".")
print(sorted(os.listdir("/")))
"""


async def test_escape(tmp_path, sandbox, unprotected, python, as_root):
    control = unprotected(python(ESCAPE, "jail", inside=False), cwd=tmp_path)
    assert "'usr'" in control.stdout, control
    run = await sandbox.exec(python(ESCAPE, inside=True))
    assert "PermissionError" in run.error_text, run
