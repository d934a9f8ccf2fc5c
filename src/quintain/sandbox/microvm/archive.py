"""The initial RAM disk: the agent as `/init`, and the modules it loads, as a cpio archive.

Format: "newc" of the kernel's `Documentation/driver-api/early-userspace/buffer-format.rst`.
"""

from __future__ import annotations

import os
from pathlib import Path

from quintain.errors import IsolationError
from quintain.record import digest
from quintain.sandbox import build
from quintain.sandbox.microvm.kernel import Kernel

AGENT = Path(__file__).with_name("agent.c")
JAIL = Path(__file__).with_name("jail.c")
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-static")
_FILE, _FOLDER, _DEVICE = 0o100755, 0o040755, 0o020600


def _entry(name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)) -> bytes:
    path = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(path), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + path
    return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)


def pack(agent: bytes, modules: dict[str, bytes]) -> bytes:
    """The archive.

    Args:
        agent: the program that becomes `/init`.
        modules: file name to content, in the order in which they are loaded.
    """
    parts = [
        _entry("dev", _FOLDER),
        _entry("dev/console", _DEVICE, device=(5, 1)),
        _entry("init", _FILE, agent),
        _entry("modules", _FOLDER),
        _entry("modules/order", _FILE, "".join(f"{name}\n" for name in modules).encode()),
    ]
    parts += [_entry(f"modules/{name}", _FILE, data) for name, data in modules.items()]
    return b"".join([*parts, _entry("TRAILER!!!", 0)])


def programs() -> tuple[Path, Path]:
    """The compiled agent and jail, built now if they must be.

    Raises:
        IsolationError: there is no C compiler, or no static C library.
    """
    found = [build.compiled(source, FLAGS) for source in (AGENT, JAIL)]
    agent, jail = found
    if agent is None or jail is None:
        raise IsolationError(
            "the guest agent cannot be compiled: a C compiler and a static C library are needed "
            "once (Debian: apt-get install gcc libc6-dev)",
            ("guest agent",),
        )
    return agent, jail


def initial_disk(kernel: Kernel, agent: Path) -> Path:
    """The RAM disk of a kernel, kept in the cache by content."""
    modules = {file.name: file.read_bytes() for file in kernel.modules}
    data = pack(agent.read_bytes(), modules)
    target = build.cache_folder().parent / "microvm" / f"initrd-{digest(data)}"
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = target.with_name(f"{target.name}.{os.getpid()}")
        draft.write_bytes(data)
        draft.chmod(0o644)
        draft.replace(target)
    return target
