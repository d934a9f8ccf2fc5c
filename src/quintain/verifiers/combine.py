"""One verdict out of several: all, any, weighted, gated, majority.

Each part says yes (1), no (0), something between (graded), or abstains (None); None is neither a
yes nor a no and is carried on unless the others settle the matter (Kleene's three-valued logic):

| rule     | 0                          | 1                   | else None, or graded     |
|----------|----------------------------|---------------------|--------------------------|
| all      | as soon as a part says 0   | all say 1           | the least                |
| any      | all say 0                  | as soon as one does | the largest              |
| gated    | as all                     | as all              | at once when the first   |
|          |                            |                     | part abstains; the least |
| majority | as soon as half say no     | more than half pass |                          |
| weighted | a mean under the threshold | a mean at or over   | the mean (no threshold)  |

Parts run in their order, and not at all once the matter is settled: put the cheap and the formal
ones first. An error of a part that ran is an error of the whole. What every part said is kept in
the checks, as `part` and `part/check`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from quintain.errors import ConfigError, VerifierError
from quintain.protocols import GroupVerifier, JudgeContext, Verifier
from quintain.task import Task
from quintain.verdict import Check, Kind, Verdict
from quintain.verifiers.function import as_verifier

Rule = Literal["all", "any", "gated", "majority", "weighted"]
Part = Verifier | Callable[..., Any] | str


def all_of(*parts: Part, name: str = "all") -> Combined:
    """Passes when every part passes; graded parts: the least."""
    return _made("all", parts, name)


def any_of(*parts: Part, name: str = "any") -> Combined:
    """Passes when one part passes; it is fooled as soon as one part is."""
    return _made("any", parts, name)


def gated(first: Part, *others: Part, name: str = "gated") -> Combined:
    """A formal verifier decides; the others, heuristics mostly, may only lower what it gives.

    Raises:
        ConfigError: the first is a heuristic, or there is no other.
    """
    return _made("gated", (first, *others), name)


def majority(*parts: Part, name: str = "majority") -> Combined:
    """Passes when more than half of all parts pass, those that abstain counted among all."""
    return _made("majority", parts, name)


def weighted(
    parts: Mapping[Part, float] | Sequence[tuple[Part, float]],
    *,
    threshold: float | None = None,
    name: str = "weighted",
) -> Combined:
    """The weighted mean of the rewards.

    Args:
        parts: with their weights, finite and positive.
        threshold: reward 1 from this mean on, else 0; None: the mean itself, for an environment
            that says `graded=True`.
        name: the verifier's name.
    """
    pairs = list(parts.items()) if isinstance(parts, Mapping) else list(parts)
    return _made("weighted", [part for part, _ in pairs], name, [w for _, w in pairs], threshold)


def _made(
    rule: Rule,
    parts: Sequence[Part],
    name: str,
    weights: Sequence[float] = (),
    threshold: float | None = None,
) -> Combined:
    made = [as_verifier(part) for part in parts]
    kind = GroupCombined if any(isinstance(part, GroupVerifier) for part in made) else Combined
    return kind(rule, made, name=name, weights=weights, threshold=threshold)


class Combined:
    """What `all_of`, `any_of`, `gated`, `majority` and `weighted` make.

    It is a heuristic as soon as a part is, except a gate, whose heuristics can only lower.

    Raises:
        ConfigError: too few parts, equal names, a wrong weight or threshold, an informal gate.
    """

    def __init__(
        self,
        rule: Rule,
        parts: Sequence[Verifier],
        *,
        name: str,
        weights: Sequence[float] = (),
        threshold: float | None = None,
    ) -> None:
        if len(parts) < (1 if rule == "weighted" else 2):
            raise ConfigError(f"{name}: {rule} needs at least two parts, got {len(parts)}")
        names = [part.name for part in parts]
        if len(set(names)) < len(names):
            raise ConfigError(f"{name}: parts need names of their own, got {', '.join(names)}")
        if not all(math.isfinite(weight) and weight > 0 for weight in weights):
            raise ConfigError(f"{name}: weights are finite and positive, got {list(weights)}")
        if threshold is not None and not 0 < threshold <= 1:
            raise ConfigError(f"{name}: a threshold is in (0, 1], got {threshold!r}")
        if rule == "gated" and parts[0].kind != "formal":
            raise ConfigError(f"{name}: the gate is a formal verifier; {names[0]} is a heuristic")
        self.name = name
        self.rule: Rule = rule
        self.parts = tuple(parts)
        self.weights = tuple(weights)
        self.threshold = threshold
        informal = any(part.kind == "heuristic" for part in parts)
        self.kind: Kind = "heuristic" if informal and rule != "gated" else "formal"

    def check_gold(self, task: Task) -> None:
        """Lets every part that can refuse a task do so."""
        for part in self.parts:
            check = getattr(part, "check_gold", None)
            if check is not None:
                check(task)

    async def judge(self, context: JudgeContext) -> Verdict:
        """The parts in their order until the matter is settled.

        Raises:
            VerifierError: a part could not judge.
        """
        began = time.monotonic()
        said: list[Verdict] = []
        while len(said) < len(self.parts) and not self.settled(said):
            said.append(_whole(await self.parts[len(said)].judge(context), self, len(said)))
        return self.verdict(said, time.monotonic() - began)

    def settled(self, said: Sequence[Verdict]) -> bool:
        """Whether no further part can change the outcome."""
        rewards = [verdict.reward for verdict in said]
        match self.rule:
            case "all":
                return 0.0 in rewards
            case "any":
                return 1.0 in rewards
            case "gated":
                return 0.0 in rewards or (bool(rewards) and rewards[0] is None)
            case "majority":
                passed = sum(verdict.passed for verdict in said)
                failed = sum(v.reward is not None and not v.passed for v in said)
                return 2 * passed > len(self.parts) or 2 * failed >= len(self.parts)
            case _:
                return False

    def decide(self, said: Sequence[Verdict]) -> tuple[float | None, bool]:
        """Reward and whether it is a pass, from the parts that ran."""
        rewards = [verdict.reward for verdict in said]
        known = [reward for reward in rewards if reward is not None]
        if self.rule == "majority":
            return self._vote(said)
        if self.settled(said):
            return {"any": (1.0, True)}.get(
                self.rule, (0.0, False) if 0.0 in rewards else (None, False)
            )
        if len(known) < len(rewards):
            return None, False
        if self.rule == "any":
            best = max(known)
            return best, best > 0 and any(verdict.passed for verdict in said)
        if self.rule == "weighted":
            return self._mean(known)
        least = min(known)
        return least, least > 0 and all(verdict.passed for verdict in said)

    def _vote(self, said: Sequence[Verdict]) -> tuple[float | None, bool]:
        passed = sum(verdict.passed for verdict in said)
        if 2 * passed > len(self.parts):
            return 1.0, True
        return (0.0, False) if self.settled(said) else (None, False)

    def _mean(self, rewards: Sequence[float]) -> tuple[float, bool]:
        pairs = zip(self.weights, rewards, strict=True)
        mean = math.fsum(weight * reward for weight, reward in pairs) / math.fsum(self.weights)
        mean = min(1.0, max(0.0, mean))
        if self.threshold is None:
            return mean, mean == 1.0
        passed = mean >= self.threshold - 1e-12
        return float(passed), passed

    def verdict(self, said: Sequence[Verdict], wall_s: float) -> Verdict:
        """The combined verdict, with everything that the parts said."""
        reward, passed = self.decide(said)
        checks: list[Check] = []
        metrics: dict[str, float] = {}
        for number, part in enumerate(self.parts):
            if number >= len(said):
                detail = "not run: the parts before it settled the matter"
                checks.append(Check(name=part.name, passed=None, detail=detail))
                continue
            verdict = said[number]
            opinion = None if verdict.reward is None else verdict.passed
            checks.append(Check(name=part.name, passed=opinion, detail=verdict.explanation))
            checks += [
                check.model_copy(update={"name": f"{part.name}/{check.name}"})
                for check in verdict.checks
            ]
            metrics |= {f"{part.name}.{key}": value for key, value in verdict.metrics.items()}
            if verdict.reward is not None:
                metrics[f"{part.name}.reward"] = verdict.reward
        outcome = "abstained" if reward is None else "passed" if passed else f"reward {reward:g}"
        each = ", ".join(
            f"{part.name} {'abstained' if verdict.reward is None else f'{verdict.reward:g}'}"
            for part, verdict in zip(self.parts, said, strict=False)
        )
        return Verdict(
            reward=reward,
            passed=passed,
            metrics=metrics,
            checks=tuple(checks),
            flags=tuple(dict.fromkeys(flag for verdict in said for flag in verdict.flags)),
            explanation=f"{self.rule}: {outcome} ({each})",
            deterministic=all(verdict.deterministic for verdict in said),
        ).signed(self.name, self.kind, wall_s)


class GroupCombined(Combined):
    """A combination with a part that compares the trajectories of a group.

    Such a part sees the members that the parts before it left undecided. Where fewer than two are
    left there is nobody to compare with: it passes them, that is, it does not lower them.
    """

    async def judge_group(self, contexts: Sequence[JudgeContext]) -> list[Verdict]:
        """One verdict a context, in order."""
        began = time.monotonic()
        said: list[list[Verdict]] = [[] for _ in contexts]
        for number, part in enumerate(self.parts):
            open_ones = [i for i, verdicts in enumerate(said) if not self.settled(verdicts)]
            given = await self._round(part, [contexts[i] for i in open_ones])
            for i, verdict in zip(open_ones, given, strict=True):
                said[i].append(_whole(verdict, self, number))
        return [self.verdict(verdicts, time.monotonic() - began) for verdicts in said]

    async def _round(self, part: Verifier, contexts: Sequence[JudgeContext]) -> list[Verdict]:
        if not isinstance(part, GroupVerifier):
            return [await part.judge(context) for context in contexts]
        if len(contexts) < 2:
            alone = Verdict.of(True, "nobody to compare with").signed(part.name, part.kind)
            return [alone for _ in contexts]
        return await part.judge_group(contexts)


def _whole(verdict: object, combined: Combined, number: int) -> Verdict:
    if not isinstance(verdict, Verdict):
        part = combined.parts[number].name
        raise VerifierError(f"{combined.name}: part {part} gave no Verdict but {verdict!r}")
    return verdict
