"""Where the members of a group meet to be judged together.

A verifier of groups compares the G trajectories of one task, so none of them has a verdict before
all are played. Each attempt hands in its context and waits, its sandbox still open, but without
its place among the rollouts that run at once; the last to come, or the last to drop out, starts
the judgement.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from quintain.errors import VerifierError, boundary
from quintain.protocols import GroupVerifier, JudgeContext
from quintain.verdict import Verdict


class Gathering:
    """The judgement of one group; single use.

    Args:
        verifier: judges them together.
        places: of the members that are still to be played.
        judge_s: deadline of one member's verdict; a group has that for each member.
        gather_s: the longest wait for the others, after which a member fails with a
            `VerifierError`.
        slots: what bounds the rollouts that run at once; a member that waits gives its place back.
        judged: contexts of members that are done already: seen by the verifier, not judged again.
    """

    def __init__(
        self,
        verifier: GroupVerifier,
        places: Sequence[int],
        *,
        judge_s: float,
        gather_s: float,
        slots: asyncio.Semaphore | None = None,
        judged: Sequence[JudgeContext] = (),
    ) -> None:
        self.verifier = verifier
        self.judge_s = judge_s
        self.gather_s = gather_s
        self.slots = slots
        self.judged = tuple(judged)
        self._missing = set(places)
        self._come: dict[int, JudgeContext] = {}
        self._verdicts: asyncio.Future[dict[int, Verdict]] | None = None
        self._judging: asyncio.Task[None] | None = None

    async def judge(self, place: int, context: JudgeContext) -> Verdict:
        """The verdict of one member, once all have come.

        Raises:
            VerifierError: the others did not come in time, or the group could not be judged.
        """
        if self._verdicts is None:
            self._verdicts = asyncio.get_running_loop().create_future()
        if self._judging is not None:
            # It gave up waiting, was tried again and comes late: judged beside those who are done.
            return (await self._judge_all([context]))[0]
        self._come[place] = context
        self._missing.discard(place)
        waiting = self._verdicts
        if self.slots is not None:
            self.slots.release()
        try:
            self._begin_when_all_came()
            async with asyncio.timeout(self.gather_s) as limit:
                return (await asyncio.shield(waiting))[place]
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise VerifierError(
                f"{self.verifier.name}: the group was not judged within {self.gather_s:g} s"
            ) from error
        finally:
            if self._judging is None:
                self._come.pop(place, None)
            if self.slots is not None:
                await self.slots.acquire()

    def leave(self, place: int) -> None:
        """A member will not come (any more): the others need not wait for it."""
        self._missing.discard(place)
        self._begin_when_all_came()

    def _begin_when_all_came(self) -> None:
        if not self._missing and self._come and self._judging is None:
            self._judging = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        assert self._verdicts is not None
        waiting, places = self._verdicts, sorted(self._come)
        contexts = [self._come[place] for place in places]
        try:
            verdicts = await self._judge_all(contexts)
        except Exception as error:
            # All of them fail, and gather again where they are tried again.
            self._missing, self._come = set(places), {}
            self._verdicts = self._judging = None
            waiting.set_exception(error)
            waiting.exception()  # marks it as seen, should nobody wait any more
            return
        self.judged += tuple(replace(context, sandbox=None) for context in contexts)
        waiting.set_result(dict(zip(places, verdicts, strict=True)))

    async def _judge_all(self, contexts: Sequence[JudgeContext]) -> list[Verdict]:
        wait_s = self.judge_s * len(contexts)
        deadline = time.monotonic() + wait_s
        everyone = [replace(context, deadline=deadline) for context in (*contexts, *self.judged)]
        with boundary(VerifierError, f"verifier {self.verifier.name}"):
            async with asyncio.timeout(wait_s):
                verdicts = await self.verifier.judge_group(everyone)
        if len(verdicts) != len(everyone):
            raise VerifierError(
                f"{self.verifier.name} gave {len(verdicts)} verdicts to a group of {len(everyone)}"
            )
        return list(verdicts[: len(contexts)])

    async def close(self) -> None:
        """Ends a judgement that nobody waits for any more."""
        if self._judging is not None and not self._judging.done():
            self._judging.cancel()
            await asyncio.wait([self._judging])
