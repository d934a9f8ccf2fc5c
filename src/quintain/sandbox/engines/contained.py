"""An open container, seen from its owner: commands and files over the agent's stream."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

from quintain.errors import SandboxError, SandboxTimeout
from quintain.protocols import Entry, ExecResult
from quintain.sandbox import network
from quintain.sandbox.asked import check_command
from quintain.sandbox.command import Ended, cut
from quintain.sandbox.engines import frames
from quintain.sandbox.listing import MAX_DEPTH
from quintain.sandbox.network import Gate, Proxy
from quintain.task import SandboxSpec
from quintain.trajectory import Event

GRACE_S = 5.0
"""How much longer than a command's limit the agent may take to report."""
FILE_S = 60.0

_PLACES: dict[int, Literal["fork", "folder", "program"]] = {
    frames.AT_FORK: "fork",
    frames.AT_CHDIR: "folder",
    frames.AT_EXEC: "program",
}


class Link(Protocol):
    """The stream to a container's first process."""

    async def read(self) -> bytes:
        """The next bytes of its stdout; empty at the end."""
        ...

    def write(self, data: bytes) -> None:
        """Sends bytes to its stdin."""
        ...

    async def drain(self) -> None:
        """Waits until few unsent bytes are left."""
        ...

    def said(self) -> str:
        """What it wrote on stderr, for messages."""
        ...

    async def close(self) -> None:
        """Hangs up."""
        ...


class Container(Protocol):
    """What the backend knows about a container besides its stream."""

    @property
    def link(self) -> Link:
        """Its stream."""
        ...

    async def why_gone(self) -> tuple[bool, str]:
        """Whether it ran out of memory as a whole, and what is known about its end."""
        ...

    async def pid(self) -> int:
        """The process id of its first process, as this host sees it.

        Raises:
            SandboxError: it is not known.
        """
        ...

    async def remove(self) -> None:
        """Ends it and removes everything that belongs to it; may be called twice."""
        ...


class _Call:
    """A command or a file under way."""

    def __init__(self, most: int, data: bytes = b"") -> None:
        self.out = {1: bytearray(), 2: bytearray()}
        self.content = bytearray()
        self.data = memoryview(data)
        self.at = 0
        self.most = most
        self.ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()


