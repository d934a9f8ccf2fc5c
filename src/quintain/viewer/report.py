"""A run as one HTML file that needs nothing else: no script, no network, no other file.

Everything that a model, a tool or a task wrote is escaped, and the page forbids scripts besides
(its content security policy allows inline style alone). Numbers come from `statistics` by way of
the store's `Scores`; nothing is computed here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import FileSystemLoader, StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markupsafe import Markup

from quintain.record import Json
from quintain.statistics import Paired
from quintain.store import Store, TrajectoryRow
from quintain.store.scores import Scores
from quintain.trajectory import TRAIN
from quintain.verdict import Outcome
from quintain.viewer.charts import Bar, Point, interval_chart, line_chart, stacked_bar
from quintain.viewer.timeline import SCOPE, timeline
from quintain.viewer.transcript import Piece, origin, pieces, reproduce, visible

MAX_TASKS = 200
"""Rows of a task table; more are counted."""
MAX_PIECES = 400
"""Pieces of one transcript; the middle of a longer one is left out."""
PART_CHARS = 3_000
SHOWN = {"failed": 3, "solved": 2, "errors": 2, "abstained": 1}
"""Transcripts of each kind and eval."""
FIRST_METRICS = (
    "reward",
    "groups_with_signal",
    "entropy",
    "kl_behaviour",
    "ess",
    "staleness_mean",
    "share_stale",
    "share_masked",
    "share_filtered",
    "ratio_max",
    "clipped_high",
    "grad_norm",
    "loss",
    "length_mean",
    "step_s",
    "tokens_sampled_per_s",
)
OUTCOME_COLOURS = {
    Outcome.SOLVED: "var(--good)",
    Outcome.FAILED: "var(--bad)",
    Outcome.ABSTAINED: "var(--warn)",
    Outcome.INFRA_ERROR: "var(--c4)",
    Outcome.VERIFIER_ERROR: "var(--c3)",
    Outcome.POLICY_ERROR: "var(--c5)",
}

_VERSIONED = re.compile(r"(.*)@v(\d+)")


@dataclass(frozen=True, slots=True)
class EvalView:
    """One eval as the page shows it."""

    purpose: str
    environment: str
    scores: Scores
    name: str
    """Its purpose without the policy's version."""
    version: int | None

    @property
    def bar(self) -> Markup:
        """Outcomes at a glance."""
        return stacked_bar(
            {str(outcome): n for outcome, n in self.scores.outcomes.items()},
            {str(outcome): colour for outcome, colour in OUTCOME_COLOURS.items()},
        )

    @property
    def tasks(self) -> list[dict[str, Json]]:
        """Tasks, least solved first; at most `MAX_TASKS`."""
        counts = self.scores.counts()
        errors: dict[str, int] = {}
        for row in self.scores.rows:
            errors[row.key.task_id] = errors.get(row.key.task_id, 0) + (
                not Outcome(row.outcome).judged
            )
        ordered = sorted(counts, key=lambda task: (counts[task][1] / max(1, counts[task][0]), task))
        return [
            {
                "id": visible(task),
                "samples": counts[task][0],
                "solved": counts[task][1],
                "excluded": errors[task],
            }
            for task in ordered[:MAX_TASKS]
        ]


@dataclass(frozen=True, slots=True)
class Change:
    """One eval at its first and at a later version."""

    name: str
    environment: str
    first: EvalView
    last: EvalView
    paired: Paired


@dataclass(frozen=True, slots=True)
class Shown:
    """One transcript on the page."""

    title: str
    outcome: str
    pieces: Sequence[Piece]


