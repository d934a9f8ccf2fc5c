"""Attack: write to the host's file system."""

from __future__ import annotations

WRITE = """
import os, sys
for way in (sys.argv[1], "/proc/1/root" + sys.argv[1], "/usr/quintain-was-here", "/etc/passwd",
            "/bin/sh", "/lib/x"):
    try:
        with open(way, "a") as file:
            file.write(sys.argv[2])
        print("WROTE", way)
    except OSError as error:
        print(error.strerror, way)
"""


async def test_write(tmp_path, sandbox, any_launcher, unprotected, python):
    target = tmp_path / "target"
    control = unprotected(
        python(
            WRITE.replace('"/usr/quintain-was-here", "/etc/passwd",', "").replace(
                '"/bin/sh", "/lib/x"', ""
            ),
            target,
            "x",
            inside=False,
        )
    )
    assert f"WROTE {target}" in control.stdout
    assert target.read_text().startswith("x")
    target.unlink()
    run = await sandbox.exec(python(WRITE, target, "x", inside=True))
    assert run.ok, run
    assert "WROTE" not in run.text, run.text
    assert not target.exists()
