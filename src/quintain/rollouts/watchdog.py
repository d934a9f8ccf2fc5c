"""Tells when something blocks the event loop, and what.

Synchronous user functions never run on the loop; an `async def` that blocks inside (a
`time.sleep`, a long computation) still can. The watchdog's thread notices that the loop no longer
answers and logs the stack that holds it, once for each blockage.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from types import TracebackType

_log = logging.getLogger(__name__)

PATIENCE_S = 2.0
"""Seconds without an answer that count as blocked."""


class Watchdog:
    """Watches the running loop while its `async with` block is active."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self.patience_s = patience_s
        self.blockages: list[str] = []
        """A line for each blockage seen: for how long, and where."""
        self._beat = time.monotonic()
        self._end = threading.Event()
        self._handle: asyncio.TimerHandle | None = None
        self._thread_id = 0

    async def __aenter__(self) -> Watchdog:
        self._thread_id = threading.get_ident()
        self._tick(asyncio.get_running_loop())
        threading.Thread(target=self._watch, name="quintain-watchdog", daemon=True).start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        if self._handle is not None:
            self._handle.cancel()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._beat = time.monotonic()
        self._handle = loop.call_later(self.patience_s / 4, self._tick, loop)

    def _watch(self) -> None:
        told = 0.0
        while not self._end.wait(self.patience_s / 4):
            beat = self._beat
            late = time.monotonic() - beat
            if late > self.patience_s and told != beat:
                told = beat
                frame = sys._current_frames().get(self._thread_id)
                stack = traceback.extract_stack(frame) if frame is not None else []
                where = " <- ".join(f"{f.filename}:{f.lineno} {f.name}" for f in stack[::-1][:6])
                line = f"the event loop has been blocked for {late:.1f} s at {where}"
                self.blockages.append(line)
                _log.warning(
                    "%s; make the function synchronous (it then runs beside the loop)", line
                )
