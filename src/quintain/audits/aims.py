"""What is known of a task without asking its verifier: its form, its gold, what it shows."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from quintain.audits.submissions import Aim, Form, as_script, code_of, say, to_calls
from quintain.protocols import Environment
from quintain.record import Json
from quintain.task import Task

SHELLS = ("shell", "bash", "sh", "terminal", "execute", "run_command", "execute_command")
"""Names of tools that run a command; the argument is the first string that they need."""


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
    form = form_of(environment, task.answer)
    if form in ("function", "program") and gold is not None:
        return Aim(
            task,
            form,
            gold,
            entry_point=task.answer.get("entry_point") or "",
            reference=code_of(gold[-1].text) or gold[-1].text,
            examples=examples_in(task.prompt[-1].text if task.prompt else "", task.answer),
        )
    if form == "sql":
        aim = Aim(task, form, gold, known=json.dumps(task.answer))
        return aim if gold is not None else aim.with_gold(aim.submitted(task.answer["query"]))
    if form == "calls":
        written = getattr(environment.verifier, "source", "") == "text"
        right = json.dumps({"text": "", "calls": _right_calls(task.answer)})
        aim = Aim(task, form, gold, known=right, written=written)
        return aim if gold is not None else aim.with_gold(to_calls(right, written))
    if form == "proof":
        name = str(task.answer.get("name", "solution"))
        return Aim(task, form, gold, entry_point=name, known=str(task.answer["statement"]))
    if form == "terminal":
        return Aim(task, form, gold, shell=_shell(environment))
    if form in ("answer", "judge") and gold is None and isinstance(task.answer, str):
        gold = say(task.answer)
    known = str(task.answer) if form == "answer" else ""
    return Aim(task, form, gold, known=known)


def form_of(environment: Environment, answer: Json) -> Form:
    """Of what form a submission is, by what the task's answer and the environment look like."""
    tools = getattr(environment, "tools", ())
    if isinstance(answer, dict):
        if isinstance(answer.get("query"), str) and isinstance(answer.get("databases"), list):
            return "sql"
        if isinstance(answer.get("calls"), list) or answer.get("no_calls") is True:
            return "calls"
        if isinstance(answer.get("statement"), str) and not tools:
            return "proof"
        if isinstance(answer.get("cases"), list) and not tools:
            return "function" if answer.get("entry_point") else "program"
    if _shell(environment):
        return "terminal"
    if environment.verifier.kind == "heuristic" and not tools:
        return "judge"
    if isinstance(answer, str | int | float) and not isinstance(answer, bool) and not tools:
        return "answer"
    return "other"


def _shell(environment: Environment) -> tuple[str, str] | None:
    """The tool that runs commands in the sandbox, and the argument that takes one."""
    if getattr(environment, "sandbox", None) is None:
        return None
    for tool in getattr(environment, "tools", ()):
        parameters = tool.spec.parameters
        takes: dict[str, Any] = parameters.get("properties", {})
        needed = parameters.get("required", list(takes))
        if tool.spec.name in SHELLS:
            for name in needed:
                if takes.get(name, {}).get("type") == "string":
                    return tool.spec.name, name
    return None


def _right_calls(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Calls that the answer accepts, of several values the first."""
    return [
        {
            "name": call["name"],
            "arguments": {
                **call.get("arguments", {}),
                **{name: values[0] for name, values in call.get("alternatives", {}).items()},
            },
        }
        for call in answer.get("calls", ())
    ]


def may_be_right(answer: Json, source: str) -> bool:
    """Whether changed calls are among those that the answer accepts after all."""
    made = json.loads(source)["calls"]
    wanted = answer.get("calls", ()) if isinstance(answer, dict) else ()
    return len(made) == len(wanted) and all(map(_accepted, wanted, made))


def _accepted(wanted: dict[str, Any], made: dict[str, Any]) -> bool:
    values = {name: [value] for name, value in wanted.get("arguments", {}).items()}
    values |= wanted.get("alternatives", {})
    given = made["arguments"]
    missing = set(values) - set(given) - set(wanted.get("optional", ()))
    return (
        made["name"] == wanted["name"]
        and not missing
        and all(
            name in values and json.dumps(value) in map(json.dumps, values[name])
            for name, value in given.items()
        )
    )


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
