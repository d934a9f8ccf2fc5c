"""Attack: a hard link to a file of the base, to change the file through it."""

from __future__ import annotations

import os

CODE = """
import os, sys
os.link(sys.argv[1], sys.argv[2])
open(sys.argv[2], "a").write("changed")
"""


async def test_hard_link(tmp_path, sandbox, unprotected, python):
    target = tmp_path / "target"
    target.write_text("")
    unprotected(python(CODE, target, tmp_path / "link", inside=False))
    assert target.read_text() == "changed"
    for path in ("/usr/bin/env", "/etc/passwd"):
        run = await sandbox.exec(python(CODE, path, "/work/link", inside=True))
        assert run.exit_code == 1
        assert "cross-device" in run.error_text or "not permitted" in run.error_text, run
    assert os.stat("/usr/bin/env").st_nlink >= 1
