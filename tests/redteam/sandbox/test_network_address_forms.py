"""Attack: name an address of the host in a form that a rule may not know."""

from __future__ import annotations

import asyncio

import pytest

from loopback import Site

FORMS = ["127.0.0.1", "2130706433", "0177.0.0.1", "0x7f.0.0.1", "0x7f000001", "127.1", "0"]
WRAPPED = ["[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::1]", "[64:ff9b::7f00:1]", "[::127.0.0.1]"]
NAMES = ["localhost", "localhost.", "LOCALHOST", "localhost.localdomain", "127.0.0.1.", "0x7f.1."]
CONNECT = """
import socket, sys
for form in sys.argv[2:]:
    with socket.create_connection((form, int(sys.argv[1])), timeout=5) as s:
        s.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
        print(s.recv(1000))
"""


async def test_each_form_leads_to_the_host_unprotected(unprotected, python):
    async with Site() as site:
        control = python(CONNECT, site.port, *FORMS, inside=False)
        run = await asyncio.to_thread(unprotected, control)
    assert run.stdout.count("hello") == len(FORMS), run


@pytest.mark.parametrize("mode", ["open", "allowlist"])
async def test_no_form_leads_there_from_inside(networked, raw, decisions, mode):
    async with Site() as site:
        hosts = {"hosts": ["*.test", "site.test"]} if mode == "allowlist" else {}
        sandbox = await networked(mode=mode, ports=[site.port], **hosts)
        forms = [*FORMS, *WRAPPED, *NAMES]
        hosts = [f"{form}:{site.port}" for form in forms]
        connects = [f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n" for where in hosts]
        gets = [f"GET http://{where}/ HTTP/1.1\r\nHost: {where}\r\n\r\n" for where in hosts]
        answers = await raw(sandbox, *connects, *gets)
        for where, answer in zip(hosts * 2, answers, strict=True):
            assert answer.startswith(("HTTP/1.1 403", "HTTP/1.1 400")), (where, answer)
    assert site.got == []
    log = await decisions(sandbox)
    assert len(log) == 2 * len(forms)
    assert {decision for decision, _ in log} == {"refused"}
