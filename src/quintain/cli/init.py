"""`quintain init`: writes a package with an environment, tests that pass, and a README."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from quintain.cli.console import fail, out, verb

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{distribution}"
version = "0.1.0"
description = "An environment for Quintain."
requires-python = ">=3.11"
dependencies = ["quintain"]

[project.entry-points."quintain.environments"]
{name} = "{name}:environment"

[tool.pytest.ini_options]
pythonpath = ["src"]

[tool.ruff]
line-length = 100
"""

ENVIRONMENT = '''\
"""How often is a letter in a word? With a tool that counts."""

import quintain as q

WORDS = ("quintain", "lance", "saddle", "tournament", "herald", "banneret", "strawberry")


def count(word: str, letter: str) -> int:
    """Counts how often a letter is in a word."""
    return word.count(letter)


def right(text: str, answer: str) -> bool:
    """The verifier: the last message is the number and nothing else."""
    return text.strip() == answer


environment = q.Environment(
    name="{name}",
    tasks=[
        {{"prompt": f"How many {{c}} are in {{w}}? Say the number.", "answer": str(w.count(c))}}
        for w in WORDS
        for c in sorted(set(w))
    ],
    tools=[count],
    verifier=right,
)
'''

TESTS = '''\
"""The verifier accepts every gold answer and nothing that only looks like one."""

import pytest
import quintain as q

from {name} import environment

GOLD = {{task.prompt[-1].text: task.answer for task in environment.tasks}}


def outcomes(folder, script):
    """How the tasks of all splits come out when a scripted policy plays them."""
    policy = q.scripted(script)
    run = q.evaluate(environment, policy, tasks=environment.tasks, run=folder)
    return {{outcome: number for outcome, number in run.outcomes.items() if number}}


def test_gold_answers_are_solved(tmp_path):
    found = outcomes(tmp_path / "run", lambda messages, tools, seed: GOLD[messages[0].text])
    assert found == {{q.Outcome.SOLVED: len(GOLD)}}


@pytest.mark.parametrize("wrong", ["", "0", "I think it is 1", "1 or 2", "99"])
def test_what_only_looks_like_an_answer_is_not(tmp_path, wrong):
    assert outcomes(tmp_path / "run", wrong) == {{q.Outcome.FAILED: len(GOLD)}}


def test_the_tool_counts():
    (tool,) = environment.tools
    assert tool.function("banneret", "n") == 2
    assert "letter" in tool.check({{"word": "banneret"}})
'''

README = """\
# {name}

An environment for [Quintain](https://pypi.org/project/quintain/): tasks, a tool and a verifier in
`src/{name}/__init__.py`.

    pip install -e .
    pytest
    quintain debug {name}                                      # play it yourself
    quintain eval {name} --model NAME --base-url http://localhost:8000/v1
    quintain train {name} --policy smollm2
"""


@verb
def init_command(
    name: Annotated[str, typer.Argument(help="Of the package, such as my_env.")],
    into: Annotated[
        Path, typer.Option("--in", help="Folder to make it in.", show_default=False)
    ] = Path(),
) -> None:
    """Writes a new package: an environment, tests that pass at once, a README.

    Example: quintain init my_env
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        fail(f"a package's name has small letters, digits and underscores, got {name!r}")
    if name in sys.stdlib_module_names or keyword.iskeyword(name) or name == "quintain":
        fail(f"{name!r} is a name of Python's own or this package's: choose another")
    folder = into / name
    if folder.exists() and any(folder.iterdir()):
        fail(f"{folder} is there already and not empty")
    named = {"name": name, "distribution": name.replace("_", "-")}
    files = {
        "pyproject.toml": PYPROJECT,
        "README.md": README,
        f"src/{name}/__init__.py": ENVIRONMENT,
        f"tests/test_{name}.py": TESTS,
    }
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.format(**named), encoding="utf-8")
    console = out()
    console.print(f"{len(files)} files written to {escape(str(folder))}; next:")
    for line in (f"cd {folder}", "pytest", f"quintain debug src/{name}/__init__.py:environment"):
        console.print(f"  {escape(line)}")
