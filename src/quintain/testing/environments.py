"""`check_environment`: what every environment must do; it plays, and spies on the sandbox."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from quintain.envs.environment import Script
from quintain.errors import TaskError
from quintain.messages import Message, Sampling, ToolCall, ToolSpec, assistant
from quintain.policies.scripted import Scripted
from quintain.protocols import Environment, Episode, ExecResult, Sandbox
from quintain.record import Json, canonical, digest
from quintain.rollouts import Host, Job, rollout
from quintain.task import Limits, PublicTask, Split, Task
from quintain.trajectory import Action, Observation, StopReason, Trajectory

_LOOK = """\
import os, sys, time
stop, *secrets = (bytes.fromhex(word) for word in sys.stdin.read().split())
found, ends = set(), time.monotonic() + 120
def look(path):
    try:
        with open(path, "rb") as file:
            data = file.read(10_000_000)
    except OSError:
        return
    found.update((path, s.decode()) for s in secrets if s in data or s in os.fsencode(path))
while time.monotonic() < ends:
    last = os.path.exists(stop)
    for pid in os.listdir("/proc"):
        if pid.isdigit() and int(pid) != os.getpid():
            look(f"/proc/{pid}/cmdline")
            look(f"/proc/{pid}/environ")
    for top in (os.getcwd(), "/tmp", "/dev/shm", "/var/tmp", "/run", os.path.expanduser("~")):
        for folder, _, names in os.walk(top):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.isfile(path) and not os.path.islink(path):
                    look(path)
    if last:
        break
    time.sleep(0.01)
