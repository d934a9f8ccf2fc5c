"""Is the state right that an episode left: its files, or the world that its tools changed.

State is looked at from outside: files are read and listed through the sandbox by its owner, without
running anything in it; a world is what the episode itself held. What the candidate says about it
counts for nothing.
"""

from __future__ import annotations

import asyncio
import fnmatch
import hashlib
import json
import posixpath
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, TypeVar, cast

from pydantic import Field, ValidationError, model_validator

from quintain import registry
from quintain.errors import ConfigError, TaskError, VerifierError, boundary
from quintain.messages import ToolCall
from quintain.protocols import WORLD_ARTIFACT, Entry, JudgeContext, Listing, Tool, ToolContext
from quintain.record import Json, Record, canonical
from quintain.task import Task
from quintain.verdict import Check, Kind, Verdict
from quintain.verifiers.artifacts import candidate_file
from quintain.verifiers.plain import equal

MAX_FILES = 1_000
R = TypeVar("R", bound=Record)


class ExpectedFile(Record):
    """What must be at a path: exactly one of text, bytes, digest, JSON, link or nothing."""

    text: str | None = None
    """UTF-8; line ends and blanks at the end of lines and of the file apart."""
    exact: str | None = None
    """UTF-8, byte for byte."""
    sha256: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    value: Json = None
    """A JSON value that the file holds."""
    link: str | None = None
    """Where a symbolic link leads."""
    absent: bool = False
    mode: str | None = Field(default=None, pattern="^[0-7]{3,4}$")
    """Permission bits in octal, besides the content."""

    @model_validator(mode="after")
    def _one(self) -> ExpectedFile:
        given = self.model_fields_set - {"mode"} - (set() if self.absent else {"absent"})
        if len(given) != 1:
            raise ValueError("give one of text, exact, sha256, value, link, absent")
        if self.absent and self.mode is not None:
            raise ValueError("what is absent has no mode")
        return self

    def wrong(self, data: bytes) -> str:
        """Why a content is not the expected one; empty when it is."""
        if self.exact is not None:
            return "" if data == self.exact.encode() else "another content"
        if self.sha256 is not None:
            return "" if hashlib.sha256(data).hexdigest() == self.sha256 else "another content"
        try:
            text = data.decode()
            if self.text is not None:
                return "" if _lines(text) == _lines(self.text) else "another text"
            found = json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            return f"not readable ({type(error).__name__})"
        return "" if equal(self.value, found) else "another value"


class ExpectedTree(Record):
    """What `Task.answer` says of files."""

    files: dict[str, ExpectedFile] = Field(min_length=1, max_length=MAX_FILES)
    root: str | None = None
    """What paths are relative to; None: the sandbox's workdir."""
    only: bool = False
    """Whether there may be no other file under the root."""
    ignore: tuple[str, ...] = ()
    """With `only`: patterns (`*` also over folders) of paths that may be there besides."""


