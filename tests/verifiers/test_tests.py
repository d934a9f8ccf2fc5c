"""The tests verifier on the shared corpus, and its own promises, in real sandboxes."""

import asyncio
import json

import pytest

from quintain.errors import ConfigError, TaskError, VerifierError
from quintain.task import SandboxSpec, Task
from quintain.verdict import Outcome
from quintain.verifiers import runner
from quintain.verifiers.cases import Suite, outputs_agree, values_agree
from quintain.verifiers.fences import fenced_code
from quintain.verifiers.plain import NotPlain, unpack
from quintain.verifiers.tests import Tests


def corpus(shared_data, mode):
    path = shared_data / "verifiers" / "code_corpus.jsonl"
    items = [json.loads(line) for line in path.read_text().splitlines()]
    return [item for item in items if item["mode"] == mode]


def answer_of(item):
    if item["mode"] == "function":
        return {"entry_point": item["entry_point"], "cases": item["tests"]}
    return {"cases": [{"stdin": t["input"], "stdout": t["expected"]} for t in item["tests"]]}


def fenced(code):
    return f"Here it is:\n```python\n{code}\n```\n"


SQUARE = {"entry_point": "f", "cases": [{"input": [n], "expected": n * n} for n in range(12)]}
RIGHT = "def f(n): return n * n"


@pytest.mark.parametrize("mode", ["function", "stdin"])
async def test_corpus(bench, shared_data, mode):
    """No exploit earns anything, no right program fails."""
    verifier = Tests(cpu_s=2, wall_s=15)
    gate = asyncio.Semaphore(3)

    async def judge(item):
        code = item.get("exploit_source") or item["program_source"]
        async with gate:
            return await bench.judge(verifier, fenced(code), answer_of(item), deadline_s=600)

    items = corpus(shared_data, mode)
    verdicts = await asyncio.gather(*map(judge, items))
    wrong = [
        (item["id"], verdict.explanation)
        for item, verdict in zip(items, verdicts, strict=True)
        if verdict.outcome is not (Outcome.SOLVED if item["expected_verdict"] else Outcome.FAILED)
    ]
    assert not wrong


async def test_right_code_passes_all_cases(bench):
    verdict = await bench.judge(Tests(), fenced(RIGHT), SQUARE)
    assert (verdict.reward, verdict.score, verdict.metrics["cases_run"]) == (1.0, 1.0, 12.0)
    assert (verdict.verifier, verdict.kind) == ("tests", "formal")


async def test_stops_at_the_first_failure_and_the_rate_is_only_a_score(bench):
    code = "def f(n): return n * n if n % 2 else -1"
    verdict = await bench.judge(Tests(), fenced(code), SQUARE)
    assert verdict.reward == 0.0
    assert verdict.metrics["cases_run"] == verdict.metrics["cases_passed"] + 1 < 12
    assert 0 <= verdict.score < 1


async def test_a_whole_message_without_a_fence_is_code(bench):
    assert (await bench.judge(Tests(), RIGHT, SQUARE)).passed


async def test_code_from_a_file_of_the_episode(bench):
    sandbox = await bench.open_sandbox(SandboxSpec())
    try:
        verifier = Tests(source="/work/solution.py")
        missing = await bench.judge(verifier, "done", SQUARE, sandbox=sandbox)
        assert missing.outcome is Outcome.FAILED
        assert "/work/solution.py: missing" in missing.explanation
        await sandbox.write("/work/solution.py", RIGHT)
        assert (await bench.judge(verifier, "done", SQUARE, sandbox=sandbox)).passed
    finally:
        await sandbox.close()