print("\\n".join(f"{secret} {path}" for path, secret in sorted(found)))
"""
"""Looks at every file and process of its sandbox until told to stop. What it looks for comes by
stdin, so that it never finds itself."""

_STOP = "/tmp/.look-no-more"


async def check_environment(
    environment: Environment,
    *,
    oracle: Callable[[Task], Script] | None = None,
    fakes: Callable[[Task], Sequence[Script]] | None = None,
    again: Callable[[], Environment] | None = None,
    plant: Callable[[Task, str], Task] | None = None,
    tasks: int = 3,
    **host: Any,
) -> None:
    """Checks an environment: tasks, rewards, limits, and that nothing secret gets out.

    Tasks have ids of their own, end with somebody else's turn, are found by id and come again the
    same; no two splits share a prompt. Saying nothing earns 0, the oracle 1, every fake 0. Episodes
    are closed, limits hold. Strings planted in the answer, the hidden files and the world are
    never seen by the policy, nor by a spy that watches the sandbox's files and processes until
    after the verdict.

    Args:
        environment: to be checked; its own `oracle` and `fakes`, where it has them, stand in for
            the next two.
        oracle: a script that solves a task.
        fakes: scripts that only look as if they did.
        again: makes the same environment once more; its tasks must be equal.
        plant: puts a string where the verifier reads it (the second argument, into the answer); by
            default it becomes, or is added to, the answer.
        tasks: how many tasks of each split are played.
        host: further settings of `rollouts.Host` (`backend`, `allow_weaker`, …).
    """
    oracle = oracle or getattr(environment, "oracle", None)
    fakes = fakes or getattr(environment, "fakes", None)
    _check_tasks(environment, again() if again else environment)
    played = [
        task for split in Split for task in itertools.islice(environment.tasks.split(split), tasks)
    ]
    stage = _Stage(environment)
    async with Host(stage, stage, **{"retries": 0, **host}) as surroundings:
        stage.host = surroundings
        for task in played:
            await stage.earns(task, "", 0.0, "saying nothing")
            if oracle is not None:
                await stage.earns(task, list(oracle(task)), 1.0, "the oracle")
            for number, fake in enumerate(fakes(task) if fakes is not None else ()):
                await stage.earns(task, list(fake), 0.0, f"fake {number}")
        for task in played[:2]:
            script: Script = list(oracle(task)) if oracle is not None else ["no"]
            await stage.keeps_limits(task, script)
            await stage.keeps_secrets(task, script, plant or _planted)


def _check_tasks(environment: Environment, again: Environment, most: int = 60) -> None:
    sides: dict[str, tuple[Split, str]] = {}
    ids: set[str] = set()
    for split in Split:
        found = list(itertools.islice(environment.tasks.split(split), most))
        other = list(itertools.islice(again.tasks.split(split), most))
        assert found == other, f"the {split} split comes in another order or with other tasks"
        for task in found:
            assert isinstance(task, Task), f"a task source yields tasks, got {task!r}"
            assert task.split == split, f"task {task.id} of {task.split} is in the {split} split"
            assert task.id not in ids, f"two tasks have the id {task.id!r}"
            ids.add(task.id)
            assert environment.tasks.get(task.id) == task, f"get({task.id!r}) gives another task"
            assert task.prompt, f"task {task.id} has no prompt"
            assert task.prompt[-1].role != "assistant", (
                f"task {task.id} ends with the policy's turn"
            )
            content = canonical([m.model_dump(mode="json") for m in task.prompt] + [
                sorted(task.files), *(task.files[path].hex() for path in sorted(task.files))
            ])  # fmt: skip
            side, name = sides.setdefault(content, (split, task.id))
            assert side == split, (
                f"{name} in the {side} split and {task.id} in the {split} split ask the same"
            )
    assert ids, "the environment has no tasks"
    try:
        environment.tasks.get("no such task")
    except TaskError:
        return
    raise AssertionError("get() of an unknown id raises TaskError")


class _Stage:
    """The environment and the policy of all rollouts of one check, which share a host.

    As an environment it passes everything on, counts episodes and spies on them while there are
    secrets; as a policy it plays the script that is set.
    """

    def __init__(self, inner: Environment) -> None:
        self.name, self.tasks, self.verifier = inner.name, inner.tasks, inner.verifier
        self.sandbox, self.limits, self.sampling = inner.sandbox, inner.limits, inner.sampling
        self.graded, self.artifacts = inner.graded, inner.artifacts
        self.version = 0
        self.opened = self.closed = 0
        self.secrets: tuple[str, ...] = ()
        self.report = ""
        """What the spy saw: what was found and where, a line each."""
        self.host: Host | None = None
        self._inner = inner
        self._policy = Scripted("")

    async def act(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        seed: int,
        session: str,
    ) -> Action:
        """The script's next answer."""
        return await self._policy.act(
            messages, tools=tools, sampling=sampling, seed=seed, session=session
        )

    async def open(
        self, task: PublicTask, world: Json, sandbox: Sandbox | None, seed: int
    ) -> Episode:
        """An episode of the inner environment."""
        self.opened += 1
        episode = await self._inner.open(task, world, sandbox, seed)
        spy = None
        if sandbox is not None and self.secrets:
            words = [_STOP.encode().hex(), *(secret.encode().hex() for secret in self.secrets)]
            spy = asyncio.create_task(
                sandbox.exec(["python3", "-I", "-c", _LOOK], stdin=" ".join(words), timeout_s=180)
            )
        return _WatchedEpisode(episode, self, sandbox, spy)

    async def play(
        self, task: Task, script: str | Script, who: str, limits: Limits | None = None,
        latency_s: float = 0.0,
    ) -> Trajectory:  # fmt: skip
        """One rollout of the script; its episode was opened and closed once."""
        assert self.host is not None
        self._policy = Scripted(
            script if isinstance(script, str) else list(script), latency_s=latency_s
        )
        given, self.host.limits = self.host.limits, limits or self.host.limits
        self.opened = self.closed = 0
        try:
            done = await rollout(Job(task=task, purpose="check"), self.host)
        finally:
            self.host.limits = given
        failed = [event.data for event in done.events if event.kind == "close.failed"]
        assert not failed, f"after {who} on task {task.id}: {failed}"
        if done.error is not None:
            # The verifier may refuse an answer with something planted in it.
            judging = self.secrets and done.error.stage == "verifier"
            assert judging, f"{who} on task {task.id}: {done.error}"
        assert self.opened == self.closed == 1, (
            f"one episode is opened and closed, got {self.opened} and {self.closed}"
        )
        return done

    async def earns(self, task: Task, script: str | Script, reward: float, who: str) -> None:
        """Checks what a script earns."""
        done = await self.play(task, script, who)
        assert done.verdict is not None, f"{who} on task {task.id} has no verdict"
        assert done.reward == reward, (
            f"{who} on task {task.id} earns {reward:g}, got {done.reward} "
            f"({done.verdict.explanation})"
        )

    async def keeps_limits(self, task: Task, script: Script) -> None:
        """Checks that limits end the episode and the verifier still judges."""
        limits = task.limits or self.limits
        one = limits.model_copy(update={"max_steps": 1})
        done = await self.play(task, script, "max_steps=1", one)
        assert len(done.steps) == 1, f"max_steps=1 allows one step, {len(done.steps)} were taken"
        assert done.verdict is not None, "a limit came and the verifier did not judge"
        short = limits.model_copy(update={"wall_s": 0.2})
        done = await self.play(task, "late", "wall_s=0.2", short, latency_s=600.0)
        assert done.stop is StopReason.WALL, f"wall_s=0.2 ends the episode, got {done.stop}"
        assert done.verdict is not None, "a limit came and the verifier did not judge"
        call = assistant("", ToolCall(id="c", name="no_such_tool", arguments={}))
        done = await self.play(task, [call] * (limits.max_steps + 1), "calling an unknown tool")
        assert len(done.steps) <= limits.max_steps, f"{len(done.steps)} steps, {limits.max_steps}"

    async def keeps_secrets(
        self, task: Task, script: Script, plant: Callable[[Task, str], Task]
    ) -> None:
        """Checks that planted strings reach neither the policy nor the sandbox."""
        names = ("answer", "hidden_files", "world")
        secrets = {name: f"canary-{name}-{digest(task.id, name)}" for name in names}
        hidden = {**task.hidden_files, "canary.txt": secrets["hidden_files"].encode()}
        marked = plant(task, secrets["answer"]).model_copy(
            update={"hidden_files": hidden, "world": _with(task.world, secrets["world"])}
        )
        self.secrets, self.report = tuple(secrets.values()), ""
        try:
            done = await self.play(marked, script, "playing with planted secrets")
        finally:
            self.secrets = ()
        shown = [done.opening, *(step.observation for step in done.steps)]
        seen = "".join(part.model_dump_json() for part in (*shown, *done.tools))
        for name, secret in secrets.items():
            assert secret not in seen, f"the policy sees the {name} of task {task.id}"
            assert secret not in self.report, (
                f"the {name} of task {task.id} is in the sandbox: {self.report}"
            )


