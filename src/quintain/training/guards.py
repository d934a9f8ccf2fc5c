"""Tells when a run goes wrong, from its metrics: what usually ends in a useless policy, in words.

A `Watch` sees the metrics of each step and says what is new. Its memory is a function of the steps
seen, so a resumed run feeds it what is stored. Nothing here stops a run; what does is in `faults`
(the host spoils rollouts), and the learner refuses steps that are not finite on its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median

WARNING = "training.warning"
"""Kind of the event that each warning is stored as, with `step`, `name` and `message`."""
EARLY_STEPS = 5
"""Learned steps at the beginning that later ones are compared with."""
AGAIN_STEPS = 10
"""A warning whose cause lasts is repeated after as many steps."""
QUIET_STEPS = 3
"""Steps in a row without a group that differs, or without a change, that are worth a warning."""
ENTROPY_SHARE = 0.1
LENGTH_FACTOR = 3.0
RATIO_MAX = 20.0
ESS_MIN = 0.1
GAP_NATS = 0.1
NORM_FACTOR = 20.0

Known = Mapping[str, float | None]
_Value = Callable[..., float]
"""A metric by name, with a default (0) where it is missing."""


@dataclass(frozen=True, slots=True)
class Warned:
    """Something that a person should look at."""

    name: str
    message: str


class Watch:
    """Looks for signs of collapse; one a run."""

    def __init__(self) -> None:
        self._early: dict[str, list[float]] = {"entropy": [], "length_mean": []}
        self._norms: deque[float] = deque(maxlen=20)
        self._silent = 0
        self._unchanged = 0
        self._since: dict[str, int] = {}
        """Steps for which a cause has lasted, by name."""

    def see(self, metrics: Known) -> list[Warned]:
        """The warnings of a step that are new, or due again."""
        causes = {warned.name: warned for warned in self._causes(metrics)}
        self._since = {name: self._since.get(name, -1) + 1 for name in causes}
        return [causes[name] for name, steps in self._since.items() if steps % AGAIN_STEPS == 0]

    def _causes(self, metrics: Known) -> Iterator[Warned]:
        def value(name: str, default: float = 0.0) -> float:
            found = metrics.get(name)
            return default if found is None else found

        yield from self._learning(value)
        learned = metrics.get("grad_norm") is not None and not value("skipped_not_finite")
        if learned:
            yield from self._gradient(value)
            yield from self._ratios(value)
        yield from self._drift(metrics, learned)
        if value("trajectories_split"):
            yield Warned(
                "rewritten",
                f"{value('trajectories_split'):.0f} trajectories are split into rows because a "
                "prompt did not continue the tokens before it: the chat template or the harness "
                "rewrites earlier turns",
            )

    def _learning(self, value: _Value) -> Iterator[Warned]:
        """Steps from which nothing is learned."""
        if value("skipped_not_finite"):
            yield Warned(
                "not_finite",
                "the loss or its gradient was not finite: the step was left out, nothing changed",
            )
        nothing = value("skipped_quiet") or value("skipped_empty")
        silent = nothing and not value("groups_with_signal")
        self._silent = self._silent + 1 if silent else 0
        if self._silent >= QUIET_STEPS:
            reward = value("reward")
            why = "all samples pass" if reward > 0.99 else "none passes" if reward < 0.01 else ""
            yield Warned(
                "equal_groups",
                f"in {self._silent} steps no group's rewards differed"
                + (f" ({why})" if why else "")
                + ": the tasks are too easy or too hard, or samples are alike",
            )
        skipped = any(
            value(name) for name in ("skipped_not_finite", "skipped_quiet", "skipped_empty")
        )
        self._unchanged = self._unchanged + 1 if skipped else 0
        if self._unchanged >= QUIET_STEPS:
            yield Warned("unchanged", f"{self._unchanged} steps in a row changed nothing")

    def _gradient(self, value: _Value) -> Iterator[Warned]:
        norm = value("grad_norm")
        if norm == 0 and value("tokens_trained"):
            yield Warned(
                "no_gradient",
                f"{value('tokens_trained'):.0f} tokens were trained and the gradient is exactly 0: "
                "advantages or masks cancel all of it, or nothing trainable is used",
            )
        usual = median(self._norms) if len(self._norms) >= EARLY_STEPS else 0.0
        if usual and norm > NORM_FACTOR * usual:
            yield Warned("gradient", f"gradient norm {norm:.3g}, usually {usual:.3g}")
        self._norms.append(norm)

    def _ratios(self, value: _Value) -> Iterator[Warned]:
        if value("ratio_max") > RATIO_MAX:
            yield Warned(
                "ratio",
                f"a token is {value('ratio_max'):.3g} times as likely as before the update: lower "
                "lr or updates_per_batch",
            )
        if value("ess", 1.0) < ESS_MIN:
            yield Warned(
                "ess",
                f"effective sample size is {value('ess'):.1%} of the tokens: the data is too far "
                "from the policy; lower max_staleness or lr",
            )
        if not value("staleness_max", 1.0) and value("logprob_gap_mean") > GAP_NATS:
            yield Warned(
                "mismatch",
                f"sampler and learner disagree by {value('logprob_gap_mean'):.2f} nats a token "
                "about tokens of the newest version: new weights may not reach the sampler, or it "
                "samples differently",
            )

    def _drift(self, metrics: Known, learned: bool) -> Iterator[Warned]:
        """How far entropy and lengths have gone from where they began."""
        for name, early in self._early.items():
            now = metrics.get(name)
            if now is None or not (learned or name == "length_mean"):
                continue
            if len(early) < EARLY_STEPS:
                early.append(now)
                continue
            began = median(early)
            if name == "entropy" and began > 0 and now < ENTROPY_SHARE * began:
                yield Warned(
                    "entropy",
                    f"entropy fell from {began:.3g} to {now:.3g} nats a token: samples are nearly "
                    "alike; lower lr, raise clip_high or the temperature",
                )
            if name == "length_mean" and began > 0:
                if now > LENGTH_FACTOR * began:
                    yield Warned(
                        "length", f"trajectories grew from {began:.0f} to {now:.0f} tokens"
                    )
                elif now < began / LENGTH_FACTOR:
                    yield Warned(
                        "length", f"trajectories shrank from {began:.0f} to {now:.0f} tokens"
                    )
