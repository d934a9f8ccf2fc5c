"""Lean 4 proofs, judged by `comparator`. Unverified: written to its documentation, never run on it.

comparator (github.com/leanprover/comparator) builds the task's `Challenge` and the candidate's
`Solution` apart, exports both environments, compares everything that the statement uses, allows
listed axioms only, and replays the solution in Lean's kernel. Its exit code, as waited for outside
the room, is the verdict: nothing that is printed is read for it.

The clean room needs an image with Lean, a Lake project with libraries `Challenge` and `Solution` as
its working directory, comparator, landrun and lean4export. Whether they work there is tried with a
proof that must pass and one that must not before the first verdict: a broken installation is the
host's fault, never a failed proof. `Task.answer` is::

    {"statement": "∀ n m : Nat, n + m = m + n", "imports": "", "definitions": "",
     "name": "solution", "axioms": ["propext", "Quot.sound", "Classical.choice"]}
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Sequence

from pydantic import Field

from quintain.errors import ConfigError, TaskError, VerifierError, boundary
from quintain.protocols import ExecResult, JudgeContext
from quintain.record import Record
from quintain.task import SandboxSpec, Task
from quintain.verdict import Check, Kind, Verdict
from quintain.verifiers.state import expectation

COMMAND = ("lake", "env", "comparator")
MAX_TEXT_BYTES = 200_000
STANDARD = ("propext", "Quot.sound", "Classical.choice")
_FENCE = re.compile(r"^```[ \t]*([\w+-]*)[^\n]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_']{0,63}")


class LeanGoal(Record):
    """What `Task.answer` says."""

    statement: str = Field(min_length=1)
    """A proposition of Lean 4."""
    imports: str = ""
    definitions: str = ""
    """What the statement speaks of."""
    name: str = "solution"
    axioms: tuple[str, ...] = STANDARD

    @property
    def header(self) -> str:
        """What stands before the theorem, in both files."""
        return f"{self.imports}\n{self.definitions}\n"

    @property
    def challenge(self) -> str:
        """The task's file."""
        return f"{self.header}theorem {self.name} : {self.statement} := by\n  sorry\n"

    def solution(self, text: str) -> str:
        """The candidate's file; tactics alone become a proof of the statement as it is written."""
        if re.search(rf"\b(?:theorem|lemma|def)\s+{re.escape(self.name)}\b", text):
            return text if text.lstrip().startswith("import") else self.header + text
        body = "".join(f"  {line}\n" for line in text.strip().splitlines())
        return f"{self.header}theorem {self.name} : {self.statement} := by\n{body}"


_TRIED = LeanGoal(statement="∀ n : Nat, n = n", name="quintain_tries_it")


class Lean:
    """Checks a Lean 4 proof of the task's statement with comparator (see the module).

    Args:
        sandbox: the clean room, with an image that has all that is needed.
        command: how comparator is called, in the project; the configuration's name is added.
        timeout_s: wall-clock seconds of one check; more fails the proof.
        name: the verifier's name.

    Raises:
        ConfigError: the time is not positive.
    """

    def __init__(
        self,
        sandbox: SandboxSpec,
        *,
        command: Sequence[str] = COMMAND,
        timeout_s: float = 300.0,
        name: str = "lean",
    ) -> None:
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s is positive, got {timeout_s!r}")
        self.name = name
        self.kind: Kind = "formal"
        self.sandbox = sandbox
        self.command = tuple(command)
        self.timeout_s = timeout_s
        self._trying = asyncio.Lock()
        self._works = False

    def check_gold(self, task: Task) -> None:
        """Refuses a task whose goal is malformed.

        Raises:
            TaskError: what is wrong with it.
        """
        self._goal(task)

    def _goal(self, task: Task) -> LeanGoal:
        goal = expectation(task, LeanGoal, "statement")
        if not _NAME.fullmatch(goal.name):
            raise TaskError(f"task {task.id!r}: a theorem's name is a word, got {goal.name!r}")
        return goal

    async def judge(self, context: JudgeContext) -> Verdict:
        """Accepted by comparator, or not.

        Raises:
            TaskError: the goal is malformed.
            VerifierError: comparator does not work in the clean room, or the judge's time is up.
        """
        began = time.monotonic()
        goal = self._goal(context.task)
        text = written(context.trajectory.text)
        with boundary(VerifierError, f"verifier {self.name}"):
            await self._try(context)
            if not text.strip():
                why = "there is no proof"
            elif len(text.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
                why = f"the proof has more than {MAX_TEXT_BYTES} bytes"
            else:
                result = await self._compare(context, goal, goal.solution(text))
                why = "" if result.ok else _told(result)
        check = Check(name="comparator", passed=not why, detail=why)
        return Verdict.of(not why, why or "proved", checks=(check,)).signed(
            self.name, self.kind, time.monotonic() - began
        )

    async def _try(self, context: JudgeContext) -> None:
        """Finds out, once, whether comparator tells a proof from none."""
        async with self._trying:
            if self._works:
                return
            right = await self._compare(context, _TRIED, _TRIED.solution("intro n; rfl"))
            wrong = await self._compare(context, _TRIED, _TRIED.solution("sorry"))
            if not right.ok or wrong.ok:
                told = _told(right) if not right.ok else "it accepts `sorry`"
                raise VerifierError(f"{self.name}: comparator does not work here: {told}")
            self._works = True

    async def _compare(self, context: JudgeContext, goal: LeanGoal, solution: str) -> ExecResult:
        config = {
            "challenge_module": "Challenge",
            "solution_module": "Solution",
            "theorem_names": [goal.name],
            "permitted_axioms": list(goal.axioms),
            "enable_nanoda": False,
        }
        left = context.deadline - time.monotonic()
        if left <= 0:
            raise VerifierError(f"{self.name}: no time is left; give the judge a later deadline")
        room = await context.open_sandbox(self.sandbox)
        try:
            await room.write("Challenge.lean", goal.challenge)
            await room.write("Solution.lean", solution.encode("utf-8", "replace"))
            await room.write("comparator.json", json.dumps(config))
            argv = [*self.command, "comparator.json"]
            result = await room.exec(argv, timeout_s=min(left, self.timeout_s))
        finally:
            await room.close()
        if result.killed == "timeout" and left < self.timeout_s:
            raise VerifierError(f"{self.name}: the judge's deadline came before comparator's end")
        if not result.killed and result.exit_code in (126, 127):
            raise VerifierError(f"{self.name}: there is no {argv[0]} in the clean room")
        return result


def written(text: str) -> str:
    """The proof in a message: the last block of Lean, else of no language, else all of it."""
    blocks = _FENCE.findall(text)
    for languages in (("lean", "lean4"), ("",)):
        found = [body for language, body in blocks if language.lower() in languages]
        if found:
            return str(found[-1])
    return text


def _told(result: ExecResult) -> str:
    if result.killed:
        return f"over a limit ({result.killed})"
    told = " ".join((result.error_text or result.text).split())
    return told[-500:] or f"exit code {result.exit_code}"
