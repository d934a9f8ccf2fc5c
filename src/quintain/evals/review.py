"""People look at a sample of a run's verdicts, and the verifier's error rates follow.

What is looked at is drawn once and kept with the run: all flagged verdicts, and a random share of
the passes and of the fails, each in random order, so that whoever stops early has still labelled a
random part of each. Labels are kept beside the verdicts and change none of them::

    with Review.open("runs/one", passes=20, fails=20) as review:
        for item in review.todo:
            print(item)
            review.label(item.key, "accept", note="the unit is missing, but right")
        print(review)
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

from quintain.errors import ConfigError
from quintain.record import Json, derive_seed
from quintain.rollouts import run_blocking
from quintain.statistics import ErrorRates, Interval, Stratum, error_rates
from quintain.store import Store
from quintain.trajectory import Trajectory, TrajectoryKey
from quintain.verdict import Outcome
from quintain.viewer.transcript import transcript

Label = Literal["accept", "reject", "unsure"]
"""Whether the work deserves to pass: yes, no, or not to be told."""
PLAN, LABEL, RATES = "review.plan", "review.label", "review.rates"
"""Events in the store: what is looked at; one label; the rates as of then."""


@dataclass(frozen=True, slots=True)
class Item:
    """One trajectory to look at."""

    review: Review
    key: TrajectoryKey
    stratum: str

    @property
    def trajectory(self) -> Trajectory:
        """All of it, verdict included."""
        return self.review.store.get(self.key)

    @property
    def blind(self) -> Trajectory:
        """Without the verdict, which would sway whoever looks."""
        update = {"verdict": None, "outcome": None}
        return self.trajectory.model_copy(update=update)

    def __str__(self) -> str:
        return transcript(self.blind)


@dataclass(frozen=True, slots=True)
class Given:
    """A label as it was given."""

    label: Label
    note: str
    at: str
    by: str


class Review:
    """The review of one run. `Review.open` draws what is looked at, or goes on.

    Args:
        store: of the run, open for writing where labels are to be given.
        plan: as drawn.
    """

    def __init__(self, store: Store, plan: Mapping[str, Json]) -> None:
        self.store = store
        self.plan = plan

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        purpose: str | None = None,
        passes: int = 20,
        fails: int = 20,
        seed: int = 0,
        fresh: bool = False,
    ) -> Review:
        """The review of a run that is done: the one begun before, or a new one.

        Args:
            folder: of the run.
            purpose: only these trajectories ("train", or an eval's purpose); None: all.
            passes: how many of those that passed, without flags, are looked at.
            fails: the same of those that failed.
            seed: of the draw.
            fresh: draw anew where a review was begun; labels given so far stay, and count where the
                new draw holds their trajectories.

        Raises:
            ConfigError: nothing was judged, or a number is negative.
            StoreError: there is no run, or another process writes it.
        """
        if passes < 0 or fails < 0:
            raise ConfigError(f"passes and fails are not negative, got {passes} and {fails}")
        store = Store.extend(folder)
        try:
            begun = store.event_rows(PLAN)
            if begun and not fresh:
                return cls(store, begun[-1][2])
            plan = _draw(store, purpose, {"passed": passes, "failed": fails}, seed)
            run_blocking(store.event(PLAN, plan))
        except BaseException:
            store.close()
            raise
        return cls(store, plan)

    @classmethod
    def read(cls, folder: str | Path) -> Review | None:
        """The review of a run, to look at; None where none was begun."""
        store = Store.read(folder)
        begun = store.event_rows(PLAN)
        if not begun:
            store.close()
            return None
        return cls(store, begun[-1][2])

    def close(self) -> None:
        """Closes the run; may be called twice."""
        self.store.close()

    def __enter__(self) -> Review:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what is looked at -----------------------------------------------------------------------

    @cached_property
    def items(self) -> dict[TrajectoryKey, Item]:
        """Everything to look at, flagged verdicts first."""
        return {
            (key := TrajectoryKey(*given)): Item(self, key, name)
            for name, stratum in self.plan["strata"].items()
            for given in stratum["keys"]
        }

    @property
    def labels(self) -> dict[TrajectoryKey, Given]:
        """The last label of each trajectory in the draw."""
        out = {
            TrajectoryKey(*data["key"]): Given(data["label"], data["note"], at, data["by"])
            for _, at, data in self.store.event_rows(LABEL)
        }
        return {key: label for key, label in out.items() if key in self.items}

    @property
    def todo(self) -> list[Item]:
        """What has no label yet."""
        done = self.labels
        return [item for key, item in self.items.items() if key not in done]

    def label(self, key: TrajectoryKey, label: Label, note: str = "", by: str = "") -> None:
        """Keeps a label; a later one of the same trajectory counts instead.

        Raises:
            ConfigError: no such label, or the trajectory is not in the draw.
        """
        if label not in get_args(Label):
            raise ConfigError(f"a label is one of {', '.join(get_args(Label))}, got {label!r}")
        if key not in self.items:
            raise ConfigError(f"{tuple(key)} is not among what this review looks at")
        data = {"key": list(key), "label": label, "note": note, "by": by}
        run_blocking(self.store.event(LABEL, data))

    # --- what follows ----------------------------------------------------------------------------

    @property
    def strata(self) -> dict[str, Stratum]:
        """What the labels say of each part of the verdicts."""
        labels, out = self.labels, {}
        for name, stratum in self.plan["strata"].items():
            passed = name.endswith("passed")
            wrong: Label = "reject" if passed else "accept"
            given = [
                labels[key].label for key in map(_key, stratum["keys"]) if key in labels
            ]  # fmt: skip
            unsure = given.count("unsure")
            missed = given.count(wrong)
            out[name] = Stratum(
                passed, stratum["size"], missed, len(given) - unsure - missed, unsure
            )
        return out

    def rates(self, confidence: float = 0.95) -> ErrorRates:
        """The verifier's error rates on what this policy does, weighted as the verdicts came."""
        return error_rates(list(self.strata.values()), confidence)

    def keep_rates(self) -> None:
        """Stores the rates as of now with the run, for its report."""
        run_blocking(self.store.event(RATES, self.to_json()["rates"]))

    def to_json(self) -> dict[str, Json]:
        """Draw, labels and rates."""
        rates = self.rates()
        return {
            "run": str(self.store.folder),
            "purpose": self.plan["purpose"],
            "seed": self.plan["seed"],
            "labelled": len(self.labels),
            "to_label": len(self.todo),
            "strata": {
                name: {
                    "size": stratum.size,
                    "drawn": len(self.plan["strata"][name]["keys"]),
                    "wrong": stratum.wrong,
                    "right": stratum.right,
                    "unsure": stratum.unsure,
                }
                for name, stratum in self.strata.items()
            },
            "rates": {
                name: _plain(getattr(rates, name))
                for name in ("false_positive", "false_negative", "wrong_passes", "wrong_failures")
            },
            "wrong": [
                {"key": list(key), "verdict": self.items[key].stratum, "note": given.note}
                for key, given in self.labels.items()
                if given.label == ("reject" if "passed" in self.items[key].stratum else "accept")
            ],
        }

    def __str__(self) -> str:
        rates = self.rates()
        lines = [f"{len(self.labels)} of {len(self.items)} labelled"]
        for name, stratum in self.strata.items():
            lines.append(
                f"  {name}: {stratum.size} verdicts, {stratum.looked_at} looked at, "
                f"{stratum.wrong} wrong" + (f", {stratum.unsure} unsure" if stratum.unsure else "")
            )
        lines += [
            f"  false positives {rates.false_positive} of what deserved to fail",
            f"  false negatives {rates.false_negative} of what deserved to pass",
            f"  wrong among passes {rates.wrong_passes}, among failures {rates.wrong_failures}",
        ]
        return "\n".join(lines)

    # --- files -----------------------------------------------------------------------------------

    def export_jsonl(self, path: str | Path) -> int:
        """Writes what has no label yet as JSON lines, to fill in `label` and `note`."""
        todo = self.todo
        with Path(path).open("w", encoding="utf-8") as file:
            for item in todo:
                row = {"key": list(item.key), "label": None, "note": "", "transcript": str(item)}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        return len(todo)

    def import_jsonl(self, path: str | Path, by: str = "") -> int:
        """Takes labels from JSON lines; lines without a label are passed over.

        Raises:
            ConfigError: a line is wrong; then none is taken.
        """
        rows = list(_labels_in(Path(path)))
        for number, key, label, _ in rows:
            if label not in get_args(Label) or key not in self.items:
                what = (
                    f"label {label!r} is none of {', '.join(get_args(Label))}"
                    if key in self.items
                    else f"{tuple(key)} is not among what this review looks at"
                )
                raise ConfigError(f"{path}:{number}: {what}")
        for _, key, label, note in rows:
            self.label(key, label, note, by)
        return len(rows)


def _labels_in(path: Path) -> Iterable[tuple[int, TrajectoryKey, Label, str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if row["label"] is None:
                continue
            yield number, _key(row["key"]), row["label"], str(row.get("note") or "")
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"{path}:{number}: expected an object with 'key' and 'label' as exported ({error})"
            ) from error


def _key(given: Iterable[Json]) -> TrajectoryKey:
    return TrajectoryKey(*given)


def _draw(store: Store, purpose: str | None, wanted: Mapping[str, int], seed: int) -> Json:
    """All flagged, and some of the others, by verdict; each in random order."""
    where, parameters = ("AND purpose = ?", (purpose,)) if purpose is not None else ("", ())
    strata: dict[str, list[list[Json]]] = {
        name: [] for name in ("flagged passed", "flagged failed", "passed", "failed")
    }
    with store.query(
        "SELECT purpose, environment, task_id, sample_index, attempt, outcome,"
        " json_array_length(body, '$.verdict.flags') FROM trajectories WHERE final = 1"
        f" AND outcome IN (?, ?) {where} ORDER BY id",
        (str(Outcome.SOLVED), str(Outcome.FAILED), *parameters),
    ) as cursor:
        for *key, outcome, flags in cursor:
            verdict = "passed" if outcome == str(Outcome.SOLVED) else "failed"
            strata[f"flagged {verdict}" if flags else verdict].append(key)
    if not any(strata.values()):
        held = ", ".join(store.purposes()) or "none"
        raise ConfigError(f"{store.folder} holds no verdicts of that purpose; it holds: {held}")
    drawn = {}
    for name, keys in strata.items():
        random.Random(derive_seed(seed, "review", name)).shuffle(keys)
        drawn[name] = {"size": len(keys), "keys": keys[: wanted.get(name)]}
    return {"purpose": purpose, "seed": seed, "strata": drawn}


def _plain(interval: Interval) -> Json:
    return {
        "value": None if math.isnan(interval.value) else interval.value,
        "low": interval.low,
        "high": interval.high,
        "confidence": interval.confidence,
        "labelled": interval.n,
    }