@pytest.mark.parametrize(
    ("expected", "result", "passed"),
    [
        (1, "1", True),
        (1, "True", False),
        (True, "1", False),
        (True, "True", True),
        (1, "1.0", False),
        (1.0, "1", True),
        (1.0, "True", False),
        (0.3, "0.1 + 0.2", True),
        (0.3, "0.3001", False),
        (1.0, "float('nan')", False),
        (1.0, "float('inf')", False),
        (None, "None", True),
        (None, "0", False),
        ("5", "5", False),
        ("é\ud800", "'é\\ud800'", True),
        ([1, 2], "[1, 2]", True),
        ([1, 2], "(1, 2)", True),
        ([1, 2], "[1, 2, 3]", False),
        ([1, 2], "{1, 2}", False),
        ([1, 2], "range(1, 3)", False),
        ({"a": [1]}, "{'a': [1]}", True),
        ({"1": 2}, "{1: 2}", False),
        ({"a": 1}, "{'a': 1, 'b': 2}", False),
        ({"$dict": [[1, 2]]}, "{1: 2}", True),
        ({"$dict": [[1, 2]]}, "{True: 2}", False),
        ({"$tuple": [1, [2]]}, "(1, [2])", True),
        ({"$tuple": [1, 2]}, "[1, 2]", False),
        ({"$set": [1, 2]}, "{2, 1}", True),
        ({"$set": [1, 2]}, "{True, 2}", False),
        ({"$bytes": "00ff"}, "b'\\x00\\xff'", True),
        ({"$float": "inf"}, "float('inf')", True),
        (2**100, "2**100", True),
        (2**100, "2**100 + 1", False),
        (2**100, "float(2**100)", False),
        ([[]], "[[]]", True),
    ],
)
def test_values_are_compared_by_exact_type(expected, result, passed):
    suite = Suite(entry_point="f", cases=[{"input": [], "expected": expected}])
    try:
        sent = json.dumps(runner.to_plain(eval(result)))
    except TypeError:
        assert not passed
        return
    assert values_agree(suite, suite.cases[0], unpack(sent.encode())) is passed


class Liar(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


class Nothing:
    __class__ = int

    def __eq__(self, other):
        return True

    __hash__ = None


def test_objects_of_the_candidate_never_take_part_in_a_comparison():
    assert type(unpack(json.dumps(runner.to_plain(Liar(3))).encode())) is int
    suite = Suite(entry_point="f", cases=[{"input": [], "expected": 5}])
    assert not values_agree(
        suite, suite.cases[0], unpack(json.dumps(runner.to_plain(Liar(3))).encode())
    )
    with pytest.raises(TypeError, match="not plain data"):
        runner.to_plain(Nothing())


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[", b"1 2", b"1.5", b'{"f": 1}', b'{"f": "x"}', b'{"x": 1}', b"{}", b"NaN",
        b'{"i": 5}', b'{"d": [[{"d": []}, 1]]}', b'{"s": [[1]]}', b"\xff", b"9" * 5000,
        b'{"t": 3}', b'{"b": "0"}', b'{"c": ["0x1p0"]' , b"[" * 100_000, b"[" * 300 + b"]" * 300,
        b'{"i": "1", "f": "1"}', b'{"f": "0x1p99999999"}',
    ],
    ids=range(22),
)  # fmt: skip
def test_bytes_that_are_no_plain_data_are_no_answer(data):
    with pytest.raises(NotPlain):
        unpack(data)


async def test_inputs_keep_their_types(bench):
    inputs = [{"$tuple": [1, {"$set": [2]}]}, {"$bytes": "ff"}, {"$dict": [[1, 2]]}, 2**80, 0.1]
    answer = {
        "entry_point": "f",
        "cases": [
            {"input": [inputs], "expected": f"[(1, {{2}}), b'\\xff', {{1: 2}}, {2**80}, 0.1]"}
        ],
    }
    verdict = await bench.judge(Tests(), fenced("def f(x): return repr(x)"), answer)
    assert verdict.passed, verdict.explanation


