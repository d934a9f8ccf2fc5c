"""An open microVM, seen from its owner."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from quintain.errors import CapabilityError, SandboxError, SandboxTimeout
from quintain.protocols import Entry, ExecResult, Transfer
from quintain.sandbox import layout, network, transfer
from quintain.sandbox.asked import check_command
from quintain.sandbox.attached import Attached
from quintain.sandbox.images.image import Image
from quintain.sandbox.microvm import frames
from quintain.sandbox.microvm.attached import GuestAttached
from quintain.sandbox.microvm.guest import Guest, Running
from quintain.sandbox.microvm.limits import Group
from quintain.sandbox.microvm.process import Process
from quintain.sandbox.microvm.relay import Relay
from quintain.sandbox.microvm.snapshot import MicrovmSnapshot
from quintain.sandbox.network import Proxy
from quintain.sandbox.sessions import WithSessions
from quintain.task import SandboxSpec
from quintain.trajectory import Event

GRACE_S = 30.0
"""How much longer than a command's limit the agent may take to report; emulation is slow."""

Forker = Callable[["MicrovmSandbox"], Awaitable["MicrovmSandbox"]]
"""Copies a sandbox: what its backend does about a machine of its kind."""


class GuestMachine(Protocol):
    """What runs the guest."""

    process: Process

    @property
    def guest(self) -> Guest:
        """The connection to its agent."""
        ...

    async def end(self) -> None:
        """Kills it; may be called twice."""
        ...


class Keeper(Protocol):
    """Takes snapshots of sandboxes: what their backend does about a machine of their kind."""

    async def snapshot(self, sandbox: MicrovmSandbox) -> MicrovmSnapshot:
        """The machine's state."""
        ...

    async def restore(self, sandbox: MicrovmSandbox, taken: MicrovmSnapshot) -> None:
        """Lets the sandbox go on from there."""
        ...


