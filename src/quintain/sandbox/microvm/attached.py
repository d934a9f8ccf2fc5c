"""A session's process in a guest: the agent holds pipes and script, frames carry the rest."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quintain.errors import SandboxError
from quintain.sandbox.attached import KILLED, PATIENCE_S, START_S, Attached
from quintain.sandbox.command import Ended, Kept
from quintain.sandbox.microvm import frames
from quintain.sandbox.microvm.guest import Running

if TYPE_CHECKING:
    from quintain.sandbox.microvm.sandbox import MicrovmSandbox

MAX_SCRIPT_BYTES = 4 << 20
"""It lies in the agent's memory."""


class GuestAttached(Attached):
    """A process of a microVM.

    Args:
        sandbox: where it runs.
        max_answer_bytes: an answer that grows beyond is taken for the end of the process.
    """

    out: Kept
    err: Kept

    def __init__(self, sandbox: MicrovmSandbox, max_answer_bytes: int) -> None:
        super().__init__(max_answer_bytes)
        self._sandbox = sandbox
        self._guest = sandbox.machine.guest
        self._running: Running | None = None
        self._ending: asyncio.Task[None] | None = None
        limit = sandbox.spec.max_output_bytes
        self.out, self.err = Kept(limit), Kept(limit)
        self.slowness = sandbox.slowness

    @property
    def current(self) -> bool:
        """Whether it belongs to the sandbox as it is now (a restored one has new processes)."""
        return self._guest is self._sandbox.machine.guest

    async def start(self, argv: Sequence[str]) -> None:
        """Starts it."""
        running = self._running = await self._sandbox.start(argv, attached=True)
        self._sandbox.attached.add(self)
        self.out, self.err = running.out, running.err
        running.answered = self._answered
        # A machine that dies answers nothing any more, and a program that is not there never did.
        running.ended.add_done_callback(lambda _: self._answered(b""))
        await running.feed(b"")

    async def ask(self, script: bytes, word: bytes) -> None:
        """Puts the script there and says so; answers to nothing are forgotten."""
        if len(script) > MAX_SCRIPT_BYTES:
            raise ValueError(
                f"{len(script)} bytes to run at once, a microVM's session takes "
                f"{MAX_SCRIPT_BYTES}: write a file and run that"
            )
        assert self._running is not None
        self._buffer.clear()
        await self._guest.send(frames.ASK, self._running.number, frames.words([script, word]))

    async def interrupt(self, signal: int) -> None:
        """Signals it, and kills what was born below it since it was last asked."""
        assert self._running is not None
        await self._running.kill(self.pid, signal)

    async def settle(self) -> None:
        """Nothing to wait for: the agent does one thing after the other."""

    async def ended(self) -> Ended:
        """How it ended, as the agent says, once its whole tree is gone."""
        running = self._running
        if running is None:
            return KILLED
        for wait_s in (PATIENCE_S, START_S):
            try:
                async with asyncio.timeout(wait_s * self.slowness):
                    return (await asyncio.shield(running.ended)).ended
            except TimeoutError:
                await running.kill()
        raise SandboxError(f"a session did not end within {START_S * self.slowness:g} s")

    async def kill(self) -> None:
        """Kills it with everything below it, and waits for that; its output can still be taken."""
        if self._running is None or self._guest.broken or not self.current:
            return
        await self._running.kill()
        await self.ended()

    def close(self) -> None:
        """Hangs up, which kills the process and everything below it."""
        self._sandbox.attached.discard(self)
        running, self._running = self._running, None
        self._answered(b"")
        if running is None:
            return
        self._guest.forget(running.number)
        if not running.ended.done() and not self._guest.broken:
            self._ending = asyncio.create_task(_kill(running))


async def _kill(running: Running) -> None:
    with contextlib.suppress(SandboxError):
        await running.kill()