def _planted(task: Task, secret: str) -> Task:
    return task.model_copy(update={"answer": _with(task.answer, secret)})


def _with(value: Json, secret: str) -> Json:
    """The value with a secret in it, in a place that whoever reads the value may overlook."""
    if isinstance(value, dict):
        return {**value, "canary": secret}
    return [*value, secret] if isinstance(value, list) else secret


class _WatchedEpisode:
    """Passes everything on; its end is the spy's."""

    def __init__(
        self,
        inner: Episode,
        stage: _Stage,
        sandbox: Sandbox | None,
        spy: asyncio.Task[ExecResult] | None,
    ) -> None:
        self.tools = inner.tools
        self._inner, self._stage, self._sandbox, self._spy = inner, stage, sandbox, spy

    async def reset(self) -> Observation:
        """As the inner one."""
        return await self._inner.reset()

    async def respond(self, action: Action) -> Observation:
        """As the inner one."""
        return await self._inner.respond(action)

    async def close(self) -> None:
        """As the inner one, twice: closing must be repeatable."""
        self._stage.closed += 1
        if self._spy is not None and self._sandbox is not None:
            await self._sandbox.write(_STOP, b"")
            run = await self._spy
            assert run.ok, f"the spy in the sandbox failed: {run}"
            self._stage.report = run.text.strip()
        await self._inner.close()
        await self._inner.close()