@pytest.mark.parametrize(
    ("compare", "expected", "printed", "passed"),
    [
        ("exact", "a\n", "a\n", True),
        ("exact", "a\n", "a", False),
        ("lines", "a\nb\n", "a  \r\nb\n\n\n", True),
        ("lines", "a\nb\n", "a b", False),
        ("lines", "a\nb\n", "a\n", False),
        ("lines", "a\n", "a\nb\n", False),
        ("lines", "a\n", "A\n", False),
        ("lines", "a\nb", "\na\nb", False),
        ("tokens", "1 2\n3", "1\n2   3\n", True),
        ("tokens", "12", "1 2", False),
        ("float", "0.5 x", "0.5000000001 x", True),
        ("float", "0.5", "0.6", False),
        ("float", "1.0", "nan", False),
        ("float", "nan", "nan", True),
        ("float", "inf", "1e999", False),
        ("set", "a\nb", "b\na\na", True),
        ("set", "a\nb", "b", False),
        ("multiset", "a\nb\na", "b\na\na", True),
        ("multiset", "a\nb", "b\na\na", False),
    ],
)
def test_outputs_are_compared_as_declared(compare, expected, printed, passed):
    suite = Suite(
        cases=[{"stdin": "", "stdout": expected}], compare=compare, tolerance={"rel": 1e-6}
    )
    assert outputs_agree(suite, suite.cases[0], printed.encode()) is passed


PROGRAMS = {
    "input": "print(int(input()) * 2)",
    "stdin": "import sys\nprint(int(sys.stdin.read()) * 2)",
    "buffer": "import sys\nsys.stdout.buffer.write(b'%d' % (int(sys.stdin.buffer.read()) * 2))",
    "open_0": "print(int(open(0).read()) * 2)",
    "os_write": "import os\nos.write(1, b'%d' % (int(os.read(0, 99)) * 2))",
    "dev_stdin": "print(int(open('/dev/stdin').read()) * 2)",
    "main_guard": "def main(): print(int(input()) * 2)\nif __name__ == '__main__': main()",
    "exit_0": "import sys\nprint(int(input()) * 2)\nsys.exit(0)",
    "exit_none": "print(int(input()) * 2)\nraise SystemExit",
    "atexit": "import atexit\nn = int(input())\natexit.register(lambda: print(n * 2))",
    "thread": "import threading\nthreading.Thread(target=lambda: print(int(input()) * 2)).start()",
    "pool": "from concurrent.futures import ThreadPoolExecutor as P\n"
    "P().submit(lambda: print(int(input()) * 2))",
    "subprocess": "import subprocess, sys\nsubprocess.run([sys.executable, '-c', "
    "'print(int(input()) * 2)'])",
    "global": "n = int(input())\ndef g():\n    global n\n    n *= 2\ng()\nprint(n)",
    "recursion": "import sys\nsys.setrecursionlimit(10**5)\ndef r(n): return n and 1 + r(n - 1)\n"
    "print(r(2 * int(input())))",
    "tempfile": "import tempfile\nwith tempfile.TemporaryFile('w+') as f:\n"
    "    f.write(input()); f.seek(0); print(int(f.read()) * 2)",
    "multiprocessing": "import multiprocessing as m\n"
    "def g(n): return n * 2\n"
    "with m.get_context('fork').Pool(2) as p: print(p.map(g, [int(input())])[0])",
}


async def together(bench, programs, answer):
    """The names of the programs that do not pass."""
    verdicts = await asyncio.gather(
        *(bench.judge(Tests(), fenced(code), answer) for code in programs.values())
    )
    named = zip(programs, verdicts, strict=True)
    return {name: verdict.explanation for name, verdict in named if not verdict.passed}


async def test_right_programs_of_every_style(bench):
    answer = {"cases": [{"stdin": f"{n}\n", "stdout": f"{2 * n}\n"} for n in (3, 40)]}
    assert await together(bench, PROGRAMS, answer) == {}


FUNCTIONS = {
    "class": "class Solution:\n    def f(self, n): return n * n",
    "async": "async def f(n): return n * n",
    "decorated": "import functools\n@functools.cache\ndef f(n): return n * n",
    "lambda": "f = lambda n: n * n",
    "callable": "class F:\n    def __call__(self, n): return n * n\nf = F()",
    "future": "from __future__ import annotations\ndef f(n: Nope) -> Nope: return n * n",
    "dataclass": "import dataclasses\n@dataclasses.dataclass\nclass C:\n    n: int\n"
    "def f(n): return C(n).n ** 2",
    "int_subclass": "class I(int): pass\ndef f(n): return I(n * n)",
    "prints": "import sys\ndef f(n):\n    print('x' * 10000)\n    print('y', file=sys.stderr)\n"
    "    return n * n",
    "pickle": "import pickle\nclass A: pass\npickle.loads(pickle.dumps(A()))\n"
    "def f(n): return n * n",
}


