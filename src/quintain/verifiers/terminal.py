r"""Is the work done: files compared, programs run, a check command, in what the candidate left.

`Task.answer` names any of::

    {"files": {"out.txt": "3\n", "old.txt": null},          # content from outside; null: gone
     "runs": [{"command": "python3 sum.py", "stdin": "1 2", "stdout": "3"}],
     "check": "sh $CHECK/check.sh", "check_s": 60}          # exit code 0; with Task.hidden_files

All must hold. Everything happens after the episode, when no process of the candidate lives: in a
fork of its sandbox where there are forks, else in the sandbox itself after everything in it was
killed. Files and what programs print are compared in this process. Hidden files come last, into a
folder whose name nobody could know (`$CHECK`), and the status is the supervisor's.

What a check command *runs* of the candidate's runs with the check's own rights and can lie to it:
compare outputs with `runs`, whose expectations never enter the sandbox, and let `check` look.
"""

from __future__ import annotations

import secrets
import time
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from quintain.errors import SandboxError, TaskError, VerifierError, boundary
from quintain.protocols import ExecResult, JudgeContext, Sandbox
from quintain.record import Record
from quintain.task import Task
from quintain.verdict import Check, Kind, Verdict

MAX_FILE_BYTES = 10_000_000
KILL_ALL = ["sh", "-c", "kill -9 -1"]
"""Kills every process of the sandbox's user but itself; inside a PID namespace, never outside."""
LEFT = ["sh", "-c", "for f in /proc/[0-9]*/stat; do echo x; done"]


class Run(Record):
    """One run of a program that the candidate left."""

    command: str
    """What `sh -c` runs in the workdir."""
    stdin: str = ""
    stdout: str | None = None
    """What it must print; a final line break does not count. None: anything."""
    exit_code: int = 0
    timeout_s: float = Field(default=10.0, gt=0)


class Wanted(Record):
    """What `Task.answer` says."""

    files: dict[str, str | None] = Field(default_factory=dict)
    """Path to content, a final line break does not count; None: there must be no such file."""
    runs: tuple[Run, ...] = ()
    check: str = ""
    """What `sh -c` runs in the workdir, hidden files in `$CHECK`; 0 passes."""
    check_s: Annotated[float, Field(gt=0)] = 60.0

    @model_validator(mode="after")
    def _something(self) -> Wanted:
        if not (self.files or self.runs or self.check):
            raise ValueError("nothing is checked: name files, runs or a check command")
        return self

    @classmethod
    def of(cls, task: Task) -> Wanted:
        """A task's.

        Raises:
            TaskError: what is wrong with it.
        """
        try:
            wanted = cls.model_validate(task.answer)
        except ValidationError as error:
            raise TaskError(f"task {task.id}: its answer is no terminal check: {error}") from error
        for path in task.hidden_files:
            parts = PurePosixPath(path).parts
            if not parts or parts[0] == "/" or ".." in parts:
                raise TaskError(
                    f"task {task.id}: hidden file {path!r}: expected a path below $CHECK"
                )
        return wanted