class Files:
    """Compares the files in the episode's sandbox with those in `Task.answer`.

    `Task.answer` is `{"files": {"out.txt": {"text": "…"}, "tmp.txt": {"absent": true}}}`, see
    `ExpectedTree` and `ExpectedFile`. Without the sandbox (a verdict given later) kept artifacts
    are compared; then absence, modes, links and `only` cannot be judged, which is an error.

    Args:
        max_bytes: of one file; a longer one is wrong.
        name: the verifier's name.
    """

    def __init__(self, *, max_bytes: int = 10_000_000, name: str = "files") -> None:
        if max_bytes < 1:
            raise ConfigError(f"max_bytes is positive, got {max_bytes!r}")
        self.name = name
        self.kind: Kind = "formal"
        self.max_bytes = max_bytes

    def check_gold(self, task: Task) -> None:
        """Refuses a task whose files are malformed, or right before anything was done.

        Raises:
            TaskError: what is wrong with them.
        """
        expected = expectation(task, ExpectedTree, "files")
        for path, want in expected.files.items():
            given = next((data for name, data in task.files.items() if name == path), None)
            done = given is None if want.absent else given is not None and not want.wrong(given)
            if not done or want.mode is not None or want.link is not None:
                return
        raise TaskError(f"task {task.id!r}: its files are as expected before anything is done")

    async def judge(self, context: JudgeContext) -> Verdict:
        """All files as expected, or not.

        Raises:
            TaskError: the expectation is at fault.
            VerifierError: there is no sandbox and the artifacts do not suffice.
        """
        began = time.monotonic()
        expected = expectation(context.task, ExpectedTree, "files")
        self.check_gold(context.task)
        with boundary(VerifierError, f"verifier {self.name}"):
            listed = await self._list(context, expected)
            checks = [
                Check(name=path, passed=not why, detail=why)
                for path, want in expected.files.items()
                for why in [await self._wrong(context, expected, listed, path, want)]
            ]
            if expected.only:
                others = _others(expected, listed)
                detail = f"also there: {', '.join(others)[:500]}" if others else ""
                checks.append(Check(name="no others", passed=not others, detail=detail))
        wrong = next((check for check in checks if not check.passed), None)
        return Verdict.of(
            wrong is None,
            f"{wrong.name}: {wrong.detail}" if wrong else f"{len(checks)} checks passed",
            checks=tuple(checks),
        ).signed(self.name, self.kind, time.monotonic() - began)

    async def _list(self, context: JudgeContext, expected: ExpectedTree) -> dict[str, Entry] | None:
        """Entries under the root by path, where they are needed; absent names are not followed."""
        needs = expected.only or any(
            want.mode or want.link is not None or want.absent for want in expected.files.values()
        )
        if not needs:
            return None
        sandbox = context.sandbox
        if sandbox is None:
            raise VerifierError(
                f"{self.name}: absence, modes, links and `only` need the episode's sandbox"
            )
        if "list" not in sandbox.capabilities:
            raise VerifierError(
                f"{self.name}: this sandbox cannot list files from outside (capability 'list'), "
                "and its own word is the candidate's"
            )
        root = expected.root or sandbox.spec.workdir
        try:
            entries = await cast(Listing, sandbox).entries(root)
        except FileNotFoundError:
            entries = []
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            # Too many, too deep, unreadable: the candidate's doing, and nothing is as expected.
            return {"": Entry(f"({error})", "other", 0, 0)}
        return {entry.path: entry for entry in entries}

    async def _wrong(
        self,
        context: JudgeContext,
        expected: ExpectedTree,
        listed: dict[str, Entry] | None,
        path: str,
        want: ExpectedFile,
    ) -> str:
        place = posixpath.normpath(path)
        if listed is not None and "" in listed:
            return f"the folder cannot be listed {listed[''].path}"
        entry = None if listed is None else listed.get(place)
        if want.absent:
            return "" if entry is None else f"there is a {entry.kind}"
        if want.mode is not None and (entry is None or entry.mode != int(want.mode, 8)):
            return "missing" if entry is None else f"mode {entry.mode:o}"
        if want.link is not None:
            if entry is None or entry.kind != "link":
                return "no such link"
            return "" if entry.target == want.link else f"leads to {entry.target[:200]!r}"
        where = posixpath.join(expected.root, place) if expected.root else place
        data, why = await candidate_file(context, where, self.max_bytes)
        if data is None and context.sandbox is None and where != path:
            data, why = await candidate_file(context, path, self.max_bytes)
        return why if data is None else want.wrong(data)


def _others(expected: ExpectedTree, listed: dict[str, Entry] | None) -> list[str]:
    known = {posixpath.normpath(path) for path in expected.files}
    return [
        path
        for path, entry in (listed or {}).items()
        if entry.kind != "folder"
        and path not in known
        and not any(fnmatch.fnmatchcase(path, pattern) for pattern in expected.ignore)
    ]


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# --- the world ------------------------------------------------------------------------------------


class ExpectedAction(Record):
    """A call that the right solution makes."""

    name: str
    arguments: dict[str, Json] = Field(default_factory=dict)


class ExpectedWorld(Record):
    """What `Task.answer` says of the world: what it is, or what leads to it."""

    world: Json = None
    actions: tuple[ExpectedAction, ...] | None = None
    unchanged: bool = False
    """Whether it may be as it was: a policy that does nothing passes."""

    @model_validator(mode="after")
    def _one(self) -> ExpectedWorld:
        if (self.world is None) == (self.actions is None):
            raise ValueError("give either world or actions")
        return self


