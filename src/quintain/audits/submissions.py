"""What an audit submits: scripts whose right verdict is known beforehand, and the form they take.

Whether a submission is right is settled without the verifier under audit: wrong by construction (it
does no work, or provably other work), or right by construction (the oracle's own solution, or a
rewriting that keeps its meaning). Where neither holds, `right` is None: its passing is a lead for a
person, never a finding.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quintain.messages import Message, assistant
from quintain.protocols import Environment
from quintain.record import Json
from quintain.task import Task

Script = tuple[Message, ...]
"""What a policy says in one episode, message by message."""
Form = Literal["answer", "function", "program", "output", "other"]
"""What solves a task: a final answer, a Python function, a Python program that reads its standard
input, what such a program prints, or something that only the environment knows."""

_FENCE = re.compile(r"^```[ \t]*[\w+-]*[^\n]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Submission:
    """One thing to submit to one task."""

    name: str
    """Unique among the submissions of a task."""
    kind: str
    """The class that it is counted in, such as "early exit"."""
    script: Script
    right: bool | None
    """Whether it must pass; None: not known."""
    weakness: str = ""
    """What a wrong verdict on it shows, by its id in `weaknesses`."""
    detail: str = ""
    """One line: what it does, and why that makes it right or wrong."""
    costly: bool = False
    """Whether it burns its whole budget: then it is played on one task, once."""

    @property
    def text(self) -> str:
        """What it says, for people."""
        return "\n".join(message.text or str(message.tool_calls) for message in self.script)


@dataclass(frozen=True, slots=True)
class Aim:
    """What is known of one task without asking its verifier."""

    task: Task
    form: Form
    gold: Script | None = None
    """The oracle's script."""
    entry_point: str = ""
    """The function to write."""
    reference: str = ""
    """Source code of a right solution."""
    examples: tuple[tuple[Sequence[Any], Any], ...] = ()
    """Arguments and results that the task itself shows."""
    fenced: bool = True
    """Whether code goes into a fenced block."""

    def code(self, source: str) -> Script:
        """Source code as a final message."""
        return say(f"```python\n{source.rstrip()}\n```" if self.fenced else source)


def say(text: str) -> Script:
    """One final message."""
    return (assistant(text),)


def code_of(text: str) -> str:
    """The last fenced block of a text; empty when there is none."""
    found = _FENCE.findall(text)
    return str(found[-1]) if found else ""


def aim_of(environment: Environment, task: Task) -> Aim:
    """What the environment's own declarations say about a task.

    An environment with a function `aim(task) -> Aim` decides by itself.
    """
    declared = getattr(environment, "aim", None)
    if declared is not None:
        found: Aim = declared(task)
        return found
    oracle = getattr(environment, "oracle", None)
    gold = as_script(oracle(task)) if oracle is not None else None
    form = _form(environment, task.answer)
    if form in ("function", "program") and gold is not None:
        return Aim(
            task,
            form,
            gold,
            entry_point=task.answer.get("entry_point") or "",
            reference=code_of(gold[-1].text) or gold[-1].text,
            examples=examples_in(task.prompt[-1].text if task.prompt else "", task.answer),
        )
    if form == "answer" and gold is None and isinstance(task.answer, str):
        gold = say(task.answer)
    return Aim(task, form, gold)


def examples_in(prompt: str, answer: Json) -> tuple[tuple[Sequence[Any], Any], ...]:
    """Calls with results that a task shows, as `f(1, 2) == 3` or `f(1, 2) -> 3`."""
    entry = answer.get("entry_point") if isinstance(answer, dict) else None
    if not entry:
        return ()
    out = []
    for found in re.finditer(rf"{re.escape(entry)}\((.*?)\) (?:==|->|returns) (.+)", prompt):
        try:
            value = ast.literal_eval(found[2].strip().rstrip("`."))
            out.append((ast.literal_eval(f"({found[1]},)" if found[1] else "()"), value))
        except (ValueError, SyntaxError):
            continue
    return tuple(out)


def _form(environment: Environment, answer: Json) -> Form:
    tools = getattr(environment, "tools", ())
    if isinstance(answer, dict) and isinstance(answer.get("cases"), list):
        if tools:
            return "other"
        return "function" if answer.get("entry_point") else "program"
    if isinstance(answer, str | int | float) and not isinstance(answer, bool) and not tools:
        return "answer"
    return "other"


def as_script(script: Sequence[Message | str]) -> Script:
    """A script of messages; a string is a message of text."""
    return tuple(assistant(each) if isinstance(each, str) else each for each in script)
