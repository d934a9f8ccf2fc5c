"""The system-call filter, run through an interpreter of its own byte code."""

from __future__ import annotations

import errno
import struct

import pytest

from quintain.sandbox import filter as calls

ALLOW, KILL = 0x7FFF0000, 0x80000000
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def refused(number):
    return 0x00050000 | number


def judge(machine, number, *arguments, arch=None):
    """What the kernel would do with a call."""
    code = [
        struct.unpack_from("<HBBI", calls.program(machine), at)
        for at in range(0, len(calls.program(machine)), 8)
    ]
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", number, arch or ARCH[machine], 0, *padded)
    accumulator, at = 0, 0
    while True:
        operation, yes, no, value = code[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif operation == 0x06:
            return value
        else:
            holds = {
                0x15: accumulator == value,
                0x35: accumulator >= value,
                0x45: bool(accumulator & value),
            }[operation]
            at += yes if holds else no


@pytest.mark.parametrize("machine", sorted(ARCH))
def test_rules(machine):
    special = calls._SPECIAL[machine]
    for number in calls.TABLES[machine].values():
        assert judge(machine, number) == refused(errno.EPERM)
    assert judge(machine, special["clone3"]) == refused(errno.ENOSYS)
    assert judge(machine, special["clone"], 0x01200011) == ALLOW
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert judge(machine, special["clone"], flag | 17) == refused(errno.EPERM)
    for call in (special["socket"], special["socketpair"]):
        for family in range(50):
            expected = ALLOW if family in (1, 2, 10) else refused(errno.EAFNOSUPPORT)
            assert judge(machine, call, family) == expected
    assert judge(machine, special["ioctl"], 0, 0x5401) == ALLOW
    assert judge(machine, special["ioctl"], 0, 0x5412) == refused(errno.EPERM)
    assert judge(machine, special["ioctl"], 0, 0x5412 | 1 << 32) == refused(errno.EPERM)
    assert judge(machine, special["ioctl"], 0, 0x541C) == refused(errno.EPERM)
    assert judge(machine, special["personality"], 0xFFFFFFFF) == ALLOW
    assert judge(machine, special["personality"], 0x0040000) == refused(errno.EPERM)
    assert judge(machine, calls.NEWEST) == refused(errno.ENOSYS)
    assert judge(machine, 0x40000000 | 39) == refused(errno.ENOSYS)
    assert judge(machine, 0) == ALLOW
    assert judge(machine, 0, arch=0x40000003) == KILL
