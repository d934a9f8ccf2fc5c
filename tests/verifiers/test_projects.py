"""Projects: what is taken, what the tests may use, and which reports count."""

import pytest

from quintain.audits.exploits.projects import (
    EXPECTED,
    HIDDEN,
    INTERFACE,
    PROJECT,
    RIGHT,
    WRONG,
    as_patch,
)
from quintain.errors import TaskError
from quintain.task import SandboxSpec, Task
from quintain.verifiers.projects.interface import BadInterface, parse_interface
from quintain.verifiers.projects.patch import BadPatch, apply_patch, touched
from quintain.verifiers.projects.room_values import NotPlain, decode, encode
from quintain.verifiers.projects.sources import Patterns, shadows
from quintain.verifiers.projects.verdicts import checks_of
from quintain.verifiers.tests import Tests

T = "tests/test_it.py"


def project(**changes):
    declared = {
        "source": ["*.py"],
        "tests": list(HIDDEN),
        "expected": EXPECTED,
        "interface": INTERFACE,
    }
    task = {"files": PROJECT, "hidden_files": HIDDEN}
    for name in task:
        task[name] = changes.pop(name, task[name])
    answer = {"project": {**declared, **changes}}
    return Task(id="t", prompt="Write it.", answer=answer, **task)


def small(code, stub, tests, *, form="apart", names=None, **more):
    """A project of one module, handed in as code."""
    names = names or [part.split("(")[0] for part in tests.split("def ")[1:]]
    expected = [f"{T}::{name}" for name in names if name.startswith("test_")]
    task = project(
        source=["m.py"],
        tests=[T],
        expected=expected,
        interface={"m": stub},
        files={"m.py": ""},
        hidden_files={T: tests},
        form=form,
        **more,
    )
    return f"```python\n{code}\n```", task


async def judged(bench, text, task, **options):
    return await Tests(**{"cpu_s": 5, "total_s": 60, **options}).judge(
        bench.context(text, task=task)
    )


# --- declarations ---


def wrong(**changes):
    with pytest.raises(TaskError) as caught:
        Tests().check_gold(project(**changes))
    return str(caught.value)


def test_a_project_is_checked_at_load():
    Tests().check_gold(project())
    Tests().check_gold(project(form="together", interface={}))
    assert "interface" in wrong(interface={})
    assert "in none of the files" in wrong(expected=["tests/other.py::test_a"])
    assert "at least 1" in wrong(expected=[])
    assert "named twice" in wrong(expected=[EXPECTED[0], EXPECTED[0]])
    assert "takes it from the candidate" in wrong(source=["**/*.py"])
    assert "neither" in wrong(hidden_files={})
    assert "below the workdir" in wrong(source=["../*.py"])
    assert "does not parse" in wrong(interface={"solution": "def f(:"})


def test_patterns_take_sources_and_never_hooks():
    patterns = Patterns(["src/**/*.py", "top.py", "data/*"])
    for path in ("src/a.py", "src/pkg/deep/b.py", "top.py", "data/x.json"):
        assert patterns.takes(path), path
    refused = (
        "a.py src/a.txt data/deep/x src/conftest.py src/pkg/conftest.py src/sitecustomize.py "
        "data/pytest.ini data/x.pth data/setup.cfg src/.hidden/a.py data/__pycache__ data/x.so "
        "src/x.dist-info/a.py"
    )
    for path in refused.split():
        assert not patterns.takes(path), path
    assert Patterns(["m.py"]).single == "m.py"
    assert Patterns(["*.py"]).single is None


def test_modules_of_the_judge_are_not_shadowed():
    assert shadows("pytest.py", ["."]) == "pytest"
    assert shadows("_pytest/x.py", ["."]) == "_pytest"
    assert shadows("src/random.py", [".", "src"]) == "random"
    assert not shadows("src/pkg/random.py", [".", "src"])
    assert not shadows("mine.py", ["."])


