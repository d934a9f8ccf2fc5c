"""Whatever a sandbox sends: only listed hosts are reached, and they get what is well formed."""

from __future__ import annotations

import asyncio
import logging
import socket

import h11
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hellos import client_hello
from quintain.sandbox.network import Gate
from quintain.sandbox.network.dial import Dialer, Line
from quintain.sandbox.network.hello import BadHello, read_hello
from quintain.sandbox.network.names import BadName, Rules, canonical, is_public
from quintain.task import NetworkPolicy

POLICY = NetworkPolicy(hosts=["site.test", "*.wild.test", "other.test:8080"])
ALLOWED = {("site.test", 80), ("site.test", 443), ("other.test", 8080)}


class Recording(Dialer):
    """Connects to a socket of the test, and keeps what each host would have got."""

    def __init__(self):
        async def resolve(name):
            return [name]

        super().__init__(resolve, {})
        self.calls = []

    async def connect(self, name, port, *, private, tunnel):
        ours, theirs = socket.socketpair()
        server, _ = await asyncio.open_connection(sock=theirs)
        self.calls.append((name, port, tunnel, asyncio.ensure_future(self._serve(server, _))))
        return Line(*await asyncio.open_connection(sock=ours))

    async def _serve(self, reader, writer):
        got = b""
        try:
            got = await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            while data := await reader.read(65536):
                got += data
        except asyncio.IncompleteReadError as error:
            got = error.partial
        except OSError:
            pass
        writer.close()
        return got


async def send(data):
    dialer = Recording()
    gate = Gate(POLICY, Rules.of(POLICY), dialer)
    ours, theirs = socket.socketpair()
    gate.connected(theirs)
    reader, writer = await asyncio.open_connection(sock=ours)
    try:
        writer.write(data)
        writer.write_eof()
        async with asyncio.timeout(20):
            await reader.read(-1)
    except ConnectionError:
        pass
    writer.close()
    while gate.connections:
        await asyncio.sleep(0)
    await gate.close()
    return [(name, port, tunnel, await got) for name, port, tunnel, got in dialer.calls]


def is_listed(name, port):
    below = name.endswith(".wild.test") and port in (80, 443)
    return below or (name, port) in ALLOWED