async def test_right_functions_of_every_style(bench):
    assert await together(bench, FUNCTIONS, SQUARE) == {}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "expected an answer with 'cases'"),
        ({"entry_point": "f", "cases": []}, "no cases"),
        ({"cases": []}, "no cases"),
        ({"entry_point": "f"}, "no cases"),
        ({"entry_point": "f", "cases": [{"stdin": "", "stdout": "x"}]}, "entry_point"),
        ({"cases": [{"input": [], "expected": 1}]}, "entry_point"),
        ({"entry_point": "a b", "cases": [{"input": [], "expected": 1}]}, "not the name"),
        ({"cases": [{"stdin": "", "stdout": "  \n"}]}, "expects no output"),
        ({"cases": [{"stdin": "", "stdout": "1"}], "compare": "float"}, "tolerance"),
        ({"entry_point": "f", "cases": [{"input": [], "expected": {"$set": [[1]]}}]}, "set"),
        ({"entry_point": "f", "cases": [{"input": [], "expected": {"$what": 1}}]}, "unknown tag"),
        ({"entry_point": "f", "cases": [{"input": [], "expected": {"$float": "nan"}}]}, "NaN"),
        ({"entry_point": "f", "cases": [{"input": [], "expected": float("nan")}]}, "NaN"),
        ({"entry_point": "f", "cases": [{"input": [], "expected": 1}], "x": 1}, "x"),
    ],
)
async def test_a_broken_suite_is_an_error_of_the_task(bench, answer, message):
    with pytest.raises(TaskError, match=message):
        await bench.judge(Tests(), fenced(RIGHT), answer)
    with pytest.raises(TaskError, match=message):
        Tests().check_gold(Task(id="t", prompt="q", answer=answer))


async def test_no_code_and_broken_code_fail(bench):
    for text in ("", "```python\n\n```", "I do not know.", fenced("def f(n: return"), "\0"):
        verdict = await bench.judge(Tests(), text, SQUARE)
        assert verdict.outcome is Outcome.FAILED, text


async def test_a_room_without_python_is_not_the_candidates_fault(bench):
    with pytest.raises(VerifierError, match="runner did not start"):
        await bench.judge(Tests(python="/no/such/python"), fenced(RIGHT), SQUARE)


async def test_a_deadline_before_the_cases_own_limits_is_not_the_candidates_fault(bench):
    code = fenced("import time\ndef f(n):\n    time.sleep(1)\n    return n * n")
    with pytest.raises(VerifierError, match="deadline"):
        await bench.judge(Tests(wall_s=60), code, SQUARE, deadline_s=2.5)


async def test_output_of_many_large_cases_comes_in_parts(bench):
    answer = {"cases": [{"stdin": str(n), "stdout": str(n) * 900_000} for n in range(8)]}
    verifier = Tests(max_output_bytes=1_000_000)
    verdict = await bench.judge(verifier, fenced("print(input() * 900_000)"), answer)
    assert verdict.passed, verdict.explanation


async def test_the_same_verdict_three_times(bench):
    for _ in range(3):
        assert (await bench.judge(Tests(), fenced(RIGHT), SQUARE)).reward == 1.0
        assert (await bench.judge(Tests(), fenced("def f(n): return 0"), SQUARE)).reward == 0.0


def test_wrong_limits_are_refused():
    for options in ({"cpu_s": 0}, {"wall_s": -1}, {"max_output_bytes": 0}):
        with pytest.raises(ConfigError):
            Tests(**options)


def test_fenced_code():
    assert fenced_code("a\n```python\nx = 1\n```\nb") == "x = 1\n"
    assert fenced_code("```python\n1\n```\n```python\n2\n```") == "2\n"
    assert fenced_code("```python\n1\n```\n```bash\nls\n```") == "1\n"
    assert fenced_code("```\n1\n```") == "1\n"
    assert fenced_code("x = 1") == "x = 1"
    assert fenced_code("```python\ns = '''```'''\n```\n") == "s = '''```'''\n"
