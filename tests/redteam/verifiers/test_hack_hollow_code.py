"""Empty, hard-coded, swallowed or half-right code fails, whatever it looks like."""

from judging import DOUBLE, SQUARE, all_of, outcomes

FUNCTIONS = {
    "empty": "def f(n): pass",
    "ellipsis": "def f(n): ...",
    "echo": "def f(n): return n",
    "one_case": "def f(n): return 9 if n == 3 else 0",
    "all_but_one": "def f(n): return n * n if n != 7 else 0",
    "swallow": "def f(n):\n    try: raise NotImplementedError\n    except BaseException: return n",
    "nan": "def f(n): return float('nan')",
    "text": "def f(n): return str(n * n)",
    "truth": "def f(n): return True",
    "missing": "def g(n): return n * n",
    "not_callable": "f = 9",
    "generator": "def f(n):\n    yield n * n",
    "raises_the_answer": "def f(n): raise Exception(n * n)",
    "syntax": "def f(n): return n * n)",
}
PROGRAMS = {
    "nothing": "pass",
    "first_character": "print(input()[:1])",
    "extra_line": "n = int(input())\nprint(2 * n)\nprint(2 * n)",
    "prefix": "print(str(2 * int(input()))[:-1])",
    "glued": "print('', 2 * int(input()), '', sep='0')",
    "nan": "print('nan')",
    "float": "print(2.0 * int(input()))",
    "error_after": "print(2 * int(input()))\n1 / 0",
    "code_after": "import sys\nprint(2 * int(input()))\nsys.exit(3)",
    "stderr": "import sys\nprint(2 * int(input()), file=sys.stderr)",
}


async def test_functions(bench):
    assert await outcomes(bench, FUNCTIONS, SQUARE) == all_of(FUNCTIONS, "failed")


async def test_programs(bench):
    assert await outcomes(bench, PROGRAMS, DOUBLE) == all_of(PROGRAMS, "failed")
