"""Conformance suites: what every implementation of a contract must do, as a function to call.

Each `check_*` raises `AssertionError` naming the first promise that is broken.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from quintain.errors import SandboxError, TaskError
from quintain.messages import (
    Message,
    Sampling,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
    assistant,
    tool_results,
    user,
)
from quintain.policies.scripted import Scripted
from quintain.protocols import Environment, Episode, ExecResult, Policy, Sandbox, SandboxBackend
from quintain.record import Json, canonical, digest
from quintain.rollouts import Host, Job, rollout
from quintain.task import Limits, PublicTask, SandboxSpec, Split, Task
from quintain.trajectory import Action, Observation, StopReason, Trajectory

# --- policies -----------------------------------------------------------------------------------


async def check_policy(
    policy: Policy,
    *,
    messages: Sequence[Message] | None = None,
    tools: Sequence[ToolSpec] = (),
    sampling: Sampling | None = None,
    deterministic: bool = False,
    calls: int = 2,
) -> None:
    """Checks a policy: it is closed at the end.

    It acts in two sessions at once; answers with an assistant message that has no tool results and
    distinct call ids; leaves its input alone; counts its calls; reports tokens that are finite,
    versioned and, over the turns of a session, a continuation; and may be closed twice.

    Args:
        policy: to be checked.
        messages: a conversation that it can answer; None: a short question.
        tools: offered to it.
        sampling: how to sample.
        deterministic: whether it promises equal answers for equal seeds.
        calls: turns in each session.
    """
    assert policy.name, "a policy has a name"
    assert policy.version >= 0, f"a policy's version is at least 0, got {policy.version}"
    opening = tuple(messages or (user("Say one word."),))
    sampling = sampling or Sampling(max_tokens=32)
    turns = [_policy_session(policy, opening, tools, sampling, f"check-{i}", calls) for i in (0, 1)]
    first, _ = await asyncio.gather(*turns)
    if deterministic:
        again = await _policy_session(policy, opening, tools, sampling, "check-2", calls)
        assert first == again, f"equal seeds gave other answers: {first} and {again}"
    close = getattr(policy, "close", None)
    if close is not None:
        await close()
        await close()


async def _policy_session(
    policy: Policy,
    opening: tuple[Message, ...],
    tools: Sequence[ToolSpec],
    sampling: Sampling,
    session: str,
    calls: int,
) -> list[Message]:
    """Plays some turns; returns what the policy said."""
    talk = list(opening)
    offered = list(tools)
    said: list[Message] = []
    for turn in range(calls):
        before = (tuple(talk), tuple(offered))
        action = await policy.act(
            talk, tools=offered, sampling=sampling, seed=1000 + turn, session=session
        )
        assert (tuple(talk), tuple(offered)) == before, "act changed the messages or the tools"
        assert isinstance(action, Action), f"act returns an Action, got {type(action).__name__}"
        message = action.message
        assert message.role == "assistant", f"an action's message is the assistant's, got {message}"
        assert not message.tool_results, "an assistant message holds no tool results"
        ids = [call.id for call in message.tool_calls]
        assert len(ids) == len(set(ids)), f"the ids of tool calls differ, got {ids}"
        assert all(ids), f"every tool call has an id, got {ids}"
        assert action.usage.calls >= 1, "an action counts its call in usage.calls"
        assert Action.model_validate_json(action.model_dump_json()) == action, "JSON changes it"
        _check_spans(action, turn, sampling)
        said.append(message)
        talk.append(message)
        if ids:
            talk.append(
                tool_results(
                    *(
                        ToolResult(call_id=call.id, name=call.name, content=(TextPart(text="ok"),))
                        for call in message.tool_calls
                    )
                )
            )
        else:
            talk.append(user("Another one."))
    return said


def _check_spans(action: Action, turn: int, sampling: Sampling) -> None:
    for index, span in enumerate(action.tokens):
        assert span.policy_version >= 0, f"a span's version is at least 0, got {span}"
        assert all(math.isfinite(value) and value <= 1e-4 for value in span.logprobs), (
            f"log-probabilities are finite and at most 0, got {span.logprobs}"
        )
        assert all(token >= 0 for token in (*span.prompt_delta_ids, *span.token_ids)), (
            f"token ids are not negative, got {span}"
        )
        if index == 0:
            assert span.prompt_delta_ids, "the first span of an action brings its prompt"
            assert turn or not span.restart, "the first span of a session is no restart"
        else:
            assert not span.prompt_delta_ids, "only the first span of an action brings a prompt"
    sampled = sum(len(span.token_ids) for span in action.tokens)
    if action.tokens and sampling.max_tokens is not None:
        assert sampled <= sampling.max_tokens, (
            f"at most {sampling.max_tokens} tokens were asked for, {sampled} came"
        )
        assert sampled == action.usage.completion_tokens, (
            f"{sampled} tokens came, usage counts {action.usage.completion_tokens}"
        )


# --- sandboxes ----------------------------------------------------------------------------------


async def check_sandbox(backend: SandboxBackend, spec: SandboxSpec | None = None) -> None:
    """Checks a sandbox backend, which stays open.

    Commands report exit code, stdout, stderr and the limit that ended them, leave nothing running,
    and run side by side; files go in and out byte for byte, links lead nowhere outside and nothing
    but a regular file is read; one sandbox does not see another; closing twice is allowed and ends
    everything.

    Args:
        backend: to be checked.
        spec: what to open; needs `sh`, `sleep` and the usual small programs. None: the default.
    """
    assert backend.name, "a backend has a name"
    spec = (spec or SandboxSpec()).model_copy(update={"max_output_bytes": 10_000})
    first, second = await asyncio.gather(backend.open(spec), backend.open(spec))
    try:
        for sandbox in (first, second):
            assert sandbox.spec == spec, "a sandbox keeps its spec"
        await _check_commands(first)
        await _check_limits(first)
        await _check_files(first)
        await first.write("mine", b"1")
        seen = await second.exec(["sh", "-c", "ls -A"])
        assert seen.ok, f"ls failed: {seen}"
        assert "mine" not in seen.text, "a file of one sandbox is visible in another"
    finally:
        await asyncio.gather(first.close(), second.close())
    await first.close()
    try:
        await first.exec(["true"])
    except SandboxError:
        return
    raise AssertionError("a closed sandbox runs commands")


async def _check_commands(sandbox: Sandbox) -> None:
    run = await sandbox.exec(["sh", "-c", "cat; echo no >&2; exit 3"], stdin=b"\x00\xff")
    assert (run.exit_code, run.stdout, run.stderr) == (3, b"\x00\xff", b"no\n"), f"got {run}"
    assert not run.ok, "a command that exits with 3 is not ok"
    assert run.wall_s > 0, "the wall-clock time is told"
    run = await sandbox.exec(["sh", "-c", "kill -9 $$"])
    assert run.exit_code == -9, f"killed by signal 9 is exit code -9, got {run}"
    run = await sandbox.exec(["no-such-program"])
    assert run.exit_code == 127, f"a missing program is exit code 127, got {run}"
    run = await sandbox.exec(["sh", "-c", "echo $A; pwd"], env={"A": "b"}, cwd="/tmp")
    assert run.text == "b\n/tmp\n", f"env and cwd were not taken: {run}"
    run = await sandbox.exec(["pwd"])
    assert run.text.strip() == sandbox.spec.workdir, f"commands start in the workdir: {run}"
    words = [str(i) for i in range(8)]
    runs = await asyncio.gather(*(sandbox.exec(["echo", word]) for word in words))
    assert [run.text.strip() for run in runs] == words, "commands side by side mixed their output"
    big = b"x" * 300_000
    run = await sandbox.exec(["wc", "-c"], stdin=big)
    assert run.text.strip() == str(len(big)), f"long input arrives whole: {run}"


async def _check_limits(sandbox: Sandbox) -> None:
    script = "setsid sleep 600 >/dev/null 2>&1 & sleep 600"
    run = await sandbox.exec(["sh", "-c", script], timeout_s=0.5)
    assert run.killed == "timeout", f"a command over its time is killed: {run}"
    assert not run.ok, "a killed command is not ok"
    await sandbox.exec(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 &"])
    script = "grep -c '^sleep' /proc/[0-9]*/comm 2>/dev/null | grep -c ':1$'"
    run = await sandbox.exec(["sh", "-c", script])
    assert run.text.strip() == "0", f"a command left processes behind: {run}"
    run = await sandbox.exec(["sh", "-c", "yes | head -c 1000000"])
    most = sandbox.spec.max_output_bytes
    assert len(run.stdout) == most, f"output is cut at {most} bytes, got {len(run.stdout)}"
    assert run.truncated, "cut output is told"
    assert run.exit_code == 0, f"a flood of output is dropped, not blocked: {run.exit_code}"


async def _check_files(sandbox: Sandbox) -> None:
    content = bytes(range(256)) * 5000
    await sandbox.write("a/b/c.bin", content)
    assert await sandbox.read("a/b/c.bin") == content, "a file came back changed"
    run = await sandbox.exec(["sh", "-c", "echo more >> a/b/c.bin && wc -c < a/b/c.bin"])
    assert run.text.strip() == str(len(content) + 5), f"the user cannot append to it: {run}"
    await sandbox.write("run.sh", "#!/bin/sh\necho ran\n", mode=0o755)
    assert (await sandbox.exec(["./run.sh"])).text == "ran\n", "the mode was not kept"
    await _expect(FileNotFoundError, sandbox.read("missing"))
    await _expect(OSError, sandbox.read("a/b/c.bin", max_bytes=10))
    await _expect(OSError, sandbox.read("a"))
    await sandbox.exec(["mkfifo", "pipe"])
    await _expect(OSError, sandbox.read("pipe"))
    await _expect(OSError, sandbox.write("pipe", b"x"))
    script = "ln -s /../../../../../../etc/hostname up; ln -s loop loop"
    await sandbox.exec(["sh", "-c", script])
    inside = await sandbox.exec(["cat", "/etc/hostname"])
    if inside.ok:
        assert await sandbox.read("up") == inside.stdout, "a link led out of the sandbox"
    await _expect(OSError, sandbox.read("loop"))


async def _expect(kind: type[Exception], call: Awaitable[object]) -> None:
    found: Exception | object
    try:
        found = await asyncio.wait_for(call, 10)
    except Exception as error:
        found = error
    assert not isinstance(found, TimeoutError), "the call hung"
    assert not isinstance(found, SandboxError), f"the candidate's fault became the host's: {found}"
    assert isinstance(found, kind), f"expected {kind.__name__}, got {str(found)[:100]}"


# --- environments -------------------------------------------------------------------------------

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

Script = Sequence[Message | str]
"""What a policy says in one episode."""


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
