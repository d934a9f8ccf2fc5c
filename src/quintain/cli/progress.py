"""A bar with outcomes and the time left on a terminal; a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType

from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as RichProgress

from quintain.cli.console import err
from quintain.rollouts import Progress
from quintain.trajectory import Trajectory

LINE_EVERY_S = 15.0
"""Between two lines where the output is no terminal."""


class Bar:
    """Shows how far a schedule is, on standard error; a context manager.

    Args:
        title: what is going on.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self._console = err()
        self._rich: RichProgress | None = None
        self._task: TaskID | None = None
        self._told = time.monotonic()

    def __enter__(self) -> Bar:
        if self._console.is_terminal:
            self._rich = RichProgress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[state]}"),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._rich.start()
            self._task = self._rich.add_task(escape(self.title), total=None, state="starting")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._rich is not None:
            self._rich.stop()

    def __call__(self, trajectory: Trajectory, progress: Progress) -> None:
        """Shows the state after a rollout; the `on_done` of a schedule."""
        state = _state(progress)
        if self._rich is not None and self._task is not None:
            self._rich.update(
                self._task, completed=progress.done, total=progress.total, state=escape(state)
            )
        elif time.monotonic() - self._told >= LINE_EVERY_S:
            self._told = time.monotonic()
            total = "" if progress.total is None else f"/{progress.total}"
            self._console.print(escape(f"{self.title}: {progress.done}{total} · {state}"))


def _state(progress: Progress) -> str:
    parts = [counted(progress.outcomes)]
    if progress.retried:
        parts.append(f"{progress.retried} retried")
    if progress.left_s is not None:
        parts.append(f"{duration(progress.left_s)} left")
    return " · ".join(part for part in parts if part)


def counted(outcomes: Mapping[str, int]) -> str:
    """Outcomes that occurred, with their numbers."""
    return ", ".join(f"{number} {name}" for name, number in outcomes.items() if number)


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
