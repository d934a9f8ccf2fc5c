"""Foreign images on disk: what `docker save` writes, and OCI image layouts (folders or tars).

Every blob is read once and its digest compared with what the manifest says: blobs by their sha256,
layers also by the sha256 of their uncompressed content (`diff_ids`). Sources: the OCI image
specification (image-layout, manifest, config, layer) and Docker's image specification v1.2.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import platform
import tarfile
from collections.abc import Iterator
from typing import IO, Any, cast

from quintain.errors import ConfigError
from quintain.record import digest
from quintain.sandbox.images.image import Config
from quintain.sandbox.images.unpack import Unpacker

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
MOST_JSON = 16 << 20


class Archive:
    """An image on disk, opened.

    Args:
        path: a tar (of `docker save`, or of an OCI layout), or a folder with an OCI layout.

    Raises:
        ConfigError: it is neither; says what is wrong.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._tar: tarfile.TarFile | None = None
        self._members: dict[str, tarfile.TarInfo] = {}
        if not os.path.isdir(path):
            try:
                self._tar = tarfile.open(path, "r:")  # noqa: SIM115 - closed by close()
                for member in self._tar:
                    self._members[os.path.normpath(member.name)] = member
            except (OSError, tarfile.TarError) as error:
                raise self._wrong(f"not a readable tar ({error})") from error
        try:
            self._layers: list[tuple[str, str]] = []
            """Name of the layer's blob, and the digest that it must have (may be empty)."""
            config = self._find()
            found = json.loads(config)
            self._diff_ids = list(found["rootfs"]["diff_ids"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            self.close()
            raise self._wrong(f"its description is not understood ({error!r})") from error
        except BaseException:
            self.close()
            raise
        if len(self._diff_ids) != len(self._layers):
            self.close()
            raise self._wrong(f"{len(self._layers)} layers, but {len(self._diff_ids)} digests")
        self.identity = digest("archive", config)
        self.config = _config(found.get("config") or {})

    def close(self) -> None:
        """Closes the tar."""
        if self._tar is not None:
            self._tar.close()

    def unpack(self, folder: str, *, owners: bool) -> None:
        """Puts all layers into an empty folder.

        Raises:
            ConfigError: a digest is not what the manifest says, or a layer is refused.
        """
        unpacker = Unpacker(folder, owners=owners)
        try:
            for number, ((name, blob), wanted) in enumerate(
                zip(self._layers, self._diff_ids, strict=True), 1
            ):
                label = f"image {self.path}, layer {number}"
                with self._blob(name) as file:
                    raw = _Hashing(file)
                    with _plain(raw, label) as stream:
                        content = _Hashing(stream)
                        unpacker.layer(cast("IO[bytes]", content), label)
                        content.drain()
                    raw.drain()
                if content.digest != wanted or (blob and raw.digest != blob):
                    raise ConfigError(f"{label}: its digest is not the one the manifest gives")
        finally:
            unpacker.close()

    def _wrong(self, why: str) -> ConfigError:
        return ConfigError(
            f"image {self.path!r}: expected a folder with a root file system, a tar of "
            f"`docker save`, or an OCI image layout: {why}"
        )

    @contextlib.contextmanager
    def _blob(self, name: str) -> Iterator[IO[bytes]]:
        if self._tar is None:
            path = os.path.join(self.path, name)
            if os.path.islink(path):
                raise self._wrong(f"{name} is a link")
            try:
                file: IO[bytes] | None = open(path, "rb")  # noqa: SIM115 - closed below
            except OSError as error:
                raise self._wrong(f"{name}: {error.strerror}") from error
        else:
            member = self._members.get(os.path.normpath(name))
            for _ in range(8):  # older `docker save` links equal layers
                if member is None or not member.issym():
                    break
                above = os.path.dirname(member.name)
                member = self._members.get(os.path.normpath(os.path.join(above, member.linkname)))
            file = self._tar.extractfile(member) if member is not None else None
        if file is None:
            raise self._wrong(f"it lacks {name}")
        with file:
            yield file

    def _json(self, name: str, wanted: str = "") -> tuple[Any, bytes]:
        with self._blob(name) as file:
            data = file.read(MOST_JSON)
        if wanted and "sha256:" + hashlib.sha256(data).hexdigest() != wanted:
            raise self._wrong(f"{name} has not the digest that it is named by")
        return json.loads(data), data

    def _find(self) -> bytes:
        """Fills in the layers; the bytes of the config."""
        if self._has("manifest.json"):
            return self._docker()
        if self._has("index.json"):
            return self._oci()
        raise self._wrong("it has neither manifest.json nor index.json")

    def _has(self, name: str) -> bool:
        if self._tar is None:
            return os.path.isfile(os.path.join(self.path, name))
        return name in self._members

    def _docker(self) -> bytes:
        manifest, _ = self._json("manifest.json")
        if len(manifest) != 1:
            tags = [entry.get("RepoTags") for entry in manifest]
            raise self._wrong(f"it holds {len(manifest)} images ({tags}); save one")
        self._layers = [(name, "") for name in manifest[0]["Layers"]]
        name = manifest[0]["Config"]
        digit = os.path.basename(name).removesuffix(".json")
        return self._json(name, f"sha256:{digit}" if len(digit) == 64 else "")[1]

    def _oci(self) -> bytes:
        index, _ = self._json("index.json")
        for _ in range(4):
            chosen = self._choose(index["manifests"])
            index, _ = self._json(_blob_name(chosen["digest"]), chosen["digest"])
            if "layers" in index:
                break
        self._layers = [(_blob_name(layer["digest"]), layer["digest"]) for layer in index["layers"]]
        config = index["config"]["digest"]
        return self._json(_blob_name(config), config)[1]

    def _choose(self, manifests: list[dict[str, Any]]) -> dict[str, Any]:
        own = MACHINES.get(platform.machine(), platform.machine())
        fitting = [
            one
            for one in manifests
            if one.get("platform", {}).get("architecture", own) == own
            and one.get("platform", {}).get("os", "linux") == "linux"
        ]
        if len(fitting) != 1:
            raise self._wrong(f"it holds {len(fitting)} images for linux/{own}; save one")
        return fitting[0]


def _blob_name(digest_: str) -> str:
    kind, _, value = digest_.partition(":")
    if kind != "sha256" or len(value) != 64 or not all(c in "0123456789abcdef" for c in value):
        raise ValueError(f"expected a sha256 digest, got {digest_!r}")
    return f"blobs/sha256/{value}"


def _config(found: dict[str, Any]) -> Config:
    pairs = [item.partition("=") for item in found.get("Env") or ()]
    entry = (*(found.get("Entrypoint") or ()), *(found.get("Cmd") or ()))
    return Config(
        env={name: value for name, _, value in pairs if name},
        workdir=found.get("WorkingDir") or "",
        user=found.get("User") or "",
        entrypoint=entry,
    )


class _Hashing:
    """A stream that is hashed as it is read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        return data

    def drain(self) -> None:
        while self.read(1 << 20):
            continue

    @property
    def digest(self) -> str:
        return "sha256:" + self._hash.hexdigest()


@contextlib.contextmanager
def _plain(raw: _Hashing, label: str) -> Iterator[IO[bytes]]:
    """The uncompressed content of a layer."""
    head = raw.read(4)
    joined = _Joined(head, raw)
    if head[:2] == b"\x1f\x8b":
        with gzip.GzipFile(fileobj=cast("IO[bytes]", joined)) as file:
            yield cast("IO[bytes]", file)
    elif head == b"\x28\xb5\x2f\xfd":
        try:
            import zstandard
        except ImportError:
            raise ConfigError(
                f"{label} is compressed by zstd: pip install zstandard, or save it with gzip"
            ) from None
        with zstandard.ZstdDecompressor().stream_reader(cast("IO[bytes]", joined)) as reader:
            yield cast("IO[bytes]", reader)
    else:
        yield cast("IO[bytes]", joined)


class _Joined:
    """What was read already, then the rest."""

    def __init__(self, head: bytes, rest: _Hashing) -> None:
        self._head = head
        self._rest = rest

    def read(self, size: int = -1) -> bytes:
        if not self._head:
            return self._rest.read(size)
        if 0 <= size <= len(self._head):
            data, self._head = self._head[:size], self._head[size:]
            return data
        data, self._head = self._head, b""
        return data + self._rest.read(size - len(data) if size >= 0 else -1)
