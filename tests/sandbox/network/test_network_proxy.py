"""The proxy: HTTP and TLS to what is listed, and to nothing else."""

from __future__ import annotations

import asyncio
import socket
import ssl

import h11
import pytest

from loopback import Names, Site, say
from quintain.sandbox.network import Proxy
from quintain.task import NetworkPolicy


def get(host, *, header=None, path="/", rest=""):
    return f"GET http://{host}{path} HTTP/1.1\r\nHost: {header or host}\r\n{rest}\r\n".encode()


def decisions(gate):
    return [(event.data["decision"], event.data["reason"]) for event in gate.log.events()]


async def tls(port, target, authority, *, name=None, send=b"GET / HTTP/1.1\r\n\r\n"):
    """One TLS exchange through a tunnel; returns the proxy's answer and the host's."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200" not in head:
            return head, b""
        await writer.start_tls(authority.client(), server_hostname=name or target.split(":")[0])
        writer.write(send)
        return head, await reader.read(-1)
    finally:
        writer.close()


async def test_http_to_a_listed_host(way_out):
    async with Site() as site:
        gate, port = await way_out(private_hosts=[f"site.test:{site.port}"])
        answer = await say(port, get(f"site.test:{site.port}", path="/a?b=c"), wait=False)
    assert answer.startswith(b"HTTP/1.1 200"), answer
    assert answer.endswith(b"hello")
    assert site.got[0].startswith(b"GET /a?b=c HTTP/1.1\r\nHost: site.test:"), site.got
    (event,) = gate.log.events()
    assert event.kind == "network.request"
    assert event.data["decision"] == "allowed"
    assert (event.data["host"], event.data["port"]) == ("site.test", site.port)
    assert event.data["status"] == 200
    assert event.data["up"] == len(site.got[0])
    assert event.data["down"] == len(site.answer)


async def test_an_unlisted_host_is_refused_and_not_resolved(way_out, names):
    gate, port = await way_out(hosts=["example.org"])
    answer = await say(port, get("other.test"))
    assert answer.startswith(b"HTTP/1.1 403"), answer
    assert b"not listed" in answer
    assert names.asked == []
    assert decisions(gate) == [("refused", "not listed")]


async def test_tls_to_a_listed_host(way_out, authority):
    async with Site(context=authority.server("site.test")) as site:
        gate, port = await way_out(private_hosts=[f"site.test:{site.port}"])
        head, answer = await tls(port, f"site.test:{site.port}", authority)
    assert b" 200" in head
    assert answer.endswith(b"hello")
    (event,) = gate.log.events()
    assert event.data["method"] == "CONNECT"
    assert event.data["decision"] == "allowed"
    assert event.data["up"] > 100
    assert event.data["down"] > 500


async def test_tls_that_names_another_host_is_closed(way_out, authority):
    async with Site(context=authority.server("site.test", "other.test")) as site:
        gate, port = await way_out(private_hosts=[f"site.test:{site.port}"])
        with pytest.raises(ssl.SSLError, match=r"(?i)access.denied"):
            await tls(port, f"site.test:{site.port}", authority, name="other.test")
        await asyncio.sleep(0.05)
    assert all(not got for got in site.got)
    assert decisions(gate)[0][0] == "refused"
    assert "other.test" in decisions(gate)[0][1]


async def test_a_second_request_on_one_connection_is_decided_anew(way_out):
    async with Site() as site, Site() as other:
        gate, port = await way_out(private_hosts=[f"site.test:{site.port}"])
        good, bad = get(f"site.test:{site.port}"), get(f"other.test:{other.port}")
        answer = await say(port, good + good + bad + good)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.count(b"HTTP/1.1 403") == 1
    assert other.got == []
    assert [decision for decision, _ in decisions(gate)] == ["allowed", "allowed", "refused"]


async def test_a_public_host_must_have_a_public_address(way_out):
    async with Site() as site:
        for mode in ({"hosts": [f"site.test:{site.port}"]}, {"mode": "open", "ports": [site.port]}):
            gate, port = await way_out(**mode)
            answer = await say(port, get(f"site.test:{site.port}"))
            assert b"its address is not public" in answer, answer
            assert decisions(gate)[0][0] == "refused"
    assert site.got == []


async def test_a_body_streams_up_and_down(way_out):
    big = b"x" * 300_000
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with Site(answer=head + b"493e0\r\n" + big + b"\r\n0\r\n\r\n", close_after=False) as site:
        _, port = await way_out(private_hosts=[f"site.test:{site.port}"])
        where = f"site.test:{site.port}"
        sent = (
            f"POST http://{where}/ HTTP/1.1\r\nHost: {where}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n"
        )
        answer = await say(port, sent.encode(), wait=False)
    assert answer.count(b"x") == 300_000
    assert b"Transfer-Encoding: chunked" in site.got[0]
    assert b"5\r\nabcde\r\n0\r\n\r\n" in site.got[0]


async def test_expect_continue_is_answered_by_the_proxy(way_out):
    async with Site(close_after=False) as site:
        _, port = await way_out(private_hosts=[f"site.test:{site.port}"])
        where = f"site.test:{site.port}"
        head = f"PUT http://{where}/ HTTP/1.1\r\nHost: {where}\r\nExpect: 100-continue\r\n"
        answer = await say(
            port, f"{head}Content-Length: 3\r\n\r\n".encode(), b"abc", pause_s=0.1, wait=False
        )
    assert answer.startswith(b"HTTP/1.1 100"), answer
    assert b"HTTP/1.1 200" in answer
    assert b"Expect" not in site.got[0]


async def test_many_addresses_are_tried(way_out):
    async with Site() as site:
        # The first address of the name answers nobody on that port.
        resolve = Names(site_test=[["127.0.0.2", "127.0.0.1"]])
        _, port = await way_out(resolve, private_hosts=[f"site.test:{site.port}"])
        answer = await say(port, get(f"site.test:{site.port}"), wait=False)
    assert answer.endswith(b"hello"), answer


async def test_a_host_that_does_not_answer_is_a_failure_not_a_refusal(way_out):
    async with Site() as site:
        gone = site.port
    gate, port = await way_out(private_hosts=[f"site.test:{gone}", f"missing.test:{gone}"])
    assert b"502" in await say(port, get(f"site.test:{gone}"))
    assert b"502" in await say(port, get(f"missing.test:{gone}"))
    assert [decision for decision, _ in decisions(gate)] == ["failed", "failed"]


async def test_answers_of_every_shape_come_back_whole(way_out):
    """Lengths, chunks, an end by hanging up, no body at all; to old clients too."""
    ok = b"HTTP/1.1 200 OK\r\n"
    shapes = {
        ok + b"Content-Length: 4\r\n\r\nbody": b"body",
        b"HTTP/1.0 200 OK\r\n\r\nbody": b"body",
        ok + b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\nX: y\r\n\r\n": b"body",
        b"HTTP/1.1 204 No Content\r\n\r\n": b"",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n": b"",
        b"HTTP/1.1 103 Early\r\n\r\n" + ok + b"Content-Length: 4\r\n\r\nbody": b"body",
    }  # fmt: skip
    for shape, body in shapes.items():
        async with Site(answer=shape) as site:
            where = f"site.test:{site.port}"
            _, port = await way_out(private_hosts=[where])
            for version in ("1.1", "1.0"):
                request = f"GET http://{where}/ HTTP/{version}\r\nHost: {where}\r\n\r\n"
                answer = await say(port, request.encode(), wait=False)
                talk = h11.Connection(h11.CLIENT)
                talk.send(h11.Request(method="GET", target="/", headers=[("Host", where)]))
                talk.send(h11.EndOfMessage())
                talk.receive_data(answer)
                talk.receive_data(b"")
                assert isinstance(talk.next_event(), h11.Response), (shape, answer)
                got = b""
                while isinstance(event := talk.next_event(), h11.Data):
                    got += event.data
                assert got == body, (shape, version, answer)


async def test_an_answer_may_come_before_the_body_ends(way_out):
    answer = b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig"
    async with Site(answer=answer) as site:
        where = f"site.test:{site.port}"
        gate, port = await way_out(private_hosts=[where])
        head = f"POST http://{where}/ HTTP/1.1\r\nHost: {where}\r\nContent-Length: 9000000\r\n\r\n"
        got = await say(port, head.encode(), b"x" * 100)
    assert got.startswith(b"HTTP/1.1 413"), got
    assert got.endswith(b"big")
    assert gate.log.events()[0].data["decision"] == "allowed"


async def test_a_broken_answer_is_told(way_out):
    for answer in (b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"):
        async with Site(answer=answer) as site:
            where = f"site.test:{site.port}"
            gate, port = await way_out(private_hosts=[where])
            await say(port, get(where), wait=False)
        assert decisions(gate)[0][0] == "failed", answer
        assert "malformed" in decisions(gate)[0][1]


async def test_a_head_is_answered_without_a_body(way_out):
    async with Site(answer=b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n") as site:
        where = f"site.test:{site.port}"
        _, port = await way_out(private_hosts=[where])
        two = get(where).replace(b"GET", b"HEAD") * 2
        answer = await say(port, two, wait=False)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.count(b"Content-Length: 500") == 2


def test_a_proxy_whose_loop_is_gone_lets_go():
    """As when a program runs one `asyncio.run` after another over the same backend."""
    proxy = Proxy(proxies={})
    listener = socket.create_server(("127.0.0.1", 0))

    async def serve():
        await proxy.serve(listener, NetworkPolicy(hosts=["site.test"]))
        port = listener.getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.05)
        writer.close()

    asyncio.run(serve())
    proxy.hang_up()
    assert listener.fileno() == -1
    asyncio.run(proxy.close())
