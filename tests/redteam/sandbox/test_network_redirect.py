"""Attack: let a listed host lead on to one that is not listed."""

from __future__ import annotations

import asyncio

from loopback import Site

FETCH = """
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())
except OSError as error:
    print(error)
"""


async def test_redirect(networked, unprotected, python, decisions):
    async with Site() as secret, Site() as site:
        for host in ("127.0.0.1", "other.test"):
            where = f"http://{host}:{secret.port}/"
            moved = f"HTTP/1.1 302 Found\r\nLocation: {where}\r\nContent-Length: 0\r\n\r\n"
            site.answer = moved.encode()
            sandbox = await networked(private_hosts=[f"site.test:{site.port}"])
            if host == "127.0.0.1":
                control = python(FETCH, f"http://{host}:{site.port}/", inside=False)
                assert "hello" in (await asyncio.to_thread(unprotected, control)).stdout
            # The client treats its own loopback as near; the attack asks the proxy all the same.
            options = {"no_proxy": "", "NO_PROXY": ""}
            url = f"http://site.test:{site.port}/"
            run = await sandbox.exec(python(FETCH, url, inside=True), env=options)
            assert "403" in run.text, run
            assert [one for one, _ in await decisions(sandbox)] == ["allowed", "refused"]
    assert len(secret.got) == 1
