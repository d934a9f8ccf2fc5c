"""Attribution: what the candidate caused is failed, what the host caused has no reward."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from quintain.envs.environment import Environment
from quintain.errors import (
    CapabilityError,
    ConfigError,
    ContextOverflow,
    IsolationError,
    PolicyError,
    SandboxError,
    TaskError,
)
from quintain.messages import ToolCall, assistant
from quintain.policies.scripted import Scripted
from quintain.protocols import ExecResult, JudgeContext, Probe
from quintain.rollouts import Host, Job, attempt, rollout
from quintain.rollouts.attempt import retryable
from quintain.store import Store
from quintain.task import Limits, SandboxSpec
from quintain.trajectory import StopReason
from quintain.verdict import Outcome, Verdict


class Says:
    """Judges by a function of the context."""

    name = "says"
    kind = "formal"

    def __init__(self, judge: Any) -> None:
        self._judge = judge
        self.judged = 0

    async def judge(self, context: JudgeContext) -> Verdict:
        self.judged += 1
        value = self._judge(context)
        return await value if asyncio.iscoroutine(value) else value


class MemorySandbox:
    """A sandbox in memory that can be told to break: for faults that a real one rarely shows."""

    capabilities: frozenset[str] = frozenset()

    def __init__(self, spec: SandboxSpec, broken: Mapping[str, Exception]) -> None:
        self.spec = spec
        self.files: dict[str, bytes] = {}
        self.closed = 0
        self._broken = broken

    async def exec(self, argv: Sequence[str], **_: Any) -> ExecResult:
        if "exec" in self._broken:
            raise self._broken["exec"]
        return ExecResult(exit_code=0, stdout=b"ran", stderr=b"")

    async def read(self, path: str, *, max_bytes: int = 0) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    async def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> None:
        self.files[path] = data.encode() if isinstance(data, str) else data

    async def close(self) -> None:
        self.closed += 1
        if "close" in self._broken:
            raise self._broken["close"]


class MemoryBackend:
    name = "memory"

    def __init__(self, **broken: Exception) -> None:
        self.broken = broken
        self.opened: list[MemorySandbox] = []

    async def open(self, spec: SandboxSpec) -> MemorySandbox:
        if "open" in self.broken:
            raise self.broken["open"]
        self.opened.append(MemorySandbox(spec, self.broken))
        return self.opened[-1]

    async def probe(self) -> Probe:
        return Probe(backend=self.name, available=True)

    async def close(self) -> None: ...


TASKS = [{"id": "t", "prompt": "What is 2 + 3?", "answer": "5", "files": {"in.txt": "x"}}]


def environment(verifier: Any = None, **arguments: Any) -> Environment:
    judge = verifier or Says(lambda c: Verdict.of(c.trajectory.text == c.task.answer))
    return Environment(tasks=TASKS, verifier=judge, name="sums", **arguments)


async def played(env: Environment, policy: Any, **host: Any) -> Any:
    async with Host(env, policy, backoff_s=0.001, **host) as surroundings:
        trajectory, _ = await attempt(Job(env.tasks.get("t"), "trial", 0), surroundings)
    return trajectory


async def test_right_is_solved_and_wrong_is_failed() -> None:
    right = await played(environment(), Scripted("5"))
    assert (right.outcome, right.reward, right.stop) == (Outcome.SOLVED, 1.0, StopReason.DONE)
    wrong = await played(environment(), Scripted("6"))
    assert (wrong.outcome, wrong.reward) == (Outcome.FAILED, 0.0)
    assert wrong.opening.messages[0].text == "What is 2 + 3?"
    assert wrong.timing.total_s > 0


async def test_an_abstention_has_no_reward() -> None:
    trajectory = await played(environment(Says(lambda c: Verdict.abstain("?"))), Scripted("5"))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.ABSTAINED, None)
    assert trajectory.verdict is not None
    assert not retryable(trajectory)


@pytest.mark.parametrize(
    ("error", "outcome", "again"),
    [
        (PolicyError("server gone"), Outcome.POLICY_ERROR, True),
        (ConnectionResetError("foreign"), Outcome.POLICY_ERROR, True),
        (KeyError("a bug in the policy"), Outcome.POLICY_ERROR, True),
    ],
)
async def test_a_broken_policy_is_no_failure(
    error: Exception, outcome: Outcome, again: bool
) -> None:
    def script(*_: Any) -> str:
        raise error

    judge = Says(lambda c: Verdict.of(True))
    trajectory = await played(environment(judge), Scripted(script))
    assert (trajectory.outcome, trajectory.reward, trajectory.verdict) == (outcome, None, None)
    assert trajectory.error is not None
    assert trajectory.error.stage == "policy"
    assert str(error).strip("'") in trajectory.error.message
    assert retryable(trajectory) is again
    assert judge.judged == 0


async def test_a_context_overflow_is_a_limit_and_is_judged() -> None:
    def script(*_: Any) -> str:
        raise ContextOverflow("9000 tokens, 8192 fit")

    trajectory = await played(environment(), Scripted(script))
    assert (trajectory.outcome, trajectory.stop) == (Outcome.FAILED, StopReason.MAX_CONTEXT)
    assert trajectory.events[0].kind == "policy.context_overflow"


@pytest.mark.parametrize("error", [SandboxError("lost"), OSError("foreign"), RuntimeError("x")])
async def test_a_sandbox_that_does_not_open_is_infra(error: Exception) -> None:
    trajectory = await played(
        environment(sandbox=True), Scripted("5"), backend=MemoryBackend(open=error)
    )
    assert (trajectory.outcome, trajectory.reward) == (Outcome.INFRA_ERROR, None)
    assert trajectory.error is not None
    assert trajectory.error.stage == "sandbox"
    assert retryable(trajectory)


@pytest.mark.parametrize("error", [IsolationError("no namespaces"), CapabilityError("no fork")])
async def test_what_cannot_help_is_not_tried_again(error: Exception) -> None:
    trajectory = await played(
        environment(sandbox=True), Scripted("5"), backend=MemoryBackend(open=error)
    )
    assert trajectory.outcome is Outcome.INFRA_ERROR
    assert not retryable(trajectory)


async def test_a_sandbox_that_dies_under_a_tool_is_infra_not_an_observation() -> None:
    async def look(sandbox: Any) -> str:
        return str(await sandbox.exec(["ls"]))

    backend = MemoryBackend(exec=SandboxError("gone"))
    env = environment(tools=[look], sandbox=True)
    call = assistant("", ToolCall(id="1", name="look", arguments={}))
    trajectory = await played(env, Scripted([call, "5"]), backend=backend)
    assert trajectory.outcome is Outcome.INFRA_ERROR
    assert len(trajectory.steps) == 1, "the sampled action is kept"
    assert backend.opened[0].closed == 1


async def test_a_tool_that_raises_is_answered_and_noted() -> None:
    def divide(a: int, b: int) -> float:
        return a / b

    env = environment(tools=[divide])
    call = assistant("", ToolCall(id="1", name="divide", arguments={"a": 1, "b": 0}))
    trajectory = await played(env, Scripted([call, "5"]))
    assert trajectory.outcome is Outcome.SOLVED
    result = trajectory.steps[0].observation.messages[0].tool_results[0]
    assert result.is_error
    assert "ZeroDivisionError" in result.text
    assert [event.kind for event in trajectory.events] == ["tool.exception"]


@pytest.mark.parametrize("error", [RuntimeError("judge bug"), ZeroDivisionError(), ValueError("")])
async def test_a_judge_that_crashes_is_never_a_zero(error: Exception) -> None:
    def judge(_: JudgeContext) -> Verdict:
        raise error

    trajectory = await played(environment(Says(judge)), Scripted("5"))
    assert (trajectory.outcome, trajectory.reward) == (Outcome.VERIFIER_ERROR, None)


async def test_a_judge_that_hangs_is_cut_at_its_deadline() -> None:
    env = environment(Says(lambda _: asyncio.sleep(60)))
    async with asyncio.timeout(10):
        trajectory = await played(env, Scripted("5"), judge_s=0.1)
    assert trajectory.outcome is Outcome.VERIFIER_ERROR


async def test_a_bad_task_found_by_the_judge_is_not_tried_again() -> None:
    def judge(_: JudgeContext) -> Verdict:
        raise TaskError("no test cases")

    trajectory = await played(environment(Says(judge)), Scripted("5"))
    assert trajectory.outcome is Outcome.VERIFIER_ERROR
    assert not retryable(trajectory)


async def test_a_wrong_set_up_stops_the_run() -> None:
    def judge(_: JudgeContext) -> Verdict:
        raise ConfigError("no such column")

    with pytest.raises(ConfigError, match="no such column"):
        await played(environment(Says(judge)), Scripted("5"))


async def test_graded_rewards_need_to_be_declared() -> None:
    half = Says(lambda c: Verdict(reward=0.5, passed=False))
    undeclared = await played(environment(half), Scripted("5"))
    assert undeclared.outcome is Outcome.VERIFIER_ERROR
    assert "graded=True" in undeclared.error.message
    declared = await played(environment(half, graded=True), Scripted("5"))
    assert (declared.outcome, declared.reward) == (Outcome.FAILED, 0.5)


@pytest.mark.parametrize(
    ("limits", "stop"),
    [
        (Limits(max_steps=2), StopReason.MAX_STEPS),
        (Limits(max_malformed=2), StopReason.MALFORMED),
        (Limits(wall_s=0.2), StopReason.WALL),
    ],
)
async def test_a_limit_ends_the_episode_and_the_verifier_still_judges(
    limits: Limits, stop: StopReason
) -> None:
    call = assistant("5", ToolCall(id="1", name="missing", arguments={}))

    async def script(*_: Any) -> Any:
        await asyncio.sleep(0.06)
        return call

    trajectory = await played(environment(limits=limits), Scripted(script))
    assert trajectory.stop is stop
    assert (trajectory.outcome, trajectory.reward) == (Outcome.SOLVED, 1.0)
    assert trajectory.stop.truncated


async def test_artifacts_are_kept_and_the_judge_gets_them() -> None:
    seen: list[bytes | None] = []

    def judge(context: JudgeContext) -> Verdict:
        seen.append(context.artifact("in.txt"))
        seen.append(context.artifact("absent"))
        return Verdict.of(True)

    env = environment(Says(judge), sandbox=True, artifacts=["in.txt", "absent"])
    async with Host(env, Scripted("5"), backend=MemoryBackend()) as host:
        trajectory, blobs = await attempt(Job(env.tasks.get("t"), "trial", 0), host)
    assert seen == [b"x", None]
    assert list(blobs.values()) == [b"x"]
    assert set(trajectory.artifacts) == {"in.txt"}


async def test_a_sandbox_that_does_not_close_does_not_cost_the_verdict() -> None:
    backend = MemoryBackend(close=SandboxError("busy"))
    trajectory = await played(environment(sandbox=True), Scripted("5"), backend=backend)
    assert trajectory.outcome is Outcome.SOLVED
    assert trajectory.events[-1].kind == "close.failed"


async def test_cancelling_closes_the_sandbox() -> None:
    backend = MemoryBackend()

    async def script(*_: Any) -> str:
        await asyncio.sleep(60)
        return "5"

    task = asyncio.create_task(played(environment(sandbox=True), Scripted(script), backend=backend))
    while not backend.opened:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert backend.opened[0].closed == 1


async def test_a_fault_is_tried_again_and_the_attempts_are_kept(tmp_path: Any) -> None:
    calls = 0

    def script(*_: Any) -> str:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise PolicyError("502")
        return "5"

    env = environment()
    with Store.begin(tmp_path / "run", kind="eval", identity={}) as store:
        async with Host(env, Scripted(script), store=store, backoff_s=0.001) as host:
            final = await rollout(Job(env.tasks.get("t"), "eval:sums@v0", 0), host)
        assert (final.outcome, final.attempt) == (Outcome.SOLVED, 2)
        rows = store.rows(final=None)
        assert [(row.outcome, row.final) for row in rows] == [
            ("policy_error", False), ("policy_error", False), ("solved", True),
        ]  # fmt: skip
        seeds = {store.get(row.key).seed for row in rows}
        assert len(seeds) == 1, "every attempt has the sample's seed"


async def test_the_last_attempt_counts_as_what_it_is(tmp_path: Any) -> None:
    def script(*_: Any) -> str:
        raise PolicyError("down")

    env = environment()
    with Store.begin(tmp_path / "run", kind="eval", identity={}) as store:
        async with Host(env, Scripted(script), store=store, backoff_s=0.001, retries=1) as host:
            final = await rollout(Job(env.tasks.get("t"), "eval:sums@v0", 0), host)
        assert (final.outcome, final.reward, final.attempt) == (Outcome.POLICY_ERROR, None, 1)
        assert [row.final for row in store.rows(final=None)] == [False, True]


async def test_no_two_rollouts_share_a_session() -> None:
    sessions: list[str] = []

    class Listens(Scripted):
        async def act(self, messages: Any, **keywords: Any) -> Any:
            sessions.append(keywords["session"])
            return await super().act(messages, **keywords)

    policy = Listens("5")
    other = Environment(tasks=TASKS, verifier=Says(lambda c: Verdict.of(True)), name="other")
    first = await played(environment(), policy)
    again = await played(environment(), policy)
    await played(other, policy)
    assert len(set(sessions)) == 3
    assert first.seed == again.seed, "a sample's seed does not depend on who plays it"
