"""Limits of one sandbox's network, and a log that stays bounded."""

from __future__ import annotations

import asyncio
import time

import pytest

from loopback import Site, say
from quintain.errors import ConfigError
from quintain.sandbox.network import limits
from quintain.sandbox.network.limits import Bucket, Meter
from quintain.sandbox.network.names import Rules
from quintain.sandbox.network.record import MOST_EVENTS, MOST_HOSTS, NetworkLog
from quintain.task import NetworkPolicy


def test_a_bucket_lets_its_rate_through():
    bucket = Bucket(rate=0.001, burst=5)
    waits = [bucket.take(1) for _ in range(10)]
    assert waits[:5] == [0] * 5
    # The sixth owes what one takes, the tenth five times that.
    assert waits[5] == pytest.approx(1000, rel=0.05)
    assert waits[9] == pytest.approx(5000, rel=0.05)


async def test_too_many_requests_are_refused_after_a_while(monkeypatch, way_out):
    monkeypatch.setattr(limits, "PATIENCE_S", 0.0)
    async with Site() as site:
        where = f"site.test:{site.port}"
        gate, port = await way_out(private_hosts=[where], requests_per_s=1)
        request = f"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\n\r\n".encode()
        answers = [await say(port, request, wait=False) for _ in range(3)]
    codes = [answer[9:12] for answer in answers]
    assert codes[0] == b"200"
    assert b"429" in codes
    assert "too many requests" in {event.data["reason"] for event in gate.log.events()}


async def test_what_is_over_the_rate_waits():
    meter = Meter(NetworkPolicy(hosts=["a.test"], bytes_per_s=1_000_000))
    began = time.monotonic()
    for _ in range(5):
        await meter.pace(100_000)
    # A quarter of a second's worth is free; the rest takes its time.
    assert time.monotonic() - began >= 0.24


async def test_a_slow_reader_holds_up_the_host(way_out):
    """What the sandbox does not take is not read from the host either."""
    sent = 0

    async def pour(reader, writer):
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while sent < 200_000_000:
                writer.write(bytes(65536))
                await writer.drain()
                sent += 65536
        except ConnectionError:
            pass

    server = await asyncio.start_server(pour, "127.0.0.1", 0)
    where = f"site.test:{server.sockets[0].getsockname()[1]}"
    gate, port = await way_out(private_hosts=[where])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=65536)
    writer.write(f"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\n\r\n".encode())
    await reader.read(100)
    before = -1
    while before != sent:
        before = sent
        await asyncio.sleep(0.3)
    assert 0 < sent < 50_000_000, "only what buffers hold"
    assert gate.meter.down <= sent
    writer.transport.abort()
    server.close()


def test_the_log_is_bounded():
    log = NetworkLog()
    for at in range(3 * MOST_EVENTS):
        request = log.begin()
        request.host, request.decision, request.up = f"h{at}.test", "refused", 2
        log.end(request)
    events = log.events()
    assert len(events) == MOST_EVENTS + 1
    rest = events[-1].data
    assert events[-1].kind == "network.rest"
    assert rest["requests"] == 2 * MOST_EVENTS
    assert rest["up"] == 4 * MOST_EVENTS
    assert len(rest["counts"]) <= MOST_HOSTS + 1
    assert sum(count["requests"] for count in rest["counts"]) == 2 * MOST_EVENTS


def test_what_is_under_way_is_told():
    told = []
    log = NetworkLog(told.append)
    request = log.begin()
    assert log.events()[0].data["decision"] == "open"
    request.decision = "allowed"
    log.end(request)
    log.end(request)
    assert [event.data["decision"] for event in told] == ["allowed"]


@pytest.mark.parametrize(
    "entry", ["*", "*.", ".test", "a..test", "-a.test", "300.1.1.1", "1.2", "*.1.2.3.4", "a:99999",
              "a:b", "[::1", "::1", "a" * 64 + ".test", "a:", "[fe80::1%eth0]"],
)  # fmt: skip
def test_an_entry_that_is_no_host_is_told(entry):
    with pytest.raises((ConfigError, ValueError), match="host"):
        Rules.of(NetworkPolicy(hosts=[entry]))


def test_entries_have_one_spelling():
    rules = Rules.of(NetworkPolicy(hosts=["BÜCHER.example.", "*.Wild.Test:8443", "[::FFFF]:80"]))
    assert rules.decide("xn--bcher-kva.example", 443) == ("", False)
    assert rules.decide("a.wild.test", 8443) == ("", False)
    assert rules.decide("a.wild.test", 443)[0] == "port 443 is not allowed"
    assert rules.decide("::ffff", 80) == ("", False)
    assert rules.decide("::ffff", 443)[0]
    assert rules.decide("wild.test", 8443)[0] == "not listed"


def test_open_means_public_names():
    policy = NetworkPolicy(mode="open", private_hosts=["lab.internal:8000", "10.0.0.7:1"])
    rules = Rules.of(policy)
    assert rules.decide("example.org", 443) == ("", False)
    assert rules.decide("example.org", 22)[0]
    for name in ("localhost", "printer", "a.local", "lab.internal", "8.8.8.8", "::1"):
        assert rules.decide(name, 443)[0], name
    assert rules.decide("lab.internal", 8000) == ("", True)
    assert rules.decide("10.0.0.7", 1) == ("", True)


async def test_refused_and_empty_connections_take_their_turns(monkeypatch, way_out):
    monkeypatch.setattr(limits, "PATIENCE_S", 0.0)
    gate, port = await way_out(hosts=["example.org"], requests_per_s=3)
    refused = b"GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n"
    assert await say(port, wait=False) == b""
    codes = [(await say(port, one))[9:12] for one in (refused, b"nonsense\r\n\r\n", refused)]
    assert codes == [b"403", b"400", b"429"]
    assert [event.data["reason"] for event in gate.log.events()][-1] == "too many requests"


def test_a_log_that_is_read_empty_starts_its_clock_anew():
    log = NetworkLog(began=time.monotonic() - 1000)
    assert log.events() == []
    log.end(log.begin())
    assert log.events()[0].at_s < 900
