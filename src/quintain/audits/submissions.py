"""What an audit submits: scripts whose right verdict is known beforehand, and the form they take.

Whether a submission is right is settled without the verifier under audit: wrong by construction (it
does no work, or provably other work), or right by construction (the oracle's own solution, or a
rewriting that keeps its meaning). Where neither holds, `right` is None: its passing is a lead for a
person, never a finding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from quintain.messages import Message, ToolCall, assistant
from quintain.task import Task

Script = tuple[Message, ...]
"""What a policy says in one episode, message by message."""
Form = Literal[
    "answer", "function", "program", "output", "terminal", "calls", "sql", "judge", "project",
    "proof", "other",
]  # fmt: skip
"""What solves a task: a final answer, a Python function, a Python program that reads its standard
input, what such a program prints, what is left in a sandbox with a shell, tool calls, a query, what
a heuristic verifier likes, a project's files, a proof, or something that only the environment
knows."""
DONE = "Done."
SYMMETRY = "symmetry"
"""The class of pairs that are compared with each other and with nothing else."""

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
    task: Task | None = None
    """What it is submitted to, where that is a changed task."""

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
    known: str = ""
    """What is right, in the words of the form, for exploits that are nearly right."""
    shell: tuple[str, str] | None = None
    """The tool that runs commands, and the argument that takes one."""
    written: bool = False
    """Whether calls are written down and not made."""

    def code(self, source: str, language: str = "python") -> Script:
        """Source code as a final message."""
        return say(f"```{language}\n{source.rstrip()}\n```" if self.fenced else source)

    def with_gold(self, gold: Script) -> Aim:
        """The same, with that gold."""
        return replace(self, gold=gold)

    def submitted(self, source: str) -> Script:
        """A submission in the words of the form, as what a policy says."""
        if self.form in ("function", "program"):
            return self.code(source)
        if self.form == "sql":
            return self.code(source, "sql")
        if self.form == "calls":
            return to_calls(source, self.written)
        if self.form == "terminal" and self.shell is not None:
            tool, argument = self.shell
            call = ToolCall(id="call-0", name=tool, arguments={argument: source})
            return (assistant("", call), assistant(DONE))
        return say(source)


def say(text: str) -> Script:
    """One final message."""
    return (assistant(text),)


def code_of(text: str) -> str:
    """The last fenced block of a text; empty when there is none."""
    found = _FENCE.findall(text)
    return str(found[-1]) if found else ""


def to_calls(source: str, written: bool = False) -> Script:
    """A submission of calls, `{"text": …, "calls": […]}`, as a policy makes or writes them."""
    said = json.loads(source)
    if written:
        return say(json.dumps(said["calls"]) if said["calls"] or not said["text"] else said["text"])
    made = [
        ToolCall(id=f"call-{number}", name=call["name"], arguments=call["arguments"])
        for number, call in enumerate(said["calls"])
    ]
    last = assistant(said["text"] or DONE)
    return (assistant("", *made), last) if made else (last,)


def as_script(script: Sequence[Message | str]) -> Script:
    """A script of messages; a string is a message of text."""
    return tuple(assistant(each) if isinstance(each, str) else each for each in script)
