"""Attack: the candidate plants code that the judge's interpreter would load at its start."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

from quintain.sandbox.images.store import Store

PLANT = r"""
import os, site, sys, sysconfig
code = "import os; os.write(1, b'OWNED\n')\n"
folders = {sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), site.getusersitepackages(),
           "/etc/python3.%d" % sys.version_info[1], "/usr/local/bin",
           "/usr/lib/python3/dist-packages", *site.getsitepackages(), os.getcwd()}
for folder in sorted(folders):
    for name in ("sitecustomize.py", "usercustomize.py", "x.pth"):
        try:
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, name), "w") as file:
                file.write(code)
        except OSError:
            pass
for name in ("/usr/local/bin/python3", "/usr/bin/python3", "/bin/python3", "/etc/ld.so.preload"):
    try:
        with open(name, "w") as file:
            file.write("#!/bin/sh\necho OWNED\n")
        os.chmod(name, 0o755)
    except OSError:
        pass
"""


def digests(folder):
    found = {}
    for top, _, files in os.walk(folder):
        for name in files:
            path = Path(top, name)
            if path.is_file() and not path.is_symlink():
                found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@pytest.mark.parametrize("user", ["sandbox", "root"])
async def test_a_clean_room_loads_nothing_of_it(
    open_sandbox, tmp_path, monkeypatch, unprotected, user
):
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    spec = {"setup": ("echo 'x = 1' > /usr/local/lib/module.py",), "user": user}
    candidate = await open_sandbox(**spec)
    before = digests(Store().folder)
    assert (await candidate.exec(["python3", "-c", PLANT])).ok
    for path in ("/usr/lib/python3/dist-packages/sitecustomize.py",
                 "/usr/local/lib/module.py", "/usr/bin/python3"):  # fmt: skip
        with pytest.raises(OSError, match=r"denied|Read-only"):
            await candidate.write(path, "x = 2\n")
    await candidate.exec(["ln", "-s", "/etc", "/work/link"])
    if user != "root":
        with pytest.raises(PermissionError):
            await candidate.write("/work/link/ld.so.preload", "x")
        assert (await candidate.exec(["ls", "/etc/ld.so.preload"])).exit_code == 2
    room = await open_sandbox(**spec)
    run = await room.exec(["python3", "-c", "print('judged')"])
    assert run.text == "judged\n"
    assert await room.read("/usr/local/lib/module.py") == b"x = 1\n"
    assert digests(Store().folder) == before
    # The control: a user's folder outside, where nothing parts candidate and judge.
    home = tmp_path / "home"
    home.mkdir()
    (home / "sitecustomize.py").write_text("import os; os.write(1, b'OWNED\\n')\n")
    env = {**os.environ, "PYTHONPATH": str(home)}
    assert "OWNED" in unprotected([sys.executable, "-c", "print('judged')"], env=env).stdout
