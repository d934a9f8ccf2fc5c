"""An open native sandbox, seen from its owner: commands, files, sessions, snapshots, its end."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quintain.errors import CapabilityError, ConfigError, SandboxError, SandboxTimeout
from quintain.protocols import Entry, ExecResult, Transfer
from quintain.sandbox import layout, network, transfer, wire
from quintain.sandbox.asked import check_command
from quintain.sandbox.attached import Attached, NativeAttached
from quintain.sandbox.command import Capture, Feed, Report, ended
from quintain.sandbox.images.image import Image
from quintain.sandbox.link import Link
from quintain.sandbox.listing import list_folder
from quintain.sandbox.network import Gate
from quintain.sandbox.sessions import WithSessions
from quintain.sandbox.snapshot import Snapshot, take
from quintain.sandbox.survey import digests, survey
from quintain.sandbox.turnstile import Turnstile
from quintain.task import SandboxSpec
from quintain.trajectory import Event

if TYPE_CHECKING:
    from quintain.sandbox.native import NativeBackend

GRACE_S = 5.0
"""How much longer than a command's limit its minder may take to report."""
FREEZE_S = 10.0
WORD_S = 0.25
INLINE_BYTES = 1 << 20
"""Longer files are read and written in a thread."""


class NativeSandbox(WithSessions):
    """An open sandbox of `NativeBackend`."""

    capabilities: frozenset[str] = frozenset(
        {"session", "python", "list", "transfer", "snapshot", "fork", "reset"}
    )

    def __init__(
        self,
        spec: SandboxSpec,
        link: Link,
        ids: layout.Ids,
        missing: Mapping[str, str],
        backend: NativeBackend,
        image: Image | None = None,
    ) -> None:
        self.spec = spec
        self.missing = dict(missing)
        """What is not enforced (only with `allow_weaker`): name to reason."""
        self.link = link
        """Its supervisor; `restore` puts another in place."""
        self._ids = ids
        self._image = image
        self.uid, self.gid = ids.uid, ids.gid
        """Inside: who runs commands and owns what is written."""
        self._backend = backend
        self._loop = asyncio.get_running_loop()
        self._turnstile = Turnstile()
        self.attached: set[NativeAttached] = set()
        """Running processes of sessions."""
        self._env = layout.environment(spec, image)
        self._gate: Gate | None = None
        self._earlier: list[Event] = []
        if spec.network.mode != "none":
            self.capabilities = self.capabilities - {"reset"} | {"network_log"}
        self.groups: dict[str, str] = {}
        """Controller to the folder of its control group, as this process sees it."""

    # --- its life -------------------------------------------------------------------------------

    async def let_out(self) -> None:
        """Serves the sandbox's way out, which its supervisor has handed over."""
        policy = self.spec.network
        if policy.mode == "none":
            return
        listener, self.link.listener = self.link.listener, None
        self._gate = await self.link.server.proxy.serve(listener, policy)
        found = await network.prepare(policy)
        self._env = {**self._env, **found.environment, **self.spec.env}

    async def network_log(self) -> list[Event]:
        """What was asked of the network so far; see `quintain.protocols.NetworkLog`."""
        return self._earlier + ([] if self._gate is None else self._gate.log.events())

    async def reset(self) -> NativeSandbox:
        """Ends every process and the writable layer; a new sandbox in the place of this one.

        Only the control groups and the (then empty) network namespace are kept: a reset saves their
        making. This object is closed by it; `survey` of the new one shows what there is.

        Raises:
            SandboxError: it did not come up again; nothing is left then.
            CapabilityError: it has a network, or began with a snapshot.
        """
        if "reset" not in self.capabilities or self.spec.network.mode != "none":
            raise CapabilityError(
                "a sandbox with a network or one that began with a snapshot is not reset: "
                "open a fresh one"
            )
        self.check()
        old, new = self.link, Link(self.link.server, self.link.number)
        heir = NativeSandbox(self.spec, new, self._ids, self.missing, self._backend, self._image)
        heir.groups = self.groups
        old.abandon("it was reset")
        try:
            await new.start(None, self.spec.startup_s)
        except TimeoutError as error:
            await heir.close()
            raise SandboxTimeout(f"the reset took over {self.spec.startup_s} s") from error
        except OSError as error:
            await heir.close()
            raise SandboxError(f"the reset failed: {error}") from error
        except BaseException:
            await heir.close()
            raise
        finally:
            # Not before: a supervisor that is hung up on would end before it can be replaced.
            old.hang_up()
            self._hang_up()
        return heir

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
        return await self._run(argv, stdin, timeout_s, env, cwd)

    async def run_python(
        self,
        code: str,
        *,
        arguments: Sequence[str] = (),
        stdin: bytes | str = b"",
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> ExecResult:
        """Runs Python code in a fork of the template, its modules imported.

        See `quintain.protocols.Warm.run_python`.
        """
        if "zygote" not in self.capabilities:
            raise CapabilityError(
                "this sandbox was not forked from a template: open it with "
                "`backend.warm(spec, modules)`, or run python3 with `exec`"
            )
        return await self._run([code, *arguments], stdin, timeout_s, env, cwd, wire.IN_PLACE)

    async def _run(
        self,
        argv: Sequence[str],
        stdin: bytes | str,
        timeout_s: float | None,
        env: Mapping[str, str] | None,
        cwd: str | None,
        flags: int = 0,
    ) -> ExecResult:
        limit_s = self.spec.exec_s if timeout_s is None else timeout_s
        data = stdin.encode() if isinstance(stdin, str) else stdin
        most = self.spec.max_output_bytes
        await self.thawed()
        link = self.link
        began = time.monotonic()
        out, err = Capture(self._loop, most), Capture(self._loop, most)
        feed, report = Feed(self._loop, data), Report(self._loop)
        try:
            fds = (feed.read_end, out.write_end, err.write_end, report.write_end)
            try:
                request = self._request(argv, limit_s, env, cwd, flags)
                number, answer = link.ask(wire.EXEC, request, fds)
            finally:
                for fd in fds:
                    os.close(fd)
            record = await _await_report(link, report, number, answer, limit_s)
        finally:
            report.close()
            feed.close()
            out.finish()
            err.finish()
        truncated = out.truncated or err.truncated
        wall_s = time.monotonic() - began
        if flags & wire.IN_PLACE:
            argv = ["python3"]
        return _result(record, argv, cwd or self.spec.workdir, out, err, wall_s, truncated)

    async def thawed(self) -> None:
        """Waits while the sandbox stands still for a snapshot."""
        await self._turnstile.passed()

    def start_command(self, argv: Sequence[str], fds: tuple[int, ...]) -> int:
        """Starts a command without a time limit; returns its number, for the link.

        Args:
            argv: program and arguments.
            fds: its stdin, stdout and stderr, where its minder reports, and what it gets as 4, 5…
        """
        number, _ = self.link.ask(wire.EXEC, self._request(argv, None, None, None), fds)
        self.link.forget(number)
        return number

    def check(self) -> None:
        """Raises SandboxError if the sandbox is broken."""
        self.link.check()

    def attach(self, max_answer_bytes: int) -> Attached:
        """A process for a session, to be started."""
        return NativeAttached(self, max_answer_bytes)

    async def discard(self, path: str) -> None:
        """Removes a file, if it is there and may be removed."""
        try:
            os.close(await self.open_file(path, wire.TAKE))
        except SandboxError:
            raise
        except OSError:
            # A command removed it itself.
            return

    def _request(
        self,
        argv: Sequence[str],
        limit_s: float | None,
        env: Mapping[str, str] | None,
        cwd: str | None,
        flags: int = 0,
    ) -> bytes:
        where = self._path(cwd) if cwd else self.spec.workdir
        pairs = [f"{name}={value}" for name, value in {**self._env, **(env or {})}.items()]
        for word in (where, *argv, *pairs):
            if "\0" in word:
                raise ValueError(f"a NUL byte in {word[:80]!r}: no command can take it")
        limit_ms = 0 if limit_s is None else min(0xFFFFFFFF, max(1, round(limit_s * 1000)))
        head = wire.EXEC_HEAD.pack(limit_ms, self.uid, self.gid, flags, len(argv), len(pairs))
        return head + b"".join(wire.text(word) for word in (where, *argv, *pairs))

    # --- files ----------------------------------------------------------------------------------

    def _path(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.spec.workdir}/{path}"

    async def open_file(self, path: str, purpose: int = wire.READ, mode: int = 0) -> int:
        """A descriptor of a regular file inside, which the caller closes; see `wire.READ`."""
        where = self._path(path)
        if "\0" in where:
            raise ValueError(f"a NUL byte in the path {path!r}")
        body = wire.FILE_HEAD.pack(purpose, mode, self.uid, self.gid) + wire.text(where)
        try:
            within_s = GRACE_S + self.spec.startup_s
            return await self.link.answer(wire.FILE, body, within_s, f"open {path!r}")
        except SandboxError:
            raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None

    async def read(self, path: str, *, max_bytes: int = 10_000_000) -> bytes:
        """The content of a regular file; see `quintain.protocols.Sandbox.read`."""
        fd = await self.open_file(path)
        try:
            size = os.fstat(fd).st_size
            if size > max_bytes:
                raise OSError(errno.EFBIG, f"{size} bytes, allowed are {max_bytes}", path)
            if size <= INLINE_BYTES:
                return _read_all(fd, max_bytes)
            return await asyncio.to_thread(_read_all, fd, max_bytes)
        finally:
            os.close(fd)

    async def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> None:
        """Writes a file, making its folders; see `quintain.protocols.Sandbox.write`."""
        content = data.encode() if isinstance(data, str) else data
        async with self._turnstile.shared():
            fd = await self.open_file(path, wire.REPLACE, mode)
            try:
                if len(content) <= INLINE_BYTES:
                    _write_all(fd, content)
                else:
                    await asyncio.to_thread(_write_all, fd, content)
            except OSError as error:
                raise OSError(error.errno, error.strerror, path) from None
            finally:
                os.close(fd)

    async def survey(self) -> dict[str, str]:
        """What there is inside, as one digest an aspect; see `quintain.protocols.Resettable`.

        Raises:
            SandboxError: the sandbox is broken.
        """
        return digests(await survey(self.open_file, self.groups, self._env))

    async def entries(self, path: str, *, max_entries: int = 10_000) -> list[Entry]:
        """What lies under a folder; see `quintain.protocols.Listing.entries`."""
        fd = await self.open_file(path, wire.FOLDER)
        try:
            return await asyncio.to_thread(list_folder, fd, max_entries)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        finally:
            os.close(fd)

    async def upload(self, source: str | Path, target: str = ".") -> Transfer:
        """Copies a file or a folder in; see `quintain.protocols.Transfers.upload`."""
        return await transfer.upload(self, Path(source), target)

    async def download(
        self, source: str, target: str | Path, *, max_bytes: int = 100_000_000
    ) -> Transfer:
        """Copies a file or a folder out; see `quintain.protocols.Transfers.download`."""
        try:
            fd = await self.open_file(source, wire.FOLDER)
        except FileNotFoundError:
            raise
        except SandboxError:
            raise
        except OSError:
            fd = await self.open_file(source)
        try:
            return await asyncio.to_thread(transfer.download, fd, source, Path(target), max_bytes)
        finally:
            os.close(fd)

    # --- snapshots ------------------------------------------------------------------------------

    async def snapshot(self) -> Snapshot:
        """Everything written so far; see `quintain.protocols.Snapshots.snapshot`."""
        async with self._turnstile.exclusive():
            within_s = FREEZE_S + self.spec.startup_s
            try:
                fd = await self.link.answer(wire.FREEZE, b"", within_s, "stand still")
            except SandboxError:
                raise
            except OSError as error:
                raise SandboxError(f"the sandbox cannot be frozen: {error.strerror}") from error
            try:
                return await asyncio.to_thread(
                    take, fd, self.spec, self._ids, overlay=self._image is not None
                )
            finally:
                self.link.tell(wire.THAW, 0)
                os.close(fd)

    async def restore(self, taken: Snapshot) -> None:
        """Goes back to a snapshot; see `quintain.protocols.Snapshots.restore`."""
        async with self._turnstile.exclusive():
            self.check()
            if not taken.fits(self.spec):
                raise ConfigError("a snapshot fits sandboxes on the base that it was taken from")
            link, ids = await self._backend.link(self.spec, taken, self._image)
            old, self.link, self._ids = self.link, link, ids
            self.capabilities = self.capabilities - {"reset"}
            self.groups = self._backend.groups_of(link)
            await old.close()
            if self._gate is not None:
                self._earlier += self._gate.log.events()
                await self._gate.close()
            await self.let_out()

    async def fork(self) -> NativeSandbox:
        """A second sandbox that holds the same; see `quintain.protocols.Forks.fork`."""
        with await self.snapshot() as taken:
            return await self._backend.open(self.spec, snapshot=taken)

    def _hang_up(self) -> None:
        """Closes what sessions hold in this process."""
        for attached in tuple(self.attached):
            attached.close()

    async def close(self) -> None:
        """Ends every process and removes everything; may be called twice."""
        try:
            await self.link.close()
        finally:
            self._hang_up()
        if self._gate is not None:
            await self._gate.close()


async def _await_report(
    link: Link, report: Report, number: int, answer: asyncio.Future[int], limit_s: float
) -> bytes:
    try:
        async with asyncio.timeout(limit_s + GRACE_S):
            record = await report.record
    except TimeoutError:
        link.tell(wire.KILL, number)
        try:
            async with asyncio.timeout(GRACE_S):
                await report.record
        except TimeoutError as error:
            link.lose("a command could not be killed")
            raise SandboxTimeout("the sandbox is broken: no command can be killed") from error
        return wire.STATUS.pack(9, 0, 0, wire.TIMED_OUT, 0, 0, 0, 0)
    finally:
        link.forget(number)
    if len(record) == wire.STATUS.size:
        return record
    # A minder dies without a word when its whole sandbox does: whose fault it is shows soon.
    await link.settled(answer, WORD_S)
    if answer.done():
        reason = answer.exception()
        if isinstance(reason, OSError) and not isinstance(reason, SandboxError):
            return wire.STATUS.pack(0, reason.errno, wire.AT_FORK, 0, 0, 0, 0, 0)
    if link.broken:
        raise SandboxError(f"the sandbox is broken: {link.broken}")
    return wire.STATUS.pack(9, 0, 0, 0, 0, 0, 0, 0)


def _read_all(fd: int, max_bytes: int) -> bytes:
    data = bytearray()
    while len(data) <= max_bytes:
        piece = os.read(fd, min(1 << 20, max_bytes + 1 - len(data)))
        if not piece:
            return bytes(data)
        data += piece
    raise OSError(errno.EFBIG, f"longer than the {max_bytes} bytes allowed")


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _result(
    record: bytes,
    argv: Sequence[str],
    cwd: str,
    out: Capture,
    err: Capture,
    wall_s: float,
    truncated: bool,
) -> ExecResult:
    exit_code, killed, words = ended(record).read(argv[0], cwd)
    return ExecResult(
        exit_code=exit_code,
        stdout=out.data,
        stderr=err.data + words,
        wall_s=wall_s,
        cpu_s=wire.STATUS.unpack(record)[4] / 1e6,
        killed=killed,
        truncated=truncated,
    )
