"""The guest's kernel: a distribution's own, unpacked into the user's cache, never installed.

`python -m quintain.sandbox.microvm.kernel` fetches Debian's cloud kernel with apt (no root needed)
and keeps its image and the modules that a guest loads. Whoever has another kernel gives its folder
to `MicrovmBackend(kernel=...)`: `vmlinuz` and a `modules` folder with the files of `MODULES`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from quintain.errors import IsolationError
from quintain.sandbox import build

PACKAGE = "linux-image-cloud-amd64"
"""A metapackage; what it depends on holds the kernel."""
FETCH_S = 300.0
MODULES = (
    "virtio", "virtio_ring", "virtio_mmio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev",
    "virtio_pci", "virtio_blk", "virtio_console", "squashfs", "overlay",
)  # fmt: skip
"""In the order in which they are loaded; one that is built in has no file."""
VSOCK_MODULES = ("vsock", "vmw_vsock_virtio_transport_common", "vmw_vsock_virtio_transport")
"""Loaded too where the agent is reached by vsock."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel to boot."""

    image: Path
    modules: tuple[Path, ...]
    """In the order in which they are loaded."""
    version: str


def folder() -> Path:
    """Where the fetched kernel lies."""
    return build.cache_folder().parent / "microvm" / "kernel"


def find(given: str | os.PathLike[str] | None = None, *, vsock: bool = False) -> Kernel:
    """The kernel to boot.

    Args:
        given: its folder; None: the one that was fetched.
        vsock: load what a vsock needs.

    Raises:
        IsolationError: there is none.
    """
    place = Path(given) if given is not None else folder()
    image = place / "vmlinuz"
    if not image.is_file():
        raise IsolationError(
            f"no kernel for a guest: {image} is not there. Fetch one with "
            "`python -m quintain.sandbox.microvm.kernel` (Debian's, through apt), or give "
            "kernel=FOLDER with a vmlinuz and its modules",
            ("kernel",),
        )
    names = (*MODULES, *VSOCK_MODULES) if vsock else MODULES
    files = (place / "modules" / f"{name}.ko" for name in names)
    name = place / "version"
    version = name.read_text().strip() if name.is_file() else "unknown"
    return Kernel(image, tuple(file for file in files if file.is_file()), version)


def fetch(target: Path | None = None) -> Path:
    """Downloads Debian's cloud kernel and unpacks what a guest needs; returns the folder.

    Raises:
        IsolationError: apt does not have it, or it is not as expected.
    """
    place = target or folder()
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=place.parent) as name:
        work = Path(name)
        work.chmod(0o755)
        depends = _run(["apt-cache", "depends", "--important", PACKAGE], work)
        found = [
            line.split()[-1] for line in depends.splitlines() if "Depends: linux-image" in line
        ]
        if not found:
            raise IsolationError(f"apt knows no {PACKAGE}: is this Debian?", ("kernel",))
        _run(["apt-get", "download", "-q", found[0]], work)
        (package,) = work.glob("*.deb")
        _run(["dpkg-deb", "-x", str(package), "tree"], work)
        _keep(work / "tree", work / "kernel", found[0])
        shutil.rmtree(place, ignore_errors=True)
        (work / "kernel").rename(place)
    return place


def _run(argv: list[str], folder: Path) -> str:
    try:
        run = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=FETCH_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise IsolationError(f"no kernel could be fetched: {error}", ("kernel",)) from error
    if run.returncode:
        said = run.stderr.strip()[-500:]
        raise IsolationError(f"no kernel could be fetched: {argv[0]}: {said}", ("kernel",))
    return run.stdout


def _keep(tree: Path, target: Path, version: str) -> None:
    images = list((tree / "boot").glob("vmlinuz-*"))
    if len(images) != 1:
        raise IsolationError(f"{version} holds {len(images)} kernels, expected one", ("kernel",))
    (target / "modules").mkdir(parents=True)
    shutil.copy(images[0], target / "vmlinuz")
    for file in tree.glob("**/*.ko"):
        if file.stem.replace("-", "_") in (*MODULES, *VSOCK_MODULES):
            shutil.copy(file, target / "modules" / f"{file.stem.replace('-', '_')}.ko")
    (target / "version").write_text(version)


if __name__ == "__main__":
    try:
        print(fetch())
    except IsolationError as error:
        sys.exit(str(error))
