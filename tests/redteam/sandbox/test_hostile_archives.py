"""Attack: an image whose layers write, link or make devices outside the image when unpacked."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile

import pytest

from quintain.errors import ConfigError
from quintain.sandbox.images.archive import Archive


def tar_of(*entries):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind, extra in entries:
            member = tarfile.TarInfo(name)
            member.type = kind
            data = b""
            if kind == tarfile.REGTYPE:
                data, member.mode = extra if isinstance(extra, tuple) else (extra, 0o644)
                member.size = len(data)
            elif kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                member.linkname = extra
            elif kind in (tarfile.CHRTYPE, tarfile.BLKTYPE):
                member.devmajor, member.devminor = extra
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def saved(path, *layers):
    """The layers as `docker save` writes them."""
    diff_ids = ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in layers]
    config = json.dumps({"rootfs": {"diff_ids": diff_ids}}).encode()
    name = hashlib.sha256(config).hexdigest() + ".json"
    names = [f"{at}.tar" for at in range(len(layers))]
    manifest = json.dumps([{"Config": name, "Layers": names}]).encode()
    entries = [(name, tarfile.REGTYPE, config), ("manifest.json", tarfile.REGTYPE, manifest)]
    entries += [(n, tarfile.REGTYPE, data) for n, data in zip(names, layers, strict=True)]
    path.write_bytes(tar_of(*entries))
    return path


@pytest.fixture
def victim(tmp_path):
    folder = tmp_path / "host"
    folder.mkdir()
    (folder / "secret").write_text("kept\n")
    return folder


FILE, LINK, HARD, CHAR = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE
ATTACKS = {
    "absolute": lambda v: [[(f"{v}/new", FILE, b"x")]],
    "dots": lambda v: [[("a/../../host/new", FILE, b"x")]],
    "link, then below it": lambda v: [[("l", LINK, str(v)), ("l/new", FILE, b"x")]],
    "relative link": lambda v: [[("l", LINK, "../host"), ("l/new", FILE, b"x")]],
    "link in an earlier layer": lambda v: [[("l", LINK, str(v))], [("l/new", FILE, b"x")]],
    "over a link": lambda v: [[("f", LINK, f"{v}/secret")], [("f", FILE, b"gone\n")]],
    "hard link": lambda v: [[("h", HARD, f"{v}/secret"), ("h", FILE, b"gone\n")]],
    "hard link through a link": lambda v: [[("l", LINK, str(v)), ("h", HARD, "l/secret")]],
    "hard link with dots": lambda v: [[("h", HARD, "../host/secret")]],
    "whiteout outside": lambda v: [[("l", LINK, str(v))], [("l/.wh.secret", FILE, b"")]],
    "whiteout of dots": lambda v: [[("a/x", FILE, b"")], [("a/.wh...", FILE, b"")]],
    "opaque outside": lambda v: [[("l", LINK, str(v))], [("l/.wh..wh..opq", FILE, b"")]],
    "device": lambda v: [[("zero", CHAR, (1, 5))]],
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_is_touched_outside(tmp_path, victim, attack):
    layers = [tar_of(*entries) for entries in ATTACKS[attack](victim)]
    root = tmp_path / "root"
    root.mkdir()
    archive = Archive(str(saved(tmp_path / "image.tar", *layers)))
    told = ""
    try:
        archive.unpack(str(root), owners=os.geteuid() == 0)
    except ConfigError as error:
        told = str(error)
    archive.close()
    assert sorted(os.listdir(victim)) == ["secret"], told
    assert (victim / "secret").read_text() == "kept\n"
    assert (victim / "secret").stat().st_nlink == 1
    for top, _, files in os.walk(root):
        for name in files:
            mode = os.lstat(os.path.join(top, name)).st_mode
            assert stat.S_ISREG(mode) or stat.S_ISLNK(mode), name
    if attack in ("absolute", "dots", "hard link", "hard link with dots", "device",
                  "hard link through a link", "whiteout of dots"):  # fmt: skip
        assert "refused" in told


def test_an_unprotected_unpacking_writes_outside(tmp_path, victim):
    for attack in ("absolute", "link, then below it", "hard link"):
        root = tmp_path / attack
        root.mkdir()
        for entries in ATTACKS[attack](victim):
            with tarfile.open(fileobj=io.BytesIO(tar_of(*entries))) as tar:
                tar.extractall(root, filter="fully_trusted")
    assert "new" in os.listdir(victim)
    assert (victim / "secret").read_text() == "gone\n"


def test_set_uid_bits_do_not_lie_on_the_host(tmp_path):
    layer = tar_of(("su", FILE, (b"#!", 0o6755)), ("d/x", FILE, b""))
    root = tmp_path / "root"
    root.mkdir()
    archive = Archive(str(saved(tmp_path / "image.tar", layer)))
    archive.unpack(str(root), owners=False)
    archive.close()
    assert stat.S_IMODE((root / "su").stat().st_mode) == 0o755
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        tar.extractall(tmp_path / "control", filter="fully_trusted")
    assert (tmp_path / "control/su").stat().st_mode & stat.S_ISUID
