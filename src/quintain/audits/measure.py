"""The audit itself: submissions of known worth, played in several passes, and what they show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from quintain.audits.aims import aim_of
from quintain.audits.findings import LEAK, Finding
from quintain.audits.leaks import Probed, probe
from quintain.audits.learn import Learnability, learnability
from quintain.audits.report import Report
from quintain.audits.sources import SOURCES, default_sources, submissions_of
from quintain.audits.suites import Suites, suites_of
from quintain.audits.trials import PASSES, Cost, Pass, Trial, play
from quintain.audits.weaknesses import WEAKNESSES
from quintain.errors import ConfigError
from quintain.protocols import Environment, Policy
from quintain.task import Split, Task
from quintain.verdict import Outcome
from quintain.verifiers.quality.measure import MUTANTS

TASKS = 1
"""Of each split, looked at unless the caller says otherwise."""

Progress = Callable[[int, int, str], None]
"""Called with what is done, what there is to do, and the pass."""


async def aaudit(
    environment: Environment,
    *,
    tasks: Iterable[Task] | None = None,
    limit: int = TASKS,
    sources: Sequence[str] | None = None,
    passes: Sequence[Pass] = PASSES,
    repeats: int = 1,
    only: Sequence[str] = (),
    seed: int = 0,
    probes: bool = True,
    policy: Policy | None = None,
    samples: int = 8,
    mutants: int = MUTANTS,
    on_progress: Progress | None = None,
    **host: Any,
) -> Report:
    """Attacks an environment's verifier and measures it.

    Args:
        environment: under audit; its `oracle`, `fakes` and `aim` say what right answers look like.
        tasks: these; None: the first `limit` of each split.
        limit: tasks of each split.
        sources: names in `SOURCES`; None: all that can be had here.
        passes: rounds over all submissions, different in order and load.
        repeats: how often each pass is played.
        only: names of submissions, and no others.
        seed: of the orders.
        probes: whether to look for the answer on the policy's side, too.
        policy: whose pass rate tells whether there is something to learn; None: not measured.
        samples: of that policy, a task.
        mutants: of each reference that its hidden cases are tried on; 0: only their coverage is
            measured.
        on_progress: told how far it is.
        host: further settings of `Host` (backend, allow_weaker, …).

    Raises:
        ConfigError: no tasks, an unknown source, or a submission that there is not.
    """
    sources = default_sources() if sources is None else sources
    for name in sources:
        if name not in SOURCES:
            raise ConfigError(f"no source {name!r} of submissions; there are {', '.join(SOURCES)}")
    chosen = list(tasks) if tasks is not None else _first(environment, limit)
    if not chosen:
        raise ConfigError(f"{environment.name} has no tasks to audit")
    aims = [aim_of(environment, task) for task in chosen]
    trials = [
        Trial(submission.task or aim.task, submission)
        for aim in aims
        for submission in submissions_of(
            environment, aim, [other for other in aims if other is not aim], sources
        )
        if (not only or submission.name in only) and (not submission.costly or aim is aims[0])
    ]
    look = (probes and not only) or LEAK in only
    if not trials and not look:
        raise ConfigError(f"no submission is named {', '.join(only)}")
    rounds = [how for how in passes for _ in range(repeats)]
    later = [trial for trial in trials if not trial.submission.costly]
    planned = len(trials) + (len(rounds) - 1) * len(later)
    done, costs = 0, []
    for number, how in enumerate(rounds):
        played = later if number else trials

        def tell(trial: Trial, name: str = how.name) -> None:
            nonlocal done
            done += 1
            if on_progress is not None:
                on_progress(done, planned, name)

        costs.append(await play(environment, played, how, host=host, seed=seed, on_done=tell))
    seen = [await probe(environment, task, host) for task in chosen] if look else []
    tried = None
    if policy is not None:
        tried = await learnability(
            environment, policy, chosen, samples=samples, host=host, seed=seed
        )
    suites = Suites(why="only some submissions were asked for")
    if not only:
        suites = await suites_of(environment, aims, mutants=mutants, host=host, seed=seed)
    return summarise(environment, chosen, trials, costs, aims[0].form, seen, tried, suites)


def _first(environment: Environment, limit: int) -> list[Task]:
    return [task for split in Split for task in islice(environment.tasks.split(split), limit)]


def summarise(
    environment: Environment,
    tasks: Sequence[Task],
    trials: Sequence[Trial],
    costs: Sequence[Cost],
    form: str,
    probes: Sequence[Probed] = (),
    tried: Learnability | None = None,
    suites: Suites = Suites(),  # noqa: B008 - frozen
) -> Report:
    """What the trials show."""
    findings: list[Finding] = []
    gold_fails = {
        trial.task.id for trial in trials if trial.submission.kind == "gold" and not trial.passed
    }
    for trial in trials:
        findings.extend(_findings(trial, gold_fails))
    for probed in probes:
        findings.extend(Finding.of_leak(leak) for leak in probed.leaks if leak.certain)
    shown = {finding.weakness for finding in findings}
    measured = _measured(trials)
    if any(probed.needles and not probed.fault for probed in probes):
        measured.add("BGW-115")
    return Report(
        environment=environment.name,
        verifier=environment.verifier.name,
        form=form,
        tasks=tuple(task.id for task in tasks),
        trials=tuple(trials),
        findings=tuple(_attributed(findings)),
        costs=tuple(costs),
        not_measured={
            weakness: WEAKNESSES[weakness]
            for weakness in WEAKNESSES
            if weakness not in shown and weakness not in measured
        },
        probes=tuple(probes),
        learnability=tried,
        suites=suites,
    )


def _measured(trials: Sequence[Trial]) -> set[str]:
    """What some trial of known worth was judged for; flips show only where one was judged twice."""
    judged = [trial for trial in trials if trial.judged]
    tried = {trial.submission.weakness for trial in judged if trial.submission.right is not None}
    flips = {"BGW-127"} if any(trial.judged > 1 for trial in judged) else set()
    return flips | tried


def _findings(trial: Trial, gold_fails: set[str]) -> list[Finding]:
    submission = trial.submission
    found: list[Finding] = []
    if trial.flipped:
        counts: Mapping[Outcome, int] = {o: trial.outcomes.count(o) for o in set(trial.outcomes)}
        words = ", ".join(f"{n} × {outcome}" for outcome, n in sorted(counts.items()))
        found.append(Finding.of("BGW-127", trial, f"the verdict changes: {words}"))
    elif submission.right is False and trial.passed:
        found.append(Finding.of(submission.weakness, trial, f"passes: {submission.detail}"))
    elif (
        submission.right is True
        and Outcome.FAILED in trial.outcomes
        and (submission.kind == "gold" or trial.task.id not in gold_fails)
    ):
        found.append(Finding.of(submission.weakness, trial, f"fails: {submission.detail}"))
    return found


def _attributed(findings: Sequence[Finding]) -> list[Finding]:
    """Where anything at all passes, that is the one thing to say of the task.

    A verifier that pays for a constant also pays for most exploits, which return one: those tell
    nothing more about it. One that pays for a failure pays for whatever fails: for text that is no
    program, and for exits that end in an exception.
    """
    hollow = {
        finding.task_id
        for finding in findings
        if finding.weakness == "BGW-101" and finding.submission_kind == "trivial"
    }
    failing = {finding.task_id for finding in findings if finding.weakness == "BGW-126"}
    exits = {"function/exit-in-call", "function/os-exit-in-call", "program/exits"}
    findings = [
        finding
        for finding in findings
        if finding.task_id not in failing
        or finding.weakness not in ("BGW-101", "BGW-102")
        or finding.submission_kind == "trivial"
        or finding.submission in exits
    ]
    follows = {"BGW-102", "BGW-103", "BGW-111", "BGW-112", "BGW-113", "BGW-116", "BGW-134"}
    return [
        finding
        for finding in findings
        if finding.task_id not in hollow or finding.weakness not in follows
    ]
