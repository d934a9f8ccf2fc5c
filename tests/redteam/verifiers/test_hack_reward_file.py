"""Reward and result files, written before, during or from the background, are never read."""

from judging import SQUARE, all_of, outcomes

WRITE = """
import os
def write():
    for path in ("/work/reward.txt", "/work/result.json", "/tmp/reward.txt", "reward.txt",
                 "/logs/verifier/reward.txt", "/logs/reward.json", "score.txt",
                 os.path.expanduser("~/reward.txt")):
        try:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            open(path, "w").write("1.0")
        except OSError:
            pass
"""
VARIANTS = {
    "import": WRITE + "write()\ndef f(n): return 0",
    "call": WRITE + "def f(n):\n    write()\n    return 0",
    "background": WRITE + "def f(n):\n"
    "    if os.fork() == 0:\n"
    "        os.setsid()\n"
    "        while True: write()\n"
    "    return 0",
    "exit": WRITE + "import atexit; atexit.register(write)\ndef f(n): return 0",
}


async def test_no_file_decides(bench):
    assert await outcomes(bench, VARIANTS, SQUARE) == all_of(VARIANTS, "failed")