def check(data, calls):
    for name, port, tunnel, got in calls:
        assert is_listed(name, port), (data, name, port)
        if tunnel:
            hello = read_hello(got)
            assert got == b"" or (hello is not None and canonical(hello[0].name) == name), data
            continue
        talk = h11.Connection(h11.SERVER)
        talk.receive_data(got)
        request = talk.next_event()
        assert isinstance(request, h11.Request), (data, got)
        hosts = [value.decode() for key, value in request.headers if key == b"host"]
        assert hosts == [name if port == 80 else f"{name}:{port}"], (data, got)
        assert request.target.startswith(b"/"), (data, got)
        lengths = {b"content-length", b"transfer-encoding"}
        assert sum(key in lengths for key, _ in request.headers) <= 1, (data, got)
        while not isinstance(event := talk.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                return  # the sandbox hung up in the middle
            assert isinstance(event, h11.Data), (data, got)
        assert talk.trailing_data[0] == b"", (data, got)


HOSTS = [
    "site.test", "a.wild.test", "wild.test", "other.test", "evil.test", "127.0.0.1", "[::1]",
         "localhost", "SITE.test.", "site.test@evil.test", "evil.test#site.test", "0x7f.1", "",
         "evil-wild.test", "site.test%00", "2130706433", "site.test:8080", "[::ffff:7f00:1]",
]  # fmt: skip
host = st.sampled_from(HOSTS) | st.text("aeilstvw.:-@#/[]%", max_size=12)
port = st.sampled_from(["", ":80", ":443", ":8080", ":0", ":65536", ":", ":80:80", ":+80"])
authority = st.builds(str.__add__, host, port)
path = st.sampled_from(["/", "", "/a?b#c", "?x", "/../", "//evil.test/", "\\evil.test", " /"])
scheme = st.sampled_from(["http://", "HTTP://", "https://", "http:/", "http:", "//", "", "ftp://"])
method = st.just("CONNECT") | st.sampled_from(
    ["POST", "HEAD", "OPTIONS", "TRACE", "get", "PRI", ""]
)
header = st.sampled_from([
    "Content-Length: 5", "Content-Length: 0", "Content-Length: 5, 5", "Content-Length: -1",
    "Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding : chunked",
    "Connection: close", "Connection: host, content-length", "Upgrade: h2c", "Expect: 100-continue",
    "Proxy-Connection: keep-alive", "X: y\r\n folded", "X\x0b: y", "Host: evil.test", ": x", "X",
])  # fmt: skip
body = st.sampled_from(
    ["", "hello", "5\r\nhello\r\n0\r\n\r\n", "0\r\n\r\n", "5;x\r\nhello\r\n0\r\n"]
)
end = st.sampled_from(["\r\n", "\n", "\r", "\r\n\r\n", ""])


@st.composite
def requests(draw):
    def mostly(good, other):
        return good if draw(st.integers(0, 9)) < 8 else draw(other)

    where = mostly("site.test", authority)
    verb = mostly("GET", method)
    target = where if verb == "CONNECT" else mostly("http://", scheme) + where + mostly("/", path)
    version = mostly("1.1", st.sampled_from(["1.0", "2.0", "1.1 "]))
    lines = [f"{verb} {target} HTTP/{version}", f"Host: {mostly(where, authority)}"]
    lines += draw(st.lists(header, max_size=2))
    eol = mostly("\r\n", end)
    data = (eol.join(lines) + eol * 2 + draw(body)).encode("latin-1", "replace")
    if verb == "CONNECT":
        data += client_hello(mostly("site.test", st.sampled_from([where[:200], "evil.test", None])))
    return data


def mutate(data, at, piece, cut):
    at %= len(data) + 1
    return data[:at] + piece + data[at + cut :]


streams = st.lists(requests(), min_size=1, max_size=3).map(b"".join)
odd = st.builds(mutate, streams, st.integers(0, 4000), st.binary(max_size=4), st.integers(0, 4))


@pytest.fixture(scope="module")
def runner():
    told = []
    handler = logging.Handler()
    handler.emit = told.append
    logging.getLogger("quintain.sandbox.network.gate").addHandler(handler)
    with asyncio.Runner() as runner:
        yield runner
    logging.getLogger("quintain.sandbox.network.gate").removeHandler(handler)
    assert not told, "the proxy itself failed"


@settings(
    max_examples=300, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(data=streams | odd)
def test_only_what_is_listed_is_reached(runner, data):
    check(data, runner.run(send(data)))


def test_what_is_listed_is_reached(runner):
    """The property is not true for want of connections."""
    good = b"GET http://site.test/ HTTP/1.1\r\nHost: site.test\r\n\r\n"
    below = b"GET http://a.b.wild.test/x HTTP/1.1\r\nHost: A.B.wild.test.:80\r\n\r\n"
    tunnel = b"CONNECT site.test:443 HTTP/1.1\r\nHost: site.test:443\r\n\r\n"
    calls = runner.run(send(good + below + tunnel + client_hello("SITE.test", pieces=5)))
    assert [call[:3] for call in calls] == [
        ("site.test", 80, False), ("a.b.wild.test", 80, False), ("site.test", 443, True),
    ]  # fmt: skip
    assert all(got for *_, got in calls)
    check(b"", calls)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(name=st.text(max_size=20) | st.sampled_from(HOSTS), number=st.integers(0, 0xFFFFFFFF))
def test_a_name_has_one_spelling(name, number):
    try:
        once = canonical(name)
    except BadName:
        return
    again = canonical(f"[{once}]" if ":" in once else once)
    assert again == once
    assert once.isascii()
    assert once == once.lower()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.binary(max_size=80), pieces=st.integers(1, 20), at=st.integers(0, 300))
def test_a_hello_is_read_or_refused(data, pieces, at):
    hello = client_hello("site.test", pieces=pieces)
    found, length = read_hello(hello + data)
    assert (found.name, length) == ("site.test", len(hello))
    assert read_hello(hello[: at % len(hello)]) is None
    try:
        broken = read_hello(mutate(hello, at, data[:3], 3))
    except BadHello:
        return
    assert broken is None or broken[0].name is None or broken[0].name.isascii()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(number=st.integers(0, 0xFFFFFFFF))
def test_an_address_inside_an_address_is_what_it_is(number):
    plain = ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))
    assert is_public(f"::ffff:{plain}") == is_public(plain)
    assert is_public(f"64:ff9b::{plain}") == is_public(plain)
    assert not is_public(f"::{plain}")
    assert not is_public(f"2002:{number >> 16:x}:{number & 0xFFFF:x}::1")


def test_addresses_that_are_not_public():
    for address in (
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1",
        "0.0.0.0", "255.255.255.255", "224.0.0.1", "240.0.0.1", "192.0.2.1", "198.18.0.1", "::1",
        "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1", "::",
        "64:ff9b:1::1", "2001::1", "fec0::1", "100::1", "64:ff9b::a9fe:a9fe",
    ):  # fmt: skip
        assert not is_public(address), address
    for address in ("8.8.8.8", "2606:4700::1", "64:ff9b::808:808", "1.1.1.1"):
        assert is_public(address), address
