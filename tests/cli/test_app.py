"""The table of verbs: help without loading any, and an example in each that parses."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from quintain.cli.app import VERBS


def test_help_names_every_verb(quintain):
    called = quintain("--help")
    assert called.code == 0
    for verb in VERBS:
        assert re.search(rf"\b{verb}\b", called.out)


def test_help_loads_no_verb():
    code = (
        "import sys\nfrom quintain.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'aiohttp', 'sqlite3', 'jinja2', 'quintain.evals'}\n"
        "found = heavy & set(sys.modules)\n"
        "verbs = {m for m in sys.modules if m.startswith('quintain.cli.')}\n"
        "found |= verbs - {'quintain.cli.app'}\n"
        "sys.exit(f'loaded: {found}' if found else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_helps_with_an_example(quintain, verb):
    called = quintain(verb, "--help")
    assert called.code == 0, called.err
    text = " ".join(called.out.split())
    assert f"quintain {verb}" in text.split("Example:")[1]


def test_an_unknown_verb_and_option_are_misuse(quintain):
    called = quintain("evl")
    assert called.code == 2
    assert "eval" in called.err
    assert quintain("eval", "--nonsense").code == 2
    assert quintain("export", "nowhere").code == 2


def test_the_version(quintain):
    called = quintain("--version")
    assert called.code == 0
    assert re.fullmatch(r"quintain \d+\.\d+\.\d+\n", called.out)


def test_the_examples_of_run_and_eval_run(quintain):
    for verb in ("run", "eval"):
        helped = " ".join(quintain(verb, "--help").out.split())
        example = re.search(r'Example: (quintain .*?7")', helped).group(1)
        called = quintain(*shlex.split(example)[1:], "--limit", "2")
        assert called.code == 0, called.err
