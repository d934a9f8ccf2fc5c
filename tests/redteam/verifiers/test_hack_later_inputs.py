"""The inputs of later cases cannot be seen: a candidate that is right unless it can peek passes."""

from judging import SQUARE, all_of, outcomes

PEEKS = {
    "stdin_of_parent": "open(f'/proc/{os.getppid()}/fd/0', 'rb')",
    "stdin_of_anyone": "open(next(p for p in glob.glob('/proc/[0-9]*/fd/0') "
    "if p.split('/')[2] != str(os.getpid())), 'rb')",
    "memory_of_parent": "open(f'/proc/{os.getppid()}/mem', 'rb')",
    "environment_of_parent": "open(f'/proc/{os.getppid()}/environ', 'rb')",
    "own_stdin": "(_ for _ in ()).throw(OSError) if not os.read(0, 1) else 1",
    "inherited_descriptors": "[os.read(fd, 1) for fd in range(4, 256)]",
    "ptrace": "ctypes.CDLL(None, use_errno=True).ptrace(16, os.getppid(), 0, 0) == 0 or 1 / 0",
    "pidfd": "1 / (ctypes.CDLL(None).syscall(438, ctypes.CDLL(None).syscall(434, os.getppid(), 0),"
    " 0, 0) >= 0)",
    "process_vm": "1 / (ctypes.CDLL(None).process_vm_readv(os.getppid(), b'', 0, b'', 0, 0) > 0)",
}
HONEST = """
import ctypes, glob, os
def peek():
    return {peek}
def f(n):
    try:
        peek()
    except (OSError, ArithmeticError, StopIteration):
        return n * n
    return "peeked"
"""


async def test_nothing_to_see(bench):
    variants = {name: HONEST.format(peek=peek) for name, peek in PEEKS.items()}
    assert await outcomes(bench, variants, SQUARE) == all_of(variants, "solved")


async def test_control(bench):
    """The same program with a peek that works does fail."""
    code = HONEST.format(peek="open('/proc/self/fd/0', 'rb')")
    assert await outcomes(bench, {"own": code}, SQUARE) == {"own": "failed"}
