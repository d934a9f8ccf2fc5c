"""Images for a backend: found or built when first asked for, once, and in use until it closes."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from quintain.errors import BuildError
from quintain.sandbox.images import builder
from quintain.sandbox.images.builder import BuildLimits, Opener
from quintain.sandbox.images.image import Image
from quintain.sandbox.images.library import Library, folder_identity, host_identity
from quintain.sandbox.images.recipe import Recipe
from quintain.sandbox.images.store import Entry
from quintain.task import SandboxSpec

T = TypeVar("T")
Kind = tuple[object, ...]


class Images:
    """What a backend knows of images.

    Args:
        library: where they are found.
        opener: opens the sandbox of a build.
        limits: of builds.
    """

    def __init__(self, library: Library, opener: Opener, limits: BuildLimits) -> None:
        self.library = library
        self._opener = opener
        self._limits = limits
        self._found: dict[Kind, Image] = {}
        self._failed: dict[Kind, BuildError] = {}
        self._locks: dict[tuple[asyncio.AbstractEventLoop, Kind], asyncio.Lock] = {}

    def close(self) -> None:
        """Gives back everything in use."""
        self._found.clear()
        self._failed.clear()
        self._locks.clear()
        self.library.close()

    def ready(self, spec: SandboxSpec) -> bool:
        """Whether a sandbox of that spec opens without a build or a look for its image."""
        bare = spec.image is None and not spec.needs_build
        return bare or _kind(spec) in self._found

    async def of(self, spec: SandboxSpec) -> Image | None:
        """The image of a spec, built now if it must be; None: the bare view of the host.

        An image stays as it was when it was first asked for; a plain folder is looked at anew.

        Raises:
            BuildError: it cannot be built; asked again, it says so at once.
            ConfigError: there is no such image, or the Dockerfile is wrong.
        """
        if spec.image is None and not spec.needs_build:
            return None
        kind = _kind(spec)
        lock = self._locks.setdefault((asyncio.get_running_loop(), kind), asyncio.Lock())
        async with lock:
            if kind in self._failed:
                raise self._failed[kind]
            if kind not in self._found:
                try:
                    image = await _in_thread(lambda stopped: self._find(spec, stopped))
                except BuildError as error:
                    self._failed[kind] = error
                    raise
                if not spec.needs_build and _is_folder(image):
                    return image
                self._found[kind] = image
            return self._found[kind]

    def recipe(self, spec: SandboxSpec) -> tuple[Recipe, Image]:
        """The recipe of a spec that needs a build, and the base that it is built on; blocks."""
        plain = Recipe.of(spec)
        base = self.library.base(plain.base)
        identity = base.key
        if base.host:
            identity = host_identity(packages=bool(plain.apt))
        elif _is_folder(base):
            identity = folder_identity(base.trees[0].lowers[0])
        return dataclasses.replace(
            plain, identity=f"{identity} {'user' if self.library.rootless else 'root'}"
        ), base

    def _find(self, spec: SandboxSpec, stopped: _Stop) -> Image:
        if not spec.needs_build:
            return self.library.base(spec.image)
        recipe, base = self.recipe(spec)

        def make(folder: Path) -> Entry:
            return stopped.run(
                builder.build(
                    recipe,
                    base,
                    folder,
                    self.library.store,
                    self._opener,
                    self._limits,
                    network=spec.network,
                    rootless=self.library.rootless,
                )
            )

        deadline = time.monotonic() + self._limits.wall_s
        entry = self.library.take(recipe.key, make, deadline, stopped.is_set)
        return self.library.of_entry(entry, list(base.trees), host=base.host)


def _kind(spec: SandboxSpec) -> Kind:
    return (spec.image, spec.packages, spec.apt, spec.setup, spec.dockerfile, spec.network)


def _is_folder(image: Image) -> bool:
    """Whether it is a folder of the user's, used where it lies."""
    return image.key.startswith(os.sep)


class _Stop(threading.Event):
    """Tells a thread to stop, also one that runs an event loop of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._cancel: Callable[[], object] | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in this thread; cancelled by `stop`."""

        async def cancellable() -> T:
            loop = asyncio.get_running_loop()
            task = asyncio.ensure_future(work)
            self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            if self.is_set():
                task.cancel()
            try:
                return await task
            finally:
                self._cancel = None

        return asyncio.run(cancellable())

    def stop(self) -> None:
        self.set()
        if self._cancel is not None:
            self._cancel()


async def _in_thread(work: Callable[[_Stop], T]) -> T:
    """Runs blocking work in a thread of its own; a cancelled caller waits until it stopped."""
    loop = asyncio.get_running_loop()
    stop = _Stop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if not done.done():
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

    def body() -> None:
        try:
            result = work(stop)
        except asyncio.CancelledError:
            loop.call_soon_threadsafe(settle, None, BuildError("the build was stopped"))
        except BaseException as error:
            loop.call_soon_threadsafe(settle, None, error)
        else:
            loop.call_soon_threadsafe(settle, result, None)

    # Not of the loop's own pool: a build takes minutes, and others wait for short work there.
    threading.Thread(target=body, name="quintain-image", daemon=True).start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        stop.stop()
        await asyncio.wait([done])
        done.exception()
        raise
