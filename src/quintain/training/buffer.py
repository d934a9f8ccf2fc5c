"""Pacing and buffer of the asynchronous loop: what may start, what is ready, what is trained next.

A group may start only if it can still be fresh when it is trained: with P groups a step and a bound
of η versions, at most (η + 1)·P groups are on their way at a time, counting those that run, wait
and are being trained. First come (by number), first trained, so each waits for at most η updates.
This is AReaL's admission rule (arXiv:2505.24298, section 5.1) without its running totals, so that
nothing can be wrong after a resume. It paces; it does not bound the age of a slow group's tokens:
`batching` masks those one by one.

Nothing starts either while a whole step's groups wait unused: they would only grow old.
"""

from __future__ import annotations

from quintain.training.batching import Group


class Buffer:
    """Counts groups on their way and orders those that are ready.

    Args:
        groups_per_step: P.
        max_staleness: η.
        refills: groups without signal that are replaced in one step, at most.
        steps: how many steps are to be taken in all.
    """

    def __init__(self, groups_per_step: int, max_staleness: int, refills: int, steps: int) -> None:
        self.steps_left = steps
        """Steps whose groups have not been taken yet."""
        self.groups_per_step = groups_per_step
        self.max_staleness = max_staleness
        self.refills = refills
        self.running = 0
        self.training = 0
        self.ready: list[Group] = []
        self.filtered: list[Group] = []
        """Without signal, replaced; they go with the next step's counts."""
        self._refills_left = refills

    @property
    def on_their_way(self) -> int:
        """Groups that run, wait or are being trained."""
        return self.running + len(self.ready) + self.training

    @property
    def may_start(self) -> bool:
        """Whether one more group may start now."""
        if self.full:
            return False
        needed = self.steps_left * self.groups_per_step - self.running - len(self.ready)
        return needed > 0 and self.on_their_way < (self.max_staleness + 1) * self.groups_per_step

    def start(self) -> None:
        """A group starts."""
        self.running += 1

    def put(self, group: Group) -> None:
        """A group has finished."""
        self.running -= 1
        if not group.signal and self._refills_left:
            self._refills_left -= 1
            self.filtered.append(group)
            return
        self.ready.append(group)
        self.ready.sort(key=lambda each: each.ticket)

    @property
    def full(self) -> bool:
        """Whether a step's groups are ready."""
        return len(self.ready) >= self.groups_per_step

    def take(self) -> tuple[list[Group], list[Group]]:
        """The oldest groups for one step, and the filtered ones since the step before.

        They count as being trained until `trained` is called.
        """
        self.steps_left -= 1
        groups = self.ready[: self.groups_per_step]
        self.ready = self.ready[self.groups_per_step :]
        filtered, self.filtered = self.filtered, []
        self.training += len(groups)
        self._refills_left = self.refills
        return groups, filtered

    def trained(self) -> None:
        """The groups taken have been trained."""
        self.training = 0