class MicrovmSandbox(WithSessions):
    """An open sandbox of `MicrovmBackend`."""

    capabilities: frozenset[str] = frozenset({"session", "python", "list", "transfer", "fork"})

    def __init__(
        self,
        spec: SandboxSpec,
        machine: GuestMachine,
        group: Group,
        image: Image,
        forker: Forker,
        keeper: Keeper | None = None,
        slowness: float = 1.0,
    ) -> None:
        self.spec = spec
        self.machine = machine
        """For its backend."""
        self._group = group
        self.image = image
        self._forker = forker
        self._keeper = keeper
        if keeper is not None:
            self.capabilities = self.capabilities | {"snapshot"}
        self._user = image.user(spec.user)
        self._env = layout.environment(spec, image)
        self._relay: Relay | None = None
        self._earlier: list[Event] = []
        self.slowness = slowness
        """How many times longer than on bare hardware things take."""
        self.attached: set[GuestAttached] = set()
        """Running processes of sessions."""
        self._closed = False
        self.on_closed: Callable[[MicrovmSandbox], object] = lambda _: None

    async def let_out(self, proxy: Proxy) -> None:
        """Lets it reach what its network policy allows; called by the backend only."""
        policy = self.spec.network
        if policy.mode == "none":
            return
        found = await network.prepare(policy)
        if trusted := network.certificates():
            data = await asyncio.to_thread(Path(trusted).read_bytes)
            await self.machine.guest.call(frames.WRITE, [network.CERTIFICATES, 0o644, 0, 0], data)
        gate = await proxy.serve(None, policy)
        self._relay = await Relay.start(self.machine.guest, gate, network.PORT)
        self._env = {**self._env, **found.environment, **self.spec.env}
        self.capabilities = self.capabilities | {"network_log"}

    async def network_log(self) -> list[Event]:
        """What was asked of the network so far; see `quintain.protocols.NetworkLog`."""
        return self._earlier + ([] if self._relay is None else self._relay.gate.log.events())

    async def fork(self) -> MicrovmSandbox:
        """A second machine that begins where this one is; see `quintain.protocols.Forks`.

        The whole machine is copied, memory and all; it is stopped for that long. Processes are
        ended in the copy before it is handed over.
        """
        return await self._forker(self)

    async def snapshot(self) -> MicrovmSnapshot:
        """The machine as it is; see `quintain.protocols.Snapshots.snapshot`.

        Its memory is kept, `/dev/shm` with it; processes are ended in what is made of it.
        """
        if self._keeper is None:
            raise CapabilityError("these microVMs take no snapshots")
        return await self._keeper.snapshot(self)

    async def restore(self, taken: MicrovmSnapshot) -> None:
        """Goes back to a snapshot; see `quintain.protocols.Snapshots.restore`."""
        if self._keeper is None:
            raise CapabilityError("these microVMs take no snapshots")
        await self._keeper.restore(self, taken)

    async def become(self, machine: GuestMachine, group: Group, proxy: Proxy) -> None:
        """Goes on in another machine; called by the backend only."""
        old, self.machine = self.machine, machine
        old_group, self._group = self._group, group
        relay, self._relay = self._relay, None
        if relay is not None:
            self._earlier += relay.gate.log.events()
            await relay.close()
        await old.end()
        await asyncio.to_thread(old_group.remove)
        self._env = layout.environment(self.spec, self.image)
        await self.let_out(proxy)

    @property
    def process_id(self) -> int:
        """Of its QEMU."""
        return self.machine.process.pid

    # --- commands -------------------------------------------------------------------------------

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | str = b"",
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> ExecResult:
        """Runs a command to its end, or kills its whole tree at the limit.

        What the command leaves running is killed when it ends. See
        `quintain.protocols.Sandbox.exec`.
        """
        check_command(argv, stdin, timeout_s, env)
        limit_s = self.spec.exec_s if timeout_s is None else timeout_s
        data = stdin.encode() if isinstance(stdin, str) else stdin
        where = self._path(cwd) if cwd else self.spec.workdir
        began = time.monotonic()
        running = await self.start(argv, env, where, limit_s)
        feeding = asyncio.create_task(running.feed(data))
        try:
            ending = await self._ended(running, limit_s)
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            self.machine.guest.forget(running.number)
            if not running.ended.done() and not self.machine.guest.broken:
                await running.kill()
        return _result(ending, running, argv, where, time.monotonic() - began)

    async def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        limit_s: float = 0.0,
        *,
        attached: bool = False,
    ) -> Running:
        """Starts a command.

        Args:
            argv: program and arguments.
            env: added to the sandbox's environment.
            cwd: None: the workdir.
            limit_s: after which its tree is killed; 0: never.
            attached: whether it is a session's process.
        """
        cwd = cwd or self.spec.workdir
        pairs = [f"{name}={value}" for name, value in {**self._env, **(env or {})}.items()]
        for word in (cwd, *argv, *pairs):
            if "\0" in word:
                raise ValueError(f"a NUL byte in {word[:80]!r}: no command can take it")
        return await self.machine.guest.execute(
            argv,
            env=pairs,
            cwd=cwd,
            uid=self._user.uid,
            gid=self._user.gid,
            limit_ms=min(0x7FFFFFFF, max(1, round(limit_s * 1000))) if limit_s else 0,
            most=self.spec.max_output_bytes,
            attached=attached,
        )

    async def _ended(self, running: Running, limit_s: float) -> frames.Ending:
        try:
            async with asyncio.timeout(limit_s + GRACE_S):
                return await asyncio.shield(running.ended)
        except TimeoutError as error:
            self.machine.guest.lose("its agent did not report in time")
            raise SandboxTimeout("the sandbox is broken: its agent did not report") from error

    # --- sessions -------------------------------------------------------------------------------

    def attach(self, max_answer_bytes: int) -> Attached:
        """A process for a session, to be started."""
        return GuestAttached(self, max_answer_bytes)

    def check(self) -> None:
        """Raises SandboxError if the sandbox is broken."""
        self.machine.guest.check()

    # --- files ----------------------------------------------------------------------------------

    def _path(self, path: str) -> str:
        where = path if path.startswith("/") else f"{self.spec.workdir}/{path}"
        if "\0" in where:
            raise ValueError(f"a NUL byte in the path {path!r}")
        return where

    async def _call(
        self, kind: int, path: str, *values: int, content: bytes | None = None
    ) -> bytes:
        where = self._path(path)
        try:
            return await self.machine.guest.call(kind, [where, *values], content)
        except TimeoutError as error:
            raise SandboxTimeout(f"the sandbox did not answer about {path!r} in time") from error
        except SandboxError:
            raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None

    async def read(self, path: str, *, max_bytes: int = 10_000_000) -> bytes:
        """The content of a regular file; see `quintain.protocols.Sandbox.read`."""
        return await self._call(frames.READ, path, max_bytes, 0)

    async def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> None:
        """Writes a file, making its folders; see `quintain.protocols.Sandbox.write`."""
        content = data.encode() if isinstance(data, str) else data
        await self._call(frames.WRITE, path, mode, self._user.uid, self._user.gid, content=content)

    async def entries(self, path: str, *, max_entries: int = 10_000) -> list[Entry]:
        """What lies under a folder; see `quintain.protocols.Listing.entries`."""
        user = self._user
        data = await self._call(frames.WALK, path, max_entries, user.uid, user.gid, 0)
        try:
            return frames.entries(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None

    async def upload(self, source: str | Path, target: str = ".") -> Transfer:
        """Copies a file or a folder in; see `quintain.protocols.Transfers.upload`."""
        return await transfer.upload(self, Path(source), target)

    async def download(
        self, source: str, target: str | Path, *, max_bytes: int = 100_000_000
    ) -> Transfer:
        """Copies a file or a folder out; see `quintain.protocols.Transfers.download`."""
        return await transfer.download_named(self, source, Path(target), max_bytes)

    async def discard(self, path: str) -> None:
        """Removes a file, if it is there and may be removed."""
        try:
            await self._call(frames.READ, path, 0, 1)
        except SandboxError:
            raise
        except OSError:
            # It is gone all the same, or a command removed it itself.
            return

    async def close(self) -> None:
        """Ends the machine; may be called twice."""
        if not self._closed:
            self._closed = True
            for attached in tuple(self.attached):
                attached.close()
            self.on_closed(self)
            try:
                if self._relay is not None:
                    await self._relay.close()
                await self.machine.end()
            finally:
                await asyncio.to_thread(self._group.remove)


def _result(
    ending: frames.Ending, running: Running, argv: Sequence[str], cwd: str, wall_s: float
) -> ExecResult:
    exit_code, killed, words = ending.ended.read(argv[0], cwd)
    return ExecResult(
        exit_code=exit_code,
        stdout=running.out.data,
        stderr=running.err.data + words,
        wall_s=wall_s,
        cpu_s=ending.cpu_us / 1e6,
        killed=killed,
        truncated=running.out.truncated or running.err.truncated,
    )
