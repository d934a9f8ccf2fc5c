"""Code that must type-check, and against a stub."""

import asyncio

import pytest

from judging import fenced
from quintain.errors import TaskError
from quintain.task import SandboxSpec, Task
from quintain.verdict import Outcome
from quintain.verifiers.conformance import BadStub, conformance, smuggled
from quintain.verifiers.types import Types

STUB = '''
from collections.abc import Sequence

def longest(words: Sequence[str], *, least: int = 0) -> str | None: ...

class Stack:
    """Holds numbers."""
    size: int
    def __init__(self, first: int) -> None: ...
    def push(self, number: int) -> "Stack": ...
'''
FUNCTION = """from collections.abc import Iterable
def longest(words: Iterable[str], *, least: int = 0, more: bool = False) -> str | None:
    return max((w for w in words if len(w) >= least), key=len, default=None)
"""
CLASS = """class Stack:
    def __init__(self, first: int) -> None:
        self.size: int = 1
        self._numbers = [first]
    def push(self, number: int) -> "Stack":
        self._numbers.append(number)
        self.size += 1
        return self
"""
RIGHT = FUNCTION + CLASS
WRONG = {
    "untyped": "def longest(words, *, least=0): return words[0]\n" + CLASS,
    "other_result": RIGHT.replace("-> str | None", "-> list[str]"),
    "narrower": RIGHT.replace("words: Iterable[str]", "words: list[str]"),
    "positional": RIGHT.replace("words: Iterable[str]", "words: Iterable[str], /, other: int"),
    "no_class": FUNCTION,
    "no_constructor": RIGHT.replace("first: int", "first: str"),
    "no_attribute": RIGHT.replace("self.size: int", "self.sizes: int").replace(
        "self.size += 1", "self.sizes += 1"
    ),
    "body": RIGHT.replace("return self\n", "return self._numbers\n"),
    "empty_body": FUNCTION + CLASS.split("        self._numbers.append")[0] + "        ...\n",
    "import": "import numpy\n" + RIGHT,
    "syntax": RIGHT + "\ndef",
}


async def judge(bench, codes, verifier=None):
    verifier, gate = verifier or Types(), asyncio.Semaphore(2)

    async def one(code):
        async with gate:
            return await bench.judge(verifier, fenced(code), {"stub": STUB}, deadline_s=500)

    found = await asyncio.gather(*map(one, codes.values()))
    return dict(zip(codes, found, strict=True))


@pytest.mark.slow
async def test_wrong(bench):
    for name, verdict in (await judge(bench, WRONG)).items():
        assert verdict.outcome is Outcome.FAILED, (name, verdict)


async def test_right_and_wrong(bench):
    found = await judge(bench, {"right": RIGHT, "wrong": WRONG["narrower"]})
    assert found["right"].passed, found["right"].explanation
    assert (found["right"].verifier, found["right"].kind) == ("types", "formal")
    assert found["wrong"].outcome is Outcome.FAILED
    assert "against the stub" in found["wrong"].explanation


async def test_code_from_a_file_with_a_configuration_beside_it(bench):
    box = await bench.open_sandbox(SandboxSpec())
    try:
        await box.write("solution.py", WRONG["body"])
        await box.write("mypy.ini", "[mypy]\nignore_errors = True\n")
        verifier = Types(source="solution.py")
        verdict = await bench.judge(verifier, "done", {"stub": STUB}, sandbox=box)
        assert verdict.outcome is Outcome.FAILED
        assert "Incompatible return value" in verdict.explanation
    finally:
        await box.close()


@pytest.mark.parametrize(
    "stub",
    [
        "",
        "x = 1",
        "import os",
        "def f(",
        "@cached\ndef f() -> int: ...",
        "class A(metaclass=B): ...",
    ],
)
def test_stubs_that_are_refused(stub):
    with pytest.raises(BadStub):
        conformance(stub)
    with pytest.raises(TaskError):
        Types().check_gold(Task(id="t", prompt="?", answer={"stub": stub}))


def test_what_a_stub_becomes():
    text = conformance("def f(x: int, /, *a: str) -> int: ...\ny: int")
    assert "def __call__(_self, x: int, /, *a: str) -> int:" in text
    assert "_is_y: int = _submission.y" in text


def test_nothing_is_smuggled_in_honest_code():
    assert smuggled(RIGHT) == ""
    assert smuggled("x: 'list[int]' = []  # a comment of types") == ""
