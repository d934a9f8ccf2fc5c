"""`quintain debug ENV --task ID`: a person plays a task at the terminal, as the policy.

What is typed is the assistant's message: text, or a tool call as JSON. Lines that begin with a
colon ask the debugger: hidden state, verdict as things stand, a command in the sandbox. All of it
works with piped input, too.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from quintain import registry
from quintain.cli import options as o
from quintain.cli.console import NEGATIVE, out, set_verbose, verb
from quintain.cli.sandbox_shell import run_command_line, shell
from quintain.cli.session import first_task
from quintain.cli.settings import make_environment, resolved, settings_from
from quintain.errors import QuintainError
from quintain.messages import Message, Sampling, ToolCall, ToolSpec, assistant
from quintain.protocols import (
    Environment,
    Episode,
    Harness,
    JudgeContext,
    Policy,
    Recorder,
    Sandbox,
)
from quintain.record import Json
from quintain.rollouts import Host, Job, rollout, run_blocking
from quintain.rollouts.recorder import EpisodeRecorder
from quintain.task import Limits, PublicTask, Task
from quintain.threads import in_thread
from quintain.trajectory import Action, StopReason, Trajectory
from quintain.verdict import Verdict
from quintain.viewer.transcript import (
    STYLES,
    Piece,
    message_pieces,
    verdict_pieces,
    visible,
)

PATIENCE_S = 24 * 3600.0
"""A person may take this long."""
HELP = """\
TEXT                     says TEXT; without a tool call that ends most tasks
{"name": …, "arguments": {…}}   calls a tool; a JSON list makes several calls at once
:text                    begins a text of several lines; a line with a single . ends it
:tools                   the tools and their schemas
:prompt                  the conversation so far
:state                   what the policy never sees: answer, world, hidden files; and the sandbox
:verdict                 what the verifier says now
:sh COMMAND              runs a command in the sandbox, as the debugger
:quit                    leaves without a verdict"""


@verb
def debug_command(
    environment: o.Environment = "",
    task: Annotated[
        str | None, typer.Option(help="A task's id; default: the first one there is.")
    ] = None,
    keep_sandbox: Annotated[
        bool, typer.Option("--keep-sandbox", help="Open a shell in the sandbox afterwards.")
    ] = False,
    seed: o.Seed = None,
    allow_weaker: o.AllowWeaker = False,
    config: o.Config = None,
    changes: o.Set = None,
    verbose: o.Verbose = False,
) -> None:
    """Plays a task by hand: you are the policy. Shows hidden state and the verdict's checks.

    Example: echo "The answer is 7" | quintain debug arithmetic

    Type :help once it runs. The exit code is 1 when the task was not solved.
    """
    set_verbose(verbose)
    settings = settings_from(
        file=config,
        changes=changes,
        values={
            "environment": environment or None,
            "seed": seed,
            "allow_weaker": allow_weaker or None,
        },
    )
    made = make_environment(settings.environment, settings.options)
    settings = resolved(settings, made)
    chosen = made.tasks.get(task) if task is not None else first_task(made)
    limits = settings.limits or (chosen.limits or made.limits).model_copy(
        update={"wall_s": PATIENCE_S}
    )
    debugger = Debugger(made, chosen)
    host = Host(
        debugger,
        debugger,
        harness=debugger,
        run_seed=settings.seed,
        limits=limits,
        keep_sandbox=keep_sandbox,
        backend=settings.backend,
        allow_weaker=settings.allow_weaker,
        retries=0,
    )
    try:
        trajectory = run_blocking(_play(debugger, host, chosen))
    except Left:
        out().print("left; nothing was judged")
        return
    if not (trajectory.verdict and trajectory.verdict.passed):
        raise typer.Exit(NEGATIVE)


async def _play(debugger: Debugger, host: Host, task: Task) -> Trajectory:
    async with host:
        debugger.host = host
        trajectory = await rollout(Job(task, "debug"), host)
        _show_end(trajectory)
        for sandbox in host.kept:
            try:
                await shell(sandbox, read_line)
            finally:
                await sandbox.close()
    return trajectory


def _show_end(trajectory: Trajectory) -> None:
    _print(Piece("role", f"── the end: {trajectory.stop}, {len(trajectory.steps)} steps ──"))
    if trajectory.verdict is not None:
        _print(*verdict_pieces(trajectory.verdict))
    if trajectory.error is not None:
        error = trajectory.error
        _print(Piece("error", f"fault in {error.stage}: {error.type}: {visible(error.message)}"))


class Left(BaseException):
    """The person left: no fault of anything, so no `Exception` that a boundary would blame."""


async def read_line() -> str | None:
    """The next line of standard input without its end; None at the end of it."""
    line = await in_thread(sys.stdin.readline, timeout_s=None)
    if line and not sys.stdin.isatty():
        out().print(Text(visible(line)), end="")
    return line.rstrip("\n") if line else None


class Debugger:
    """The person at the terminal: policy and harness at once, and the environment looked through.

    Args:
        environment: the real one.
        task: what is played.
    """

    name = "person"
    version = 0

    def __init__(self, environment: Environment, task: Task) -> None:
        self._environment = environment
        self._task = task
        self._shown = 0
        self._sandbox: Sandbox | None = None
        self._record: Recorder | None = None
        self._messages: Sequence[Message] = ()
        self._tools: Sequence[ToolSpec] = ()
        self._calls = 0
        self.host: Host | None = None

    # --- in place of the environment, the harness and the policy ---------------------------------

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    async def open(
        self, task: PublicTask, world: Json, sandbox: Sandbox | None, seed: int
    ) -> Episode:
        """The environment's episode; the sandbox is remembered."""
        self._sandbox = sandbox
        return await self._environment.open(task, world, sandbox, seed)

    async def play(
        self, episode: Episode, policy: Policy, limits: Limits, record: Recorder
    ) -> StopReason:
        """The plain loop; the record is remembered."""
        self._record = record
        loop: Harness = registry.harnesses.get("loop")()
        return await loop.play(episode, policy, limits, record)

    async def act(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        seed: int,
        session: str,
    ) -> Action:
        """Shows what is new and asks the person."""
        self._messages, self._tools = messages, tools
        if self._shown == 0:
            _print(Piece("title", f"{self._environment.name} · {self._task.id}"))
            self._show_tools()
            _print(Piece("note", "type :help for what can be typed"))
        for message in messages[self._shown :]:
            if message.role != "assistant" or self._shown == 0:
                _print(*message_pieces(message))
        self._shown = len(messages)
        while True:
            out().print("[bold cyan]>[/] ", end="")
            line = await read_line()
            if line is None:
                raise Left
            said = await self._understand(line)
            if said is not None:
                return Action(message=said, finish="tool_calls" if said.tool_calls else "stop")

    # --- what was typed --------------------------------------------------------------------------

    async def _understand(self, line: str) -> Message | None:
        """The message that a line is; None: it was for the debugger, or nothing."""
        text = line.strip()
        if not text:
            return None
        if text.startswith((":", "?")):
            return await self._command(text)
        if text[0] in "{[":
            return self._tool_calls(text)
        return assistant(line)

    async def _command(self, text: str) -> Message | None:
        word, _, rest = text.partition(" ")
        match word:
            case ":quit" | ":q":
                raise Left
            case ":text":
                return assistant(await _several_lines())
            case ":tools":
                self._show_tools()
            case ":prompt":
                for message in self._messages:
                    _print(*message_pieces(message))
            case ":state":
                await self._show_state()
            case ":verdict":
                await self._show_verdict()
            case ":sh" if self._sandbox is not None:
                out().print(await run_command_line(self._sandbox, rest))
            case ":sh":
                _print(Piece("error", "this task has no sandbox"))
            case _:
                _print(Piece("text", HELP))
        return None

    def _tool_calls(self, text: str) -> Message | None:
        try:
            given = json.loads(text)
            calls = []
            for one in given if isinstance(given, list) else [given]:
                name, arguments = one["name"], one.get("arguments", {})
                if not isinstance(name, str) or not isinstance(arguments, dict):
                    raise TypeError("name is a text and arguments an object")
                self._calls += 1
                calls.append(ToolCall(id=f"call_{self._calls}", name=name, arguments=arguments))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            _print(
                Piece(
                    "error",
                    'not sent: a tool call is {"name": "…", "arguments": {…}} or a list of such '
                    f"({type(error).__name__}: {error}); a text that begins with a bracket goes "
                    "after :text",
                )
            )
            return None
        return assistant("", *calls)

    # --- what the policy never sees --------------------------------------------------------------

    def _show_tools(self) -> None:
        for tool in self._tools:
            schema = json.dumps(tool.parameters, ensure_ascii=False)
            _print(Piece("call", f"tool {tool.name}: {tool.description}"), Piece("note", schema))

    async def _show_state(self) -> None:
        task = self._task
        for name, value in (("answer", task.answer), ("world", task.world)):
            _print(Piece("role", name), Piece("text", _pretty(value)))
        for title, files in (("file", task.files), ("hidden file", task.hidden_files)):
            for path, data in files.items():
                _print(Piece("role", f"{title} {path} ({len(data)} bytes)"))
                _print(Piece("text", visible(data.decode("utf-8", "replace"))))
        if self._sandbox is not None:
            _print(Piece("role", f"sandbox, {self._sandbox.spec.workdir}"))
            out().print(await run_command_line(self._sandbox, "ls -la"))

    async def _show_verdict(self) -> None:
        try:
            verdict = await self._judge()
        except QuintainError as error:
            _print(Piece("error", f"{type(error).__name__}: {error}"))
            return
        _print(*verdict_pieces(verdict))

    async def _judge(self) -> Verdict:
        """What the verifier says of the play so far; the play goes on unchanged."""
        host = self.host
        assert host is not None
        context = JudgeContext(
            task=self._task,
            trajectory=self._so_far(),
            sandbox=self._sandbox,
            open_sandbox=host.open_sandbox,
            workers=host.workers,
            deadline=time.monotonic() + host.judge_s,
        )
        return await self._environment.verifier.judge(context)

    def _so_far(self) -> Trajectory:
        record = self._record
        assert isinstance(record, EpisodeRecorder)
        return Trajectory(
            environment=self._environment.name,
            task_id=self._task.id,
            policy=self.name,
            purpose="debug",
            tools=record.tools,
            opening=record.opening,
            steps=tuple(record.taken),
            stop=StopReason.DONE,
            events=tuple(record.events),
            usage=record.usage,
        )


async def _several_lines() -> str:
    """Lines up to one with a single dot, or to the end of the input."""
    lines: list[str] = []
    while (line := await read_line()) is not None and line != ".":
        lines.append(line)
    return "\n".join(lines)


def _print(*pieces: Piece) -> None:
    for kind, text in pieces:
        out().print(Text(text, style=STYLES[kind]))


def _pretty(value: Json) -> str:
    if isinstance(value, str):
        return visible(value)
    return visible(json.dumps(value, indent=2, ensure_ascii=False, default=str))
