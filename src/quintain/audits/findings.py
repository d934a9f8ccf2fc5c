"""One proven fault of a verifier, or of what is around it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from quintain.audits.leaks import Leak
from quintain.audits.trials import Trial
from quintain.audits.weaknesses import WEAKNESSES
from quintain.record import Json, digest
from quintain.verdict import Outcome

LEAK = "leak probe"
"""The name of the look at the policy's side; `--only` takes it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One proven fault: a submission, the verdicts on it, and the command that shows it again."""

    id: str
    weakness: str
    task_id: str
    submission: str
    submission_kind: str
    detail: str
    script: tuple[Json, ...]
    """The messages submitted."""
    rewards: tuple[float | None, ...]
    """Of every pass."""
    explanation: str
    """The verifier's own words, in the pass that shows it."""

    @classmethod
    def of(cls, weakness: str, trial: Trial, detail: str) -> Finding:
        """The finding that a trial proves."""
        submission = trial.submission
        wanted = Outcome.SOLVED if submission.right is not True else Outcome.FAILED
        shown = trial.outcomes.index(wanted) if wanted in trial.outcomes else 0
        return cls(
            id=f"QF-{digest(weakness, trial.task.id, submission.name)[:10]}",
            weakness=weakness,
            task_id=trial.task.id,
            submission=submission.name,
            submission_kind=submission.kind,
            detail=detail,
            script=tuple(message.model_dump(mode="json") for message in submission.script),
            rewards=tuple(trial.rewards),
            explanation=trial.explanations[shown],
        )

    @classmethod
    def of_leak(cls, leak: Leak) -> Finding:
        """The finding that a leak is."""
        return cls(
            id=f"QF-{digest('leak', leak.task_id, leak.where)[:10]}",
            weakness="BGW-115",
            task_id=leak.task_id,
            submission=LEAK,
            submission_kind=LEAK,
            detail=f"finds in {leak.where} a part {leak.what}",
            script=(),
            rewards=(),
            explanation="",
        )

    @property
    def title(self) -> str:
        """Weakness and its name."""
        return f"{self.weakness} {WEAKNESSES[self.weakness]}"

    def command(self, target: str) -> str:
        """The line that shows it again."""
        return shlex.join(
            ["quintain", "audit", target, "--task", self.task_id, "--only", self.submission]
        )


def by_weakness(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    """The findings of each weakness."""
    out: dict[str, list[Finding]] = {}
    for finding in findings:
        out.setdefault(finding.weakness, []).append(finding)
    return out
