"""Jobs with heavy-tailed latencies: most take seconds, a few take minutes, and nobody knows which.

::

    user       Run job 417 and tell its result.
    assistant  (a call of `run_job`, or any other words)
    tool       result: 58                        10 s later in 95 of 100 rollouts, else 600 s later
    assistant  The answer is 58

This is the case that asynchronous training is for: a synchronous step waits for its slowest
rollout. How long a job takes depends on the rollout's seed, not on the task, so that most groups of
eight hold fast rollouts and some hold a slow one. The tool sleeps and computes nothing; unless told
otherwise every latency is a hundredth of that (`scale=100`).

The first message starts the job whatever it says: a policy too small for tool calls can be trained
here too, and what it waits for is the same.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quintain import registry
from quintain.envs.environment import Environment, Script
from quintain.envs.tasks import Generated
from quintain.envs.tools import FunctionTool
from quintain.errors import ConfigError
from quintain.messages import (
    Message,
    Sampling,
    TextPart,
    ToolCall,
    ToolResult,
    assistant,
    tool_results,
    user,
)
from quintain.protocols import Tool
from quintain.record import Json, derive_seed
from quintain.task import Limits, PublicTask, Split, Task
from quintain.trajectory import Action, Event, Observation


@dataclass(frozen=True, slots=True)
class Latency:
    """How long a job takes: `fast_s` or, with probability `slow_share`, `slow_s`; in seconds."""

    fast_s: float = 10.0
    slow_s: float = 600.0
    slow_share: float = 0.05
    jitter: float = 0.2
    """Each duration is stretched by a factor drawn from 1 ± jitter."""
    scale: float = 1.0
    """All of it is divided by this."""

    def __post_init__(self) -> None:
        if not (0 <= self.slow_share <= 1 and 0 <= self.jitter < 1):
            raise ConfigError("slow_share is within 0 and 1, jitter from 0 to below 1")
        if not (self.scale > 0 and self.fast_s >= 0 and self.slow_s >= 0):
            raise ConfigError("scale is above 0, fast_s and slow_s are not negative")

    def draw(self, seed: int) -> tuple[float, bool]:
        """The seconds of one job, and whether it is a slow one; the same for the same seed."""
        rng = random.Random(derive_seed(seed, "latency"))
        slow = rng.random() < self.slow_share
        stretch = rng.uniform(1 - self.jitter, 1 + self.jitter)
        return (self.slow_s if slow else self.fast_s) * stretch / self.scale, slow

    @property
    def longest_s(self) -> float:
        """The longest job there can be."""
        return max(self.fast_s, self.slow_s) * (1 + self.jitter) / self.scale


def _run_job(number: int) -> str:
    """Runs a job, waits for it and returns its result.

    Args:
        number: of the job.
    """
    raise NotImplementedError("the episode runs jobs itself")


RUN_JOB = FunctionTool(_run_job, name="run_job")
"""What the policy may call; `JobEpisode` answers it."""


class JobEpisode:
    """One job: the first action starts it, the second ends the episode.

    Args:
        task: asks for the job.
        world: `{"job": number, "result": number}`.
        seed: of the rollout; it decides how long the job takes.
        latency: see `Latency`.
    """

    tools: tuple[Tool, ...] = (RUN_JOB,)

    def __init__(self, task: PublicTask, world: Json, seed: int, latency: Latency) -> None:
        self._opening = task.prompt
        self._world = world or {}
        self._wait_s, self._slow = latency.draw(seed)
        self._begun = False

    async def reset(self) -> Observation:
        """The task."""
        return Observation(messages=self._opening)

    async def respond(self, action: Action) -> Observation:
        """Sleeps as long as the job takes, then tells its result; the second time it ends."""
        if self._begun:
            return Observation(terminated=True)
        self._begun = True
        await asyncio.sleep(self._wait_s)
        calls = action.message.tool_calls
        told = tool_results(*(self._answer(call) for call in calls)) if calls else self._plain()
        event = Event(kind="job", data={"wait_s": self._wait_s, "slow": self._slow})
        return Observation(messages=(told,), events=(event,))

    def _plain(self) -> Message:
        return user(f"result: {self._world.get('result')}")

    def _answer(self, call: ToolCall) -> ToolResult:
        content = (TextPart(text=str(self._world.get("result"))),)
        return ToolResult(call_id=call.id, name=call.name, content=content)

    async def close(self) -> None:
        """Holds nothing."""


def environment(
    seed: int = 0,
    eval: int = 32,
    heldout: int = 32,
    scale: float = 100.0,
    slow_share: float = 0.05,
    fast_s: float = 10.0,
    slow_s: float = 600.0,
) -> Environment:
    """Jobs with heavy-tailed latencies: 95 % take 10 s, 5 % take 600 s (here / 100), each ± 20 %.

    Args:
        seed: of the tasks.
        eval: tasks in the eval split.
        heldout: tasks in the held-out split.
        scale: all latencies are divided by it; 1: as above.
        slow_share: share of the rollouts whose job is slow.
        fast_s: seconds of a fast job.
        slow_s: seconds of a slow one.
    """
    latency = Latency(fast_s, slow_s, slow_share, scale=scale)

    def make(rng: random.Random, number: int) -> dict[str, Any]:
        job, result = rng.randint(1000, 10**6), rng.randint(100, 999)
        return {
            "prompt": f"Run job {job} and tell its result. End with: The answer is <number>",
            "answer": str(result),
            "world": {"job": job, "result": result},
            "content": [job],
            "source": "generated",
        }

    def demonstrations(n: int, seed: int = 0) -> list[list[Message]]:
        start = derive_seed(seed, "demonstrations")
        found = Generated(make, name="heavy-tail", seed=start, train=n).split(Split.TRAIN)
        return [[*task.prompt, *_conversation(task)] for task in found]

    return Environment(
        tasks=Generated(make, name="heavy-tail", seed=seed, eval=eval, heldout=heldout),
        verifier=registry.verifiers.get("answer")(kind="number"),
        name="heavy-tail",
        episode=lambda task, world, sandbox, seed: JobEpisode(task, world, seed, latency),
        limits=Limits(max_steps=2, wall_s=60 + 2 * latency.longest_s),
        sampling=Sampling(max_tokens=28),
        oracle=lambda task: (_call(task), _says(int(task.answer))),
        fakes=_fakes,
        demonstrations=demonstrations,
    )


def _call(task: Task) -> Message:
    job = task.world["job"]
    return assistant("", ToolCall(id="job", name="run_job", arguments={"number": job}))


def _says(value: int) -> Message:
    return assistant(f"The answer is {value}")


def _conversation(task: Task) -> list[Message]:
    result = ToolResult(call_id="job", name="run_job", content=(TextPart(text=str(task.answer)),))
    return [_call(task), tool_results(result), _says(int(task.answer))]


def _fakes(task: Task) -> Sequence[Script]:
    value = int(task.answer)
    job = task.world["job"]
    return (
        (_call(task), _says(value + 1)),
        (_call(task), _says(job)),
        (_call(task), assistant(f"The answer is {value} or {value + 1}")),
        (_call(task), assistant("The answer is")),
    )
