"""Is it proved: a Coq proof of exactly the task's statement, from allowed axioms, by the kernel.

1. The task's statement is compiled alone, in a clean room, and pinned: its bytes are kept.
2. The candidate's text is looked at (`vernacular`) and compiled beside the pinned statement, in a
   room of its own. Only the compiled file is taken from there.
3. A third room holds the two compiled files and a file of ours, which binds the pinned statement
   before it loads the candidate's, and then gives the candidate's proof that type. What Coq lists
   under `Print Assumptions` there decides; the candidate's own output is never read.
4. `coqchk`, the independent kernel, checks all three again, and names every axiom and every check
   that was left out.

Coq is the host's (`apt-get install coq`), or that of the clean room's image. `Task.answer` is::

    {"statement": "forall n m : nat, n + m = m + n",
     "imports": "Require Import Arith.", "definitions": "", "name": "solution", "axioms": []}

The candidate writes the tactics, or a whole file that states `name`.
"""

from __future__ import annotations

import re
import shutil
import time
from collections import OrderedDict

from pydantic import Field

from quintain.errors import ConfigError, TaskError, VerifierError, boundary
from quintain.protocols import ExecResult, JudgeContext, Sandbox
from quintain.record import Record, digest
from quintain.task import SandboxSpec, Task
from quintain.verdict import Check, Kind, Verdict
from quintain.verifiers import vernacular
from quintain.verifiers.artifacts import candidate_file
from quintain.verifiers.state import expectation

