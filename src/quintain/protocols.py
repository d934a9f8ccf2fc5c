"""The contracts between the layers; implementations are checked by `quintain.testing`.

What may wait is `async def`; what computes is plain `def`. Faults of the host are raised as
`RolloutError`s; everything that the candidate causes is returned.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from quintain.messages import Message, Sampling, ToolCall, ToolResult, ToolSpec
from quintain.record import Json
from quintain.task import Limits, PublicTask, SandboxSpec, Split, Task
from quintain.trajectory import Action, Event, Observation, StopReason, Trajectory, Usage
from quintain.verdict import Kind, Verdict

if TYPE_CHECKING:
    from quintain.batch import Batch

T = TypeVar("T")


# --- policy -------------------------------------------------------------------------------------


@runtime_checkable
class Policy(Protocol):
    """Whatever chooses the next message."""

    name: str
    version: int
    """0 for a fixed model; else the version of the weights in use."""

    async def act(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        seed: int,
        session: str,
    ) -> Action:
        """Samples one assistant message.

        Args:
            messages: the whole conversation.
            tools: what may be called.
            sampling: how to sample.
            seed: of this call; equal seeds give equal samples where the policy can promise it.
            session: names the rollout, so that a prefix can be kept between its turns.

        Raises:
            ContextOverflow: the conversation does not fit (a limit).
            PolicyError: the server or engine failed (the host).
        """
        ...


# --- sandbox ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended. A failing command is a result, never an exception."""

    exit_code: int
    """As waited for by the supervisor; −n: killed by signal n."""
    stdout: bytes
    stderr: bytes
    wall_s: float = 0.0
    cpu_s: float = 0.0
    killed: Literal["", "timeout", "memory", "pids"] = ""
    """Which limit ended it, if one did."""
    truncated: bool = False
    """Whether stdout or stderr was longer than `SandboxSpec.max_output_bytes`: the middle was
    read and dropped; head, a mark and tail are kept."""

    @property
    def ok(self) -> bool:
        """Whether it exited with 0 and no limit ended it."""
        return self.exit_code == 0 and not self.killed

    @property
    def text(self) -> str:
        """stdout as UTF-8, undecodable bytes replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        """stderr as UTF-8, undecodable bytes replaced."""
        return self.stderr.decode("utf-8", "replace")


@runtime_checkable
class Sandbox(Protocol):
    """An isolated place to run commands and keep files, owned by one rollout."""

    spec: SandboxSpec
    capabilities: frozenset[str]
    """Of "session" (`Sessions`), "python" (`Pythons`), "list" (`Listing`), "transfer"
    (`Transfers`), "snapshot" (`Snapshots`), "fork" (`Forks`), "reset" (`Resettable`),
    "zygote" (`Warm`), "network_log" (`NetworkLog`)."""

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | str = b"",
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> ExecResult:
        """Runs a command to its end, or kills its whole tree at the limit.

        Args:
            argv: program and arguments; no shell is involved.
            stdin: all its input.
            timeout_s: wall-clock seconds; None: `spec.exec_s`.
            env: added to the sandbox's environment.
            cwd: None: `spec.workdir`.

        Raises:
            SandboxError: the sandbox is broken (the host's fault).
        """
        ...

    async def read(self, path: str, *, max_bytes: int = 10_000_000) -> bytes:
        """The content of a regular file.

        Args:
            path: absolute, or relative to the workdir; links never lead out of the sandbox.
            max_bytes: a longer file is refused.

        Raises:
            FileNotFoundError: no such file.
            OSError: not a regular file, too long, or not readable.
            SandboxError: the sandbox is broken.
        """
        ...

    async def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> None:
        """Writes a file, making its folders; owned by the sandbox's user.

        Raises:
            OSError: no space, or the path cannot be written.
            SandboxError: the sandbox is broken.
        """
        ...

    async def close(self) -> None:
        """Ends every process and removes everything; may be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a folder of a sandbox."""

    path: str
    """Relative to the folder that was listed."""
    kind: Literal["file", "folder", "link", "other"]
    mode: int
    """Permission bits."""
    size: int
    target: str = ""
    """Where a link leads; it is never followed."""


class Listing(Protocol):
    """A sandbox with the capability "list": folders are seen without running anything in it."""

    async def entries(self, path: str, *, max_entries: int = 10_000) -> list[Entry]:
        """Everything under a folder, sorted by path; links are named, not followed.

        Args:
            path: of the folder, absolute or relative to the workdir.
            max_entries: more is refused, and so is a tree deeper than 100 folders.

        Raises:
            FileNotFoundError: no such folder.
            OSError: not a folder, too much in it, or not readable.
            SandboxError: the sandbox is broken.
        """
        ...


class Resettable(Protocol):
    """A sandbox with the capability "reset": it can be made new, and can prove that it is."""

    async def survey(self) -> Mapping[str, str]:
        """Digests of what is inside, by aspect, seen from outside while no command runs.

        Equal digests before the first use and after a reset are the proof that nothing stayed:
        "tree" (everything writable, shared memory included), "processes", "ipc", "mounts",
        "environment", "network", "groups" (limits, members and use of the control groups).
        """
        ...

    async def reset(self) -> Sandbox:
        """Kills every process, discards everything written; a new sandbox in the place of this one.

        Raises:
            SandboxError: it did not come up again; nothing is left then.
        """
        ...


class Session(Protocol):
    """A shell whose folder, variables, functions and jobs stay from command to command."""

    restarts: int
    """How often a new shell had to be started, because the last one exited or hung."""

    async def run(
        self, command: str, *, stdin: bytes | str = b"", timeout_s: float | None = None
    ) -> ExecResult:
        """Runs a command after those before it.

        Args:
            command: what one would type; may be many lines.
            stdin: its input.
            timeout_s: wall-clock seconds; None: the spec's `exec_s`. What was started since the
                command began is killed then, the shell stays.

        Returns:
            The shell's own word for the exit code; what background jobs printed since the last
            command is part of the output.

        Raises:
            SandboxError: the sandbox is broken.
        """
        ...

    async def close(self) -> None:
        """Ends the shell and everything that it started; may be called twice."""
        ...


class Sessions(Protocol):
    """A sandbox with the capability "session"."""

    async def session(self) -> Session:
        """A shell; several may run side by side.

        Raises:
            SandboxError: the sandbox is broken, or has no shell.
        """
        ...


@dataclass(frozen=True, slots=True)
class PythonResult:
    """How a cell of a `PythonConsole` ended."""

    value: str
    """`repr` of the last expression; empty for None, or where there is none."""
    stdout: bytes
    stderr: bytes
    error: str = ""
    """The traceback, or why the interpreter is gone; empty when all went well."""
    killed: Literal["", "timeout", "memory", "pids"] = ""
    """Which limit ended it, if one did."""
    restarted: bool = False
    """Whether the state is lost: the next cell runs in a new interpreter."""
    truncated: bool = False
    """Whether value, traceback, stdout or stderr was cut in the middle."""
    wall_s: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing was raised and no limit ended it."""
        return not self.error and not self.killed

    @property
    def text(self) -> str:
        """stdout as UTF-8, undecodable bytes replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        """stderr as UTF-8, undecodable bytes replaced."""
        return self.stderr.decode("utf-8", "replace")


class PythonConsole(Protocol):
    """A Python interpreter whose names and modules stay from cell to cell."""

    restarts: int
    """How often the state was lost."""

    async def run(self, code: str, *, timeout_s: float | None = None) -> PythonResult:
        """Runs a cell after those before it.

        Args:
            code: statements; the value of a last expression is returned, as at a prompt.
            timeout_s: wall-clock seconds; None: the spec's `exec_s`. The cell is interrupted then
                and what it started is killed; the state stays unless the code does not stop.

        Raises:
            SandboxError: the sandbox is broken.
        """
        ...

    async def close(self) -> None:
        """Ends the interpreter and everything that it started; may be called twice."""
        ...


class Pythons(Protocol):
    """A sandbox with the capability "python"."""

    async def python(self) -> PythonConsole:
        """An interpreter; several may run side by side.

        Raises:
            SandboxError: the sandbox is broken, or has no Python.
        """
        ...


@dataclass(frozen=True, slots=True)
class Transfer:
    """What an upload or a download of a folder did."""

    files: int
    size_bytes: int
    skipped: tuple[str, ...] = ()
    """Paths that were left out: links, and whatever is neither file nor folder."""


class Transfers(Protocol):
    """A sandbox with the capability "transfer": whole folders go in and out."""

    async def upload(self, source: str | Path, target: str = ".") -> Transfer:
        """Copies a file or a folder of the host into the sandbox.

        Args:
            source: a folder's content goes into the target; links that stay in it are followed.
            target: absolute, or relative to the workdir.

        Raises:
            OSError: something cannot be read or written.
            SandboxError: the sandbox is broken.
        """
        ...

    async def download(
        self, source: str, target: str | Path, *, max_bytes: int = 100_000_000
    ) -> Transfer:
        """Copies a file or a folder of the sandbox to the host; no link is made or followed.

        Args:
            source: absolute, or relative to the workdir; a folder's content goes into the target.
            target: made where it is not there.
            max_bytes: of all files together; more is refused.

        Raises:
            FileNotFoundError: no such file or folder.
            OSError: too much, or something cannot be read or written.
            SandboxError: the sandbox is broken.
        """
        ...


class SnapshotLike(Protocol):
    """The files of a sandbox at one moment: a value that outlives the sandbox."""

    spec: SandboxSpec
    """Of the sandbox that it was taken from."""

    @property
    def size_bytes(self) -> int:
        """What it holds."""
        ...

    @property
    def digest(self) -> str:
        """Equal for equal names, kinds, modes, owners and contents."""
        ...

    def close(self) -> None:
        """Frees what it holds; may be called twice."""
        ...


class Snapshots(Protocol):
    """A sandbox with the capability "snapshot"; the backend opens new ones from it."""

    async def snapshot(self) -> SnapshotLike:
        """Everything written so far, taken while all processes stand still; they go on after.

        Processes are not part of it, nor is `/dev/shm`.

        Raises:
            OSError: what was written cannot be copied (folders too deep).
            SandboxError: the sandbox is broken, or a process cannot be stopped.
        """
        ...

    async def restore(self, taken: Any) -> None:
        """Ends all processes and goes back to a snapshot of this backend; sessions start anew.

        Raises:
            ConfigError: it was taken from another base.
            SandboxError: it does not fit, or the sandbox is broken.
        """
        ...


class Forks(Protocol):
    """A sandbox with the capability "fork"."""

    async def fork(self) -> Sandbox:
        """A second sandbox of the same spec that holds the same files and no process.

        Raises:
            OSError: what was written cannot be copied.
            SandboxError: one of the two is broken.
        """
        ...


class Warm(Protocol):
    """A sandbox with the capability "zygote": forked from an interpreter with modules imported."""

    async def run_python(
        self,
        code: str,
        *,
        arguments: Sequence[str] = (),
        stdin: bytes | str = b"",
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> ExecResult:
        """Runs Python code as `python3 -c` would, in a fork: the modules are there already.

        Limits and results are those of `Sandbox.exec`. Every call is a fork of its own: no state
        goes from one to the next. `random` and `numpy.random` are seeded anew; string hashes are
        not (PYTHONHASHSEED is 0), and the layout of the address space is the template's.

        Args:
            code: what to run.
            arguments: `sys.argv[1:]`.
            stdin: all its input.
            timeout_s: wall-clock seconds; None: `spec.exec_s`.
            env: added to the sandbox's environment.
            cwd: None: `spec.workdir`.

        Raises:
            SandboxError: the sandbox is broken (the host's fault).
            CapabilityError: the sandbox was not forked from a template.
        """
        ...


@dataclass(frozen=True, slots=True)
class Probe:
    """What a backend really enforces on this host."""

    backend: str
    available: bool
    enforced: tuple[str, ...] = ()
    """Names of walls and limits that hold."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Name of a wall or limit that cannot be enforced, and why."""
    advice: str = ""
    """What to do about it."""
    details: Mapping[str, Json] = field(default_factory=dict)


@runtime_checkable
class NetworkLog(Protocol):
    """A sandbox of capability "network_log": it tells what was asked of the network."""

    async def network_log(self) -> list[Event]:
        """Every request and tunnel so far; see `docs/network.md`.

        Returns:
            One `network.request` each, with host, port, method, bytes, decision and reason; those
            beyond the first few hundred as one `network.rest` that counts them. `at_s` is since
            the sandbox was opened, or since this last returned nothing: who gets a sandbox that
            was ready before reads its log once, and has a clock of its own.
        """
        ...


class SandboxBackend(Protocol):
    """Opens sandboxes of one kind."""

    name: str

    async def open(self, spec: SandboxSpec) -> Sandbox:
        """A fresh sandbox.

        Raises:
            IsolationError: this host cannot enforce what the spec asks for, by name.
            SandboxError: it did not come up.
        """
        ...

    async def probe(self) -> Probe:
        """Finds out what this host really enforces; opens a sandbox to see."""
        ...

    async def close(self) -> None:
        """Ends everything this backend has open."""
        ...


@runtime_checkable
class PreparesImages(Protocol):
    """A backend that finds or builds the images of its sandboxes before they open."""

    async def prepare(self, spec: SandboxSpec) -> object:
        """Makes ready what a sandbox of that spec is based on, within a deadline of its own.

        Raises:
            BuildError: it cannot be built; names the step and ends with its output.
            ConfigError: there is no such image, or the recipe is wrong.
        """
        ...


# --- environment --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may use besides its arguments: never the answer, never the hidden files."""

    task: PublicTask
    sandbox: Sandbox | None
    world: Json
    """Host-side state of the episode, private to tools that ask for it."""
    seed: int
    event: Callable[[str, dict[str, Json]], None]
    """Records an event on the trajectory: kind, data."""


@runtime_checkable
class Tool(Protocol):
    """Something the policy may call."""

    spec: ToolSpec

    def check(self, arguments: Mapping[str, Json]) -> str:
        """What is wrong with the arguments, for the policy to read; empty when nothing is."""
        ...

    async def call(self, call: ToolCall, context: ToolContext) -> ToolResult:
        """Answers a call. What the candidate did wrong is a result with `is_error`.

        Raises:
            RolloutError: the host's fault.
        """
        ...


WORLD_ARTIFACT = "world:final"
"""The artifact that holds an episode's final `world`, as JSON."""


class Episode(Protocol):
    """One play of one task; single use.

    An episode with host-side state may have it as `world` (JSON): what that is at the end is kept
    with the trajectory as the artifact `WORLD_ARTIFACT`, for verifiers of state.
    """

    tools: tuple[Tool, ...]

    async def reset(self) -> Observation:
        """The first observation: the prompt."""
        ...

    async def respond(self, action: Action) -> Observation:
        """Runs the action's tool calls, the user's turn or the world."""
        ...

    async def close(self) -> None:
        """Frees what the episode holds; the sandbox is not its own."""
        ...


@runtime_checkable
class TaskSource(Protocol):
    """Where tasks come from."""

    def split(self, split: Split) -> Iterator[Task]:
        """The tasks of a split in a fixed order; may be endless for generated ones."""
        ...

    def get(self, task_id: str) -> Task:
        """The task of that id.

        Raises:
            TaskError: there is none.
        """
        ...


@runtime_checkable
class Environment(Protocol):
    """Task distribution, verifier, tools and sandbox: run it k times to score, G to train."""

    name: str
    tasks: TaskSource
    verifier: Verifier
    sandbox: SandboxSpec | None
    limits: Limits
    sampling: Sampling
    """How the policy samples unless the caller says otherwise."""
    graded: bool
    """Whether rewards other than 0 and 1 are allowed."""
    artifacts: tuple[str, ...]
    """Paths in the sandbox that are kept with the trajectory, when present."""

    async def open(
        self, task: PublicTask, world: Json, sandbox: Sandbox | None, seed: int
    ) -> Episode:
        """A single-use episode of the task.

        Raises:
            EnvironmentFault: it could not be set up.
        """
        ...


# --- harness ------------------------------------------------------------------------------------


class Recorder(Protocol):
    """Where a harness writes what happens; what is written survives a limit or a fault."""

    session: str
    sampling: Sampling
    usage: Usage
    """Of all steps so far."""
    malformed: int
    """Malformed calls so far."""

    @property
    def steps(self) -> int:
        """Steps recorded so far."""
        ...

    def seed(self, step: int) -> int:
        """The seed of the policy's call at a step."""
        ...

    def opened(self, observation: Observation, tools: tuple[ToolSpec, ...]) -> None:
        """Records the first observation."""
        ...

    def step(
        self, action: Action, observation: Observation, *, policy_s: float, env_s: float
    ) -> None:
        """Records a step."""
        ...

    def event(self, kind: str, data: dict[str, Json] | None = None) -> None:
        """Records an event."""
        ...


class Harness(Protocol):
    """Drives one episode with one policy."""

    name: str

    async def play(
        self, episode: Episode, policy: Policy, limits: Limits, record: Recorder
    ) -> StopReason:
        """Plays to the end or to a limit (the wall-clock limit is the caller's)."""
        ...


# --- verifier -----------------------------------------------------------------------------------


class Workers(Protocol):
    """A pool of killable worker processes for pure functions."""

    async def run(self, function: Callable[..., T], *args: Any, cpu_s: float, wall_s: float) -> T:
        """Calls the function in a worker process.

        Args:
            function: importable, or anything cloudpickle takes.
            args: pickled to the worker.
            cpu_s: CPU seconds after which the worker is killed.
            wall_s: wall-clock seconds, the backstop.

        Raises:
            TimeoutError: a budget ran out; the worker was killed, nobody else waited.
            Exception: what the function raised.
        """
        ...


@dataclass(frozen=True, slots=True)
class JudgeContext:
    """Everything a verifier gets. It never calls the environment."""

    task: Task
    trajectory: Trajectory
    sandbox: Sandbox | None
    """The episode's sandbox, still open, as the candidate left it; None when re-judged later."""
    open_sandbox: Callable[[SandboxSpec], Awaitable[Sandbox]]
    """A clean room; closed by whoever opened it."""
    workers: Workers
    deadline: float
    """`time.monotonic()` value by which to be done."""
    artifact: Callable[[str], bytes | None] = lambda _path: None
    """The content of a kept artifact, by its path in the sandbox (or `WORLD_ARTIFACT`)."""


@runtime_checkable
class Verifier(Protocol):
    """Judges one trajectory."""

    name: str
    kind: Kind

    async def judge(self, context: JudgeContext) -> Verdict:
        """The verdict.

        Raises:
            VerifierError: it could not judge; the outcome is unknown, never 0.
        """
        ...


@runtime_checkable
class GroupVerifier(Protocol):
    """Judges the trajectories of one task together.

    Training judges a group at once, when all its members are played. It is a `Verifier` too, for
    rollouts that stand alone, where it may abstain.
    """

    name: str
    kind: Kind

    async def judge_group(self, contexts: Sequence[JudgeContext]) -> list[Verdict]:
        """One verdict a context, in order.

        A context whose trajectory has a verdict was judged before: it is there to compare with.
        """
        ...


# --- training -----------------------------------------------------------------------------------

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Published:
    """Weights handed to whoever samples: the only thing that flows from learner to policy."""

    version: int
    path: Path
    """A safetensors file, complete (renamed into place)."""
    hash: str


class Learner(Protocol):
    """Owns the optimiser."""

    def update(self, batch: Batch) -> Metrics:
        """One optimiser step on the batch."""
        ...

    def publish(self) -> Published:
        """Writes the current weights under the next version."""
        ...