def test_interfaces_say_which_objects_may_come_back():
    table = parse_interface(
        {
            "a": "from collections.abc import Iterator\nX: int\n"
            "def f(n: int) -> 'list[Node]': ...\ndef g() -> Iterator[int]: ...\n"
            "class Node:\n    size: int\n    @property\n    def up(self) -> 'Node': ...\n"
            "    @staticmethod\n    def make() -> 'Node': ...\n    def me(self) -> Self: ...\n",
            "b": "from a import Node\ndef h() -> Node: ...\nclass E(ValueError): ...",
        }
    )
    assert table["a"]["functions"]["f"]["results"] == ["a:Node"]
    assert table["a"]["functions"]["g"] == {"results": [], "iterator": True, "async": False}
    assert table["a"]["classes"]["Node"]["values"]["up"]["results"] == ["a:Node"]
    assert table["a"]["classes"]["Node"]["methods"]["make"]["of_class"]
    assert table["a"]["classes"]["Node"]["methods"]["me"]["results"] == ["a:Node"]
    assert table["b"]["functions"]["h"]["results"] == ["a:Node"]
    assert table["b"]["classes"]["E"]["exception"] == "ValueError"
    for bad in ("", "x = 1", "class A(Unknown): ...", "def f(:"):
        with pytest.raises(BadInterface):
            parse_interface({"m": bad})


