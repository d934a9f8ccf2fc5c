"""What an audit found: rates with intervals, findings with proofs, and what was not measured.

`str(report)` is for a terminal, `to_json()` for machines, `sarif.to_sarif` for code scanners and
`page.to_html` for a browser; all say the same.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quintain.audits.trials import Cost, Trial
from quintain.audits.weaknesses import WEAKNESSES
from quintain.record import Json, digest
from quintain.statistics import Interval, upper_bound, wilson
from quintain.verdict import Outcome

BOUND = 0.05
"""Largest false-positive rate, by its point estimate, with which a verifier may train."""


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

    @property
    def title(self) -> str:
        """Weakness and its name."""
        return f"{self.weakness} {WEAKNESSES[self.weakness]}"

    def command(self, target: str) -> str:
        """The line that shows it again."""
        return shlex.join(
            ["quintain", "audit", target, "--task", self.task_id, "--only", self.submission]
        )


@dataclass(frozen=True, slots=True)
class Report:
    """The result of an audit."""

    environment: str
    verifier: str
    form: str
    tasks: tuple[str, ...]
    trials: tuple[Trial, ...]
    findings: tuple[Finding, ...]
    costs: tuple[Cost, ...]
    not_measured: Mapping[str, str]
    """Weakness to its name: nothing was said about these, neither good nor bad."""

    # --- rates ------------------------------------------------------------------------------------

    def _judged(self, right: bool) -> list[Trial]:
        return [trial for trial in self.trials if trial.submission.right is right and trial.judged]

    @property
    def kinds(self) -> dict[str, tuple[int, int]]:
        """Of each class of wrong submissions: (passed in some pass, judged)."""
        out: dict[str, tuple[int, int]] = {}
        for trial in self._judged(right=False):
            passed, n = out.get(trial.submission.kind, (0, 0))
            out[trial.submission.kind] = (passed + trial.passed, n + 1)
        return out

    @property
    def false_positives(self) -> Interval:
        """Share of wrong submissions that passed, Wilson's interval."""
        judged = self._judged(right=False)
        return wilson(sum(trial.passed for trial in judged), len(judged))

    @property
    def false_positive_bound(self) -> float:
        """Upper 95 % bound of that share (exact, one-sided)."""
        judged = self._judged(right=False)
        return upper_bound(sum(trial.passed for trial in judged), len(judged))

    @property
    def false_negatives(self) -> Interval:
        """Share of right submissions that failed in some pass."""
        judged = self._judged(right=True)
        return wilson(sum(Outcome.FAILED in trial.outcomes for trial in judged), len(judged))

    @property
    def gold_fails(self) -> tuple[str, ...]:
        """Tasks whose gold did not pass in every pass."""
        return tuple(
            trial.task.id
            for trial in self.trials
            if trial.submission.kind == "gold"
            and any(outcome is not Outcome.SOLVED for outcome in trial.outcomes)
        )

    @property
    def has_gold(self) -> bool:
        """Whether any task came with a solution."""
        return any(trial.submission.kind == "gold" for trial in self.trials)

    @property
    def flips(self) -> int:
        """Submissions whose verdict changed between passes."""
        return sum(trial.flipped for trial in self.trials)

    def outcomes(self, outcome: Outcome) -> int:
        """How often a verdict came out so, over all passes."""
        return sum(trial.outcomes.count(outcome) for trial in self.trials)

    @property
    def verdicts(self) -> int:
        """Over all passes."""
        return sum(len(trial.outcomes) for trial in self.trials)

    @property
    def null_score(self) -> Interval:
        """What a policy would score that solves nothing: empty, noop, random."""
        nulls = {"empty", "noop", "random"}
        judged = [
            trial
            for trial in self.trials
            if trial.submission.kind in nulls and trial.submission.right is False and trial.judged
        ]
        return wilson(sum(trial.passed for trial in judged), len(judged))

    def latency_s(self, share: float) -> float:
        """The quantile of a verdict's wall time, over all passes, in seconds."""
        times = sorted(second for trial in self.trials for second in trial.verify_s)
        return times[min(len(times) - 1, int(share * len(times)))]

    @property
    def cpu_s_per_thousand(self) -> float:
        """CPU seconds of this process and its ended children per 1,000 verdicts, first pass."""
        first = self.costs[0]
        return 1000 * first.cpu_s / max(1, first.verdicts)

    @property
    def leads(self) -> tuple[Trial, ...]:
        """Submissions of unknown worth that passed: for a person to look at."""
        return tuple(t for t in self.trials if t.submission.right is None and t.passed)

    def problems(self, bound: float = BOUND) -> list[str]:
        """Why this verifier should not train anything; empty when it may.

        Args:
            bound: of the false-positive rate.
        """
        out = []
        if not any(trial.judged for trial in self.trials):
            out.append("nothing was judged: every verdict ended in an error or an abstention")
        if self.gold_fails:
            out.append(f"the gold of {len(self.gold_fails)} tasks fails: {self.gold_fails[0]}, …")
        if self.null_score.value > 0:
            out.append(f"submissions that solve nothing pass: {self.null_score}")
        if self.false_positives.value > bound:
            out.append(f"wrong submissions pass: {self.false_positives}, more than {bound:g}")
        if self.flips:
            out.append(f"{self.flips} verdicts change between passes")
        return out

    # --- in words ---------------------------------------------------------------------------------

    def to_json(self, target: str | None = None) -> dict[str, Any]:
        """Everything, as JSON.

        Args:
            target: what `quintain audit` was called with, for the commands that show findings.
        """
        target = target or self.environment
        return {
            "environment": self.environment,
            "verifier": self.verifier,
            "form": self.form,
            "tasks": list(self.tasks),
            "submissions": len(self.trials),
            "verdicts": self.verdicts,
            "false_positives": {
                **_interval(self.false_positives),
                "upper_bound": self.false_positive_bound,
                "by_kind": {
                    kind: {"passed": passed, **_interval(wilson(passed, n))}
                    for kind, (passed, n) in self.kinds.items()
                },
            },
            "false_negatives": _interval(self.false_negatives),
            "null_score": _interval(self.null_score),
            "gold": {"known": self.has_gold, "failed": list(self.gold_fails)},
            "flips": self.flips,
            "undecided": self.outcomes(Outcome.ABSTAINED),
            "errors": sum(self.outcomes(o) for o in Outcome if o.host_fault),
            "verdict_s": {f"p{int(100 * q)}": self.latency_s(q) for q in (0.5, 0.95, 0.99)},
            "cpu_s_per_1000": self.cpu_s_per_thousand,
            "findings": [
                {
                    "id": found.id,
                    "weakness": found.weakness,
                    "title": found.title,
                    "task": found.task_id,
                    "submission": found.submission,
                    "detail": found.detail,
                    "rewards": list(found.rewards),
                    "explanation": found.explanation,
                    "script": list(found.script),
                    "command": found.command(target),
                }
                for found in self.findings
            ],
            "leads": [
                {"task": trial.task.id, "submission": trial.submission.name} for trial in self.leads
            ],
            "not_measured": dict(self.not_measured),
            "problems": self.problems(),
        }

    def rows(self) -> list[tuple[str, str]]:
        """Name and value of everything measured, for people."""
        kinds = [
            (f"  {kind}", f"{passed} of {n} pass {wilson(passed, n)}")
            for kind, (passed, n) in sorted(self.kinds.items())
        ]
        errors = sum(self.outcomes(o) for o in Outcome if o.host_fault)
        gold = "none is known" if not self.has_gold else f"{len(self.gold_fails)} tasks fail"
        return [
            ("tasks, submissions, verdicts",
             f"{len(self.tasks)}, {len(self.trials)}, {self.verdicts}"),
            ("wrong submissions that pass",
             f"{self.false_positives}; at most {self.false_positive_bound:.3f} with 95 %"),
            *kinds,
            ("right submissions that fail", str(self.false_negatives)),
            ("gold", gold),
            ("a policy that solves nothing", f"scores {self.null_score}"),
            ("verdicts that change", f"{self.flips} of {len(self.trials)}"),
            ("undecided, errors", f"{self.outcomes(Outcome.ABSTAINED)}, {errors}"),
            ("time of a verdict",
             " · ".join(f"p{int(100 * q)} {1000 * self.latency_s(q):.1f} ms"
                        for q in (0.5, 0.95, 0.99))),
            ("CPU per 1,000 verdicts", f"{self.cpu_s_per_thousand:.1f} s"),
        ]  # fmt: skip

    def __str__(self) -> str:
        lines = [f"audit of {self.environment} (verifier {self.verifier}, form {self.form})"]
        lines += [f"{name:<34} {value}" for name, value in self.rows()]
        lines += [f"{found.title}: {found.submission} on {found.task_id} {found.detail}"
                  for found in self.findings]  # fmt: skip
        lines += [f"lead: {t.submission.name} on {t.task.id} passes" for t in self.leads]
        lines.append("not measured: " + ", ".join(self.not_measured))
        return "\n".join(lines)


def _interval(interval: Interval) -> dict[str, Json]:
    value = interval.value
    return {
        "value": None if value != value else value,
        "low": interval.low,
        "high": interval.high,
        "n": interval.n,
    }


def by_weakness(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    """The findings of each weakness."""
    out: dict[str, list[Finding]] = {}
    for finding in findings:
        out.setdefault(finding.weakness, []).append(finding)
    return out
