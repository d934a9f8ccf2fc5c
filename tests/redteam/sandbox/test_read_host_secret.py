"""Attack: read a file of the host by its path, and through every path trick inside."""

from __future__ import annotations

TRICKS = """
import os, sys
secret = sys.argv[1]
ways = [secret, "/proc/1/root" + secret, "/proc/self/root" + secret, "/proc/1/cwd" + secret,
        "/" + "../" * 40 + secret, "/dev/fd/../../.." + secret, "/host" + secret]
for fd in range(256):
    ways.append(f"/proc/self/fd/{fd}" + secret)
    ways.append(f"/proc/1/fd/{fd}" + secret)
for way in ways:
    try:
        print("GOT", way, open(way).read())
    except OSError:
        continue
"""


async def test_host_secret(tmp_path, sandbox, any_launcher, unprotected, python):
    secret = tmp_path / "secret"
    secret.write_text("sesame")
    control = unprotected(python(TRICKS, secret, inside=False))
    assert f"GOT {secret} sesame" in control.stdout
    run = await sandbox.exec(python(TRICKS, secret, inside=True))
    assert run.ok, run
    assert "sesame" not in run.text


async def test_host_folders_are_absent(sandbox):
    """The host's own accounts, homes and temporary files are not there at all."""
    run = await sandbox.exec(["sh", "-c", "cat /etc/shadow /etc/passwd; ls -A /root /home /tmp"])
    assert "sandbox:x:1000" in run.text
    assert run.text.count(":x:") == 3
    assert "No such file" in run.error_text
