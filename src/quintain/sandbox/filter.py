"""The system-call filter, as a classic BPF program that the kernel runs before every call.

A list of what is refused, with three rules that keep it closed: another architecture's calls kill
the process, calls newer than the newest known do not exist, and sockets are allowed by *family*
(UNIX and IP only), so that `socketpair`, asyncio and multiprocessing work. Refused calls answer
EPERM; `clone3` answers ENOSYS (its flags lie in memory, where a filter cannot look), and the C
library falls back to `clone`, whose flags it can.

Numbers: the kernel's `unistd` tables of x86_64 and aarch64.
"""

from __future__ import annotations

import errno
import platform
import struct
from functools import cache

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCH, _ARGUMENT = 0, 4, (16, 24, 32, 40, 48, 56)

NAMESPACES = 0x7E020080
"""Every CLONE_NEW* flag."""
FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6."""
TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: typing into someone else's terminal."""

X86_64: dict[str, int] = {
    "acct": 163, "add_key": 248, "adjtimex": 159, "bpf": 321, "chroot": 161, "clock_adjtime": 305,
    "clock_settime": 227, "delete_module": 176, "fanotify_init": 300, "finit_module": 313,
    "fsconfig": 431, "fsmount": 432, "fsopen": 430, "fspick": 433, "init_module": 175,
    "io_uring_enter": 426, "io_uring_register": 427, "io_uring_setup": 425, "ioperm": 173,
    "iopl": 172, "kcmp": 312, "kexec_file_load": 320, "kexec_load": 246, "keyctl": 250,
    "lookup_dcookie": 212, "memfd_secret": 447, "migrate_pages": 256, "modify_ldt": 154,
    "mount": 165, "mount_setattr": 442, "move_mount": 429, "move_pages": 279,
    "name_to_handle_at": 303, "nfsservctl": 180, "open_by_handle_at": 304, "open_tree": 428,
    "open_tree_attr": 467, "perf_event_open": 298, "pidfd_getfd": 438, "pivot_root": 155,
    "process_madvise": 440, "process_vm_readv": 310, "process_vm_writev": 311, "ptrace": 101,
    "quotactl": 179, "quotactl_fd": 443, "reboot": 169, "request_key": 249, "setdomainname": 171,
    "sethostname": 170, "setns": 308, "settimeofday": 164, "swapoff": 168, "swapon": 167,
    "sysfs": 139, "syslog": 103, "umount2": 166, "unshare": 272, "uselib": 134,
    "userfaultfd": 323, "ustat": 136, "vhangup": 153, "vmsplice": 278,
}  # fmt: skip
AARCH64: dict[str, int] = {
    "acct": 89, "add_key": 217, "adjtimex": 171, "bpf": 280, "chroot": 51, "clock_adjtime": 266,
    "clock_settime": 112, "delete_module": 106, "fanotify_init": 262, "finit_module": 273,
    "fsconfig": 431, "fsmount": 432, "fsopen": 430, "fspick": 433, "init_module": 105,
    "io_uring_enter": 426, "io_uring_register": 427, "io_uring_setup": 425, "kcmp": 272,
    "kexec_file_load": 294, "kexec_load": 104, "keyctl": 219, "lookup_dcookie": 18,
    "memfd_secret": 447, "migrate_pages": 238, "mount": 40, "mount_setattr": 442,
    "move_mount": 429, "move_pages": 239, "name_to_handle_at": 264, "nfsservctl": 42,
    "open_by_handle_at": 265, "open_tree": 428, "open_tree_attr": 467, "perf_event_open": 241,
    "pidfd_getfd": 438, "pivot_root": 41, "process_madvise": 440, "process_vm_readv": 270,
    "process_vm_writev": 271, "ptrace": 117, "quotactl": 60, "quotactl_fd": 443, "reboot": 142,
    "request_key": 218, "setdomainname": 162, "sethostname": 161, "setns": 268,
    "settimeofday": 170, "swapoff": 225, "swapon": 224, "syslog": 116, "umount2": 39,
    "unshare": 97, "userfaultfd": 282, "vhangup": 58, "vmsplice": 75,
}  # fmt: skip
_SPECIAL = {
    "x86_64": {"clone": 56, "clone3": 435, "socket": 41, "socketpair": 53, "ioctl": 16,
               "personality": 135},
    "aarch64": {"clone": 220, "clone3": 435, "socket": 198, "socketpair": 199, "ioctl": 29,
                "personality": 92},
}  # fmt: skip
_MACHINES = {"x86_64": (0xC000003E, X86_64), "aarch64": (0xC00000B7, AARCH64)}
TABLES = {machine: table for machine, (_, table) in _MACHINES.items()}
"""Refused calls by machine: name to number."""
HARMFUL = ("reboot", "vhangup", "kexec_load", "kexec_file_load", "init_module", "finit_module",
           "delete_module")  # fmt: skip
