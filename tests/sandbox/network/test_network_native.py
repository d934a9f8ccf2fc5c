"""Networked sandboxes of the native backend, over both launchers."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path

import pytest

from loopback import Names, Site
from quintain.errors import ConfigError, IsolationError
from quintain.sandbox.native import NativeBackend
from quintain.task import NetworkPolicy, SandboxSpec

FETCH = """
import ssl, sys, urllib.request
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=10).read().decode())
    except OSError as error:
        print(error)
"""


@pytest.fixture(params=["c", "python"])
async def networked(request):
    """Opens networked sandboxes over each launcher."""
    names = Names(site_test=[["127.0.0.1"]])
    backend = NativeBackend(launcher=request.param, resolve=names)
    opened = []

    async def open_(env=None, **policy):
        spec = SandboxSpec(network=NetworkPolicy(**policy), env=env or {})
        try:
            opened.append(await backend.open(spec))
        except IsolationError as error:
            pytest.skip(f"no native sandbox here: {error}")
        return opened[-1]

    yield open_
    for box in opened:
        await box.close()
    await backend.close()


async def test_programs_find_the_proxy_by_themselves(networked, authority):
    async with Site() as plain, Site(context=authority.server("site.test")) as tls:
        hosts = [f"site.test:{plain.port}", f"site.test:{tls.port}"]
        box = await networked(private_hosts=hosts)
        await box.write("/work/authority.pem", Path(authority.trust).read_bytes())
        urls = [f"http://{hosts[0]}/", f"https://{hosts[1]}/", "http://other.test/"]
        env = {"SSL_CERT_FILE": "/work/authority.pem"}
        run = await box.exec(["python3", "-c", FETCH, *urls], env=env)
        said = run.text.splitlines()
        assert said[:2] == ["hello", "hello"], run
        assert "403" in said[2]
        assert "not listed" in said[2]
        shell = await box.session()
        run = await shell.run("echo $https_proxy")
        assert run.text == "http://127.0.0.1:3128\n"


async def test_the_host_trusted_authorities_are_there(networked):
    if not ssl.get_default_verify_paths().cafile:
        pytest.skip("this host has no file of certificate authorities")
    box = await networked(hosts=["site.test"])
    code = (
        "import ssl; print(len(ssl.create_default_context().get_ca_certs()) > 10);"
        "open('/run/network/ca-certificates.crt', 'a')"
    )
    run = await box.exec(["python3", "-c", code])
    assert run.text == "True\n", run
    assert "Read-only file system" in run.error_text or "Permission denied" in run.error_text


async def test_the_spec_has_the_last_word_on_variables(networked):
    box = await networked(env={"http_proxy": "", "A": "b"}, hosts=["site.test"])
    run = await box.exec(["sh", "-c", 'echo "$http_proxy-$HTTP_PROXY-$A"'])
    assert run.text == "-http://127.0.0.1:3128-b\n"


async def test_a_bare_sandbox_has_none_of_it(networked):
    box = await networked()
    run = await box.exec(["sh", "-c", "env | grep -ci proxy; ls /run/network"])
    assert run.text == "0\n", run
    assert await box.network_log() == []
    assert "network_log" not in box.capabilities


async def test_many_at_once_have_gates_of_their_own(networked):
    async with Site() as site:
        where = f"site.test:{site.port}"
        others = await asyncio.gather(
            *[networked(private_hosts=[where if at % 2 else "nowhere.test"]) for at in range(8)]
        )
        argv = ["python3", "-c", FETCH, f"http://{where}/"]
        runs = await asyncio.gather(*[box.exec(argv) for box in others])
    assert ["hello" in run.text for run in runs] == [False, True] * 4
    for box in others:
        assert len(await box.network_log()) == 1


async def test_a_wrong_entry_is_the_callers_and_leaves_nothing_open(networked):
    box = await networked(hosts=["site.test"])
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError, match=r"256\.1\.1\.1"):
        await networked(hosts=["256.1.1.1"])
    assert len(os.listdir("/proc/self/fd")) <= before
    assert (await box.exec(["true"])).ok


async def test_pip_installs_from_inside():
    """The real index of this host, with the real pip."""
    backend = NativeBackend()
    policy = NetworkPolicy(presets=["pip"])
    try:
        box = await backend.open(SandboxSpec(network=policy, startup_s=60))
    except (ConfigError, IsolationError) as error:
        await backend.close()
        pytest.skip(f"no package index or no native sandbox here: {error}")
    if not (await box.exec(["python3", "-m", "pip", "--version"])).ok:
        await backend.close()
        pytest.skip("the Python inside has no pip")
    argv = ["python3", "-m", "pip", "install", "-q", "--no-cache-dir", "--target", "/work/lib"]
    run = await box.exec([*argv, "iniconfig"], timeout_s=120)
    env = {"PYTHONPATH": "/work/lib"}
    found = await box.exec(
        ["python3", "-c", "import iniconfig; print(iniconfig.__file__)"], env=env
    )
    log = [event.data for event in await box.network_log()]
    await backend.close()
    assert run.ok, "pip failed"
    assert found.text.startswith("/work/lib/iniconfig/"), found
    assert {request["decision"] for request in log} == {"allowed"}
    assert all(request["down"] > 1000 for request in log)


async def test_nothing_is_left_when_they_are_closed():
    backend = NativeBackend(resolve=Names(site_test=[["127.0.0.1"]]))
    try:
        await (await backend.open(SandboxSpec())).close()
    except IsolationError as error:
        await backend.close()
        pytest.skip(f"no native sandbox here: {error}")
    before = len(os.listdir("/proc/self/fd"))
    hold = "import socket, time; s = socket.create_connection(('127.0.0.1', 3128)); time.sleep(60)"
    spec = SandboxSpec(network=NetworkPolicy(hosts=["site.test"]))
    boxes = await asyncio.gather(*[backend.open(spec) for _ in range(10)])
    held = [asyncio.create_task(box.exec(["python3", "-c", hold])) for box in boxes[:3]]
    async with asyncio.timeout(30):
        while sum(box._gate.connections for box in boxes) < 3:
            await asyncio.sleep(0.05)
    await asyncio.gather(*[box.close() for box in boxes])
    await asyncio.gather(*held, return_exceptions=True)
    await asyncio.sleep(0.1)
    assert len(os.listdir("/proc/self/fd")) == before
    await backend.close()