class World:
    """Compares the episode's final host-side state with the expected one, as τ-bench does.

    `Task.answer` is `{"world": …}`, the state itself, or `{"actions": [{"name", "arguments"}]}`,
    calls that are replayed with the tools on a copy of `Task.world`. Equal is what has the same
    canonical JSON: every order, count and type.

    Args:
        tools: those of the environment, for tasks with actions.
        ignore: keys, at any depth, that do not count (time stamps, generated ids).
        name: the verifier's name.
    """

    def __init__(
        self,
        tools: Sequence[Tool | Callable[..., Any]] = (),
        *,
        ignore: Sequence[str] = (),
        name: str = "world",
    ) -> None:
        self.tools: tuple[Tool, ...] = registry.load("quintain.envs.tools:as_tools")(tools)
        self.ignore = frozenset(ignore)
        self.name = name
        self.kind: Kind = "formal"

    def check_gold(self, task: Task) -> None:
        """Refuses a task whose expectation is malformed, or names no tool of these.

        Raises:
            TaskError: what is wrong with it.
        """
        self._expected(task)

    def _expected(self, task: Task) -> ExpectedWorld:
        expected = expectation(task, ExpectedWorld, "world or actions")
        if task.world is None:
            raise TaskError(f"task {task.id!r} has no world")
        by_name = {tool.spec.name: tool for tool in self.tools}
        for action in expected.actions or ():
            if action.name not in by_name:
                raise TaskError(f"task {task.id!r}: there is no tool {action.name!r} to replay")
            if why := by_name[action.name].check(action.arguments):
                raise TaskError(f"task {task.id!r}: action {action.name!r}: {why}")
        return expected

    async def judge(self, context: JudgeContext) -> Verdict:
        """The expected state, or another.

        Raises:
            TaskError: the expectation is at fault.
            VerifierError: the episode kept no world.
        """
        began = time.monotonic()
        task = context.task
        expected = self._expected(task)
        with boundary(VerifierError, f"verifier {self.name}"):
            data = context.artifact(WORLD_ARTIFACT)
            if data is None:
                raise VerifierError(f"{self.name}: the episode kept no world")
            right = self._text(await self._right(context, expected))
            if right == self._text(task.world) and not expected.unchanged:
                raise TaskError(
                    f"task {task.id!r}: the expected world is the one it begins with; "
                    "declare unchanged if it is meant"
                )
            found = self._text(json.loads(data))
        why = "" if found == right else f"differs {_first_difference(right, found)}"
        check = Check(name="world", passed=not why, detail=why)
        return Verdict.of(not why, why or "the world is as expected", checks=(check,)).signed(
            self.name, self.kind, time.monotonic() - began
        )

    async def _right(self, context: JudgeContext, expected: ExpectedWorld) -> Json:
        if expected.actions is None:
            return expected.world
        world = deepcopy(context.task.world)
        tool_context = ToolContext(
            task=context.task.public(),
            sandbox=None,
            world=world,
            seed=context.trajectory.seed,
            event=lambda _kind, _data: None,
        )
        by_name = {tool.spec.name: tool for tool in self.tools}
        async with asyncio.timeout(max(context.deadline - time.monotonic(), 0.001)):
            for number, action in enumerate(expected.actions):
                call = ToolCall(id=f"replay-{number}", name=action.name, arguments=action.arguments)
                result = await by_name[action.name].call(call, tool_context)
                if result.is_error:
                    raise TaskError(
                        f"task {context.task.id!r}: action {number} {action.name!r} failed in the "
                        f"replay: {result.text[:300]}"
                    )
        return world

    def _text(self, world: Json) -> str:
        return canonical(self._without(world))

    def _without(self, value: Json) -> Json:
        if isinstance(value, dict):
            return {k: self._without(v) for k, v in value.items() if k not in self.ignore}
        if isinstance(value, list | tuple):
            return [self._without(item) for item in value]
        return value


def _first_difference(right: str, found: str) -> str:
    place = next(
        (n for n, (a, b) in enumerate(zip(right, found, strict=False)) if a != b),
        min(len(right), len(found)),
    )
    return f"at {found[max(0, place - 40) : place + 40]!r}"


def expectation(task: Task, kind: type[R], what: str) -> R:
    """What a task's answer says, as a record.

    Raises:
        TaskError: it is missing or malformed.
    """
    if not isinstance(task.answer, dict):
        raise TaskError(f"task {task.id!r}: expected an answer with {what}")
    try:
        return kind.model_validate(task.answer)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise TaskError(f"task {task.id!r}: answer {where}: {first['msg']}") from error
