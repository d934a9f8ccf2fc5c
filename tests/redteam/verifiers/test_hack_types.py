"""Types that are switched off, lost or shown to the checker only."""

import pytest

from judging import fenced
from quintain.verdict import Outcome
from quintain.verifiers.conformance import smuggled
from quintain.verifiers.types import Types

STUB = {"stub": "def f(x: int) -> str: ..."}
LIE = "def f(x: int) -> str:\n    return x"
SCANNED = {
    "ignore": f"{LIE}  # type: ignore",
    "ignore_tight": f"{LIE}  #type:ignore[return-value]",
    "ignore_file": f"# mypy: ignore-errors\n{LIE}",
    "disable": f"# mypy: disable-error-code=return-value\n{LIE}",
    "pyright": f"# pyright: basic\n{LIE}",
    "any": "from typing import Any\ndef f(x: int) -> str:\n    y: Any = x\n    return y",
    "any_alias": "import typing as t\ndef f(x: int) -> str:\n    y: t.Any = x\n    return y",
    "any_quoted": "import typing as t\ndef f(x: int) -> str:\n    y: 't.Any' = x\n    return y",
    "cast": "from typing import cast\ndef f(x: int) -> str:\n    return cast(str, x)",
    "cast_alias": "from typing import cast as c\ndef f(x: int) -> str:\n    return c(str, x)",
    "star": "from typing import *\ndef f(x: int) -> str:\n    return cast(str, x)",
    "unchecked": f"from typing import no_type_check\n@no_type_check\n{LIE}",
    "type_checking": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
    "    def f(x: int) -> str:\n        return ''\nelse:\n    f = 3",
    "mypy_name": "MYPY = False\nif MYPY:\n    def f(x: int) -> str: return ''\nelse:\n    f = 3",
    "platform": "import sys\nif sys.platform == 'win32':\n    f = 3\ndef f(x: int) -> str: ...",
    "module_getattr": "from collections.abc import Callable\n"
    "def __getattr__(name: str) -> Callable[[int], str]: return str",
    "cookie": f"# coding: utf-7\n{LIE}",
    "nul": f"{LIE}\0",
    "deep": "x = " + "-" * 100_000 + "1",
}
CHECKED = {
    "from_json": "import json\ndef f(x: int) -> str:\n    return json.loads(str(x))",
    "getattr": "def f(x: int) -> str:\n    return getattr(x, 'real')",
    "untyped_helper": "def g(x): return x\ndef f(x: int) -> str:\n    return g(x)",
    "lambda": "f = lambda x: x",
}


@pytest.mark.parametrize("name", SCANNED)
def test_seen_before_the_checker_runs(name):
    assert smuggled(SCANNED[name])


async def test_seen_by_the_checker(bench):
    verifier = Types()
    for name in ("from_json", "ignore"):
        code = {**CHECKED, **SCANNED}[name]
        verdict = await bench.judge(verifier, fenced(code), STUB, deadline_s=400)
        assert verdict.outcome is Outcome.FAILED, (name, verdict)


@pytest.mark.slow
async def test_all_that_only_the_checker_sees(bench):
    verifier = Types()
    for name, code in CHECKED.items():
        verdict = await bench.judge(verifier, fenced(code), STUB, deadline_s=400)
        assert verdict.outcome is Outcome.FAILED, (name, verdict)


async def test_a_naive_checker_is_fooled(bench, monkeypatch):
    """The same checker without the scan passes a lie that a comment covers."""
    monkeypatch.setattr("quintain.verifiers.types.smuggled", lambda code: "")
    verdict = await bench.judge(Types(), fenced(SCANNED["ignore"]), STUB, deadline_s=400)
    assert verdict.outcome is Outcome.SOLVED
