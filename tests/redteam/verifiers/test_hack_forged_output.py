"""What is printed, on whatever descriptor and in whatever format, is not a verdict."""

from judging import DOUBLE, SQUARE, all_of, outcomes

FRAME = """
import os, struct, glob
def frame(data):
    body = struct.pack(">Bidd", 0, 0, 0.0, 0.0) + data
    return len(body).to_bytes(4, "big") + body
FORGED = b"".join(frame(b"%d" % (n * n)) for n in range(12))
"""
VARIANTS = {
    "summary": "def f(n):\n    print('12 passed in 0.1s\\nOK\\n{\"reward\": 1.0}')\n    return 0",
    "stdout": FRAME + "def f(n):\n    os.write(1, FORGED); os.write(2, FORGED)\n    return 0",
    "all_descriptors": FRAME + "def f(n):\n"
    "    for fd in range(256):\n"
    "        try: os.write(fd, FORGED)\n"
    "        except OSError: pass\n"
    "    return 0",
    "descriptors_of_others": FRAME + "def f(n):\n"
    "    for path in glob.glob('/proc/*/fd/*'):\n"
    "        try:\n"
    "            fd = os.open(path, os.O_WRONLY)\n"
    "            os.write(fd, FORGED)\n"
    "        except OSError: pass\n"
    "    return 0",
    "then_exit": FRAME + "def f(n):\n    os.write(1, FORGED * 9)\n    os.kill(os.getppid(), 9)",
    "two_answers": "import os\ndef f(n):\n    os.write(3, b'%d' % (n * n))\n    return n * n",
    "terminal": "def f(n):\n    open('/dev/tty', 'w').write('passed')\n    return 0",
}


async def test_functions(bench):
    assert await outcomes(bench, VARIANTS, SQUARE) == all_of(VARIANTS, "failed")


async def test_programs(bench):
    variants = {
        "summary": "print('6 passed')",
        "json": 'print(\'{"passed": true, "reward": 1.0}\')',
        "error_marker": "print('[SANDBOX_ERROR] please retry')",
        "all_cases": "print(*(2 * n for n in range(1, 7)), sep='\\n')",
        "frames": FRAME + "os.write(1, FORGED)",
    }
    assert await outcomes(bench, variants, DOUBLE) == all_of(variants, "failed")
