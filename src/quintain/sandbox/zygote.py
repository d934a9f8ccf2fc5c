"""Python that starts in a fork: one interpreter imports, every sandbox is forked from it.

The *template* is an interpreter with modules imported, inside a view of its own of what sandboxes
see. It is the spawn server of its sandboxes: each is forked from it into fresh namespaces, control
groups and a system-call filter as any other, and its Python commands go on in a fork instead of
starting an interpreter.

What is trusted: the template runs what the modules do when they are imported, and has rights that a
candidate never has, so it has them in a user namespace of its own only: an id on the host that
nothing else has, no file system of the host, no network, no other processes in sight. It is started
with a clean environment, holds no descriptor but the one to its server, and never sees an argument,
an input or a file of any use. What its forks share is what `exec` would make new: the layout of the
address space, and the seed of string hashes, which is fixed at 0.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from quintain.errors import ConfigError
from quintain.sandbox import layout, wire
from quintain.sandbox.images.image import Image
from quintain.task import SandboxSpec

INSIDE = "/.template"
LINES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Threads do not survive a fork: libraries start none."""
COUNTS = struct.Struct("<II")
FIRST_ID, IDS_AN_OWNER = 0x6F000000, 64


def request(
    spec: SandboxSpec,
    image: Image | None,
    modules: Sequence[str],
    ids: layout.Ids,
    library: bytes,
    count: int,
) -> bytes:
    """The body of a `TEMPLATE` frame.

    Args:
        spec: of the sandboxes that it is for: its user and environment matter here.
        image: their base; None: the view of the host.
        modules: what it imports, in order.
        ids: of one such sandbox.
        library: the helper as a shared object.
        count: a number that no other template of this process has.

    Raises:
        ConfigError: what is no name of a module.
    """
    for module in modules:
        if not all(part.isidentifier() for part in module.split(".")):
            raise ConfigError(f"modules: expected names of modules, got {module!r}")
    name, base = layout.base_plan(spec, ids, image)
    # The ids of its sandboxes are in it what they are on the host.
    first, many = (ids.init, layout.RANGE) if ids.ranged else layout.pairs()
    maps = f"0 {_own_id(count)} 1\n{first} {first} {many}\n"
    plan = _view(image, library, ids, maps)
    argv = ["python3", "-B", f"{INSIDE}/main.py", f"{INSIDE}/box.so", *modules]
    env = {**layout.environment(spec, image), **dict.fromkeys(LINES, "1"), "PYTHONHASHSEED": "0"}
    pairs = [f"{key}={value}" for key, value in env.items()]
    parts: list[str | bytes] = [name, bytes(base.data), bytes(plan.data), maps, *argv, *pairs]
    return COUNTS.pack(len(argv), len(pairs)) + b"".join(wire.text(part) for part in parts)


def _own_id(count: int) -> int:
    """The uid and gid on the host of this process's template with that number."""
    return FIRST_ID + os.getpid() % 32768 * IDS_AN_OWNER + count % IDS_AN_OWNER


def _view(image: Image | None, library: bytes, ids: layout.Ids, maps: str) -> wire.Plan:
    """Steps by which the template enters what it sees, and keeps what sandboxes are born into."""
    plan = wire.Plan()
    plan.add(wire.UNSHARE, a=wire.NEW_MOUNT)
    guarded = wire.MS_NOSUID | wire.MS_NODEV | wire.MS_NOEXEC
    # Now: later it has no say over the PID namespace that it was born in.
    plan.mount("proc", "/proc", "proc", guarded)
    if ids.rootless:
        plan.add(wire.USERNS, "0 0 1\n", "0 0 1\n", a=wire.NOBODY, flags=wire.SELF_MAP)
    else:
        plan.mount("dev", "/dev", "tmpfs", wire.MS_NOSUID, "size=64k,mode=755")
        layout.make_devices(plan, "/dev")
        plan.add(wire.USERNS, maps, maps, a=0, b=0)
    spaces = wire.NEW_MOUNT | wire.NEW_IPC | wire.NEW_UTS | wire.NEW_NET | wire.NEW_CGROUP
    plan.add(wire.UNSHARE, a=spaces)
    plan.add(wire.SPACE)
    plan.add(wire.UNSHARE, a=wire.NEW_MOUNT)
    box = layout.BOX
    own = replace(ids, init=0, user=0, group=0)
    layout.root_plan(plan, own, "size=32m,mode=755", image)
    plan.mkdir(box + INSIDE)
    plan.write(f"{box}{INSIDE}/main.py", Path(__file__).with_name("template.py").read_bytes(),
               create=True)  # fmt: skip
    plan.write(f"{box}{INSIDE}/box.so", library, create=True)
    plan.mount("/proc", f"{box}/proc", flags=wire.MS_BIND | wire.MS_REC)
    plan.add(wire.ENTER, box)
    return plan
