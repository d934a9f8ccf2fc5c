"""What a verifier says: a verdict of checks; and how a rollout came out.

Rewards are finite and in [0, 1]. `reward=None` is an abstention: it has no reward, is kept out of
advantages and pass@k, and is counted.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Literal

from pydantic import Field, field_validator, model_validator

from quintain.record import Record

Kind = Literal["formal", "heuristic"]


class Outcome(StrEnum):
    """How a rollout came out, by who is responsible."""

    SOLVED = "solved"
    """The verifier passed it."""
    FAILED = "failed"
    """The candidate did not solve it, whatever stopped it: reward 0 (or graded below a pass)."""
    ABSTAINED = "abstained"
    """The verifier could not decide: no reward."""
    INFRA_ERROR = "infra_error"
    """Sandbox, environment or harness broke: no reward, retried."""
    VERIFIER_ERROR = "verifier_error"
    """The judge broke: no reward, retried."""
    POLICY_ERROR = "policy_error"
    """The model's server or engine broke: no reward, retried."""

    def __repr__(self) -> str:
        return self.value

    @property
    def judged(self) -> bool:
        """Whether there is a reward: only solved and failed rollouts count in a score."""
        return self in (Outcome.SOLVED, Outcome.FAILED)

    @property
    def host_fault(self) -> bool:
        """Whether the host, not the candidate, is at fault."""
        return self in (Outcome.INFRA_ERROR, Outcome.VERIFIER_ERROR, Outcome.POLICY_ERROR)


class Check(Record):
    """One thing that the verifier looked at."""

    name: str
    passed: bool | None
    """None: not decided, or not run because an earlier check failed."""
    detail: str = ""


class Verdict(Record):
    """The verifier's word on one trajectory."""

    reward: float | None
    """In [0, 1]; None: abstained."""
    passed: bool
    """Whether the task counts as solved; False when abstained."""
    score: float | None = None
    """Graded quality for people (a pass rate, say); never trained on."""
    metrics: dict[str, float] = Field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    flags: tuple[str, ...] = ()
    """Signs of gaming that were noticed."""
    explanation: str = ""
    verifier: str = ""
    kind: Kind = "formal"
    deterministic: bool = True
    wall_s: float = 0.0

    @field_validator("reward")
    @classmethod
    def _reward_in_range(cls, value: float | None) -> float | None:
        if value is not None and not (math.isfinite(value) and 0.0 <= value <= 1.0):
            raise ValueError(f"a reward is finite and in [0, 1], got {value!r}")
        return value

    @field_validator("score")
    @classmethod
    def _score_finite(cls, value: float | None) -> float | None:
        if value is not None and not math.isfinite(value):
            raise ValueError(f"a score is finite, got {value!r}")
        return value

    @model_validator(mode="after")
    def _abstained_never_passes(self) -> Verdict:
        if self.reward is None and self.passed:
            raise ValueError("a verdict without a reward cannot have passed")
        if self.passed and self.reward == 0.0:
            raise ValueError("a verdict that passed cannot have reward 0")
        return self

    @classmethod
    def of(
        cls,
        passed: bool,
        explanation: str = "",
        *,
        checks: tuple[Check, ...] = (),
        score: float | None = None,
        metrics: dict[str, float] | None = None,
        flags: tuple[str, ...] = (),
    ) -> Verdict:
        """The binary verdict: reward 1 or 0."""
        return cls(
            reward=1.0 if passed else 0.0,
            passed=passed,
            explanation=explanation,
            checks=checks,
            score=score,
            metrics=metrics or {},
            flags=flags,
        )

    @classmethod
    def abstain(cls, explanation: str, *, checks: tuple[Check, ...] = ()) -> Verdict:
        """No decision, and why."""
        return cls(reward=None, passed=False, explanation=explanation, checks=checks)

    def signed(self, verifier: str, kind: Kind, wall_s: float = 0.0) -> Verdict:
        """The same verdict with the name and kind of who gave it, and how long it took."""
        return self.model_copy(update={"verifier": verifier, "kind": kind, "wall_s": wall_s})

    @property
    def outcome(self) -> Outcome:
        """Solved, failed or abstained."""
        if self.reward is None:
            return Outcome.ABSTAINED
        return Outcome.SOLVED if self.passed else Outcome.FAILED
