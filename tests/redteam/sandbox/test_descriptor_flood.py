"""Attack: open files without end (the control: five thousand)."""

from __future__ import annotations

CODE = """
import os, resource, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
kept = []
try:
    while len(kept) < 5000:
        kept.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print(error.strerror)
print(len(kept))
"""


async def test_files(sandbox, unprotected, python):
    control = unprotected(python(CODE, inside=False))
    assert control.stdout.strip() == "5000", control
    run = await sandbox.exec(python(CODE, inside=True))
    assert "Too many open files" in run.text
    assert int(run.text.split()[-1]) < 4200
