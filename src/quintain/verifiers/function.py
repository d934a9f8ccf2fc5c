"""A plain Python function as a verifier.

The function names what it wants to see: any of `task, trajectory, sandbox, context, answer, text,
messages`. It returns a bool, a float in [0, 1], a `Verdict`, or None to abstain. Where it runs
follows from what it asks for: `async def` on the event loop; a plain function that touches neither
sandbox nor context is pure and runs in a killable worker process under a CPU budget; any other
plain function runs in a thread.

With `clean_room` the sandbox that it sees is a fresh one of the task's spec holding nothing of the
episode but the named files, and the task's hidden files: what the candidate did to its own sandbox
(patched interpreter, planted processes) stays behind.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import cloudpickle

from quintain import registry
from quintain.errors import ConfigError, VerifierError, boundary
from quintain.protocols import JudgeContext, Sandbox, Verifier
from quintain.task import SandboxSpec
from quintain.threads import in_thread
from quintain.verdict import Check, Kind, Verdict
from quintain.verifiers.artifacts import candidate_file
from quintain.verifiers.workers import BudgetExceeded

logger = logging.getLogger(__name__)
OFFERED = ("task", "trajectory", "sandbox", "context", "answer", "text", "messages")
MAX_FILE_BYTES = 50_000_000
Where = Literal["loop", "worker", "thread"]


@overload
def verifier(
    function: Callable[..., Any],
    *,
    clean_room: Sequence[str] = (),
    name: str | None = None,
    kind: Kind = "formal",
    deadline_s: float = 30.0,
    in_process: bool = False,
) -> FunctionVerifier: ...
@overload
def verifier(
    function: None = None,
    *,
    clean_room: Sequence[str] = (),
    name: str | None = None,
    kind: Kind = "formal",
    deadline_s: float = 30.0,
    in_process: bool = False,
) -> Callable[[Callable[..., Any]], FunctionVerifier]: ...
def verifier(
    function: Callable[..., Any] | None = None,
    *,
    clean_room: Sequence[str] = (),
    name: str | None = None,
    kind: Kind = "formal",
    deadline_s: float = 30.0,
    in_process: bool = False,
) -> FunctionVerifier | Callable[[Callable[..., Any]], FunctionVerifier]:
    """Makes a verifier of a function; also a decorator, with or without arguments.

    Args:
        function: its parameters are filled by name; see the module.
        clean_room: paths in the episode's sandbox that are copied into a fresh one; empty: the
            function sees the episode's own sandbox.
        name: None: the function's own.
        kind: `heuristic` when it can be fooled by design (a similarity, a judge).
        deadline_s: seconds for one verdict: of CPU in a worker process, else of wall clock.
        in_process: keeps a pure function out of the worker processes (it then runs in a thread,
            faster and unkillable).

    Raises:
        ConfigError: a parameter is not on offer.
    """
    if isinstance(clean_room, str) or not all(
        isinstance(path, str) and path and not path.endswith("/") for path in clean_room
    ):
        raise ConfigError(
            "clean_room is a list of the paths of files, such as ['/work/run.py'], got "
            f"{clean_room!r}"
        )

    def make(wrapped: Callable[..., Any]) -> FunctionVerifier:
        return FunctionVerifier(wrapped, tuple(clean_room), name, kind, deadline_s, in_process)

    return make if function is None else make(function)


def as_verifier(source: object) -> Verifier:
    """A verifier from a verifier, a function, or a registered name (made without arguments).

    Raises:
        ConfigError: none of these.
        RegistryError: the name is not known.
    """
    if isinstance(source, str):
        made = registry.verifiers.get(source)
        source = made() if inspect.isclass(made) else made
    if isinstance(source, Verifier):
        return source
    if callable(source):
        return verifier(source)
    raise ConfigError(
        f"a verifier is an object with judge(), name and kind, a function, or a registered name; "
        f"got {source!r}"
    )


class FunctionVerifier:
    """The verifier that `verifier()` makes."""

    def __init__(
        self,
        function: Callable[..., Any],
        clean_room: tuple[str, ...],
        name: str | None,
        kind: Kind,
        deadline_s: float,
        in_process: bool,
    ) -> None:
        self.function = function
        self.clean_room = clean_room
        self.name = name or str(getattr(function, "__name__", type(function).__name__))
        self.kind: Kind = kind
        self.deadline_s = deadline_s
        self.wanted = _wanted(function, self.name)
        self.where = self._place(in_process)
        self.remote = _positional(function, self.wanted)

    def _place(self, in_process: bool) -> Where:
        called = getattr(self.function, "__call__", None)  # noqa: B004 - an object with async __call__
        if inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(called):
            return "loop"
        if in_process or {"sandbox", "context"} & set(self.wanted):
            return "thread"
        try:
            cloudpickle.dumps(self.function)
        except (pickle.PicklingError, TypeError, ValueError, RecursionError) as error:
            logger.warning(
                "verifier %s runs in a thread, where its deadline cannot end it: it cannot be "
                "sent to a worker process (%s)",
                self.name,
                error,
            )
            return "thread"
        return "worker"

    async def judge(self, context: JudgeContext) -> Verdict:
        """Calls the function and reads its answer as a verdict.

        A pure function that uses up its CPU budget fails the candidate: its text is the only
        input. A deadline on the wall clock blames nobody, so it is an error.

        Raises:
            VerifierError: the function raised, was late, or returned something else.
        """
        began = time.monotonic()
        notes: tuple[Check, ...] = ()
        room: Sandbox | None = None
        with boundary(VerifierError, f"verifier {self.name}"):
            try:
                if self.clean_room:
                    room, notes = await self._open_room(context)
                verdict = self._read(await self._call(context, room or context.sandbox))
            except FileNotFoundError as error:
                # What it did not find is what the candidate did not leave.
                if not notes:
                    raise
                verdict = Verdict.of(False, f"{self.name} did not find {error.filename or error}")
            except BudgetExceeded as error:
                if error.budget != "cpu":
                    raise
                verdict = Verdict.of(
                    False,
                    f"judging this answer took more than {self.deadline_s:g} s of CPU",
                    checks=(Check(name="deadline", passed=False, detail=str(error)),),
                )
            finally:
                if room is not None:
                    await room.close()
        return verdict.model_copy(
            update={
                "verifier": verdict.verifier or self.name,
                "kind": self.kind,
                "wall_s": time.monotonic() - began,
                "checks": (*notes, *verdict.checks),
            }
        )

    async def _call(self, context: JudgeContext, sandbox: Sandbox | None) -> Any:
        if "sandbox" in self.wanted and sandbox is None:
            raise VerifierError(
                f"verifier {self.name} wants a sandbox and there is none: give the environment a "
                "sandbox, or judge while the episode's is still open"
            )
        arguments = [_offer(name, context, sandbox) for name in self.wanted]
        left = max(0.001, min(self.deadline_s, context.deadline - time.monotonic()))
        if self.where == "worker":
            backstop = max(left, context.deadline - time.monotonic(), 0.001)
            return await context.workers.run(
                self.remote, *arguments, cpu_s=left, wall_s=min(backstop, 4 * left + 10)
            )
        named = dict(zip(self.wanted, arguments, strict=True))
        if self.where == "thread":
            return await in_thread(lambda: self.function(**named), timeout_s=left)
        try:
            async with asyncio.timeout(left) as limit:
                return await self.function(**named)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise VerifierError(
                f"verifier {self.name} did not answer within {left:.3g} s"
            ) from error

    async def _open_room(self, context: JudgeContext) -> tuple[Sandbox, tuple[Check, ...]]:
        """A fresh sandbox with the named files and the hidden ones; what was missing is noted."""
        spec = context.task.sandbox or (context.sandbox.spec if context.sandbox else SandboxSpec())
        files: dict[str, bytes] = {}
        notes = []
        for path in self.clean_room:
            data, reason = await candidate_file(context, path, MAX_FILE_BYTES)
            if data is None:
                notes.append(Check(name=f"artifact {path}", passed=None, detail=reason))
            else:
                files[path] = data
        room = await context.open_sandbox(spec)
        try:
            # Hidden files last: no artifact may stand in for one of them.
            for path, data in {**files, **context.task.hidden_files}.items():
                await room.write(path, data)
        except BaseException:
            await room.close()
            raise
        return room, tuple(notes)

    def _read(self, value: object) -> Verdict:
        if isinstance(value, Verdict):
            return value
        if value is None:
            return Verdict.abstain(f"{self.name} returned None")
        if isinstance(value, bool):
            return Verdict.of(value)
        if isinstance(value, int | float):
            reward = float(value)
            if math.isfinite(reward) and 0.0 <= reward <= 1.0:
                return Verdict(reward=reward, passed=reward == 1.0, score=reward)
        raise VerifierError(
            f"verifier {self.name} returned {value!r}; expected a bool, a finite float in [0, 1], "
            "a Verdict, or None to abstain"
        )


def _offer(name: str, context: JudgeContext, sandbox: Sandbox | None) -> Any:
    match name:
        case "task":
            return context.task
        case "trajectory":
            return context.trajectory
        case "sandbox":
            return sandbox
        case "context":
            return context
        case "answer":
            return context.task.answer
        case "text":
            return context.trajectory.text
        case _:
            return context.trajectory.messages


def _positional(function: Callable[..., Any], wanted: tuple[str, ...]) -> Callable[..., Any]:
    """The function, callable with the wanted values in order."""
    parameters = list(inspect.signature(function).parameters.values())[: len(wanted)]
    if [parameter.name for parameter in parameters] == list(wanted) and all(
        parameter.kind == parameter.POSITIONAL_OR_KEYWORD for parameter in parameters
    ):
        return function
    return lambda *values: function(**dict(zip(wanted, values, strict=True)))


def _wanted(function: Callable[..., Any], name: str) -> tuple[str, ...]:
    """The parameters to fill, in the function's order."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"verifier {name}: its parameters cannot be seen ({error})") from error
    wanted = []
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name in OFFERED and parameter.kind != parameter.POSITIONAL_ONLY:
            wanted.append(parameter.name)
        elif parameter.default is parameter.empty:
            raise ConfigError(
                f"verifier {name}: parameter {parameter.name!r} is not on offer; name any of "
                f"{', '.join(OFFERED)}, or give it a default"
            )
    return tuple(wanted)