class ContainedSandbox:
    """A sandbox in a container.

    Args:
        spec: what it was opened with.
        container: the container.
        setup: the agent's first frame (`frames.setup`).
        env: the environment of every command.
        missing: what is not enforced (only with `allow_weaker`): name to reason.
        on_close: told once, after the end.
    """

    capabilities: frozenset[str] = frozenset({"list"})

    def __init__(
        self,
        spec: SandboxSpec,
        container: Container,
        setup: bytes,
        env: Mapping[str, str],
        missing: Mapping[str, str],
        on_close: Callable[[ContainedSandbox], None] = lambda _: None,
    ) -> None:
        self.spec = spec
        self.missing = dict(missing)
        self._container = container
        self._link = container.link
        self._env = dict(env)
        self._setup = setup
        self._on_close = on_close
        self._calls: dict[int, _Call] = {}
        self._number = 0
        self._broken = ""
        self._out_of_memory = False
        self._closing: asyncio.Task[None] | None = None
        self._gate: Gate | None = None
        self._up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listener = asyncio.create_task(self._listen())

    async def start(self) -> None:
        """Waits until the agent is up; called by the backend only.

        Raises:
            SandboxError: it did not come up, and why.
        """
        self._link.write(frames.frame(frames.SETUP, 0, self._setup))
        try:
            async with asyncio.timeout(self.spec.startup_s):
                await self._up
        except TimeoutError as error:
            raise SandboxTimeout(f"the agent was not up within {self.spec.startup_s} s") from error

    async def let_out(self, proxy: Proxy) -> None:
        """Serves the sandbox's way out, where its spec has one; called by the backend only.

        A socket made in the container's network namespace listens for the owner's proxy.

        Raises:
            SandboxError: its namespace cannot be entered.
        """
        policy = self.spec.network
        if policy.mode == "none":
            return
        pid = await self._container.pid()
        listener = await asyncio.to_thread(network.listen_inside, pid, network.PORT)
        self._gate = await proxy.serve(listener, policy)
        found = await network.prepare(policy)
        self._env = {**self._env, **found.environment, **self.spec.env}
        self.capabilities = self.capabilities | {"network_log"}

    async def network_log(self) -> list[Event]:
        """What was asked of the network so far; see `quintain.protocols.NetworkLog`."""
        return [] if self._gate is None else self._gate.log.events()

    # --- the agent's words ----------------------------------------------------------------------

    async def _listen(self) -> None:
        reader = frames.Reader()
        why = "its stream ended"
        try:
            while data := await self._link.read():
                for kind, number, body in reader.frames(data):
                    self._told(kind, number, body)
        except (OSError, ValueError) as error:
            why = str(error)
        await self._lose(why)

    def _told(self, kind: int, number: int, body: bytes) -> None:
        if kind in (frames.UP, frames.BROKEN) and not self._up.done():
            if kind == frames.UP:
                self._up.set_result(None)
            else:
                self._up.set_exception(SandboxError("the agent could not set itself up"))
            return
        call = self._calls.get(number)
        if call is None or call.ended.done():
            return
        if kind == frames.OUT:
            call.out[body[0]] += body[1:]
        elif kind == frames.PIECE:
            call.content += body
        elif kind == frames.WANT:
            self._feed(number, call)
        elif kind == frames.REFUSED:
            code, size = frames.REFUSAL.unpack(body)
            why = f"{size} bytes, allowed are {call.most}" if size else os.strerror(code)
            call.ended.set_exception(OSError(code, why))
        elif kind in (frames.EXIT, frames.DONE):
            call.ended.set_result(body)

    def _feed(self, number: int, call: _Call) -> None:
        if call.at > len(call.data):
            return
        piece = bytes(call.data[call.at : call.at + frames.PIECE_BYTES])
        call.at += len(piece)
        self._link.write(frames.frame(frames.INPUT, number, piece))
        if not piece:
            call.at += 1

    async def _lose(self, why: str) -> None:
        if not self._broken:
            self._broken = why
            if self._closing is None:
                with contextlib.suppress(SandboxError, TimeoutError):
                    async with asyncio.timeout(GRACE_S):
                        self._out_of_memory, more = await self._container.why_gone()
                        said = self._link.said().strip()[-500:]
                        self._broken = "; ".join(word for word in (why, more, said) if word)
        error = SandboxError(f"the sandbox is broken: {self._broken}")
        everyone: list[asyncio.Future[Any]] = [self._up]
        everyone += [call.ended for call in self._calls.values()]
        for waiting in everyone:
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()

    def _ask(self, kind: int, body: bytes, call: _Call) -> int:
        if self._broken or self._closing is not None:
            why = self._broken or "it was closed"
            raise SandboxError(f"the sandbox cannot be used any more: {why}")
        self._number += 1
        data = frames.frame(kind, self._number, body)
        self._calls[self._number] = call
        self._link.write(data)
        return self._number

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

        See `quintain.protocols.Sandbox.exec`.
        """
        check_command(argv, stdin, timeout_s, env)
        limit_s = self.spec.exec_s if timeout_s is None else timeout_s
        where = self._path(cwd) if cwd else self.spec.workdir
        most = self.spec.max_output_bytes
        body = frames.command(
            argv,
            {**self._env, **(env or {})},
            where,
            limit_ms=min(0xFFFFFFFF, max(1, round(1000 * limit_s))),
            most=most,
        )
        call = _Call(most, stdin.encode() if isinstance(stdin, str) else stdin)
        began = time.monotonic()
        number = self._ask(frames.EXEC, body, call)
        try:
            record = await self._await_record(number, call, limit_s)
        finally:
            del self._calls[number]
        wall_s = time.monotonic() - began
        return _result(record, call, argv[0], where, wall_s)

    async def _await_record(self, number: int, call: _Call, limit_s: float) -> bytes:
        try:
            async with asyncio.timeout(limit_s + GRACE_S):
                # Shielded: a wait that ends must leave the answer to the next.
                return await asyncio.shield(call.ended)
        except asyncio.CancelledError:
            self._link.write(frames.frame(frames.KILL, number))
            raise
        except TimeoutError as error:
            if isinstance(error, SandboxError):
                raise
            return await self._give_up(number, call)
        except SandboxError:
            if self._out_of_memory:
                return frames.RECORD.pack(9, 0, 0, 0, 0, 0, 1, 0, *_sizes(call))
            raise
        except OSError as error:
            code = error.errno or errno.EIO
            return frames.RECORD.pack(0, code, frames.AT_FORK, 0, 0, 0, 0, 0, 0, 0)

    async def _give_up(self, number: int, call: _Call) -> bytes:
        """Ends a command whose minder is silent (what runs as root may have stopped it)."""
        self._link.write(frames.frame(frames.KILL, number, frames.OVERDUE))
        try:
            async with asyncio.timeout(GRACE_S):
                return await call.ended
        except TimeoutError as error:
            await self._lose("a command could not be killed")
            raise SandboxTimeout("the sandbox is broken: its agent does not answer") from error

    # --- files ----------------------------------------------------------------------------------

    def _path(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.spec.workdir}/{path}"

    async def read(self, path: str, *, max_bytes: int = 10_000_000) -> bytes:
        """The content of a regular file; see `quintain.protocols.Sandbox.read`."""
        call = _Call(max_bytes)
        number = self._ask(frames.READ, frames.read(self._path(path), max_bytes), call)
        await self._await_file(number, call, path)
        return bytes(call.content)

    async def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> None:
        """Writes a file, making its folders; see `quintain.protocols.Sandbox.write`."""
        content = memoryview(data.encode() if isinstance(data, str) else data)
        call = _Call(0)
        number = self._ask(frames.WRITE, frames.write(self._path(path), mode), call)
        for at in range(0, len(content), frames.PIECE_BYTES):
            piece = bytes(content[at : at + frames.PIECE_BYTES])
            self._link.write(frames.frame(frames.DATA, number, piece))
            await self._link.drain()
        self._link.write(frames.frame(frames.DATA, number))
        await self._await_file(number, call, path)

    async def entries(self, path: str, *, max_entries: int = 10_000) -> list[Entry]:
        """Everything under a folder; see `quintain.protocols.Listing.entries`."""
        call = _Call(max_entries)
        body = frames.folder(self._path(path), max_entries)
        try:
            await self._await_file(self._ask(frames.LIST, body, call), call, path)
        except OSError as error:
            why = {
                errno.EFBIG: f"more than {max_entries} entries",
                errno.ENAMETOOLONG: f"deeper than {MAX_DEPTH} folders",
            }.get(error.errno or 0)
            if why is None or isinstance(error, SandboxError):
                raise
            raise OSError(error.errno, why, path) from None
        return frames.entries(bytes(call.content))

    async def _await_file(self, number: int, call: _Call, path: str) -> None:
        try:
            async with asyncio.timeout(FILE_S):
                await call.ended
        except SandboxError:
            raise
        except TimeoutError as error:
            raise SandboxTimeout(f"the sandbox did not answer about {path!r}") from error
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        finally:
            del self._calls[number]

    async def close(self) -> None:
        """Ends every process and removes everything; may be called twice."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            if self._gate is not None:
                await self._gate.close()
            await self._container.remove()
        finally:
            await self._link.close()
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            await self._lose("it was closed")
            self._on_close(self)


def _sizes(call: _Call) -> tuple[int, int]:
    return len(call.out[1]), len(call.out[2])


def _cut(data: bytearray, total: int, most: int) -> bytes:
    """The head and the tail of a long output, with a mark between them."""
    if total <= most:
        return bytes(data)
    head, mark, tail = cut(total, most)
    return bytes(data[:head] + mark + data[len(data) - tail :])


def _result(record: bytes, call: _Call, program: str, cwd: str, wall_s: float) -> ExecResult:
    status, error, where, flags, cpu_us, _, ooms, refused, *totals = frames.RECORD.unpack(record)
    stdout, stderr = (_cut(call.out[at + 1], totals[at], call.most) for at in range(2))
    ended = Ended(
        status=status,
        error=error,
        at=_PLACES.get(where, ""),
        timed_out=bool(flags & frames.TIMED_OUT),
        too_many=bool(flags & frames.TOO_MANY),
        ooms=ooms,
        refused=refused,
    )
    exit_code, killed, words = ended.read(program, cwd)
    return ExecResult(
        exit_code=exit_code,
        stdout=stdout,
        stderr=stderr + words,
        wall_s=wall_s,
        cpu_s=cpu_us / 1e6,
        killed=killed,
        truncated=max(totals) > call.most,
    )
