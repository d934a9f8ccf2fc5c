"""Time, memory, processes, output and disk used up by the candidate fail the candidate."""

from judging import DOUBLE, SQUARE, all_of, outcomes

VARIANTS = {
    "spin": "def f(n):\n    while True: pass",
    "sleep": "import time\ndef f(n): time.sleep(1000)",
    "ignore_signals": "import signal, time\ndef f(n):\n"
    "    for s in set(signal.Signals) - {9, 19}:\n"
    "        try: signal.signal(s, signal.SIG_IGN)\n"
    "        except (OSError, ValueError): pass\n"
    "    while True: pass",
    "one_c_call": "def f(n): return len(str(9 ** 10 ** 9))",
    "import": "while True: pass",
    "regex": "import re\ndef f(n): re.match('(a+)+$', 'a' * 60 + 'b')",
    "memory": "def f(n):\n    x = []\n    while True: x.append(b'x' * 50_000_000)",
    "recursion": "import sys\nsys.setrecursionlimit(10 ** 9)\ndef f(n): return f(n) + 1",
    "fork_bomb": "import os\ndef f(n):\n    while True:\n"
    "        try: os.fork()\n        except OSError: pass",
    "threads": "import threading, time\ndef f(n):\n"
    "    while True: threading.Thread(target=time.sleep, args=(99,)).start()",
    "huge_answer": "def f(n): return 'x' * 100_000_000",
    "endless_answer": "import os\ndef f(n):\n    while True: os.write(3, b'1' * 1_000_000)",
    "disk": "def f(n):\n    file = open('/tmp/x', 'wb')\n"
    "    while True: file.write(b'x' * 1_000_000)",
    "stop_the_runner": "import os, time\ndef f(n):\n"
    "    os.kill(os.getppid(), 19)\n    time.sleep(999)",
    "deep_answer": "def f(n):\n    x = []\n    for _ in range(100_000): x = [x]\n    return x",
    "cycle": "def f(n):\n    x = []\n    x.append(x)\n    return x",
    "compile_bomb": "f = " + "(" * 5000 + ")" * 5000,
}


LIMITS = {"cpu_s": 1, "wall_s": 4, "max_output_bytes": 2_000_000}


async def test_functions(bench):
    found = await outcomes(bench, VARIANTS, SQUARE, **LIMITS)
    assert found == all_of(VARIANTS, "failed")


async def test_programs(bench):
    variants = {
        "flood": "while True: print('x' * 1_000_000)",
        "flood_stderr": "import sys\nwhile True: print('x' * 1_000_000, file=sys.stderr)",
        "wait_for_input": "while True: input()",
        "spin": "while True: pass",
    }
    found = await outcomes(bench, variants, DOUBLE, **LIMITS)
    assert found == all_of(variants, "failed")