MAX_TEXT_BYTES = 200_000
MAX_COMPILED_BYTES = 50_000_000
PINNED_KEPT = 256
PATHS = ["-R", "pinned", "Pinned", "-R", "given", "Given", "-R", "judge", "Judge"]
FINDLIB = 'path="/usr/lib/ocaml"\n'
"""Where Coq finds its own plug-ins, in a room that has no /etc of the host's."""
COMPILE = ["coqc", "-q", "-w", "none", *PATHS]
CHECKING = """Require Pinned.Spec.
Definition goal : Prop := Pinned.Spec.statement.
Require Given.Sub.
Set Guard Checking. Set Positivity Checking. Set Universe Checking.
Definition checked : goal := Given.Sub.{name}.
Print Assumptions checked.
"""
CLOSED = "Closed under the global context"
_FENCE = re.compile(r"^```[ \t]*([\w+-]*)[^\n]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


class Goal(Record):
    """What `Task.answer` says."""

    statement: str = Field(min_length=1)
    """A proposition of Coq."""
    imports: str = ""
    """`Require` and `Open Scope` sentences; they stand before the candidate's text, too."""
    definitions: str = ""
    """What the statement speaks of; the candidate sees it as module `Pinned.Spec`, imported."""
    name: str = "solution"
    """What a whole file calls its theorem."""
    axioms: tuple[str, ...] = ()
    """Full names of axioms that a proof may rest on: `Coq.Logic.Classical_Prop.classic`."""

    @property
    def specification(self) -> str:
        """The file that is pinned."""
        return (
            f"{self.imports}\n{self.definitions}\n"
            f"Definition statement : Prop := (\n{self.statement}\n).\n"
        )

    def submission(self, text: str) -> str:
        """The candidate's file; tactics alone become a proof of the statement as it is written."""
        before = f"{self.imports}\nRequire Import Pinned.Spec.\n"
        if vernacular.declares(text, self.name):
            return before + text
        body = text.strip()
        begun = "" if body.startswith("Proof") else "Proof.\n"
        ended = "" if re.search(r"\b(?:Qed|Defined)\s*\.\s*$", body) else "\nQed."
        return f"{before}Theorem {self.name} :\n{self.statement}\n.\n{begun}{body}{ended}\n"


class Proof:
    """Checks a Coq proof of the task's statement (see the module).

    Args:
        source: `text`: the last fenced block of the final message, or the whole message; or a path
            in the episode's sandbox (a kept artifact when that is gone).
        timeout_s: wall-clock seconds of compiling the candidate's text; more fails it. Checking the
            result has the same again, twice.
        sandbox: the clean rooms; None: the default spec with 2 GB of memory.
        name: the verifier's name.

    Raises:
        ConfigError: there is no Coq on this machine and no image is named, or the time is not
            positive.
    """

    def __init__(
        self,
        *,
        source: str = "text",
        timeout_s: float = 60.0,
        sandbox: SandboxSpec | None = None,
        name: str = "proof",
    ) -> None:
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s is positive, got {timeout_s!r}")
        self.sandbox = sandbox or SandboxSpec(memory_mb=2048)
        spec = self.sandbox
        if spec.image is None and not spec.needs_build and shutil.which("coqc") is None:
            raise ConfigError(
                "proofs need Coq: apt-get install coq, or a sandbox with an image that has it"
            )
        self.name = name
        self.kind: Kind = "formal"
        self.source = source
        self.timeout_s = timeout_s
        self._pinned: OrderedDict[str, bytes] = OrderedDict()

    def check_gold(self, task: Task) -> None:
        """Refuses a task whose goal is malformed; whether it compiles is seen when it is pinned.

        Raises:
            TaskError: what is wrong with it.
        """
        self._goal(task)

    def _goal(self, task: Task) -> Goal:
        goal = expectation(task, Goal, "statement")
        if not _NAME.fullmatch(goal.name):
            raise TaskError(f"task {task.id!r}: a theorem's name is a word, got {goal.name!r}")
        try:
            stated = list(vernacular.sentences(f"{goal.statement} "))
        except vernacular.Unreadable as error:
            raise TaskError(f"task {task.id!r}: statement: {error}") from error
        if len(stated) != 1 or stated[0].endswith("."):
            raise TaskError(
                f"task {task.id!r}: a statement is one proposition, without a full stop"
            )
        return goal

    async def judge(self, context: JudgeContext) -> Verdict:
        """Proved, or not.

        Raises:
            TaskError: the statement does not compile.
            VerifierError: Coq could not be run, or the judge's time is up.
        """
        began = time.monotonic()
        goal = self._goal(context.task)
        checks: list[Check] = []

        def note(name: str, why: str) -> str:
            checks.append(Check(name=name, passed=not why, detail=why))
            return why

        with boundary(VerifierError, f"verifier {self.name}"):
            pinned = await self._pin(context, goal)
            text, why = await self._text(context)
            if not note("vernacular", why or vernacular.refused(text)):
                compiled, why = await self._compile(context, goal, pinned, text)
                if not note("compiles", why):
                    for name, why in await self._check(context, goal, pinned, compiled):
                        note(name, why)
        wrong = next((check for check in checks if not check.passed), None)
        told = "proved" if wrong is None else f"{wrong.name}: {wrong.detail}"
        return Verdict.of(wrong is None, told, checks=tuple(checks)).signed(
            self.name, self.kind, time.monotonic() - began
        )

    async def _text(self, context: JudgeContext) -> tuple[str, str]:
        if self.source == "text":
            text = written(context.trajectory.text)
        else:
            data, why = await candidate_file(context, self.source, MAX_TEXT_BYTES)
            if data is None:
                return "", f"{self.source}: {why}"
            text = data.decode("utf-8", "replace")
        if not text.strip():
            return "", "there is no proof"
        if len(text.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
            return "", f"the proof has more than {MAX_TEXT_BYTES} bytes"
        return text.encode("utf-8", "replace").decode(), ""

    # --- the three rooms ---

    async def _pin(self, context: JudgeContext, goal: Goal) -> bytes:
        key = digest(goal.specification)
        if key not in self._pinned:
            room = await self._open(context)
            try:
                await room.write("pinned/Spec.v", goal.specification)
                result, _ = await self._run(context, room, [*COMPILE, "pinned/Spec.v"])
                if not result.ok:
                    raise TaskError(
                        f"task {context.task.id!r}: its statement does not compile: {_told(result)}"
                    )
                compiled = await room.read("pinned/Spec.vo", max_bytes=MAX_COMPILED_BYTES)
            finally:
                await room.close()
            self._pinned[key] = compiled
            while len(self._pinned) > PINNED_KEPT:
                self._pinned.popitem(last=False)
        self._pinned.move_to_end(key)
        return self._pinned[key]

    async def _compile(
        self, context: JudgeContext, goal: Goal, pinned: bytes, text: str
    ) -> tuple[bytes, str]:
        """The candidate's compiled file; or nothing and why."""
        room = await self._open(context)
        try:
            await room.write("pinned/Spec.vo", pinned)
            await room.write("given/Sub.v", goal.submission(text))
            result, why = await self._run(context, room, [*COMPILE, "given/Sub.v"])
            if why or not result.ok:
                return b"", why or _told(result)
            try:
                return await room.read("given/Sub.vo", max_bytes=MAX_COMPILED_BYTES), ""
            except TimeoutError:
                raise
            except OSError as error:
                return b"", f"no compiled file: {error}"
        finally:
            await room.close()

    async def _check(
        self, context: JudgeContext, goal: Goal, pinned: bytes, compiled: bytes
    ) -> list[tuple[str, str]]:
        """(name, what is wrong) of each check, up to the first that fails."""
        room = await self._open(context)
        try:
            await room.write("pinned/Spec.vo", pinned)
            await room.write("given/Sub.vo", compiled)
            await room.write("judge/Check.v", CHECKING.format(name=goal.name))
            result, why = await self._run(context, room, [*COMPILE, "judge/Check.v"])
            why = why or ("" if result.ok else f"it proves something else: {_told(result)}")
            if why:
                return [("statement", why)]
            why = _assumed(result.text, goal.axioms)
            if why:
                return [("statement", ""), ("assumptions", why)]
            norec = [arg for name in CHECKED for arg in ("-norec", name)]
            result, why = await self._run(
                context, room, ["coqchk", "-silent", "-o", *PATHS, *norec]
            )
            if not why:
                why = _context(result.error_text, goal.axioms) if result.ok else _told(result)
            return [("statement", ""), ("assumptions", ""), ("coqchk", why)]
        finally:
            await room.close()

    async def _open(self, context: JudgeContext) -> Sandbox:
        room = await context.open_sandbox(self.sandbox)
        for folder in ("pinned", "given", "judge"):
            await room.write(f"{folder}/.keep", b"")
        if self.sandbox.image is None:
            await room.write("findlib.conf", FINDLIB)
        return room

    async def _run(
        self, context: JudgeContext, room: Sandbox, argv: list[str]
    ) -> tuple[ExecResult, str]:
        """How a command ended, and which limit it went over.

        Raises:
            VerifierError: the judge's time is up, or there is no Coq in the room.
        """
        left = context.deadline - time.monotonic()
        if left <= 0:
            raise VerifierError(f"{self.name}: no time is left; give the judge a later deadline")
        limit = min(left, self.timeout_s)
        place = room.spec.workdir
        env = {} if self.sandbox.image else {"OCAMLFIND_CONF": f"{place}/findlib.conf"}
        result = await room.exec(argv, timeout_s=limit, env=env, cwd=place)
        if result.killed == "timeout" and left < self.timeout_s:
            raise VerifierError(f"{self.name}: the judge's deadline came before Coq was done")
        if not result.killed and result.exit_code in (126, 127):
            raise VerifierError(f"{self.name}: there is no {argv[0]} in the clean room")
        return result, f"over a limit ({result.killed})" if result.killed else ""


CHECKED = ("Judge.Check", "Given.Sub", "Pinned.Spec")
"""What coqchk checks anew; the standard library is the room's, which nobody can write."""


def written(text: str) -> str:
    """The proof in a message: the last fenced block of Coq, else of no language, else all of it."""
    blocks = _FENCE.findall(text)
    for languages in (("coq", "rocq", "v"), ("",)):
        found = [body for language, body in blocks if language.lower() in languages]
        if found:
            return str(found[-1])
    return text


def _told(result: ExecResult) -> str:
    """The first error, without the name of the file."""
    text = result.error_text or result.text
    error = text[max(text.find("Error:"), 0) :]
    return " ".join(error.split())[:500] or f"exit code {result.exit_code}"


def _assumed(output: str, allowed: tuple[str, ...]) -> str:
    """What `Print Assumptions` lists that is not allowed; empty when there is nothing.

    An entry begins a line with the shortest name that is not ambiguous in our file.
    """
    lines = output.strip().splitlines()
    if lines == [CLOSED]:
        return ""
    if not lines or lines[0] != "Axioms:":
        return f"the assumptions cannot be read: {' '.join(lines)[:200]!r}"
    entries = "\n".join(lines[1:])
    for entry in re.split(r"\n(?=\S)", entries):
        match = re.match(r"(\S+)\s*:(?=\s)", entry)
        if match is None:
            return " ".join(entry.split())[:200]
        if not any(full == match[1] or full.endswith(f".{match[1]}") for full in allowed):
            return f"the axiom {match[1]} is not allowed"
    return ""


def _context(output: str, allowed: tuple[str, ...]) -> str:
    """What coqchk's summary names outside the standard library; empty when there is nothing."""
    heading = ""
    seen = 0
    for line in output.splitlines():
        if line.startswith("* "):
            heading, _, rest = line[2:].partition(":")
            seen += 1
            names = rest.split()
        else:
            names = line.split() if line.startswith("    ") else []
        if not heading or heading == "Theory":
            continue
        for name in names:
            if name != "<none>" and not name.startswith("Coq.") and name not in allowed:
                return f"{heading}: {name}"
    return "" if seen >= 5 else "its summary cannot be read"
