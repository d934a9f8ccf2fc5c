"""Attack: the commands of a build read the host, write to the cache, or change their base."""

from __future__ import annotations

import os

import pytest

from quintain.errors import BuildError, ConfigError
from quintain.sandbox.images.store import Store

TRIES = r"""
set -u
cat "$SECRET" && echo READ > /opt/found
for place in "$STORE" "$BASE" /host /proc/1/root/host /lower /workshop /inputs /stage; do
  [ -e "$place" ] && echo "sees $place" >> /opt/found
done
echo x > "$STORE/making/y" && echo WROTE >> /opt/found
mknod /opt/disk b 8 0 && echo DEVICE >> /opt/found
mount -t tmpfs x /mnt && echo MOUNT >> /opt/found
chroot / true && echo CHROOT >> /opt/found
unshare -U true && echo UNSHARE >> /opt/found
echo core > /proc/sys/kernel/core_pattern && echo SYSCTL >> /opt/found
(echo > /dev/tcp/127.0.0.1/22) 2>/dev/null && echo NETWORK >> /opt/found
grep -q 'CapEff.*ffff' /proc/self/status && echo CAPABILITIES >> /opt/found
echo changed > /usr/share/$MARK
rm -rf /usr/share/doc/bash
touch /opt/done
"""


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    return Store()


async def test_a_build_stays_inside(open_sandbox, any_launcher, store, tmp_path, unprotected):
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    mark = f"quintain-{os.getpid()}"
    lines = {"SECRET": secret, "STORE": store.folder, "BASE": tmp_path, "MARK": mark}
    script = "".join(f"{name}={value}\n" for name, value in lines.items()) + TRIES
    box = await open_sandbox(setup=(script,))
    run = await box.exec(["sh", "-c", "cat /opt/found; ls /opt/done /usr/share/" + mark])
    assert run.text.splitlines() == ["/opt/done", f"/usr/share/{mark}"], run
    assert secret.read_text() == "of the host"
    assert not os.path.exists(f"/usr/share/{mark}")
    assert os.listdir(store.folder / "making") == []
    # The control: the same reading works outside.
    assert unprotected(["cat", str(secret)]).stdout == "of the host"


async def test_a_build_reaches_no_other_layer(open_sandbox, store, tmp_path):
    first = await open_sandbox(setup=("echo first > /opt/x",))
    with pytest.raises(BuildError):
        await open_sandbox(setup=("echo second > /opt/x; ls /opt; test -e /opt/none",))
    assert await first.read("/opt/x") == b"first\n"


async def test_a_copy_takes_nothing_from_outside(open_sandbox, store, tmp_path, unprotected):
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    context = tmp_path / "context"
    context.mkdir()
    (context / "link").symlink_to(secret)
    (context / "folder").symlink_to(tmp_path)
    file = context / "Dockerfile"
    for source in ("../secret", "a/../../secret", str(secret), "folder/secret"):
        file.write_text(f"FROM host\nCOPY {source} /opt/\n")
        with pytest.raises(ConfigError, match="context"):
            await open_sandbox(dockerfile=str(file))
    file.write_text("FROM host\nCOPY link /opt/\n")
    box = await open_sandbox(dockerfile=str(file))
    with pytest.raises(FileNotFoundError):
        await box.read("/opt/link")
    assert unprotected(["cat", str(context / "link")]).stdout == "of the host"


async def test_package_names_are_no_options(open_sandbox, store):
    for name in ("--index-url=http://x", "-e.", "-r/etc/passwd", "../x"):
        with pytest.raises(ConfigError, match="expected"):
            await open_sandbox(packages=(name,))
        with pytest.raises(ConfigError, match="expected"):
            await open_sandbox(apt=(name.replace("../x", "-x"),))
