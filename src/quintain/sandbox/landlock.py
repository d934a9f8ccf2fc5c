"""Landlock: a second wall around files, signals and abstract sockets, whatever the first ones do.

The supervisor restricts itself before it starts anything, so all commands of a sandbox share one
domain. Below the sandbox's own root they may do what the file system lets them, but make no device;
everything that is not below it is closed, also to whoever holds a descriptor of it. No mount can
be changed. Where the kernel has them, signals and abstract UNIX sockets end at the domain too.

TCP is left to the network namespace: Landlock's rules know ports, not addresses, so they would
take loopback from the sandbox's own servers.

Bits and structures: the kernel's `landlock.h`; see https://docs.kernel.org/userspace-api/landlock.html.
Standard library only: the Python launcher loads it.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from functools import cache

from quintain.sandbox import wire
from quintain.sandbox.kernel import check, libc

CREATE, ADD, RESTRICT = 444, 445, 446
ASK_VERSION, PATH_BENEATH = 1, 1
FILE_BITS = {1: 13, 2: 14, 3: 15, 4: 15}
"""Version to the number of file rights that it knows; 16 from version 5 on."""
READ_FOLDER, MAKE_CHAR, MAKE_BLOCK, IOCTL_DEV = 1 << 3, 1 << 6, 1 << 11, 1 << 15
ABSTRACT_SOCKETS, SIGNALS = 1, 2
OLDEST = 2
"""Version 1 would forbid every rename from one folder to another."""


@cache
def version() -> int:
    """The version that this kernel speaks; 0: none, or switched off."""
    if sys.platform != "linux":
        return 0
    found = libc.syscall(ctypes.c_long(CREATE), None, ctypes.c_size_t(0), ASK_VERSION)
    return max(0, int(found))


def layers(spoken: int) -> tuple[str, ...]:
    """What a kernel of that version closes, in words."""
    if spoken < OLDEST:
        return ()
    return ("files", "signals", "abstract sockets") if spoken >= 6 else ("files",)


def plan_rules(plan: wire.Plan, spoken: int, layer: str) -> None:
    """Steps that make the rules, while the layer can still be named.

    Args:
        plan: of a sandbox.
        spoken: the kernel's version; nothing is added where it is too old.
        layer: the writable layer, which the supervisor hands to the owner to be read.
    """
    if spoken >= OLDEST:
        scopes = ABSTRACT_SOCKETS | SIGNALS if spoken >= 6 else 0
        plan.add(wire.RULES, a=_files(spoken), b=0, c=scopes)
        plan.add(wire.ALLOW, layer, a=READ_FOLDER)


def plan_restriction(plan: wire.Plan, spoken: int) -> None:
    """Steps that close everything outside the present root, for good; the last of a plan."""
    if spoken >= OLDEST:
        files = _files(spoken)
        plan.add(wire.ALLOW, "/", a=files & ~(MAKE_CHAR | MAKE_BLOCK | IOCTL_DEV))
        if files & IOCTL_DEV:
            plan.add(wire.ALLOW, "/dev", a=IOCTL_DEV)
        plan.add(wire.RESTRICT)


def _files(spoken: int) -> int:
    return (1 << FILE_BITS.get(spoken, 16)) - 1


def create_ruleset(files: int, ports: int, scopes: int) -> int:
    """A descriptor of new rules; an older kernel takes zeros for what it does not know."""
    wanted = struct.pack("<QQQ", files, ports, scopes)
    size = ctypes.c_size_t(len(wanted))
    return int(check(libc.syscall(ctypes.c_long(CREATE), wanted, size, 0), "landlock"))


def allow_below(rules: int, path: str, access: int) -> None:
    """Allows the given rights below a folder."""
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("<Qi", access, folder)
        check(libc.syscall(ctypes.c_long(ADD), rules, PATH_BENEATH, rule, 0), "landlock rule")
    finally:
        os.close(folder)


def restrict_self(rules: int) -> None:
    """Applies the rules to this thread and to everything that it starts."""
    check(libc.syscall(ctypes.c_long(RESTRICT), rules, 0), "landlock")
