"""What an OCI bundle's root is made of: the view of the host, or the trees of an image."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from quintain.record import digest
from quintain.sandbox.engines import rootfs, setup
from quintain.sandbox.images.image import Image

ETC = ("hosts", "hostname", "resolv.conf", "nsswitch.conf")


@dataclass(frozen=True, slots=True)
class Ground:
    """The read-only part of a root."""

    lower: str
    """`lowerdir` of its overlay."""
    binds: tuple[tuple[str, str], ...]
    """What else is mounted on it, as `(source, target)`, read-only."""
    script: str = ""
    """Shell lines that mount what must be, in the bundle's folder, before its root is mounted."""


def of_view(view: str) -> Ground:
    """The host's `/usr` on a folder made by `rootfs.lay`."""
    return Ground(_lowers([view]), (*rootfs.mounts(), (f"{view}/etc", "/etc")))


def of_image(image: Image, folder: str) -> Ground:
    """The trees of an image.

    Args:
        image: found or built by the native library of images.
        folder: of the bundle.
    """
    root, *others = image.trees
    binds, lines = [], []
    for at, tree in enumerate(others):
        source = tree.lowers[0]
        if len(tree.lowers) > 1:
            source = f"{folder}/tree-{at}"
            options = f"ro,nosuid,nodev,lowerdir={_lowers(tree.lowers)}"
            lines += [f"mkdir tree-{at}", f"mount -t overlay -o {shlex.quote(options)} t tree-{at}"]
        binds.append((source, tree.target))
    etc = {node.path: node.data or b"" for node in rootfs.view()}
    files = {name: etc[f"etc/{name}"] for name in ETC}
    files |= {"passwd": image.passwd.encode(), "group": image.group.encode()}
    # Where the image has no such file, the runtime, which is root inside, could not make it.
    lines.append("mkdir -p disk/upper/etc && chown $owner:$owner disk/upper/etc")
    for name, data in files.items():
        lines.append(f": >disk/upper/etc/{name}")
        binds.append((setup.file_of(f"{name}-{digest(data)}", data), f"/etc/{name}"))
    return Ground(_lowers(root.lowers), tuple(binds), "\n".join(lines))


def _lowers(folders: Sequence[str]) -> str:
    # The overlay's options have '\', ':' and ',' for themselves.
    return ":".join(re.sub(r"([\\:,])", r"\\\1", folder) for folder in folders)
