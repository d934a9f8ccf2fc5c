r"""Work in a terminal: a shell that stays, files, edits, search; judged by what is left.

::

    user       In app.ini set port in the section [maple] to 8080. Change nothing else.
    assistant  → edit(path="app.ini", old="[maple]\nport = 80\n", new="[maple]\nport = 8080\n")
    tool       replaced 1 in app.ini: …
    assistant  Done.

The episode ends when the policy says something without calling a tool. Then, with every process of
the candidate ended, the `terminal` verifier compares files, runs programs on hidden inputs, or runs
a check command over hidden files. Tasks of your own take a few lines each (`task`).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quintain import registry
from quintain.envs.environment import Environment, Script
from quintain.envs.tasks import Generated
from quintain.envs.terminal_problems import Problem, Step, draw_problem
from quintain.envs.terminal_tools import TOOLS
from quintain.errors import ConfigError
from quintain.messages import Message, TextPart, ToolCall, ToolResult, assistant, tool_results
from quintain.record import derive_seed
from quintain.task import Limits, SandboxSpec, Split, Task

DONE = "Done."
SPEC = SandboxSpec(memory_mb=256, disk_mb=64, max_pids=64, max_output_bytes=20_000)
LIMITS = Limits(max_steps=16, wall_s=600.0)
WHERE = "You work in a Linux sandbox, in the folder {workdir}, with the tools you are given. "
END = " When it is done, say so without calling a tool."


def environment(
    tasks: Iterable[Task | Mapping[str, Any]] | None = None,
    *,
    seed: int = 0,
    train: int = 2000,
    eval: int = 100,
    heldout: int = 100,
    sandbox: SandboxSpec = SPEC,
    limits: Limits = LIMITS,
) -> Environment:
    """The environment.

    Args:
        tasks: your own, made by `task`; None: generated ones.
        seed: of the generated tasks.
        train: generated tasks in the train split.
        eval: generated tasks in the eval split.
        heldout: generated tasks in the held-out split.
        sandbox: where the policy works.
        limits: of each episode.
    """
    shared: dict[str, Any] = {
        "verifier": registry.verifiers.get("terminal")(),
        "name": "terminal",
        "tools": TOOLS,
        "sandbox": sandbox,
        "limits": limits,
    }
    if tasks is not None:
        return Environment(tasks=[_own(row) for row in tasks], **shared)
    source = Generated(_make, name="terminal", seed=seed, train=train, eval=eval, heldout=heldout)

    def oracle(task: Task) -> Script:
        return _script(draw_problem(source.generator(task.id)).steps)

    def fakes(task: Task) -> Sequence[Script]:
        problem = draw_problem(source.generator(task.id))
        return [_script(steps) for steps in ((), *problem.fakes)]

    def demonstrations(n: int, seed: int = 0) -> list[list[Message]]:
        start = derive_seed(seed, "demonstrations")
        found = Generated(_make, name="terminal", seed=start, train=n)
        return [
            [*task.prompt, *_talk(draw_problem(found.generator(task.id)))]
            for task in found.split(Split.TRAIN)
        ]

    return Environment(
        tasks=source, oracle=oracle, fakes=fakes, demonstrations=demonstrations, **shared
    )


def task(
    id: str,
    instruction: str,
    *,
    files: Mapping[str, str | bytes] | None = None,
    expect_files: Mapping[str, str | None] | None = None,
    runs: Sequence[Mapping[str, Any]] = (),
    check: str = "",
    check_files: Mapping[str, str | bytes] | None = None,
    check_s: float = 60.0,
    **fields: Any,
) -> Task:
    """A terminal task; all that is expected must hold at the end.

    Args:
        id: its name, unique in the environment.
        instruction: what the policy is asked.
        files: what lies in the sandbox at the beginning: path to content.
        expect_files: what files must hold at the end; None: there must be no such file.
        runs: programs to run at the end: `command`, and any of `stdin`, `stdout`, `exit_code`,
            `timeout_s`. Expectations never enter the sandbox.
        check: a command that exits with 0 if all is well; it finds `check_files` in `$CHECK`.
        check_files: put there only when no process of the candidate lives any more.
        check_s: seconds that the check may take.
        fields: more of `Task` (`split`, `sandbox`, `limits`, `metadata`, …).

    Raises:
        ConfigError: nothing is expected.
    """
    if not (expect_files or runs or check):
        raise ConfigError(f"task {id!r} expects nothing: give expect_files, runs or check")
    spec = fields.get("sandbox") or SPEC
    values: dict[str, Any] = {
        "id": id,
        "prompt": WHERE.format(workdir=spec.workdir) + instruction + END,
        "files": dict(files or {}),
        "hidden_files": dict(check_files or {}),
        "answer": _answer(expect_files or {}, runs, check, check_s),
        **fields,
    }
    return Task.model_validate(values)


def _answer(
    files: Mapping[str, str | None], runs: Sequence[Mapping[str, Any]], check: str, check_s: float
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if files:
        found["files"] = dict(files)
    if runs:
        found["runs"] = [dict(run) for run in runs]
    if check:
        found |= {"check": check, "check_s": check_s}
    return found


def _own(row: Task | Mapping[str, Any]) -> Task:
    return row if isinstance(row, Task) else task(**row)


def _make(rng: random.Random, number: int) -> dict[str, Any]:
    problem = draw_problem(rng)
    return {
        "prompt": WHERE.format(workdir=SPEC.workdir) + problem.instruction + END,
        "files": problem.files,
        "hidden_files": problem.hidden,
        "answer": problem.answer,
        "content": [problem.name, problem.instruction],
        "metadata": {"template": problem.name},
        "source": "generated",
    }


def _script(steps: Sequence[Step]) -> Script:
    return [*(_call(step, number) for number, step in enumerate(steps)), assistant(DONE)]


def _call(step: Step, number: int) -> Message:
    return assistant("", ToolCall(id=f"call-{number}", name=step.tool, arguments=step.arguments))


def _talk(problem: Problem) -> list[Message]:
    """The right solution with what the tools say."""
    messages = []
    for number, step in enumerate(problem.steps):
        told = ToolResult(
            call_id=f"call-{number}", name=step.tool, content=(TextPart(text=step.told),)
        )
        messages += [_call(step, number), tool_results(told)]
    return [*messages, assistant(DONE)]
