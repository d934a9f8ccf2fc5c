"""Attack: change the host's name (the control: in a namespace of its own)."""

from __future__ import annotations

import socket

CODE = "import socket; socket.sethostname('owned'); print(socket.gethostname())"


async def test_name(sandbox, unprotected, python):
    inside_own = ["unshare", "--user", "--map-root-user", "--uts", *python(CODE, inside=False)]
    assert unprotected(inside_own).stdout == "owned\n"
    before = socket.gethostname()
    run = await sandbox.exec(python(CODE, inside=True))
    assert "PermissionError" in run.error_text, run
    assert socket.gethostname() == before
    assert (await sandbox.exec(["cat", "/proc/sys/kernel/hostname"])).text == "sandbox\n"
