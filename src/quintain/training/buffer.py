"""Pacing and buffer of the asynchronous loop: what may start, what is ready, what is trained next.

*Pacing.* A group may start only if it can still be fresh when it is trained: with P·G samples a
step and a bound of η versions, at most (η + 1)·P·G samples are on their way at a time, counting
those that run, wait and are being trained. First come, first trained, so each waits for at most η
updates. This is AReaL's admission rule (arXiv:2505.24298, section 5.1) without its running totals,
so that nothing can be wrong after a resume. Nothing starts either while a whole step's samples
wait unused: they would only grow old. Only the last η + 1 steps' samples start as early as they
may: nothing comes after them that could fill the time in which the slow ones are waited for.

*Slow members.* Pacing does not bound the age of a sample whose neighbour in the group is slow, and
with a heavy tail a third of all groups has a slow member. Dropping them would censor the slow
tasks. So a group is trained whole when it is complete; when its finished members would grow too
old by waiting, they are trained with the baseline of those known so far, and the slow ones when
they arrive, with the baseline of all. What then is too old is masked token by token by `batching`.

*Lost members.* One that samples no more (it is being judged), of which every token is too old
already and for whose reward no other member waits, cannot be of use: it is `hopeless`, and dropped
to free its place. A slow tool is no such case: what is sampled after it is fresh.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from quintain.training.groups import Group
from quintain.trajectory import Trajectory


@dataclass(slots=True)
class Open:
    """A group on its way."""

    ticket: int
    trajectories: list[Trajectory | None]
    trained: list[bool]
    sampled_by: list[int | None]
    """The oldest version that sampled a token of each member."""

    @property
    def complete(self) -> bool:
        """Whether every member has finished."""
        return all(trajectory is not None for trajectory in self.trajectories)

    @property
    def late(self) -> bool:
        """Whether some members have been trained before the others."""
        return any(self.trained)

    @property
    def waiting(self) -> list[int]:
        """Members that have finished and are not trained."""
        return [
            place
            for place, trajectory in enumerate(self.trajectories)
            if trajectory is not None and not self.trained[place]
        ]

    @property
    def oldest(self) -> int | None:
        """The oldest version that sampled a token of a waiting member."""
        versions = [self.sampled_by[place] for place in self.waiting]
        return min((version for version in versions if version is not None), default=None)

    def group(self, places: Collection[int]) -> Group:
        """The group as known now, of which some members are to be trained."""
        return Group(
            self.ticket,
            tuple(self.trajectories),
            tuple(place in places for place in range(len(self.trajectories))),
        )


@dataclass(slots=True)
class Buffer:
    """Counts samples on their way and orders those that are ready."""

    groups_per_step: int
    """P."""
    group_size: int
    """G."""
    max_staleness: int
    """η, in versions."""
    refills: int
    """Groups without signal that are replaced in one step, at most."""
    steps_left: int
    """Steps whose samples have not been taken yet."""
    version: int = 0
    """Of the learner."""
    open: dict[int, Open] = field(default_factory=dict)
    """By ticket, in the order of starting."""
    filtered: list[Group] = field(default_factory=list)
    """Without signal, replaced; they go with the next step's counts."""
    closed: list[int] = field(default_factory=list)
    """Tickets of groups that ended without a step's taking their last member."""
    training: int = 0
    """Samples that are being trained."""
    refilled: int = 0
    """Groups replaced since the last step was taken."""

    @property
    def step_size(self) -> int:
        """Samples of one step."""
        return self.groups_per_step * self.group_size

    @property
    def untrained(self) -> int:
        """Samples that run or wait."""
        return sum(group.trained.count(False) for group in self.open.values())

    @property
    def may_start(self) -> bool:
        """Whether one more group may start now."""
        on_their_way = self.untrained
        return (
            on_their_way < self.steps_left * self.step_size
            and on_their_way + self.training < (self.max_staleness + 1) * self.step_size
            and (self.steps_left <= self.max_staleness + 1 or not self.full)
        )

    def start(self, ticket: int, trained: Collection[int] = ()) -> None:
        """A group starts.

        Args:
            ticket: its number.
            trained: members that a former process has trained already.
        """
        size = self.group_size
        done = [place in trained for place in range(size)]
        self.open[ticket] = Open(ticket, [None] * size, done, [None] * size)

    def put(self, ticket: int, place: int, trajectory: Trajectory) -> None:
        """A member has finished."""
        group = self.open[ticket]
        group.trajectories[place] = trajectory
        group.sampled_by[place] = min(trajectory.versions, default=None)
        if group.complete and all(group.trained):
            # A former process had trained all but noted it too late.
            del self.open[ticket]
            self.closed.append(ticket)
        elif group.complete and not group.late and self.refilled < self.refills:
            whole = group.group(range(self.group_size))
            if not whole.signal:
                self.refilled += 1
                self.filtered.append(whole)
                del self.open[ticket]

    def hopeless(self, judged: Mapping[tuple[int, int], int]) -> list[tuple[int, int]]:
        """Members that cannot be of use any more; each as ticket and place.

        Args:
            judged: of each member that is being judged, the newest version that sampled a token.
        """
        return [
            (ticket, place)
            for (ticket, place), newest in judged.items()
            if (group := self.open.get(ticket)) is not None
            and group.trajectories[place] is None
            and not group.trained[place]
            and self.version - newest > self.max_staleness
            and group.late
            and not group.waiting
        ]

    def drop(self, ticket: int, place: int) -> None:
        """A member will not come: nothing of it is trained."""
        group = self.open[ticket]
        group.trained[place] = True
        if all(group.trained):
            del self.open[ticket]
            self.closed.append(ticket)

    def _releasable(self) -> Iterator[tuple[Open, list[int]]]:
        """What can be trained now: what can't wait, then late members, then complete groups."""
        due, late, complete = [], [], []
        for group in self.open.values():
            waiting = group.waiting
            if not waiting:
                continue
            if group.late:
                # Members still out don't keep those that arrived after the first were trained.
                late.append((group, waiting))
            elif group.complete:
                complete.append((group, waiting))
            else:
                oldest = group.oldest
                too_old_next = oldest is not None and self.version - oldest >= self.max_staleness
                if too_old_next and group.group(waiting).signal:
                    due.append((group, waiting))
        yield from due
        yield from late
        yield from sorted(complete, key=lambda each: each[0].ticket)

    @property
    def full(self) -> bool:
        """Whether a step's samples are ready."""
        ready = 0
        for _, places in self._releasable():
            ready += len(places)
            if ready >= self.step_size:
                return True
        return False

    def take(self) -> tuple[list[Group], list[Group]]:
        """The samples of one step, and the filtered groups since the step before.

        They count as being trained until `trained` is called.
        """
        room = self.step_size
        groups: list[Group] = []
        for group, places in list(self._releasable()):
            if not room:
                break
            chosen = places[:room]
            room -= len(chosen)
            groups.append(group.group(chosen))
            for place in chosen:
                group.trained[place] = True
            if all(group.trained):
                del self.open[group.ticket]
        self.training = self.step_size - room
        self.steps_left -= 1
        self.refilled = 0
        filtered, self.filtered = self.filtered, []
        return sorted(groups, key=lambda each: each.ticket), filtered

    def trained(self, version: int) -> None:
        """The samples taken have been trained; the learner's version now."""
        self.training = 0
        self.version = version

    @property
    def partial(self) -> dict[int, list[int]]:
        """Members trained of groups that are still open, by ticket."""
        return {
            ticket: [place for place, done in enumerate(group.trained) if done]
            for ticket, group in self.open.items()
            if group.late
        }
