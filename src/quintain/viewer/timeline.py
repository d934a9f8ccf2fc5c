"""Where the time of a training run went: charts along its clock, and a table of what waited."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from quintain.store import Store
from quintain.viewer.charts import Point, area_chart, line_chart

SCOPE = "timeline"
LEARNER = ("update", "rollouts", "weights", "packing", "checkpoint", "evaluation", "paused")
ROLLOUTS = ("queue", "setup", "policy", "environment", "verifier")
MEANING = {
    "update": "learns",
    "rollouts": "waits for rollouts",
    "weights": "hands weights over",
    "packing": "makes batches",
    "checkpoint": "writes checkpoints",
    "evaluation": "waits for evaluations",
    "paused": "paused: the host spoiled too many rollouts",
    "queue": "wait for a place, or for another attempt",
    "setup": "sandbox and episode are opened",
    "policy": "the policy samples",
    "environment": "tools, users and sandboxes respond",
    "verifier": "are judged",
}
MOST_POINTS = 240
"""Of one chart; more bins are joined."""


@dataclass(frozen=True, slots=True)
class Spent:
    """One row of the table."""

    who: str
    what: str
    seconds: float
    share: float
    """Of the time of the learner, or of all rollouts together."""


@dataclass(frozen=True, slots=True)
class TimelineView:
    """What the page shows."""

    charts: Sequence[Markup]
    table: Sequence[Spent]
    busy: Sequence[tuple[str, float]]
    """Utilisation of the learner and of generation over the whole run."""


def timeline(store: Store) -> TimelineView | None:
    """The timeline of a run; None where none is stored."""
    bins: dict[int, dict[str, float]] = {}
    for second, name, value in store.metric_rows(scope=SCOPE):
        bins.setdefault(second, {})[name] = value or 0.0
    if not bins:
        return None
    starts = sorted(bins)
    spans = [later - at for at, later in itertools.pairwise(starts)]
    spans.append(spans[-1] if spans else 1)
    total = sum(spans)

    def seconds(name: str) -> float:
        return sum(bins[at].get(name, 0.0) * span for at, span in zip(starts, spans, strict=True))

    table: list[Spent] = []
    for who, names in (("learner", LEARNER), ("rollouts", ROLLOUTS)):
        spent = {name: seconds(f"{who}/{name}") for name in names}
        whole = sum(spent.values()) or 1.0
        table += [Spent(who, MEANING[n], s, s / whole) for n, s in spent.items() if s]
    joined = _joined(bins, starts, spans)
    end = float(starts[-1] + spans[-1])
    charts = [
        area_chart("learner: share of time", _series(joined, "learner", LEARNER), end, 1.0),
        area_chart("rollouts: mean number", _series(joined, "rollouts", ROLLOUTS), end),
        line_chart(
            "generation: share of time in use",
            {"generation": [Point(at, values.get("generation", 0.0)) for at, values in joined]},
        ),
    ]
    busy = [
        ("learner", seconds("learner/update") / total),
        ("generation", seconds("generation") / total),
    ]
    return TimelineView(charts, table, busy)


def _joined(
    bins: dict[int, dict[str, float]], starts: Sequence[int], spans: Sequence[int]
) -> list[tuple[int, dict[str, float]]]:
    """At most `MOST_POINTS` bins: neighbours are joined, each weighing as long as it is."""
    each = -(-len(starts) // MOST_POINTS)
    out: list[tuple[int, dict[str, float]]] = []
    for first in range(0, len(starts), each):
        some = list(zip(starts[first : first + each], spans[first : first + each], strict=True))
        whole = sum(span for _, span in some)
        sums: dict[str, float] = {}
        for at, span in some:
            for name, value in bins[at].items():
                sums[name] = sums.get(name, 0.0) + value * span / whole
        out.append((some[0][0], sums))
    return out


def _series(
    joined: Sequence[tuple[int, dict[str, float]]], who: str, names: Sequence[str]
) -> dict[str, list[Point]]:
    found = [n for n in names if any(values.get(f"{who}/{n}") for _, values in joined)]
    return {
        name: [Point(at, values.get(f"{who}/{name}", 0.0)) for at, values in joined]
        for name in found
    }
