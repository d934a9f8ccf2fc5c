"""What an audit found: rates with intervals, findings with proofs, and what was not measured.

`str(report)` is for a terminal, `to_json()` for machines, `sarif.to_sarif` for code scanners and
`page.to_html` for a browser; all say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quintain.audits.findings import Finding
from quintain.audits.leaks import Leak, Probed
from quintain.audits.learn import Learnability
from quintain.audits.submissions import SYMMETRY
from quintain.audits.suites import Suites
from quintain.audits.trials import Cost, Trial
from quintain.record import Json
from quintain.statistics import Interval, upper_bound, wilson
from quintain.verdict import Outcome

BOUND = 0.05
"""Largest false-positive rate, by its point estimate, with which a verifier may train."""


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
    probes: tuple[Probed, ...] = ()
    """What the leak probes saw, a task each."""
    learnability: Learnability | None = None
    """What a policy earned, where one was given."""
    suites: Suites = field(default_factory=Suites)
    """What hidden cases run of a right solution, and which changes of it they miss."""

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

    @property
    def flips_by_pass(self) -> dict[str, int]:
        """Of every pass after the first: submissions whose verdict is not that of the first."""
        return {
            cost.name: sum(trial.differs(number) for trial in self.trials)
            for number, cost in enumerate(self.costs)
            if number
        }

    @property
    def invariance(self) -> tuple[int, int]:
        """Of changes that carry no meaning: (that fail, judged)."""
        kinds = ("right but unusual", "bohrin: positive control")
        judged = [t for t in self._judged(right=True) if t.submission.kind in kinds]
        return sum(Outcome.FAILED in trial.outcomes for trial in judged), len(judged)

    @property
    def asymmetries(self) -> tuple[list[str], int]:
        """Pairs of answers that are equal one way only, and how many were compared."""
        ways: dict[tuple[str, str], dict[str, Trial]] = {}
        for trial in self.trials:
            if trial.submission.kind == SYMMETRY and trial.judged:
                pair, _, way = trial.submission.name.rpartition(" ")
                ways.setdefault((trial.task.id, pair), {})[way] = trial
        both = [found for found in ways.values() if len(found) == 2]
        uneven = [f for f in both if f["there"].passed is not f["back"].passed]
        return [found["there"].submission.detail for found in uneven], len(both)

    def rate(self, *outcomes: Outcome) -> Interval:
        """How often a verdict came out so, over all passes, with Wilson's interval."""
        return wilson(sum(map(self.outcomes, outcomes)), self.verdicts)

    @property
    def leaks(self) -> list[Leak]:
        """All that was found on the policy's side, certain or not."""
        return [leak for probed in self.probes for leak in probed.leaks]

    @property
    def unmeasured(self) -> dict[str, str]:
        """Parts of the report that there is nothing to say of, and why."""
        out = {}
        if not self.probes:
            out["leaks"] = "not looked for"
        elif not any(probed.needles for probed in self.probes):
            out["leaks"] = "the answers are too short to be told from chance"
        for probed in self.probes:
            if probed.fault:
                out["leaks"] = f"the probe of {probed.task_id} ended in {probed.fault}"
        if self.learnability is None:
            out["learnability"] = "no policy was given (--policy)"
        if not self.invariance[1]:
            out["invariance"] = "no change without meaning is known for this form"
        if not self.asymmetries[1]:
            out["symmetry"] = "answers are not compared as equals"
        if len(self.costs) < 2:
            out["flips"] = "one pass was played"
        if not self.has_gold:
            out["right submissions"] = "no oracle, and no answer that is one"
        if self.suites.why:
            out["suite quality"] = self.suites.why
        return out

    @property
    def survivors(self) -> list[str]:
        """Changes of a reference that its hidden cases miss and some other case would catch."""
        return [
            f"{each.task_id}, line {mutant.line}: {mutant.change}; {mutant.assertion} catches it"
            for each in self.suites.measured
            for mutant in each.survivors
            if mutant.assertion
        ]

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
        return tuple(
            trial
            for trial in self.trials
            if trial.submission.right is None and trial.passed and trial.submission.kind != SYMMETRY
        )

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
        certain = [leak for leak in self.leaks if leak.certain]
        if certain:
            out.append(f"the policy can read the answer: {certain[0].where}")
        out += [problem for each in self.suites.measured for problem in each.problems()]
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
                    kind: {
                        "passed": passed,
                        **_interval(wilson(passed, n)),
                        "upper_bound": upper_bound(passed, n),
                    }
                    for kind, (passed, n) in self.kinds.items()
                },
            },
            "false_negatives": _interval(self.false_negatives),
            "null_score": _interval(self.null_score),
            "gold": {"known": self.has_gold, "failed": list(self.gold_fails)},
            "flips": self.flips,
            "flips_by_pass": self.flips_by_pass,
            "invariance": dict(zip(("failed", "n"), self.invariance, strict=True)),
            "symmetry": dict(zip(("uneven", "n"), self.asymmetries, strict=True)),
            "undecided_rate": _interval(self.rate(Outcome.ABSTAINED)),
            "error_rate": _interval(self.rate(*(o for o in Outcome if o.host_fault))),
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
            "leaks": [
                {
                    "task": leak.task_id,
                    "where": leak.where,
                    "what": leak.what,
                    "certain": leak.certain,
                }
                for leak in self.leaks
            ],
            "looked_for": {p.task_id: {"strings": p.needles, "in": p.places} for p in self.probes},
            "learnability": None
            if self.learnability is None
            else {
                "policy": self.learnability.policy,
                **_interval(self.learnability.rate),
                "tasks_with_signal": self.learnability.mixed,
                "learnable": self.learnability.learnable,
                "not_judged": self.learnability.faults,
            },
            "suites": [each.to_json() for each in self.suites.measured],
            "not_measured": dict(self.not_measured),
            "unmeasured": self.unmeasured,
            "problems": self.problems(),
        }

    def rows(self) -> list[tuple[str, str]]:
        """Name and value of everything measured, for people."""
        kinds = [
            (f"  {kind}", f"{passed} of {n} pass {wilson(passed, n)}")
            for kind, (passed, n) in sorted(self.kinds.items())
        ]
        faults = [outcome for outcome in Outcome if outcome.host_fault]
        errors = sum(map(self.outcomes, faults))
        uneven, pairs = self.asymmetries
        certain = sum(leak.certain for leak in self.leaks)
        gold = "none is known" if not self.has_gold else f"{len(self.gold_fails)} tasks fail"
        return [
            ("tasks, submissions, verdicts",
             f"{len(self.tasks)}, {len(self.trials)}, {self.verdicts}"),
            ("wrong submissions that pass",
             f"{_shown(self.false_positives)}; at most {self.false_positive_bound:.3f} with 95 %"),
            *kinds,
            ("right submissions that fail", _shown(self.false_negatives)),
            ("gold", gold),
            ("a policy that solves nothing", f"scores {_shown(self.null_score)}"),
            ("verdicts that change", f"{self.flips} of {len(self.trials)}"),
            *((f"  {name}", f"{n} differ from the first pass")
              for name, n in self.flips_by_pass.items()),
            ("changes without meaning", "{} of {} fail".format(*self.invariance)),
            ("pairs equal one way only", f"{len(uneven)} of {pairs}"),
            ("undecided", f"{self.outcomes(Outcome.ABSTAINED)}: {self.rate(Outcome.ABSTAINED)}"),
            ("errors", f"{errors}: {self.rate(*faults)}"),
            ("answers on the policy's side", f"{certain} leaks, {len(self.leaks) - certain} to "
             f"look at; {sum(p.needles for p in self.probes)} strings looked for"),
            ("learnability", str(self.learnability or "not measured: no policy was given")),
            ("hidden cases", str(self.suites)),
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
        lines += [f"look at: {leak.what} in {leak.where} ({leak.task_id})" for leak in self.leaks]
        lines += [f"look at: {line}" for line in self.survivors]
        lines += [f"not measured: {name}: {why}" for name, why in self.unmeasured.items()]
        lines.append("not measured: " + ", ".join(self.not_measured))
        return "\n".join(lines)


def _shown(interval: Interval) -> str:
    return str(interval) if interval.n else "none was judged"


def _interval(interval: Interval) -> dict[str, Json]:
    value = interval.value
    return {
        "value": None if value != value else value,
        "low": interval.low,
        "high": interval.high,
        "n": interval.n,
    }
