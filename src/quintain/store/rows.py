"""What the index of a run knows, without loading what it indexes."""

from __future__ import annotations

from dataclasses import dataclass

from quintain.record import Json
from quintain.trajectory import TrajectoryKey


@dataclass(frozen=True, slots=True)
class TrajectoryRow:
    """A trajectory, without its body."""

    key: TrajectoryKey
    final: bool
    outcome: str
    reward: float | None
    stop: str
    steps: int
    total_s: float
    cost_usd: float


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One admitted training group: `size` samples of one task from `first_sample` on."""

    id: int
    environment: str
    task_id: str
    first_sample: int
    size: int
    admitted_version: int
    consumed_step: int | None

    @property
    def sample_indexes(self) -> range:
        """The sample indexes of its members."""
        return range(self.first_sample, self.first_sample + self.size)


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One checkpoint."""

    version: int
    step: int
    path: str
    """Relative to the run's folder."""
    hash: str
    created: str
    state: Json
    """What the trainer remembers with it."""
