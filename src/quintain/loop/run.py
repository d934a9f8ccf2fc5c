"""`TrainRun`: a training run as stored, while it goes on and afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quintain.errors import ConfigError
from quintain.evals import EvalRun
from quintain.loop.select import Candidate, pareto_front, pick
from quintain.loop.signals import SIGNAL, Signal
from quintain.record import Json
from quintain.statistics import Paired
from quintain.store import Store

SELECTED = "loop.selected"
PLANNED = "loop.planned"


def eval_purpose(name: str, version: int) -> str:
    """What the evaluation of a checkpoint on the eval split is stored under."""
    return f"eval:{name}@v{version}"


def heldout_purpose(name: str, version: int, *, greedy: bool = False) -> str:
    """The same for the held-out split, sampled or greedy."""
    return f"heldout{'-greedy' if greedy else ''}:{name}@v{version}"


@dataclass(frozen=True, slots=True)
class Selection:
    """The checkpoint that deserves to ship, and how it does on what nothing was chosen by."""

    step: int
    version: int
    path: Path
    """The weights, a safetensors file."""
    hash: str
    why: str
    front: tuple[Candidate, ...]
    """Checkpoints that no other dominates on the eval split."""
    heldout: EvalRun
    """The selected checkpoint on the held-out split of the first eval."""
    heldout_before: EvalRun
    """The untrained policy on the same."""
    greedy: EvalRun | None = None
    greedy_before: EvalRun | None = None

    @property
    def gain(self) -> Paired:
        """After minus before on the held-out split, paired by task, with its interval."""
        return self.heldout_before.compare(self.heldout)

    def __str__(self) -> str:
        lines = [
            self.why,
            f"held-out before: {self.heldout_before.pass_at(1)}",
            f"held-out after:  {self.heldout.pass_at(1)}",
            f"gain: {self.gain}",
        ]
        if self.greedy is not None and self.greedy_before is not None:
            lines.append(
                f"greedy: {self.greedy_before.pass_at(1)} before, {self.greedy.pass_at(1)} after"
            )
        return "\n".join(lines)


class TrainRun:
    """A stored training run.

    Args:
        folder: of the run; it may be being written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.store = Store.read(folder)
        if self.store.meta("kind") != "train":
            raise ConfigError(
                f"{folder} holds a run of kind {self.store.meta('kind')!r}, not train"
            )

    @property
    def folder(self) -> Path:
        """Where the run lies."""
        return self.store.folder

    @property
    def metrics(self) -> dict[int, dict[str, float | None]]:
        """Metrics of each training step, by name."""
        out: dict[int, dict[str, float | None]] = {}
        for step, name, value in self.store.metric_rows():
            out.setdefault(step, {})[name] = value
        return out

    @property
    def evals(self) -> dict[str, str]:
        """Names of the evals, and the environment of each."""
        found = self.store.event_rows(PLANNED)
        planned: Mapping[str, Json] = found[-1][2]["evals"] if found else {}
        return dict(planned)

    @property
    def signals(self) -> list[Signal]:
        """Signs of reward hacking that were noticed, in order; see `quintain.loop.signals`."""
        return [Signal(**data) for _, _, data in self.store.event_rows(SIGNAL)]

    def eval(self, name: str, version: int) -> EvalRun:
        """The evaluation of a policy version on the eval split."""
        return EvalRun(self.store, eval_purpose(name, version), self.evals[name])

    def candidates(self) -> list[Candidate]:
        """The evaluated checkpoints, by step, one for each policy version.

        Steps that change nothing leave the version as it is: such a checkpoint counts once.
        """
        out: dict[int, Candidate] = {}
        purposes = set(self.store.purposes())
        for row in sorted(self.store.checkpoints(), key=lambda row: row.step):
            wanted = [eval_purpose(name, row.version) for name in self.evals]
            if row.version not in out and wanted and purposes.issuperset(wanted):
                scores = {name: self.eval(name, row.version).mean().value for name in self.evals}
                out[row.version] = Candidate(row.step, row.version, scores)
        return list(out.values())

    def select(self) -> Selection:
        """The selected checkpoint with its held-out evaluation.

        Raises:
            ConfigError: the run has not come to its selection yet.
        """
        found = self.store.event_rows(SELECTED)
        if not found:
            raise ConfigError(
                f"{self.folder} has not selected a checkpoint yet: resume it to its end"
            )
        chosen = found[-1][2]
        name, version = next(iter(self.evals)), int(chosen["version"])
        greedy = bool(chosen["greedy"])

        def heldout(version: int, *, greedy: bool = False) -> EvalRun:
            purpose = heldout_purpose(name, version, greedy=greedy)
            return EvalRun(self.store, purpose, self.evals[name])

        return Selection(
            step=int(chosen["step"]),
            version=version,
            path=self.folder / chosen["path"] / "model.safetensors",
            hash=chosen["hash"],
            why=chosen["why"],
            front=tuple(pareto_front(self.candidates())),
            heldout=heldout(version),
            heldout_before=heldout(0),
            greedy=heldout(version, greedy=True) if greedy else None,
            greedy_before=heldout(0, greedy=True) if greedy else None,
        )

    def choose(self) -> tuple[Candidate, str]:
        """The checkpoint that the evals so far speak for, and why."""
        return pick(self.candidates())

    def __repr__(self) -> str:
        steps = max(self.metrics, default=0)
        return f"<TrainRun {self.folder} step {steps}>"
