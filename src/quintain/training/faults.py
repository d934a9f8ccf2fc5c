"""Stops training when the host spoils too many rollouts, before it goes on with what is left."""

from __future__ import annotations

from collections import Counter, deque

from quintain.errors import TrainingError
from quintain.trajectory import Trajectory


class FaultWatch:
    """Counts host-caused faults among the latest rollouts.

    Args:
        bound: share above which training stops.
        window: how many of the latest rollouts are looked at; half of them must have been seen.
    """

    def __init__(self, bound: float, window: int) -> None:
        self.bound = bound
        self.recent: deque[str] = deque(maxlen=window)

    def see(self, trajectory: Trajectory) -> None:
        """Counts a finished rollout.

        Raises:
            TrainingError: too many were spoiled; the commonest fault is named.
        """
        spoiled = trajectory.outcome is not None and trajectory.outcome.host_fault
        fault = trajectory.error
        text = f"{fault.type} in {fault.stage}: {fault.message}" if fault else "unknown fault"
        self.recent.append(text if spoiled else "")
        faults = Counter(text for text in self.recent if text)
        seen, spoiled_count = len(self.recent), faults.total()
        if seen * 2 >= (self.recent.maxlen or 0) and spoiled_count > self.bound * seen:
            commonest, times = faults.most_common(1)[0]
            raise TrainingError(
                f"{spoiled_count} of the last {seen} rollouts were spoiled by the host, more than "
                f"the bound of {self.bound:.0%}; the commonest ({times} times): {commonest[:500]}. "
                "Mend it and resume the run: nothing finished is lost"
            )
