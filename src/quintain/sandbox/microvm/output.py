"""What is kept of a command's output: everything, or its head and its tail with a mark between."""

from __future__ import annotations

from quintain.sandbox.command import MARK, cut
from quintain.sandbox.microvm import frames


class Output:
    """One stream of a command."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._told = bytearray()
        self._tail = b""
        self._untold = 0

    def add(self, data: bytes) -> None:
        """Takes what comes; the agent stops at the limit."""
        self._told += data

    def end(self, body: bytes) -> None:
        """Takes what the agent kept of the rest."""
        (self._untold,) = frames.TOTAL.unpack_from(body)
        self._tail = body[frames.TOTAL.size :]

    @property
    def truncated(self) -> bool:
        """Whether there was more than is kept."""
        return self._untold > 0

    @property
    def data(self) -> bytes:
        """What is kept."""
        if not self.truncated:
            return bytes(self._told)
        total = len(self._told) + self._untold
        head, mark, tail = cut(total, self._limit)
        end = self._tail
        if self._untold == len(self._tail):
            end = bytes(self._told) + self._tail
        if len(end) < tail:
            tail, mark = len(end), MARK % (total - head - len(end)) if mark else b""
        return bytes(self._told[:head]) + mark + end[len(end) - tail :]