class Terminal:
    """Judges what a terminal task's candidate left in its sandbox; see the module.

    Args:
        name: the verifier's name.
    """

    def __init__(self, *, name: str = "terminal") -> None:
        self.name = name
        self.kind: Kind = "formal"

    def check_gold(self, task: Task) -> None:
        """Refuses a task that checks nothing, or is malformed.

        Raises:
            TaskError: what is wrong with it.
        """
        Wanted.of(task)

    async def judge(self, context: JudgeContext) -> Verdict:
        """All of it holds, or not.

        Raises:
            TaskError: the task is at fault.
            VerifierError: there is no sandbox any more, or it still has processes.
        """
        began = time.monotonic()
        wanted = Wanted.of(context.task)
        if context.sandbox is None:
            raise VerifierError(
                f"verifier {self.name} looks at the episode's sandbox, which is gone: "
                "roll out again"
            )
        with boundary(VerifierError, f"verifier {self.name}"):
            failed = await self._judge(context.task, wanted, context.sandbox)
        verdict = Verdict.of(
            failed is None,
            "everything holds" if failed is None else f"{failed.name}: {failed.detail}",
            checks=(Check(name="terminal", passed=True),) if failed is None else (failed,),
        )
        wall_s = time.monotonic() - began
        return verdict.model_copy(
            update={"verifier": self.name, "kind": self.kind, "wall_s": wall_s}
        )

    async def _judge(self, task: Task, wanted: Wanted, sandbox: Sandbox) -> Check | None:
        """The first thing that does not hold."""
        if "fork" not in sandbox.capabilities:
            await _end_processes(sandbox)
            return await self._look(task, wanted, sandbox)
        try:
            room: Sandbox = await sandbox.fork()  # type: ignore[attr-defined]
        except SandboxError:
            raise
        except OSError as error:
            # Folders deeper than anybody needs, say: the candidate's doing.
            return Check(name="sandbox", passed=False, detail=f"cannot be looked at: {error}")
        try:
            return await self._look(task, wanted, room)
        finally:
            await room.close()

    async def _look(self, task: Task, wanted: Wanted, room: Sandbox) -> Check | None:
        for path, content in wanted.files.items():
            wrong = await _file(room, path, content)
            if wrong:
                return Check(name=f"file {path}", passed=False, detail=wrong)
        for number, run in enumerate(wanted.runs):
            done = await room.exec(
                ["sh", "-c", run.command], stdin=run.stdin, timeout_s=run.timeout_s
            )
            wrong = _program(run, done)
            if wrong:
                return Check(name=f"run {number}", passed=False, detail=wrong)
        if not wanted.check:
            return None
        folder = f"/check-{secrets.token_hex(8)}"
        for path, data in {"": None, **task.hidden_files}.items():
            if data is not None:
                await room.write(f"{folder}/{path}", data, mode=0o755)
        env = {"CHECK": folder, "HOME": folder, "PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1"}
        done = await room.exec(["sh", "-c", wanted.check], timeout_s=wanted.check_s, env=env)
        if done.ok:
            return None
        said = (done.error_text.strip() or done.text.strip())[-1000:]
        why = f"killed: {done.killed}" if done.killed else f"exit code {done.exit_code}"
        return Check(name="check", passed=False, detail=f"{why}; {said}" if said else why)


async def _end_processes(sandbox: Sandbox) -> None:
    """Kills everything that the candidate left running; hidden files must meet no one."""
    for _ in range(3):
        await sandbox.exec(KILL_ALL)
        left = await sandbox.exec(LEFT)
        # The first process, the minder, and the shell that counts.
        if left.ok and left.text.count("x") <= 3:
            return
    raise VerifierError("the candidate's processes cannot be ended in this sandbox")


async def _file(room: Sandbox, path: str, content: str | None) -> str:
    """What is wrong with a file; empty when nothing is."""
    try:
        found = await room.read(path, max_bytes=MAX_FILE_BYTES)
    except SandboxError:
        raise
    except FileNotFoundError:
        return "" if content is None else "it is not there"
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    if content is None:
        return "it is still there"
    if found.removesuffix(b"\n") == content.encode().removesuffix(b"\n"):
        return ""
    return f"its {len(found)} bytes are not the expected ones"


def _program(run: Run, done: ExecResult) -> str:
    """What is wrong with a run; empty when nothing is. It never says what was expected."""
    if done.killed:
        return f"killed: {done.killed}"
    if done.exit_code != run.exit_code:
        said = done.error_text.strip()[-500:]
        return f"exit code {done.exit_code}{'; ' + said if said else ''}"
    if run.stdout is None:
        return ""
    if done.truncated or done.stdout.removesuffix(b"\n") != run.stdout.encode().removesuffix(b"\n"):
        return f"it printed something else: {done.text[:200]!r}"
    return ""
