"""Leak probes: does what the policy's side sees hold what only the verifier may know.

A rollout is watched from its opening: messages, tools, metadata, and the sandbox as the episode
left it (environment variables, process list, files). Looked for are strings of the task's answer
and hidden files that are too long to stand anywhere by chance. What the task itself hands out on
purpose, its prompt and files, may repeat an answer rightly (a quotation, an example): that is for
a person to look at. Anywhere else it is a leak.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quintain.errors import SandboxError
from quintain.messages import Message, Sampling, ToolSpec, assistant
from quintain.protocols import Environment, Episode, Sandbox
from quintain.record import Json
from quintain.rollouts import Host, Job, rollout
from quintain.task import PublicTask, Task
from quintain.trajectory import Action

MIN_CHARS = 8
"""Shorter strings, and numbers of fewer digits, stand somewhere by chance."""
MAX_NEEDLES = 400
MAX_FILES = 300
MAX_FILE_BYTES = 1_000_000
_FOLDERS = "/tmp /var/tmp /home /root /tests /solution /logs /oracle /app /workspace"
_PROBE = (
    "env; echo @@processes; for f in /proc/[0-9]*/cmdline /proc/[0-9]*/environ; do "
    "tr '\\0' '\\n' < $f; done 2>/dev/null; echo @@interfaces; cat /proc/net/dev 2>/dev/null; "
    'echo @@files; find "$PWD" ' + _FOLDERS + " -xdev -type f -size -2048 2>/dev/null"
)


@dataclass(frozen=True, slots=True)
class Leak:
    """Something of the answer that stands where the policy can see it."""

    task_id: str
    where: str
    what: str
    certain: bool
    """Whether nothing but a leak can explain it."""


@dataclass(slots=True)
class Probed:
    """What the probes of one task saw."""

    task_id: str
    needles: int
    """Strings that were looked for."""
    leaks: list[Leak] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    """Where was looked."""
    interfaces: list[str] | None = None
    """Network interfaces of the sandbox; None: there is none, or it could not be asked."""
    remains: list[str] | None = None
    """What one episode found of the one before it; None: not looked at."""
    same_opening: bool | None = None
    """Whether two episodes with one seed open alike; None: not looked at."""
    tools: tuple[ToolSpec, ...] = ()
    fault: str = ""
    """Why the probe came to no end."""


def needles_of(task: Task) -> dict[str, str]:
    """Strings that only the verifier may know, and what each is."""
    found: dict[str, str] = {}
    for text in _leaves(task.answer):
        if len(text.strip()) >= MIN_CHARS:
            found.setdefault(text.strip(), "of the answer")
    for path, data in task.hidden_files.items():
        for line in data.decode("utf-8", "replace").splitlines():
            if len(line.strip()) >= 2 * MIN_CHARS:
                found.setdefault(line.strip(), f"of the hidden file {path}")
    return dict(list(found.items())[:MAX_NEEDLES])


def _leaves(value: Json) -> Iterator[str]:
    """The strings and numbers in a value; of what a mapping's keys say, nothing is secret."""
    if isinstance(value, dict):
        for key, item in value.items():
            # Names of functions and commands are what is asked for, not what is expected.
            if key not in ("entry_point", "command", "stdin", "input", "name", "expressions"):
                yield from _leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield repr(value)


class _Silent:
    """A policy that says nothing and remembers what it was shown."""

    name = "leak probe"
    version = 0

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.tools: tuple[ToolSpec, ...] = ()

    async def act(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        seed: int,
        session: str,
    ) -> Action:
        """Nothing."""
        self.messages, self.tools = list(messages), tuple(tools)
        return Action(message=assistant(""))


class _Watched:
    """The environment, with a look into the sandbox once the episode is open."""

    def __init__(self, inner: Environment) -> None:
        self._inner = inner
        self.told = ""
        self.files: dict[str, bytes] = {}
        self.mark = f".probe-{secrets.token_hex(6)}"
        self.remains: list[str] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def open(
        self, task: PublicTask, world: Json, sandbox: Sandbox | None, seed: int
    ) -> Episode:
        """As the environment opens it."""
        episode = await self._inner.open(task, world, sandbox, seed)
        if sandbox is not None:
            await self._look(sandbox)
        return episode

    async def _look(self, sandbox: Sandbox) -> None:
        self.told = (await sandbox.exec(["sh", "-c", _PROBE])).text
        paths = self.told.partition("@@files\n")[2].splitlines()[:MAX_FILES]
        self.remains = [path for path in paths if self.mark in path]
        for path in paths:
            try:
                self.files[path] = await sandbox.read(path, max_bytes=MAX_FILE_BYTES)
            except SandboxError:
                raise
            except OSError:
                continue
        for folder in (sandbox.spec.workdir, "/tmp"):
            await sandbox.exec(["sh", "-c", f"echo x > {folder}/{self.mark}"])


async def probe(environment: Environment, task: Task, host: Mapping[str, Any]) -> Probed:
    """Opens the task twice in one host and looks at all that the policy's side can see.

    Args:
        environment: whose episodes are opened.
        task: whose answer is looked for.
        host: further settings of `Host`.
    """
    needles = needles_of(task)
    seen = Probed(task.id, len(needles))
    watched, policy = _Watched(environment), _Silent()
    async with Host(watched, policy, **{"retries": 1, **host}) as surroundings:
        openings = []
        for _ in range(2):
            done = await rollout(Job(task, "audit:probe"), surroundings)
            openings.append(policy.messages)
            if done.error is not None and done.error.stage != "verifier":
                seen.fault = f"{done.error.type}: {done.error.message}"
                return seen
    seen.tools = policy.tools
    seen.same_opening = openings[0] == openings[1]
    _look_for(needles, task, policy, watched, seen)
    if watched.remains is not None:
        seen.remains = watched.remains
        lines = watched.told.partition("@@interfaces\n")[2].partition("@@files")[0].splitlines()
        seen.interfaces = [line.partition(":")[0].strip() for line in lines if ":" in line]
    return seen


def _look_for(
    needles: dict[str, str], task: Task, policy: _Silent, watched: _Watched, seen: Probed
) -> None:
    variables, _, rest = watched.told.partition("@@processes\n")
    processes = rest.partition("@@interfaces\n")[0]
    shown = "\n".join(message.text for message in policy.messages)
    tools = json.dumps([tool.model_dump(mode="json") for tool in policy.tools])
    handed = {
        "the prompt": shown,
        **{f"the task's file {p}": d.decode("utf-8", "replace") for p, d in task.files.items()},
    }
    hidden = {
        "the metadata": json.dumps(task.metadata, default=str),
        "the tools' descriptions": tools,
        "the environment variables": variables,
        "the process list": processes,
    }
    given = {data.strip() for data in task.files.values()}
    for path, data in watched.files.items():
        if data.strip() not in given and not path.endswith(watched.mark):
            hidden[f"the sandbox's file {path}"] = data.decode("utf-8", "replace")
    seen.places = sorted({place.split("'s file")[0] for place in (*handed, *hidden)})
    known = "\n".join(handed.values())
    for place, text in hidden.items():
        for needle, what in needles.items():
            if needle in text and needle not in known:
                seen.leaks.append(Leak(task.id, place, f"{what}: {needle[:60]!r}", certain=True))
                break
    for place, text in handed.items():
        found = [needle for needle in needles if needle in text]
        if found and 2 * len(found) >= len(needles):
            what = f"{len(found)} of {len(needles)} expected values, such as {found[0][:60]!r}"
            seen.leaks.append(Leak(task.id, place, what, certain=False))
