"""Images of an engine: the view of the host, imported root file systems, built recipes."""

from __future__ import annotations

import asyncio
import os
import tarfile
import tempfile
from dataclasses import dataclass
from typing import IO
from urllib.parse import quote

from quintain.errors import BuildError, CapabilityError, ConfigError
from quintain.record import Json, digest
from quintain.sandbox.engines import rootfs
from quintain.sandbox.engines.api import Engine, EngineError
from quintain.sandbox.images.recipe import Recipe
from quintain.task import SandboxSpec

REPOSITORY = "localhost/quintain"
BUILD_S = 1800.0
LABEL = "quintain.image"


@dataclass(frozen=True, slots=True)
class Image:
    """An image that the engine has."""

    id: str
    env: dict[str, str]
    host: bool = False
    """Whether the host's `/usr` is to be mounted into it."""


class Images:
    """Makes the images of specs, each once; one per engine and event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[object, asyncio.Task[Image]] = {}
        self._seen: dict[tuple[str, str], bool] = {}

    async def get(self, spec: SandboxSpec) -> Image:
        """The image of a spec, imported, pulled or built now if it must be.

        Raises:
            ConfigError: no such image, or a recipe that cannot be.
            CapabilityError: a recipe on a base that an engine cannot build on.
            EngineError: the engine refused it.
        """
        key = (spec.image, spec.packages, spec.apt, spec.setup, spec.dockerfile)
        task = self._known.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._known[key] = asyncio.create_task(self._make(spec))
        return await asyncio.shield(task)

    async def has_files(self, image: Image, path: str) -> bool:
        """Whether an image has anything in a folder, found out once."""
        key = (image.id, path)
        if image.host:
            return False
        if key not in self._seen:
            body = {"Image": image.id, "Entrypoint": ["/none"], "Labels": {LABEL: "look"}}
            made = await self._engine.call("POST", "/containers/create", body=body)
            container = f"/containers/{made['Id']}"
            try:
                self._seen[key] = await self._engine.has_files(container, path)
            finally:
                await self._engine.call("DELETE", container, query={"force": "1"})
        return self._seen[key]

    async def forget(self) -> None:
        """Ends what is being made."""
        for task in self._known.values():
            task.cancel()
        await asyncio.gather(*self._known.values(), return_exceptions=True)
        self._known.clear()

    async def _make(self, spec: SandboxSpec) -> Image:
        if spec.dockerfile is not None:
            return await self._build(spec, None)
        if spec.image is None:
            if spec.needs_build:
                raise CapabilityError(
                    "an engine builds packages, apt and setup on an image; name one as `image` "
                    "(a reference, or a folder or tar with a root file system)"
                )
            return await self._host_view()
        base = await self._base(spec.image)
        return await self._build(spec, base) if spec.needs_build else base

    async def _host_view(self) -> Image:
        data = await asyncio.to_thread(lambda: rootfs.tar(rootfs.view()))
        key = digest("view", data)
        found = await self._find(_name("view", key))
        found = found or await self._import(data, "view", key)
        return Image(found.id, {}, host=True)

    async def _base(self, name: str) -> Image:
        if await asyncio.to_thread(os.path.exists, name):
            key = await asyncio.to_thread(rootfs.identity, name)
            found = await self._find(_name("rootfs", key))
            if found is not None:
                return found
            with await asyncio.to_thread(_packed, name) as file:
                if await asyncio.to_thread(rootfs.is_archive_of_images, file):
                    return await self._load(file, key)
                return await self._import(file, "rootfs", key)
        if name.startswith((".", "/")):
            raise ConfigError(f"image {name!r}: no such folder or file")
        found = await self._find(name)
        return found or await self._pull(name)

    async def _pull(self, name: str) -> Image:
        tagged = name if ":" in name.rpartition("/")[2] or "@" in name else f"{name}:latest"
        query = {"fromImage": tagged}
        try:
            await self._engine.progress("/images/create", query=query, timeout_s=BUILD_S)
        except EngineError as error:
            raise ConfigError(
                f"image {name!r}: the engine has none of that name, and cannot pull it: {error}"
            ) from error
        return await self._need(tagged)

    async def _import(self, data: bytes | IO[bytes], kind: str, key: str) -> Image:
        query = {"fromSrc": "-", "repo": _name(kind, key)}
        await self._engine.progress("/images/create", query=query, data=data, timeout_s=BUILD_S)
        return await self._need(_name(kind, key))

    async def _load(self, file: IO[bytes], key: str) -> Image:
        words = await self._engine.progress("/images/load", query={}, data=file, timeout_s=BUILD_S)
        said = "".join(str(word.get("stream", "")) for word in words)
        name = said.partition("Loaded image")[2].partition(":")[2].split()
        if not name:
            raise ConfigError(f"the engine found no image in the archive: {said[-500:]}")
        query = {"repo": _name("rootfs", key), "tag": "latest"}
        await self._engine.call("POST", f"/images/{quote(name[0])}/tag", query=query)
        return await self._need(_name("rootfs", key))

    async def _build(self, spec: SandboxSpec, base: Image | None) -> Image:
        recipe = await asyncio.to_thread(Recipe.of, spec, base.id if base else "")
        tag = _name("built", recipe.key)
        found = await self._find(tag)
        if found is not None:
            return found
        name = None if base is None else base.id
        context = await asyncio.to_thread(recipe.context, name)
        query: dict[str, Json] = {
            "t": tag,
            "rm": "1",
            "forcerm": "1",
            "labels": {LABEL: recipe.key},
        }
        try:
            await self._engine.progress("/build", query=query, data=context, timeout_s=BUILD_S)
        except EngineError as error:
            raise BuildError(f"the engine could not build the image: {error}") from error
        return await self._need(tag)

    async def _find(self, name: str) -> Image | None:
        try:
            found = await self._engine.call("GET", f"/images/{quote(name)}/json")
        except EngineError as error:
            if error.status == 404:
                return None
            raise
        config = found.get("Config") or found.get("ContainerConfig") or {}
        pairs = (str(pair).partition("=") for pair in config.get("Env") or ())
        return Image(str(found["Id"]), {name: value for name, _, value in pairs})

    async def _need(self, name: str) -> Image:
        found = await self._find(name)
        if found is None:
            raise EngineError(404, f"the engine said it made {name}, and has none")
        return found


def _name(kind: str, key: str) -> str:
    """The name of an image that was made here; no tag, which Podman ignores at an import."""
    return f"{REPOSITORY}/{kind}-{key}"


def _packed(path: str) -> IO[bytes]:
    """A tar as it is, or a folder as one in a temporary file."""
    if os.path.isfile(path):
        return open(path, "rb")
    file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - given to the caller
    try:
        with tarfile.open(fileobj=file, mode="w") as archive:
            for name in sorted(os.listdir(path)):
                archive.add(os.path.join(path, name), arcname=name)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file
