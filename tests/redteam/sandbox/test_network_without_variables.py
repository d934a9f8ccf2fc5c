"""Attack: drop the variables that lead to the proxy, hoping for another way out."""

from __future__ import annotations

import asyncio

from loopback import Site

FETCH = """
import os, sys, urllib.request
if sys.argv[2] == "strip":
    for name in list(os.environ):
        if "proxy" in name.lower():
            del os.environ[name]
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())
except OSError as error:
    print(error)
"""


async def test_stripped_environment(networked, unprotected, python):
    async with Site() as site:
        sandbox = await networked(private_hosts=[f"site.test:{site.port}"])
        url = f"http://127.0.0.1:{site.port}/"
        control = await asyncio.to_thread(unprotected, python(FETCH, url, "strip", inside=False))
        assert control.stdout == "hello\n", control
        url = f"http://site.test:{site.port}/"
        with_them = await sandbox.exec(python(FETCH, url, "keep", inside=True))
        assert with_them.text == "hello\n", with_them
        without = await sandbox.exec(python(FETCH, url, "strip", inside=True))
    assert "hello" not in without.text
    assert "Name or service not known" in without.text or "resolution" in without.text, without
