"""Trajectories and groups for tests, made by hand."""

from quintain.messages import assistant
from quintain.training.groups import Group
from quintain.trajectory import (
    Action,
    Fault,
    Observation,
    Step,
    StopReason,
    Timing,
    TokenSpan,
    Trajectory,
)
from quintain.verdict import Outcome, Verdict


def span(prompt, tokens, version=0, restart=False, logprob=-1.0):
    return TokenSpan(
        prompt_delta_ids=tuple(prompt),
        token_ids=tuple(tokens),
        logprobs=tuple(logprob for _ in tokens),
        policy_version=version,
        restart=restart,
    )


def trajectory(*steps, reward=0.0, stop=StopReason.DONE, sample=0, total_s=0.5, task="t"):
    """Each step is a list of spans; reward None is a host fault."""
    verdict = None if reward is None else Verdict(reward=reward, passed=reward == 1.0)
    return Trajectory(
        environment="env",
        task_id=task,
        policy="p",
        purpose="train",
        sample_index=sample,
        steps=tuple(
            Step(
                action=Action(message=assistant("x"), tokens=tuple(spans)),
                observation=Observation(),
            )
            for spans in steps
        ),
        stop=StopReason.ERROR if reward is None else stop,
        outcome=Outcome.INFRA_ERROR if verdict is None else verdict.outcome,
        verdict=verdict,
        error=Fault(type="SandboxError", stage="sandbox", message="gone")
        if reward is None
        else None,
        timing=Timing(total_s=total_s),
    )


def group(*trajectories, ticket=0):
    return Group(ticket, tuple(trajectories))
