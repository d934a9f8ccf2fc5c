"""What the network costs: a networked sandbox beside a bare one, a request beside a direct one.

    python bench/network.py [--runs 60]

Every row alternates its contestants, so that noise falls on both alike; medians as ratios. Servers
and clients are on loopback and share the machine with the proxy.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import socket
import statistics
import time
from collections.abc import Awaitable, Callable

from quintain.sandbox.native import NativeBackend
from quintain.sandbox.network import Proxy
from quintain.task import NetworkPolicy, SandboxSpec

BIG = 64 << 20
PARALLEL = 16
IDLE = 300


async def compare(contestants: dict[str, Callable[[], Awaitable[None]]], runs: int) -> list[float]:
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(runs + 1):
        for name, run in contestants.items():
            start = time.perf_counter()
            await run()
            if turn:
                times[name].append(1000 * (time.perf_counter() - start))
    return [statistics.median(row) for row in times.values()]


def show(what: str, base: float, ours: float, unit: str = "ms") -> None:
    print(f"{what:<44}{base:>10.2f}{ours:>10.2f} {unit:<6}{ours / base:>8.2f}x", flush=True)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while head := await reader.readuntil(b"\r\n\r\n"):
            size = BIG if b"/big" in head else 5
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
            for _ in range(max(1, size >> 16)):
                writer.write(bytes(min(size, 65536)))
                await writer.drain()
    writer.close()


async def fetch(port: int, target: str, host: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    request = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    writer.write(request.encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head, head
    left = BIG if "/big" in target else 5
    while left > 0:
        left -= len(await reader.read(1 << 20))
    writer.close()


async def opening(runs: int) -> None:
    backend = NativeBackend()
    bare = SandboxSpec()
    listed = SandboxSpec(network=NetworkPolicy(hosts=("example.org",)))

    def fresh(spec: SandboxSpec) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            sandbox = await backend.open(spec)
            await sandbox.exec(["true"])
            await sandbox.close()

        return run

    base, ours = await compare({"bare": fresh(bare), "listed": fresh(listed)}, runs)
    show("fresh sandbox + true: bare, networked", base, ours)
    await backend.close()


async def requests(runs: int) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20)
    port = server.sockets[0].getsockname()[1]
    host = f"host.internal:{port}"
    proxy = Proxy(proxies={})
    listener = socket.create_server(("127.0.0.1", 0))
    way = listener.getsockname()[1]
    policy = NetworkPolicy(private_hosts=(host,), requests_per_s=1e6, max_bytes=None)
    await proxy.serve(listener, policy)

    def direct(path: str) -> Callable[[], Awaitable[None]]:
        return lambda: fetch(port, path, host)

    def through(path: str) -> Callable[[], Awaitable[None]]:
        return lambda: fetch(way, f"http://{host}{path}", host)

    def many(one: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            await asyncio.gather(*[one() for _ in range(PARALLEL)])

        return run

    base, ours = await compare({"direct": direct("/"), "proxy": through("/")}, runs)
    show("one small request: direct, through the proxy", base, ours)
    both = {"direct": many(direct("/")), "proxy": many(through("/"))}
    base, ours = await compare(both, max(3, runs // 4))
    show(f"{PARALLEL} small requests at once", base, ours)
    both = {"direct": direct("/big"), "proxy": through("/big")}
    base, ours = await compare(both, max(3, runs // 12))
    show(f"{BIG >> 20} MiB", base, ours)
    await proxy.close()
    server.close()


async def idle() -> None:
    proxy = Proxy(proxies={})
    policy = NetworkPolicy(hosts=("example.org",))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(IDLE):
        await proxy.serve(socket.create_server(("127.0.0.1", 0)), policy)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"an idle gate: {grown / IDLE:.1f} KiB of the owner, no process, no thread", flush=True)
    await proxy.close()


async def main(runs: int) -> None:
    print(f"{'':<44}{'base':>10}{'ours':>10} {'':<6}{'ratio':>9}")
    await idle()
    await opening(runs)
    await requests(runs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=60)
    asyncio.run(main(parser.parse_args().runs))