def test_values_cross_by_exact_type():
    import datetime
    import decimal
    from fractions import Fraction
    from pathlib import Path

    def refuse(value):
        raise NotPlain(type(value).__name__)

    plain = [None, True, 5, -(2**80), 0.1, float("inf"), "ü\ud800", b"\0", (1, [2]), {1, 2},
             {"a": {3: (4,)}}, 1 + 2j, frozenset({1}), bytearray(b"x"), Fraction(1, 3),
             decimal.Decimal("1.50"), datetime.date(2020, 1, 2), Path("a/b"),
             datetime.datetime(2020, 1, 2, 3)]  # fmt: skip
    found = decode(encode(plain, refuse), refuse)
    assert found == plain
    assert [type(each) for each in found] == [type(each) for each in plain]

    class Liar(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    assert type(decode(encode(Liar(7), refuse), refuse)) is int
    with pytest.raises(NotPlain):
        encode([object()], refuse)
    for bad in ([1], {"q": 1}, 1.5, {"l": 5}, {"i": 5}, {"o": [0, "x"]}, {"l": [], "t": []}):
        with pytest.raises(NotPlain):
            decode(bad, refuse)


# --- patches ---


def test_patches_apply_exactly():
    files = {"a.txt": b"one\ntwo\nthree\n", "gone.txt": b"x\n"}
    patch = (
        "Some words.\ndiff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n"
        "@@ -1,3 +1,4 @@\n one\n-two\n+TWO\n+more\n three\n"
        "--- a/gone.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        "--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+hello\n\\ No newline at end of file\n"
    )
    assert touched(patch) == ["a.txt", "gone.txt", "new.txt"]
    assert apply_patch(patch, files) == {
        "a.txt": b"one\nTWO\nmore\nthree\n",
        "gone.txt": None,
        "new.txt": b"hello",
    }


@pytest.mark.parametrize(
    "patch",
    [
        "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-other\n+x\n",
        "--- a/a\n+++ b/a\n@@ -9 +9 @@\n-one\n+x\n",
        "--- a/missing\n+++ b/missing\n@@ -1 +1 @@\n-one\n+x\n",
        "--- a/a\n+++ b/../../etc/x\n@@ -1 +1 @@\n-one\n+x\n",
        "--- a/a\n+++ b/a\n@@ -1,5 +1,5 @@\n-one\n+x\n",
    ],
)
def test_patches_that_do_not_fit_are_refused(patch):
    with pytest.raises(BadPatch):
        apply_patch(patch, {"a": b"one\n"})


# --- reports ---


def report(*rows, collected=None, problems=()):
    reports = [
        {"id": each, "when": when, "outcome": outcome, "xfail": xfail, "text": ""}
        for each, when, outcome, xfail in rows
    ]
    ids = list(dict.fromkeys(row[0] for row in rows)) if collected is None else collected
    return {"collected": ids, "reports": reports, "problems": list(problems)}


def phases(each, call="passed", xfail=False):
    return [(each, "setup", "passed", False), (each, "call", call, xfail),
            (each, "teardown", "passed", False)]  # fmt: skip


@pytest.mark.parametrize(
    ("told", "passed"),
    [
        (report(*phases("a"), *phases("b")), True),
        (report(*phases("a")), False),
        (report(), False),
        (report(*phases("a"), *phases("b", "failed")), False),
        (report(*phases("a"), *phases("b", "skipped")), False),
        (report(*phases("a"), *phases("b", "passed", True)), False),
        (report(*phases("a"), *phases("b", "skipped", True)), False),
        (report(*phases("a"), *phases("b"), *phases("b")), False),
        (report(*phases("a"), *phases("b"), *phases("c")), False),
        (report(*phases("a"), *phases("b"), collected=["a", "b", "b"]), False),
        (report(*phases("a"), *phases("b"), collected=["a", "b", "c"]), False),
        (report(*phases("a"), *phases("b"), problems=["no"]), False),
        (report(*phases("a"), ("b", "setup", "passed", False)), False),
        (report(*phases("a"), *phases("b")[:2], ("b", "teardown", "failed", False)), False),
    ],
)
def test_exactly_the_expected_tests_pass_once_each(told, passed):
    assert all(check.passed for check in checks_of(["a", "b"], told)) is passed


# --- whole verdicts ---


@pytest.mark.parametrize("form", ["apart", "together"])
async def test_a_patch_is_judged(bench, form):
    task = project(form=form)
    right = await judged(bench, as_patch({"solution.py": RIGHT}), task)
    assert right.passed, right.explanation
    wrong = await judged(bench, f"```diff\n{as_patch({'solution.py': WRONG})}```", task)
    assert wrong.reward == 0
    assert "assert 0 ==" in wrong.explanation or "test_square" in wrong.explanation
    nothing = await judged(bench, "All tests pass now.", task)
    assert nothing.explanation == "source: the final message holds no patch"


async def test_a_working_folder_is_judged(bench):
    box = await bench.open_sandbox(SandboxSpec())
    try:
        kept = {**PROJECT, "solution.py": "from helper import *\n", "helper.py": RIGHT}
        for path, text in {**kept, "conftest.py": "1 / 0\n", "notes.md": "x"}.items():
            await box.write(path, text)
        context = bench.context(task=project(), sandbox=box)
        verdict = await Tests(source="/work").judge(context)
        assert verdict.passed, verdict.explanation
        assert "conftest.py" in verdict.checks[0].detail
        await box.exec(["ln", "-sf", "/etc/passwd", "/work/linked.py"])
        verdict = await Tests(source="/work").judge(context)
        assert verdict.explanation == "source: linked.py is a link, not a file"
    finally:
        await box.close()


RICH_STUB = """
from collections.abc import Iterator
LIMIT: int
class Empty(Exception): ...
class Stack:
    size: int
    def push(self, *items: int) -> None: ...
    def pop(self) -> int: ...
    def copy(self) -> 'Stack': ...
    def __len__(self) -> int: ...
    def __eq__(self, other: object) -> bool: ...
    def __iter__(self) -> Iterator[int]: ...
    @classmethod
    def of(cls, items: list[int]) -> 'Stack': ...
def sort(items: list[int]) -> None: ...
def count(n: int) -> Iterator[int]: ...
def total(stack: Stack, *, start: int = 0) -> int: ...
async def later(n: int) -> int: ...
def shout(text: str) -> None: ...
def main(code: int) -> None: ...
"""
RICH_CODE = """
import sys
LIMIT = 9
class Empty(Exception): pass
class Stack:
    def __init__(self): self.items = []
    @property
    def size(self): return len(self.items)
    def push(self, *items): self.items += items
    def pop(self):
        if not self.items: raise Empty("nothing there", 7)
        return self.items.pop()
    def copy(self): return Stack.of(self.items)
    def __len__(self): return len(self.items)
    def __eq__(self, other): return isinstance(other, Stack) and self.items == other.items
    def __iter__(self): return iter(self.items)
    @classmethod
    def of(cls, items):
        made = cls()
        made.push(*items)
        return made
def sort(items): items.sort()
def count(n):
    for k in range(n): yield k
def total(stack, *, start=0): return sum(stack.items, start)
async def later(n): return n + 1
def shout(text): print(text.upper())
def main(code): sys.exit(code)
"""
RICH_TESTS = """
import asyncio
import pytest
import m
from m import Empty, Stack

def test_objects():
    stack = Stack()
    stack.push(1, 2)
    assert (stack.size, len(stack), list(stack), stack.pop()) == (2, 2, [1, 2], 2)
    assert isinstance(stack.copy(), Stack) and stack.copy() == stack
    assert stack != Stack() and stack != [1]
    assert m.total(Stack.of([1, 2, 3]), start=4) == 10
    with pytest.raises(AttributeError):
        stack.items

def test_errors():
    with pytest.raises(Empty, match="nothing") as caught:
        Stack().pop()
    assert caught.value.args == ("nothing there", 7)
    with pytest.raises(TypeError):
        m.sort(1, 2)
    with pytest.raises(SystemExit) as caught:
        m.main(3)
    assert caught.value.code == 3

def test_in_place():
    items = [3, 1, 2]
    assert m.sort(items) is None
    assert items == [1, 2, 3]

def test_iterators():
    assert list(m.count(3)) == [0, 1, 2]

def test_async():
    assert asyncio.run(m.later(4)) == 5

def test_values():
    assert m.LIMIT == 9
    assert not hasattr(m, "sys")

def test_output(capsys):
    m.shout("hey")
    assert capsys.readouterr().out == "HEY\\n"
"""


async def test_stubs_carry_classes_errors_iterators_and_output(bench):
    text, task = small(RICH_CODE, RICH_STUB, RICH_TESTS)
    verdict = await judged(bench, text, task)
    assert verdict.passed, verdict.explanation
    assert verdict.metrics["calls"] > 20


async def test_the_same_tests_pass_together(bench):
    tests = RICH_TESTS.replace("        stack.items\n", "        stack.none\n").replace(
        '    assert not hasattr(m, "sys")\n', ""
    )
    text, task = small(RICH_CODE, RICH_STUB, tests, form="together")
    verdict = await judged(bench, text, task)
    assert verdict.passed, verdict.explanation
    assert any(check.name == "form" for check in verdict.checks)


OBJECTS = """
class E:
    def __eq__(self, other): return True
    def __contains__(self, item): return True
    def __gt__(self, other): return True
    def __iter__(self): return iter([1])
def f(n): return E()
"""


@pytest.mark.parametrize(
    "test", ["assert f(1) == [1]", "assert 1 in f(1)", "assert f(1) > 5", "assert f(1)"]
)
async def test_no_object_stands_in_for_plain_data(bench, test):
    text, task = small(
        OBJECTS,
        "def f(n: int) -> list[int]: ...",
        f"from m import f\ndef test_it():\n    {test}\n",
    )
    verdict = await judged(bench, text, task)
    assert verdict.reward == 0
    assert "plain data is declared" in verdict.explanation


ENDS = {
    "hangs": "def f(n):\n    while True: pass",
    "exits": "import os\ndef f(n): os._exit(0)",
    "kills": "import os, signal\ndef f(n): os.kill(os.getpid(), signal.SIGKILL)",
    "floods": "def f(n): return 'x' * 50_000_000",
    "forges": "import builtins\nbuiltins.repr = lambda value: 'step(1)'\n"
    "import sys\nsys.modules['__main__'].answer = lambda line: 5\ndef f(n): return 0",
}


@pytest.mark.parametrize("name", ENDS)
async def test_a_solution_that_ends_its_process_fails_even_an_expected_error(bench, name):
    text, task = small(
        ENDS[name],
        "def f(n: int) -> int: ...",
        "import pytest\nfrom m import f\ndef test_it():\n"
        "    with pytest.raises(Exception):\n        f(1)\n",
    )
    verdict = await judged(bench, text, task, cpu_s=1, wall_s=15)
    assert verdict.reward == 0
    assert "the solution's process" in verdict.explanation


async def test_tests_with_skips_or_expected_failures_prove_nothing(bench):
    tests = (
        "import pytest\nfrom m import f\n"
        "@pytest.mark.xfail\ndef test_a():\n    assert f(1) == 1\n"
        "@pytest.mark.skip\ndef test_b():\n    assert f(1) == 1\n"
    )
    for name in ("test_a", "test_b"):
        text, task = small("def f(n): return n", "def f(n): ...", tests, names=["test_a", "test_b"])
        verdict = await judged(bench, text, task)
        found = {check.name: check.passed for check in verdict.checks}
        assert found[f"{T}::{name}"] is False


async def test_trusted_configuration_and_helpers_are_used(bench):
    text, task = small(
        "def f(n): return n",
        "def f(n: int) -> int: ...",
        "from m import f\ndef check_it(given):\n    assert f(given) == given\n",
        config="pytest.ini",
    )
    hidden = {
        **task.hidden_files,
        "pytest.ini": b"[pytest]\npython_functions = check_*\n",
        "tests/conftest.py": b"import pytest\n@pytest.fixture\ndef given(): return 4\n",
    }
    answer = {"project": {**task.answer["project"], "expected": [f"{T}::check_it"]}}
    task = task.model_copy(update={"hidden_files": hidden, "answer": answer})
    verdict = await judged(bench, text, task)
    assert verdict.passed, verdict.explanation


async def test_packages_are_stubbed_inside_trusted_ones(bench):
    task = project(
        source=["pkg/core/*.py"],
        tests=[T],
        expected=[f"{T}::test_it"],
        interface={"pkg.core.calc": "def double(n: int) -> int: ..."},
        files={
            "pkg/__init__.py": "NAME = 'trusted'\n",
            "pkg/front.py": "from pkg.core.calc import double\ndef four(): return double(2)\n",
            "pkg/core/__init__.py": "",
            "pkg/core/calc.py": "def double(n): raise NotImplementedError\n",
        },
        hidden_files={
            T: "import pkg\nfrom pkg.front import four\n"
            "def test_it():\n    assert (four(), pkg.NAME) == (4, 'trusted')\n"
        },
    )
    patch = (
        "--- a/pkg/core/calc.py\n+++ b/pkg/core/calc.py\n@@ -1 +1 @@\n"
        "-def double(n): raise NotImplementedError\n+def double(n): return n + n\n"
    )
    verdict = await judged(bench, patch, task)
    assert verdict.passed, verdict.explanation


async def test_the_solution_never_sees_hidden_files(bench):
    code = (
        "import os\ndef f():\n    found = []\n"
        "    for folder in ('/work', '/tmp', '/home', '/dev/shm'):\n"
        "        for place, _, names in os.walk(folder):\n"
        "            found += [os.path.join(place, name) for name in names if name[-1] != 'c']\n"
        "    return sorted(found)\n"
    )
    text, task = small(
        code,
        "def f() -> list[str]: ...",
        "from m import f\ndef test_it():\n    assert f() == ['/work/m.py']\n",
    )
    verdict = await judged(bench, text, task)
    assert verdict.passed, verdict.explanation
