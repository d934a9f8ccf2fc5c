"""What a sandbox may use up: bytes over its life, bytes and requests a second."""

from __future__ import annotations

import asyncio
import time

from quintain.task import NetworkPolicy

PATIENCE_S = 10.0
"""How long a request waits for its turn before it is refused."""


class Bucket:
    """Lets through `rate` a second, and as much at once as fits into `burst`.

    Who comes when it is empty waits for the turn that it has taken (a debt), so waiting is fair
    and what waits stays unread.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self.rate = rate
        self.burst = burst
        self._level = burst
        self._seen = time.monotonic()

    def take(self, amount: float) -> float:
        """Takes an amount; returns the seconds to wait before using it."""
        now = time.monotonic()
        self._level = min(self.burst, self._level + (now - self._seen) * self.rate)
        self._seen = now
        self._level -= amount
        return max(0.0, -self._level / self.rate)

    def give_back(self, amount: float) -> None:
        """Undoes a `take`."""
        self._level += amount


class Meter:
    """Counts what one sandbox uses."""

    def __init__(self, policy: NetworkPolicy) -> None:
        self.max_bytes = policy.max_bytes
        self.up = 0
        """Bytes towards the network."""
        self.down = 0
        self._requests = Bucket(policy.requests_per_s, max(1.0, policy.requests_per_s))
        rate = policy.bytes_per_s
        self._bytes = Bucket(rate, max(rate / 4, 1)) if rate else None

    @property
    def used_up(self) -> bool:
        """Whether no byte may pass any more."""
        return self.max_bytes is not None and self.up + self.down >= self.max_bytes

    def grant(self, size: int, *, up: bool) -> int:
        """Counts bytes that are to pass; returns how many of them may."""
        if self.max_bytes is not None:
            size = max(0, min(size, self.max_bytes - self.up - self.down))
        if up:
            self.up += size
        else:
            self.down += size
        return size

    async def pace(self, size: int) -> None:
        """Waits as long as bytes that have just passed take at the allowed rate."""
        if self._bytes is not None:
            wait_s = self._bytes.take(size)
            if wait_s:
                await asyncio.sleep(wait_s)

    async def turn(self) -> bool:
        """Waits for the turn of a request; False if that would take too long."""
        wait_s = self._requests.take(1)
        if wait_s > PATIENCE_S:
            self._requests.give_back(1)
            return False
        if wait_s:
            await asyncio.sleep(wait_s)
        return True
