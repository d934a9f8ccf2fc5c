"""Foreign images: `docker save` and OCI layouts, whiteouts, digests, settings, owners."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import tarfile

import pytest

from quintain.errors import ConfigError
from quintain.sandbox.images.archive import MACHINES, Archive
from quintain.task import SandboxSpec

CONFIG = {
    "Env": ["GREETING=good day", "PATH=/opt/bin:/usr/bin:/bin"],
    "WorkingDir": "/srv",
    "User": "postgres",
    "Entrypoint": ["/bin/sh", "-c"],
    "Cmd": ["true"],
}


def named(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def docker_save(new_tar, path, layers, config=CONFIG, *, diff_ids=None):
    """A tar as `docker save` writes it."""
    described = {"config": config, "rootfs": {"type": "layers", "diff_ids": diff_ids or [
        named(layer) for layer in layers]}}  # fmt: skip
    raw = json.dumps(described).encode()
    outer = new_tar()
    name = named(raw).removeprefix("sha256:") + ".json"
    outer.add(name, raw)
    names = [f"{at}/layer.tar" for at in range(len(layers))]
    for layer, at in zip(layers, names, strict=True):
        outer.add(at, layer)
    manifest = [{"Config": name, "RepoTags": ["x:1"], "Layers": names}]
    outer.add("manifest.json", json.dumps(manifest).encode())
    path.write_bytes(outer.bytes())
    return path


def oci_layout(folder, layers, config=CONFIG, *, change=None):
    """A folder with an OCI layout; layers are compressed."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def put(data):
        (blobs / named(data).removeprefix("sha256:")).write_bytes(data)
        return {"digest": named(data), "size": len(data)}

    described = {"config": config, "rootfs": {"diff_ids": [named(layer) for layer in layers]}}
    packed = [put(gzip.compress(layer)) for layer in layers]
    manifest = {"config": put(json.dumps(described).encode()), "layers": packed}
    own = MACHINES[platform.machine()]
    entry = {**put(json.dumps(manifest).encode()), "platform": {"architecture": own, "os": "linux"}}
    other = {**entry, "platform": {"architecture": "s390x", "os": "linux"}}
    (folder / "index.json").write_text(json.dumps({"manifests": [other, entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


@pytest.fixture
def layers(tiny, new_tar):
    first = new_tar().tree(tiny).bytes()
    second = (
        new_tar()
        .folder("srv/old")
        .add("srv/old/a", b"a")
        .add("srv/old/b", b"b")
        .add("srv/gone", b"g")
        .add("srv/mine", b"m", uid=105, mode=0o600)
        .add("srv/suid", b"s", mode=0o4755)
        .add("srv/same", kind=tarfile.LNKTYPE, link="data")
        .bytes()
    )
    third = (
        new_tar()
        .folder("srv/old")
        .add("srv/old/new", b"n")
        .add("srv/old/.wh..wh..opq")
        .add("srv/.wh.gone")
        .add("dev/null", kind=tarfile.CHRTYPE, device=(1, 3))
        .bytes()
    )
    return [first, second, third]


@pytest.mark.parametrize("kind", ["docker", "oci", "oci-tar"])
async def test_an_image_on_disk(one_backend, store, tmp_path, new_tar, layers, kind):
    if kind == "docker":
        path = docker_save(new_tar, tmp_path / "image.tar", layers)
    else:
        path = oci_layout(tmp_path / "oci", layers)
    if kind == "oci-tar":
        path = tmp_path / "oci.tar"
        path.write_bytes(new_tar().tree(tmp_path / "oci").bytes())
    spec = SandboxSpec(image=str(path))
    box = await one_backend.open(spec)
    assert (box.spec.workdir, box.spec.user) == ("/srv", "postgres")
    line = "ls /srv /srv/old; cat mine same; echo $GREETING; stat -c '%u %a' mine suid; id -u"
    run = await box.exec(["sh", "-c", line])
    listed = ["/srv:", "mine", "old", "same", "suid", "/srv/old:", "new"]
    rest = "mof the base good day 105 600 0 755 105"
    assert run.text.split() == [*listed, *rest.split()], run
    assert (await box.exec(["sh", "-c", "touch here mine"])).ok
    await box.close()
    # Unpacked once, whatever the archive is called.
    again = path.rename(tmp_path / "renamed")
    box = await one_backend.open(SandboxSpec(image=str(again), user="root", workdir="/w"))
    assert (await box.exec(["id", "-u"])).text == "0\n"
    assert box.spec.workdir == "/w"
    await box.close()
    assert [entry.kind for entry in store.entries()] == ["archive"]


async def test_a_layer_on_an_archive(one_backend, store, tmp_path, new_tar, layers):
    path = docker_save(new_tar, tmp_path / "image.tar", layers)
    store.name("mine", {"path": str(path)})
    text = "FROM mine\nUSER root\nRUN rm /srv/mine && echo $GREETING > /srv/said\n"
    box = await one_backend.open(SandboxSpec(dockerfile=text, user="postgres"))
    run = await box.exec(["sh", "-c", "ls /srv; cat /srv/said"])
    assert run.text.split() == ["old", "said", "same", "suid", "good", "day"]
    await box.close()


@pytest.mark.parametrize("what", ["layer", "config", "compressed"])
async def test_a_changed_blob_is_refused(one_backend, store, tmp_path, new_tar, layers, what):
    if what == "layer":
        wrong = [named(layer) for layer in reversed(layers)]
        path = docker_save(new_tar, tmp_path / "image.tar", layers, diff_ids=wrong)
    else:
        path = oci_layout(tmp_path / "oci", layers)
        for blob in (path / "blobs/sha256").iterdir():
            data = blob.read_bytes()
            if data.startswith(b"\x1f\x8b") and what == "compressed":
                blob.write_bytes(gzip.compress(gzip.decompress(data), 1))
            elif b"diff_ids" in data and what == "config":
                blob.write_bytes(data + b" ")
    with pytest.raises(ConfigError, match="digest"):
        await one_backend.open(SandboxSpec(image=str(path)))
    assert store.entries() == []
    assert not os.path.exists(store.folder / "making") or not os.listdir(store.folder / "making")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda new_tar: b"no tar", "readable tar"),
        (lambda new_tar: new_tar().add("a", b"x").bytes(), "neither manifest.json"),
        (lambda new_tar: new_tar().add("manifest.json", b"[{}]").bytes(), "not understood"),
        (lambda new_tar: new_tar().add("manifest.json", b"[{}, {}]").bytes(), "2 images"),
        (lambda new_tar: new_tar().add("index.json", b'{"manifests": []}').bytes(), "0 images"),
        (
            lambda new_tar: (
                new_tar()
                .add("index.json", b'{"manifests": [{"digest": "sha256:../../etc/passwd"}]}')
                .bytes()
            ),
            "sha256",
        ),
    ],
)
def test_what_is_no_image_is_told(tmp_path, new_tar, make, told):
    path = tmp_path / "x.tar"
    path.write_bytes(make(new_tar))
    with pytest.raises(ConfigError, match=told):
        Archive(str(path))


async def test_an_unknown_name_lists_the_known(one_backend, store, tiny):
    store.name("debian", {"path": str(tiny)})
    with pytest.raises(ConfigError, match=r"debain.*debian"):
        await one_backend.open(SandboxSpec(image="debain"))


def test_zstd_is_read_or_refused_by_name(tmp_path, new_tar, layers):
    zstandard = pytest.importorskip("zstandard")
    folder = oci_layout(tmp_path / "oci", [layers[0]])
    packed = zstandard.compress(layers[0])
    blobs = folder / "blobs/sha256"
    manifest = next(p for p in blobs.iterdir() if b'"layers"' in p.read_bytes()[:2000])
    described = json.loads(manifest.read_bytes())
    described["layers"] = [{"digest": named(packed)}]
    (blobs / named(packed)[7:]).write_bytes(packed)
    data = json.dumps(described).encode()
    (blobs / named(data)[7:]).write_bytes(data)
    (folder / "index.json").write_text(json.dumps({"manifests": [{"digest": named(data)}]}))
    target = tmp_path / "root"
    target.mkdir()
    archive = Archive(str(folder))
    archive.unpack(str(target), owners=False)
    archive.close()
    assert (target / "data").read_text() == "of the base\n"


def test_layers_replace_kinds(tmp_path, new_tar):
    from quintain.sandbox.images.unpack import Unpacker

    lower = new_tar().add("a/b", b"x").add("c", b"x").add("l", kind=tarfile.SYMTYPE, link="a")
    upper = (
        new_tar().add("a", b"now a file").folder("c").add("c/d", b"y").folder("l").add("l/e", b"z")
    )
    unpacker = Unpacker(str(tmp_path), owners=False)
    unpacker.layer(io.BytesIO(lower.bytes()), "lower")
    unpacker.layer(io.BytesIO(upper.bytes()), "upper")
    unpacker.close()
    assert (tmp_path / "a").read_text() == "now a file"
    assert (tmp_path / "c/d").read_text() == "y"
    assert (tmp_path / "l/e").read_text() == "z"
    assert not (tmp_path / "l").is_symlink()
