"""Folders in and out: byte for byte, and never through a link."""

from __future__ import annotations

import os

import pytest

from quintain.errors import SandboxError
from quintain.protocols import Entry
from quintain.sandbox.transfer import download_named


@pytest.fixture
def tree(tmp_path):
    """A folder of the host with what folders have."""
    root = tmp_path / "tree"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "data.bin").write_bytes(bytes(range(256)) * 100)
    (root / "a" / "b" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "a" / "b" / "run.sh").chmod(0o755)
    (root / "inside").symlink_to("a/data.bin")
    (tmp_path / "secret").write_text("host secret")
    (root / "outside").symlink_to("../secret")
    (root / "folder").symlink_to(tmp_path)
    (root / "broken").symlink_to("nowhere")
    return root


async def test_up_and_down(box, tree, tmp_path):
    assert "transfer" in box.capabilities
    done = await box.upload(tree, "in")
    assert (done.files, done.skipped) == (3, ("broken", "folder", "outside"))
    run = await box.exec(["sh", "-c", "./in/a/b/run.sh; cmp in/inside in/a/data.bin; ls in; id -u; "
                          "stat -c %u in/a/data.bin; find . -name '*secret*'"])  # fmt: skip
    assert run.text == "ran\na\ninside\n1000\n1000\n", run
    assert (await box.upload(tree / "a" / "data.bin", "/tmp/")).files == 1
    assert (await box.upload(tree / "a" / "data.bin", "/tmp/other")).size_bytes == 25_600
    assert await box.read("/tmp/data.bin") == await box.read("/tmp/other")
    down = await box.download("in", tmp_path / "out")
    assert (down.files, down.skipped) == (3, ())
    assert (tmp_path / "out/a/data.bin").read_bytes() == (tree / "a/data.bin").read_bytes()
    assert os.access(tmp_path / "out/a/b/run.sh", os.X_OK)
    one = await box.download("in/a/data.bin", tmp_path / "one.bin")
    assert (one.files, one.size_bytes) == (1, 25_600)


async def test_no_link_leads_out(box, tmp_path):
    (tmp_path / "secret").write_text("host secret")
    script = (
        f"mkdir -p d/sub; echo x > d/sub/f; ln -s {tmp_path}/secret d/one; ln -s / d/root; "
        "ln -s sub d/two; ln -s ../../../../../../etc/passwd d/sub/p; mkfifo d/pipe; ln -s d all; "
        "ln -s /proc/self/root/etc d/proc"
    )
    assert (await box.exec(["sh", "-c", script])).ok
    done = await box.download("d", tmp_path / "out")
    assert done.files == 1
    assert done.skipped == ("one", "pipe", "proc", "root", "sub/p", "two")
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == ["f", "sub"]
    assert (await box.download("all", tmp_path / "again")).files == 1, "inside, links are followed"
    for name in ("d/one", "d/pipe", "none", "/proc/self", "/proc/1/root"):
        with pytest.raises(OSError):  # noqa: PT011 - which one depends on the name
            await box.download(name, tmp_path / "x")
    # Nor through one that lies on the host.
    (tmp_path / "out2").mkdir()
    (tmp_path / "out2" / "sub").symlink_to(tmp_path)
    done = await box.download("d", tmp_path / "out2")
    assert "sub" in done.skipped
    assert not (tmp_path / "f").exists()


async def test_bounds(box, tmp_path, tree):
    await box.exec(["sh", "-c", "mkdir big; head -c 3000000 /dev/zero > big/z; touch big/a"])
    with pytest.raises(OSError, match="more bytes"):
        await box.download("big", tmp_path / "out", max_bytes=1_000_000)
    code = "import os\nos.mkdir('deep'); os.chdir('deep')\n"
    code += "for _ in range(150): os.mkdir('d'); os.chdir('d')"
    await box.exec(["python3", "-c", code])
    with pytest.raises(OSError, match="deeper"):
        await box.download("deep", tmp_path / "deep")
    with pytest.raises(FileNotFoundError):
        await box.upload(tmp_path / "none", "x")
    with pytest.raises(OSError, match="/etc/x"):
        await box.upload(tree, "/etc/x")


class _Lying:
    """A sandbox that names files as it likes."""

    def __init__(self, *paths):
        self.paths = paths

    async def entries(self, path, *, max_entries):
        return [Entry(path, kind, 0o644, 1) for path, kind in self.paths]

    async def read(self, path, *, max_bytes):
        return b"x"


@pytest.mark.parametrize("name", ["..", ".", "", "a/..", "/etc", "a/../b", "\0"])
async def test_names_of_a_conquered_guest_lead_nowhere(tmp_path, name):
    box = _Lying(("a", "folder"), (name, "file"))
    outside = tmp_path / "outside"
    try:
        done = await download_named(box, "d", tmp_path / "out", 100)
    except SandboxError:
        pass
    else:
        assert name in done.skipped, "what lies in no folder that was made"
    assert not outside.exists()
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["a"]


async def test_a_link_of_the_hosts_is_not_followed_by_names(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a").symlink_to(tmp_path)
    (tmp_path / "out/f").symlink_to(tmp_path / "made")
    box = _Lying(("a", "folder"), ("a/x", "file"), ("f", "file"))
    done = await download_named(box, "d", tmp_path / "out", 100)
    assert done.skipped == ("a", "a/x", "f")
    assert not (tmp_path / "x").exists()
    assert not (tmp_path / "made").exists()
