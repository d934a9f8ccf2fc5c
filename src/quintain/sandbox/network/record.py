"""What a sandbox asked for and got, kept as events: the first ones whole, the rest summed up."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from quintain.record import Json
from quintain.trajectory import Event

MOST_EVENTS = 256
"""Kept whole; what comes later is counted by host and decision."""
MOST_HOSTS = 64
REQUEST, REST = "network.request", "network.rest"


@dataclass(slots=True)
class Request:
    """One request or tunnel."""

    at: float
    method: str = ""
    host: str = ""
    """In its one spelling where it has one; else as it came, cut."""
    port: int = 0
    decision: str = "open"
    """`allowed`, `refused`, `failed` (allowed, but no whole answer came) or `open` (under way)."""
    reason: str = ""
    up: int = 0
    """Bytes towards the host."""
    down: int = 0
    status: int = 0
    """Of the host's answer; 0: none seen, or a tunnel."""
    wall_s: float = 0.0
    whole: bool = True
    """Whether it is kept as an event of its own."""

    def data(self) -> dict[str, Json]:
        """As the event's data."""
        return {
            "method": self.method,
            "host": self.host,
            "port": self.port,
            "decision": self.decision,
            "reason": self.reason,
            "up": self.up,
            "down": self.down,
            "status": self.status,
            "wall_s": round(self.wall_s, 4),
        }


@dataclass(slots=True)
class NetworkLog:
    """Every request of one sandbox, bounded."""

    on_event: Callable[[Event], None] | None = None
    """Called with each request as it ends."""
    began: float = field(default_factory=time.monotonic)
    kept: list[Request] = field(default_factory=list)
    _open: dict[int, Request] = field(default_factory=dict)
    _rest: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _rest_bytes: list[int] = field(default_factory=lambda: [0, 0])

    def begin(self) -> Request:
        """A request that has just come."""
        request = Request(at=time.monotonic() - self.began)
        request.whole = len(self.kept) < MOST_EVENTS
        if request.whole:
            self.kept.append(request)
        self._open[id(request)] = request
        return request

    def end(self, request: Request) -> None:
        """It is over: nothing of it changes any more."""
        if self._open.pop(id(request), None) is None:
            return
        request.wall_s = time.monotonic() - self.began - request.at
        if not request.whole:
            self._sum_up(request)
        if self.on_event is not None:
            self.on_event(self._event(request))

    def _sum_up(self, request: Request) -> None:
        key = (request.host, request.decision, request.reason[:80])
        if key not in self._rest and len(self._rest) >= MOST_HOSTS:
            key = ("others", request.decision, "")
        self._rest[key] += 1
        self._rest_bytes[0] += request.up
        self._rest_bytes[1] += request.down

    def _event(self, request: Request) -> Event:
        return Event(kind=REQUEST, at_s=request.at, data=request.data())

    def events(self) -> list[Event]:
        """All so far, those under way included; while there are none, the clock starts anew."""
        if not self.kept:
            self.began = time.monotonic()
        found = [self._event(request) for request in self.kept]
        if self._rest:
            counts: list[Json] = [
                {"host": host, "decision": decision, "reason": reason, "requests": count}
                for (host, decision, reason), count in self._rest.most_common()
            ]
            up, down = self._rest_bytes
            data: dict[str, Json] = {"requests": self._rest.total(), "up": up, "down": down}
            at_s = time.monotonic() - self.began
            found.append(Event(kind=REST, at_s=at_s, data={**data, "counts": counts}))
        return found
