"""A Debian base by debootstrap, made on request.

debootstrap checks the archive's signature and runs the packages' own scripts as root in a chroot,
which is why this is done by name only and never by opening a sandbox.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

from quintain.errors import CapabilityError
from quintain.record import digest
from quintain.sandbox.images import fetch
from quintain.sandbox.images.builder import settle
from quintain.sandbox.images.store import Entry, Store, remove_tree, tree_bytes

INCLUDED = ("python3", "ca-certificates")
MIRROR = "http://deb.debian.org/debian"
DEADLINE_S = 1800.0
EMPTIED = ("dev", "proc", "sys", "run", "tmp", "var/cache/apt/archives", "var/lib/apt/lists")
_URI = re.compile(r"^\s*(?:deb\s+(?:\[[^]]*\]\s*)?|URIs:\s*)(https?://\S+)\s*(\S+)?", re.MULTILINE)


def build(store: Store, *, name: str = "debian", suite: str = "", mirror: str = "") -> Entry:
    """Makes the base and names it; blocks for minutes.

    Args:
        store: where it goes.
        name: what it is called afterwards.
        suite: of Debian; empty: the host's, where that is a Debian, else "stable".
        mirror: empty: what the host's own apt uses, where that is a Debian's.

    Raises:
        CapabilityError: no debootstrap here, or not root.
        BuildError: it failed; holds the end of its output.
    """
    program = shutil.which("debootstrap", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if program is None:
        raise CapabilityError("a Debian base is made by debootstrap: apt-get install debootstrap")
    if os.geteuid() != 0:
        raise CapabilityError(
            "debootstrap needs root; an ordinary user adds an image of `docker save` instead: "
            "quintain images add NAME PATH"
        )
    own = _own_suite()
    suite = suite or own or "stable"
    mirror = mirror or (_own_mirror() if own else "") or MIRROR
    key = digest("debian", suite, mirror, platform.machine(), time.time_ns())

    def make(folder: Path) -> Entry:
        root = folder / "root"
        include = ",".join(INCLUDED)
        argv = [program, "--variant=minbase", f"--include={include}", suite, str(root), mirror]
        asyncio.run(_run(argv))
        for place in EMPTIED:
            remove_tree(root / place)
            (root / place).mkdir(mode=0o1777 if place == "tmp" else 0o755)
        (root / "tmp").chmod(0o1777)
        settle(root, 0)
        return Entry(
            key=key,
            kind="debian",
            source=f"debootstrap {suite}",
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            size_bytes=tree_bytes(folder),
            trees={"/": "root"},
        )

    entry, lease = store.ensure(key, make, deadline=time.monotonic() + DEADLINE_S)
    try:
        store.name(name, {"key": key})
    finally:
        lease.close()
    return entry


async def _run(argv: list[str]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await fetch.call(argv, "debootstrap", {"DEBIAN_FRONTEND": "noninteractive"})


def _own_suite() -> str:
    try:
        text = Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError:
        return ""
    known = dict(line.partition("=")[::2] for line in text.splitlines())
    return known.get("VERSION_CODENAME", "").strip('"') if known.get("ID") == "debian" else ""


def _own_mirror() -> str:
    """The first archive of the host's apt that is a Debian's main one."""
    folder = Path("/etc/apt")
    files = [folder / "sources.list", *sorted(folder.glob("sources.list.d/*"))]
    for file in files:
        if not file.is_file():
            continue
        for uri, _ in _URI.findall(file.read_text(encoding="utf-8", errors="replace")):
            if uri.rstrip("/").endswith("/debian"):
                return str(uri)
    return ""
