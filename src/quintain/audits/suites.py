"""How good the hidden cases of the audited tasks are, by the environment's own solutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quintain.audits.submissions import Aim
from quintain.errors import ConfigError, RolloutError, TaskError
from quintain.policies.scripted import Scripted
from quintain.protocols import Environment
from quintain.rollouts import Host
from quintain.verifiers.quality import SuiteQuality, suite_quality
from quintain.verifiers.tests import Tests


@dataclass(frozen=True, slots=True)
class Suites:
    """What was measured of the suites, and why any of it was not."""

    measured: tuple[SuiteQuality, ...] = ()
    why: str = "no task has hidden cases of a function or a program"

    @property
    def score(self) -> tuple[int, int]:
        """(Mutants that were caught, tried)."""
        tried = sum(each.mutants for each in self.measured)
        return tried - sum(len(each.survivors) for each in self.measured), tried

    def __str__(self) -> str:
        if not self.measured:
            return "not measured"
        least = min(self.measured, key=lambda each: each.coverage)
        caught, tried = self.score
        text = f"{least.coverage:.0%} of the reference's lines run ({least.task_id}, the least)"
        return f"{text}; {caught} of {tried} mutants caught" if tried else text


async def suites_of(
    environment: Environment,
    aims: Sequence[Aim],
    *,
    mutants: int,
    host: Mapping[str, Any],
    seed: int = 0,
) -> Suites:
    """Measures the suite of each task that has a reference.

    Args:
        environment: whose verifier runs the suites.
        aims: the tasks with what is known of them.
        mutants: of each reference, at most; 0: coverage alone.
        host: further settings of `Host`.
        seed: of the mutants.
    """
    with_cases = [aim for aim in aims if aim.form in ("function", "program")]
    if not with_cases:
        return Suites()
    verifier = environment.verifier
    if not isinstance(verifier, Tests):
        return Suites(why=f"the verifier {verifier.name} is not `tests` itself")
    if not any(aim.reference for aim in with_cases):
        return Suites(why="the environment has no oracle")
    measured = []
    why = ""
    async with Host(environment, Scripted(""), **{"retries": 1, **host}) as rooms:
        for aim in with_cases:
            if not aim.reference:
                continue
            try:
                measured.append(
                    await suite_quality(
                        aim.task,
                        aim.reference,
                        rooms,
                        verifier=verifier,
                        mutants=mutants,
                        seed=seed,
                    )
                )
            except (ConfigError, TaskError, RolloutError) as error:
                why = str(error)
    return Suites(tuple(measured), why)
