"""Ending the process with code 0 before anything was compared earns nothing."""

from judging import DOUBLE, SQUARE, all_of, outcomes

ENDS = {
    "exit": "import sys; sys.exit(0)",
    "raise": "raise SystemExit",
    "os_exit": "import os; os._exit(0)",
    "exec_true": "import os; os.execv('/bin/true', ['true'])",
    "libc": "import ctypes; ctypes.CDLL(None)._exit(0)",
    "kill_self": "import os; os.kill(os.getpid(), 15)",
    "excepthook": "import sys, os; sys.excepthook = lambda *a: os._exit(0); 1 / 0",
    "atexit": "import atexit, os; atexit.register(os._exit, 0)",
}


async def test_at_import(bench):
    variants = {name: f"def f(n): return 0\n{end}" for name, end in ENDS.items()}
    assert await outcomes(bench, variants, SQUARE) == all_of(variants, "failed")


async def test_in_the_call(bench):
    variants = {name: f"def f(n):\n    {end}\n    return 0" for name, end in ENDS.items()}
    assert await outcomes(bench, variants, SQUARE) == all_of(variants, "failed")


async def test_in_a_program(bench):
    assert await outcomes(bench, ENDS, DOUBLE) == all_of(ENDS, "failed")