"""Not to be tried even to see them refused."""
NEWEST = 471
"""Calls from here on are unknown to this table and do not exist inside."""


def _op(code: int, value: int, when_true: int = 0, when_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, when_true, when_false, value)


def _refuse(number: int) -> bytes:
    return _op(_RETURN, _ERRNO | number)


def _guarded(call: int, rule: list[bytes]) -> list[bytes]:
    """A rule for one call: other calls jump over it; the number is loaded before and after."""
    body = [*rule, _op(_LOAD, _NUMBER)]
    return [_op(_EQUAL, call, 0, len(body)), *body]


def _family_rule() -> list[bytes]:
    checks = [_op(_LOAD, _ARGUMENT[0])]
    for at, family in enumerate(FAMILIES):
        left = len(FAMILIES) - 1 - at
        checks.append(_op(_EQUAL, family, left + 1, 0))
    return [*checks, _refuse(errno.EAFNOSUPPORT)]


@cache
def program(machine: str = "") -> bytes:
    """The filter for a machine (default: this one), ready for `PR_SET_SECCOMP`.

    Raises:
        KeyError: no table for that machine.
    """
    machine = machine or platform.machine()
    arch, table = _MACHINES[machine]
    special = _SPECIAL[machine]
    code = [_op(_LOAD, _ARCH), _op(_EQUAL, arch, 1, 0), _op(_RETURN, _KILL), _op(_LOAD, _NUMBER)]
    code += [_op(_AT_LEAST, NEWEST, 0, 1), _refuse(errno.ENOSYS)]
    code += [_op(_EQUAL, special["clone3"], 0, 1), _refuse(errno.ENOSYS)]
    flags = [_op(_LOAD, _ARGUMENT[0]), _op(_ANY_BIT, NAMESPACES, 0, 1), _refuse(errno.EPERM)]
    code += _guarded(special["clone"], flags)
    code += _guarded(special["socket"], _family_rule())
    code += _guarded(special["socketpair"], _family_rule())
    first, second = TERMINAL_INPUT
    typing = [_op(_LOAD, _ARGUMENT[1]), _op(_EQUAL, first, 1, 0), _op(_EQUAL, second, 0, 1)]
    code += _guarded(special["ioctl"], [*typing, _refuse(errno.EPERM)])
    persona = [_op(_LOAD, _ARGUMENT[0]), _op(_EQUAL, 0, 2, 0), _op(_EQUAL, 0xFFFFFFFF, 1, 0)]
    code += _guarded(special["personality"], [*persona, _refuse(errno.EPERM)])
    code += _tree(_ranges(set(table.values())))
    return b"".join(code)


def _ranges(refused: set[int]) -> list[tuple[int, bytes]]:
    """Where the answer changes, in order: from this number on, that answer."""
    found: list[tuple[int, bytes]] = []
    for number in range(NEWEST):
        answer = _refuse(errno.EPERM) if number in refused else _op(_RETURN, _ALLOW)
        if not found or found[-1][1] != answer:
            found.append((number, answer))
    return found


def _tree(ranges: list[tuple[int, bytes]]) -> list[bytes]:
    """A binary search: when a filter is put up, the kernel tries every call there is on it."""
    if len(ranges) == 1:
        return [ranges[0][1]]
    middle = len(ranges) // 2
    below, above = _tree(ranges[:middle]), _tree(ranges[middle:])
    return [_op(_AT_LEAST, ranges[middle][0], len(below), 0), *below, *above]