def report(folder: str | Path, output: str | Path | None = None) -> Path:
    """Writes the report of a run, also of one that is still being written.

    Args:
        folder: of the run.
        output: the file; None: `report.html` in the folder.

    Returns:
        The file written.

    Raises:
        StoreError: there is no run.
    """
    output = Path(output) if output is not None else Path(folder) / "report.html"
    with Store.read(folder) as store:
        text = render(store)
    temporary = output.with_name(f".{output.name}.{os.getpid()}.part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(output)
    return output


def render(store: Store) -> str:
    """The report of an open run, as HTML."""
    environment = ImmutableSandboxedEnvironment(
        autoescape=True,
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["pretty"] = _pretty
    return environment.get_template("report.html").render(_content(store))


def _pretty(value: Json) -> str:
    return visible(json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True))


def _content(store: Store) -> dict[str, Any]:
    rows = store.rows()
    evals = _evals(rows)
    training = Scores.of(row for row in rows if row.key.purpose == TRAIN)
    selected = _selected(store)
    changes = _changes(evals, selected.get("version"))
    config = store.meta("config") or {}
    return {
        "name": store.folder.resolve().name,
        "kind": store.meta("kind"),
        "created": store.meta("created"),
        "config": {**config, "identity": store.meta("identity") or {}},
        "made": _made(config),
        "evals": evals,
        "eval_chart": _eval_chart(evals),
        "curves": _eval_curves(evals),
        "selected": selected,
        "changes": changes,
        "change_chart": _change_chart(changes),
        "training": training,
        "training_bar": EvalView(TRAIN, "", training, TRAIN, None).bar,
        "metric_charts": _metric_charts(store),
        "timeline": timeline(store),
        "checkpoints": store.checkpoints(),
        "events": [(kind, at, _short(data)) for kind, at, data in store.event_rows()],
        "warnings": _warnings(evals, training, store),
        "transcripts": _transcripts(store, evals, training),
        "outcomes": list(Outcome),
        "max_tasks": MAX_TASKS,
    }


def _made(config: Mapping[str, Json]) -> str:
    """What the run was made with, in a line."""
    version = (config.get("versions") or {}).get("quintain")
    git = config.get("git") or {}
    commit = str(git.get("commit") or "")[:12]
    changed = " with changes" if git.get("changed") else ""
    parts = [
        f"quintain {version}" if version else "",
        f"commit {commit}{changed}" if commit else "",
    ]
    return " · ".join(part for part in parts if part)


def _short(data: Json) -> str:
    text = visible(json.dumps(data, ensure_ascii=False, sort_keys=True))
    return text if len(text) <= 300 else text[:299] + "…"


def _evals(rows: Iterable[TrajectoryRow]) -> list[EvalView]:
    """Every eval, those of one name together and by version."""
    by_eval: dict[tuple[str, str], list[TrajectoryRow]] = {}
    for row in rows:
        if row.key.purpose != TRAIN:
            by_eval.setdefault((row.key.purpose, row.key.environment), []).append(row)
    out: list[EvalView] = []
    for (purpose, environment), members in by_eval.items():
        match = _VERSIONED.fullmatch(purpose)
        name, version = (match[1], int(match[2])) if match else (purpose, None)
        out.append(EvalView(purpose, environment, Scores.of(members), name, version))
    return sorted(out, key=lambda view: (view.environment, view.name, view.version or 0))


def _groups(evals: Sequence[EvalView]) -> dict[tuple[str, str], list[EvalView]]:
    """Evals with a version, by environment and name."""
    out: dict[tuple[str, str], list[EvalView]] = {}
    for view in evals:
        if view.version is not None:
            out.setdefault((view.environment, view.name), []).append(view)
    return out


def _selected(store: Store) -> Mapping[str, Json]:
    """What a training run chose to ship; empty when it has not."""
    events = store.event_rows("loop.selected")
    found: Mapping[str, Json] = events[-1][2] if events else {}
    return found


def _changes(evals: Sequence[EvalView], selected: int | None) -> list[Change]:
    """Each eval's first version against the selected one, or the last."""
    out: list[Change] = []
    for (environment, name), views in _groups(evals).items():
        later = views[1:]
        chosen = [view for view in later if view.version == selected] or later[-1:]
        for view in chosen:
            compared = views[0].scores.compare(view.scores)
            if compared.tasks:
                out.append(Change(name, environment, views[0], view, compared))
    return out


def _label(view: EvalView) -> str:
    return visible(f"{view.environment} · {view.purpose}")


def _eval_chart(evals: Sequence[EvalView]) -> Markup | None:
    bars = [
        Bar(_label(view), estimate.value, estimate.interval.low, estimate.interval.high)
        for view in evals
        for estimate in [view.scores.pass_at(1)]
    ]
    return (
        interval_chart("pass@1, 95 % interval clustered by task", bars, 0.0, 1.0) if bars else None
    )


def _change_chart(changes: Sequence[Change]) -> Markup | None:
    if not changes:
        return None
    bars = [
        Bar(
            visible(f"{c.environment} · {c.name} v{c.first.version} → v{c.last.version}"),
            c.paired.difference.value,
            c.paired.difference.low,
            c.paired.difference.high,
        )
        for c in changes
    ]
    reach = max(abs(v) for bar in bars for v in (bar.low, bar.high))
    reach = min(1.0, max(0.1, reach * 1.1))
    title = "mean reward, later minus first version, paired by task, 95 % interval"
    return interval_chart(title, bars, -reach, reach, zero=True)


def _eval_curves(evals: Sequence[EvalView]) -> list[Markup]:
    out: list[Markup] = []
    for (environment, name), views in _groups(evals).items():
        if len(views) < 2:
            continue
        points = [
            Point(view.version or 0, mean.value, mean.low, mean.high)
            for view in views
            for mean in [view.scores.mean()]
        ]
        title = visible(f"{environment} · {name}: mean reward by version")
        out.append(line_chart(title, {"mean reward": points}))
    return out


def _metric_charts(store: Store) -> list[Markup]:
    """A chart for each training metric, those that matter most first.

    The scope "eval" repeats what the evals say, without their samples; the timeline is shown apart.
    """
    by_name: dict[str, list[Point]] = {}
    for scope in store.metric_scopes():
        if scope in ("eval", SCOPE):
            continue
        for step, name, value in store.metric_rows(scope=scope):
            label = name if scope == TRAIN else f"{scope}/{name}"
            by_name.setdefault(label, []).append(Point(step, value))
    first = [name for name in FIRST_METRICS if name in by_name]
    rest = sorted(name for name in by_name if name not in first)
    return [line_chart(visible(name), {name: by_name[name]}) for name in (*first, *rest)]


def _warnings(evals: Sequence[EvalView], training: Scores, store: Store) -> list[str]:
    out = [f"{_label(view)}: {text}" for view in evals for text in view.scores.warnings]
    latest = {data["name"]: data for _, _, data in store.event_rows("training.warning")}
    out.extend(f"training, step {data['step']}: {data['message']}" for data in latest.values())
    planned = {
        (data["purpose"], data["environment"]): data.get("planned")
        for _, _, data in store.event_rows("eval.begun")
    }
    for view in evals:
        wanted = planned.get((view.purpose, view.environment))
        if wanted is not None and view.scores.samples < wanted:
            out.append(f"{_label(view)}: {view.scores.samples} of {wanted} samples are done")
    for _, _, data in store.event_rows("loop.signal"):
        out.append(
            f"training, step {data['step']}: possible reward hacking: {visible(data['kind'])}: "
            f"{visible(data['detail'])}"
        )
    if training.samples and training.excluded:
        named = ", ".join(f"{n} {o}" for o, n in training.outcomes.items() if n and not o.judged)
        out.append(
            f"training: {training.excluded} of {training.samples} rollouts have no reward and are "
            f"kept out of advantages ({named})"
        )
    return out


def _transcripts(
    store: Store, evals: Sequence[EvalView], training: Scores
) -> list[tuple[str, list[Shown]]]:
    """(heading, transcripts) of a few samples: the last version of each eval, then training."""
    chosen = [views[-1] for views in _groups(evals).values()]
    chosen += [view for view in evals if view.version is None]
    out = [(_label(view), _some(store, view.scores.rows)) for view in chosen]
    if training.rows:
        out.append(("training", _some(store, training.rows[::-1])))
    return [(heading, shown) for heading, shown in out if shown]


def _some(store: Store, rows: Iterable[TrajectoryRow]) -> list[Shown]:
    picked: dict[str, list[TrajectoryRow]] = {kind: [] for kind in SHOWN}
    tasks: set[tuple[str, str]] = set()
    for row in rows:
        kind = "errors" if Outcome(row.outcome).host_fault else row.outcome
        # One sample a task and kind: more of the same tells less.
        if len(picked[kind]) < SHOWN[kind] and (kind, row.key.task_id) not in tasks:
            tasks.add((kind, row.key.task_id))
            picked[kind].append(row)
    out: list[Shown] = []
    for row in (row for members in picked.values() for row in members):
        trajectory = store.get(row.key)
        where = origin(store, row.key.purpose, row.key.environment, trajectory.versions)
        line = reproduce(row.key, where)
        told = list(pieces(trajectory, reproduce=line, limit=PART_CHARS))
        if len(told) > MAX_PIECES:
            left = len(told) - MAX_PIECES
            half = MAX_PIECES // 2
            told = [*told[:half], Piece("note", f"… {left} lines left out …"), *told[-half:]]
        title = f"{row.key.task_id} · sample {row.key.sample_index}"
        out.append(Shown(visible(title), row.outcome, told))
    return out
