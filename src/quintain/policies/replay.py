"""A policy that does again what a stored trajectory did, and says where the world differs.

It reproduces a failure without a model, re-runs an environment that was changed, and shows whether
an environment is deterministic: the first observation that differs from the stored one is kept as a
`Divergence`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quintain.errors import ConfigError, PolicyRefused
from quintain.messages import Message, Sampling, ToolSpec
from quintain.policies.scripted import remember
from quintain.trajectory import Action, Trajectory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first message that differs from the stored one."""

    task_id: str
    session: str
    step: int
    """Calls of the policy before it."""
    index: int
    """Of the message in the conversation."""
    expected: Message | None
    """None: the stored conversation had no such message."""
    got: Message | None

    def __str__(self) -> str:
        return (
            f"task {self.task_id!r}, step {self.step}, message {self.index}: "
            f"expected {_brief(self.expected)}, got {_brief(self.got)}"
        )


def _brief(message: Message | None) -> str:
    if message is None:
        return "no message"
    said = message.text or " ".join(result.text for result in message.tool_results)
    return f"{message.role} {said[:120]!r}"


class Replay:
    """Replays stored trajectories.

    A session replays the first unused trajectory that opens with the same messages; samples of one
    task are handed out in their order. With one trajectory only, that one is taken whatever the
    opening, and a differing opening is a divergence.

    Args:
        trajectories: one, or all of a run.
        strict: raise at the first divergence instead of going on with the stored actions.
        name: of the policy.
    """

    def __init__(
        self,
        trajectories: Trajectory | Iterable[Trajectory],
        *,
        strict: bool = False,
        name: str = "replay",
    ) -> None:
        stored = (trajectories,) if isinstance(trajectories, Trajectory) else tuple(trajectories)
        if not stored:
            raise ConfigError("there is no trajectory to replay")
        self.name = name
        self.version = 0
        self.strict = strict
        self.divergences: dict[str, Divergence] = {}
        """The first divergence of each session."""
        self._stored = stored
        self._conversations = [trajectory.messages for trajectory in stored]
        self._by_text: dict[str, list[int]] = {}
        for index, trajectory in enumerate(stored):
            self._by_text.setdefault(_key(trajectory.opening.messages), []).append(index)
        self._used: dict[str, int] = {}
        self._playing: OrderedDict[str, tuple[int, int]] = OrderedDict()

    @property
    def divergence(self) -> Divergence | None:
        """The first divergence of all; None while the world agrees."""
        return next(iter(self.divergences.values()), None)

    async def act(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        seed: int,
        session: str,
    ) -> Action:
        """The stored action, after comparing the conversation so far.

        Raises:
            PolicyRefused: nothing stored to replay, or (strict) the first divergence.
        """
        if session not in self._playing:
            remember(self._playing, session, (self._choose(messages), 0))
        which, step = self._playing[session]
        trajectory = self._stored[which]
        if step >= len(trajectory.steps):
            raise PolicyRefused(
                f"task {trajectory.task_id!r}: the stored trajectory has {len(trajectory.steps)} "
                f"steps and the episode asks for one more; {self.divergences.get(session, '')}"
            )
        self._compare(messages, which, step, session)
        remember(self._playing, session, (which, step + 1))
        return trajectory.steps[step].action

    def _choose(self, messages: Sequence[Message]) -> int:
        if len(self._stored) == 1:
            return 0
        key = _key(messages)
        matching = self._by_text.get(key, [])
        taken = self._used.get(key, 0)
        if taken >= len(matching):
            raise PolicyRefused(
                f"{len(matching)} of {len(self._stored)} stored trajectories open with these "
                f"messages, number {taken + 1} is asked for: {_brief(messages[-1])}"
            )
        self._used[key] = taken + 1
        return matching[taken]

    def _compare(self, messages: Sequence[Message], which: int, step: int, session: str) -> None:
        if session in self.divergences:
            return
        trajectory = self._stored[which]
        length = len(trajectory.opening.messages) + sum(
            1 + len(done.observation.messages) for done in trajectory.steps[:step]
        )
        expected = self._conversations[which][:length]
        if tuple(messages) == expected:
            return
        index = next(
            (i for i, (a, b) in enumerate(zip(expected, messages, strict=False)) if a != b),
            min(len(expected), len(messages)),
        )
        found = Divergence(
            task_id=trajectory.task_id,
            session=session,
            step=step,
            index=index,
            expected=expected[index] if index < len(expected) else None,
            got=messages[index] if index < len(messages) else None,
        )
        self.divergences[session] = found
        logger.warning("replay diverges: %s", found)
        if self.strict:
            raise PolicyRefused(f"the replay diverges: {found}")

    async def close(self) -> None:
        """Forgets who plays what; divergences stay. May be called twice."""
        self._playing.clear()
        self._used.clear()


def _key(messages: Sequence[Message]) -> str:
    return "\n".join(message.model_dump_json() for message in messages)
