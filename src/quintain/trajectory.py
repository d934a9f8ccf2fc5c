"""What happened in one rollout: steps, tokens, events, and how it ended.

Tokens are kept as the policy sampled them and never re-made from text. A `TokenSpan` holds a
*delta*: the prompt tokens that are new since the previous span, then the sampled tokens, so that a
trajectory is linear in its tokens.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, NamedTuple

from pydantic import Field, model_validator

from quintain.messages import Message, Sampling, ToolSpec
from quintain.record import Json, Record
from quintain.verdict import Outcome, Verdict


class TokenSpan(Record):
    """Tokens sampled by one version of the policy, and the prompt tokens put before them."""

    prompt_delta_ids: tuple[int, ...] = ()
    """Prompt tokens since the previous span's end (template, observation): never trained on."""
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Nats, of the behaviour policy as sampled (temperature, top-p and top-k included)."""
    policy_version: int
    restart: bool = False
    """The prompt does not continue the previous span's tokens (the template rewrote them): a new
    row of the batch begins here with `prompt_delta_ids` as its whole prompt."""

    @model_validator(mode="after")
    def _one_logprob_a_token(self) -> TokenSpan:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(f"{len(self.token_ids)} tokens but {len(self.logprobs)} logprobs")
        return self


class Usage(Record):
    """What the policy's calls used."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            calls=self.calls + other.calls,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cost_usd=self.cost_usd + other.cost_usd,
        )


Finish = Literal["stop", "length", "tool_calls", "filtered"]


class Action(Record):
    """What the policy did: one assistant message, and the tokens it is made of where known."""

    message: Message
    tokens: tuple[TokenSpan, ...] = ()
    """Usually one span; several when the weights changed while sampling."""
    finish: Finish = "stop"
    usage: Usage = Usage()


class Event(Record):
    """Something worth keeping that is neither an action nor an observation."""

    kind: str
    """A dotted name: `network.request`, `sandbox.killed`, `harness.compacted`, …"""
    at_s: float = 0.0
    """Since the rollout began; stamped when it is recorded."""
    data: dict[str, Json] = Field(default_factory=dict)


class Observation(Record):
    """What the episode answered."""

    messages: tuple[Message, ...] = ()
    """New messages for the policy (tool results, a user's turn)."""
    terminated: bool = False
    """The episode is over by its own rules."""
    reward: float | None = None
    """A dense step reward, for environments that declare them."""
    malformed: int = 0
    """Tool calls of the action that could not be made as written."""
    events: tuple[Event, ...] = ()
    """What the episode wants kept with the trajectory; moved there when recorded."""


class Step(Record):
    """One action and what it led to."""

    action: Action
    observation: Observation
    sampling: Sampling = Sampling()
    policy_s: float = 0.0
    env_s: float = 0.0


class StopReason(StrEnum):
    """Why the episode ended."""

    DONE = "done"
    """The policy finished: an answer without tool calls."""
    TERMINATED = "terminated"
    """The episode ended it."""
    MAX_STEPS = "max_steps"
    MAX_TOKENS = "max_tokens"
    MAX_CONTEXT = "max_context"
    WALL = "wall"
    COST = "cost"
    MALFORMED = "malformed"
    """Too many malformed tool calls."""
    ERROR = "error"
    """A fault of the host; see `Trajectory.error`."""

    @property
    def truncated(self) -> bool:
        """Whether a limit cut the episode short."""
        return self not in (StopReason.DONE, StopReason.TERMINATED, StopReason.ERROR)


class Timing(Record):
    """Where the time of one rollout went, in seconds of wall clock."""

    queue_s: float = 0.0
    setup_s: float = 0.0
    policy_s: float = 0.0
    env_s: float = 0.0
    verify_s: float = 0.0
    total_s: float = 0.0


class Fault(Record):
    """A host-caused fault: which error, in which stage."""

    type: str
    stage: Literal["queue", "sandbox", "environment", "policy", "harness", "verifier"]
    message: str


class TrajectoryKey(NamedTuple):
    """What a trajectory is stored under."""

    purpose: str
    environment: str
    task_id: str
    sample_index: int
    attempt: int


TRAIN = "train"
"""The purpose of a training rollout; an eval's purpose is its id and names the policy version."""


class Trajectory(Record):
    """One rollout, sealed."""

    environment: str
    task_id: str
    policy: str
    purpose: str
    sample_index: int = 0
    """Counts all samples of this task and purpose in the run."""
    attempt: int = 0
    """Counts retries after host-caused faults."""
    seed: int = 0
    started: str = ""
    """UTC, ISO 8601."""
    tools: tuple[ToolSpec, ...] = ()
    opening: Observation = Observation()
    """The first observation: the prompt as the policy got it."""
    steps: tuple[Step, ...] = ()
    stop: StopReason
    outcome: Outcome | None = None
    """None until judged."""
    verdict: Verdict | None = None
    error: Fault | None = None
    artifacts: dict[str, str] = Field(default_factory=dict)
    """Name to the hash of a blob in the run's store."""
    events: tuple[Event, ...] = ()
    usage: Usage = Usage()
    timing: Timing = Timing()
    schema_version: int = 1

    @property
    def key(self) -> TrajectoryKey:
        """What it is stored under."""
        return TrajectoryKey(
            self.purpose, self.environment, self.task_id, self.sample_index, self.attempt
        )

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole conversation in order."""
        out = list(self.opening.messages)
        for step in self.steps:
            out.append(step.action.message)
            out.extend(step.observation.messages)
        return tuple(out)

    @property
    def text(self) -> str:
        """The text of the policy's last message; empty when it never spoke."""
        return self.steps[-1].action.message.text if self.steps else ""

    @property
    def reward(self) -> float | None:
        """The verdict's reward; None when abstained or never judged."""
        return None if self.verdict is None else self.verdict.reward

    @property
    def versions(self) -> tuple[int, ...]:
        """The policy versions that sampled tokens of it, ascending."""
        return tuple(
            sorted({span.policy_version for step in self.steps for span in step.action.tokens})
        )
