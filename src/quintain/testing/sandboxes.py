"""`check_sandbox`: what every sandbox must do."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import cast

from quintain.errors import SandboxError
from quintain.protocols import (
    Forks,
    Listing,
    PythonConsole,
    Pythons,
    Sandbox,
    SandboxBackend,
    Session,
    Sessions,
    Snapshots,
    Transfers,
)
from quintain.task import SandboxSpec


async def check_sandbox(backend: SandboxBackend, spec: SandboxSpec | None = None) -> None:
    """Checks a sandbox backend, which stays open.

    Commands report exit code, stdout, stderr and the limit that ended them, leave nothing running,
    and run side by side; files go in and out byte for byte, links lead nowhere outside and nothing
    but a regular file is read; one sandbox does not see another; closing twice is allowed and ends
    everything. Of the capabilities that it names, those with methods of the owner's do what
    `quintain.protocols` says (`check_capabilities`).

    Args:
        backend: to be checked.
        spec: what to open; needs `sh`, `sleep` and the usual small programs. None: the default.
    """
    assert backend.name, "a backend has a name"
    spec = (spec or SandboxSpec()).model_copy(update={"max_output_bytes": 10_000})
    first, second = await asyncio.gather(backend.open(spec), backend.open(spec))
    try:
        for sandbox in (first, second):
            assert sandbox.spec == spec, "a sandbox keeps its spec"
        await _check_commands(first)
        await _check_limits(first)
        await _check_files(first)
        await check_capabilities(first)
        await first.write("mine", b"1")
        seen = await second.exec(["sh", "-c", "ls -A"])
        assert seen.ok, f"ls failed: {seen}"
        assert "mine" not in seen.text, "a file of one sandbox is visible in another"
    finally:
        await asyncio.gather(first.close(), second.close())
    await first.close()
    try:
        await first.exec(["true"])
    except SandboxError:
        return
    raise AssertionError("a closed sandbox runs commands")


async def _check_commands(sandbox: Sandbox) -> None:
    run = await sandbox.exec(["sh", "-c", "cat; echo no >&2; exit 3"], stdin=b"\x00\xff")
    assert (run.exit_code, run.stdout, run.stderr) == (3, b"\x00\xff", b"no\n"), f"got {run}"
    assert not run.ok, "a command that exits with 3 is not ok"
    assert run.wall_s > 0, "the wall-clock time is told"
    run = await sandbox.exec(["sh", "-c", "kill -9 $$"])
    assert run.exit_code == -9, f"killed by signal 9 is exit code -9, got {run}"
    run = await sandbox.exec(["no-such-program"])
    assert run.exit_code == 127, f"a missing program is exit code 127, got {run}"
    run = await sandbox.exec(["sh", "-c", "echo $A; pwd"], env={"A": "b"}, cwd="/tmp")
    assert run.text == "b\n/tmp\n", f"env and cwd were not taken: {run}"
    run = await sandbox.exec(["pwd"])
    assert run.text.strip() == sandbox.spec.workdir, f"commands start in the workdir: {run}"
    words = [str(i) for i in range(8)]
    runs = await asyncio.gather(*(sandbox.exec(["echo", word]) for word in words))
    assert [run.text.strip() for run in runs] == words, "commands side by side mixed their output"
    big = b"x" * 300_000
    run = await sandbox.exec(["wc", "-c"], stdin=big)
    assert run.text.strip() == str(len(big)), f"long input arrives whole: {run}"


async def _check_limits(sandbox: Sandbox) -> None:
    script = "setsid sleep 600 >/dev/null 2>&1 & sleep 600"
    run = await sandbox.exec(["sh", "-c", script], timeout_s=0.5)
    assert run.killed == "timeout", f"a command over its time is killed: {run}"
    assert not run.ok, "a killed command is not ok"
    await sandbox.exec(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 &"])
    script = "grep -c '^sleep' /proc/[0-9]*/comm 2>/dev/null | grep -c ':1$'"
    run = await sandbox.exec(["sh", "-c", script])
    assert run.text.strip() == "0", f"a command left processes behind: {run}"
    run = await sandbox.exec(["sh", "-c", "yes | head -c 1000000"])
    most = sandbox.spec.max_output_bytes
    assert len(run.stdout) == most, f"output is cut at {most} bytes, got {len(run.stdout)}"
    assert run.truncated, "cut output is told"
    assert run.exit_code == 0, f"a flood of output is dropped, not blocked: {run.exit_code}"


async def _check_files(sandbox: Sandbox) -> None:
    content = bytes(range(256)) * 5000
    await sandbox.write("a/b/c.bin", content)
    assert await sandbox.read("a/b/c.bin") == content, "a file came back changed"
    run = await sandbox.exec(["sh", "-c", "echo more >> a/b/c.bin && wc -c < a/b/c.bin"])
    assert run.text.strip() == str(len(content) + 5), f"the user cannot append to it: {run}"
    await sandbox.write("run.sh", "#!/bin/sh\necho ran\n", mode=0o755)
    assert (await sandbox.exec(["./run.sh"])).text == "ran\n", "the mode was not kept"
    await _expect(FileNotFoundError, sandbox.read("missing"))
    await _expect(OSError, sandbox.read("a/b/c.bin", max_bytes=10))
    await _expect(OSError, sandbox.read("a"))
    if (await sandbox.exec(["mkfifo", "pipe"])).ok:
        await _expect(OSError, sandbox.read("pipe"))
        await _expect(OSError, sandbox.write("pipe", b"x"))
    script = "ln -s /../../../../../../etc/hostname up; ln -s loop loop"
    await sandbox.exec(["sh", "-c", script])
    inside = await sandbox.exec(["cat", "/etc/hostname"])
    if inside.ok:
        assert await sandbox.read("up") == inside.stdout, "a link led out of the sandbox"
    await _expect(OSError, sandbox.read("loop"))


async def check_capabilities(sandbox: Sandbox) -> None:
    """Checks the optional methods that a sandbox says it has.

    State stays in sessions and a timeout spares it; a folder is listed and copied; a snapshot holds
    files and no process, opens the same again, and forks share nothing.

    Args:
        sandbox: open; files named `state-*` are made in its workdir.
    """
    if "session" in sandbox.capabilities:
        await _check_session(await cast(Sessions, sandbox).session())
    if "python" in sandbox.capabilities:
        await _check_python(await cast(Pythons, sandbox).python())
    await sandbox.write("state-folder/a/file", b"\x00\xff")
    if "list" in sandbox.capabilities:
        found = await cast(Listing, sandbox).entries("state-folder")
        paths = [(entry.path, entry.kind) for entry in found]
        assert paths == [("a", "folder"), ("a/file", "file")], f"listed were {paths}"
    if "transfer" in sandbox.capabilities:
        await _check_transfer(sandbox)
    if "snapshot" in sandbox.capabilities:
        await _check_snapshot(sandbox)
    if "fork" in sandbox.capabilities:
        await _check_fork(sandbox)


async def _check_session(shell: Session) -> None:
    await shell.run("cd /tmp; A=1")
    run = await shell.run("sleep 600", timeout_s=0.5)
    assert run.killed == "timeout", f"a command over its time is killed: {run}"
    run = await shell.run("pwd; echo $A; echo no >&2; cat; (exit 3)", stdin=b"\x00\xff")
    assert run.stdout == b"/tmp\n1\n\x00\xff", f"folder and variables stay: {run}"
    assert (run.stderr, run.exit_code, shell.restarts) == (b"no\n", 3, 0), f"got {run}"
    await shell.close()
    await shell.close()


async def _check_python(python: PythonConsole) -> None:
    run = await python.run("x = 41\nprint('out')\nx + 1")
    assert (run.value, run.text, run.ok) == ("42", "out\n", True), f"got {run}"
    run = await python.run("while True: pass", timeout_s=2)
    assert (run.killed, run.restarted) == ("timeout", False), f"an interrupt keeps the state: {run}"
    run = await python.run("x, 1 / 0")
    assert "ZeroDivisionError" in run.error, f"the traceback is a result: {run}"
    assert (await python.run("x")).value == "41", "names stay"
    await python.close()
    await python.close()


async def _check_transfer(sandbox: Sandbox) -> None:
    transfers = cast(Transfers, sandbox)
    with tempfile.TemporaryDirectory() as folder:
        await sandbox.exec(["ln", "-s", "/etc/hostname", "state-folder/link"])
        done = await transfers.download("state-folder", Path(folder, "down"))
        assert (done.files, done.skipped) == (1, ("link",)), f"links stay behind: {done}"
        data = await asyncio.to_thread(Path(folder, "down", "a", "file").read_bytes)
        assert data == b"\x00\xff", "a file came back changed"
        done = await transfers.upload(Path(folder, "down"), "state-up")
        assert await sandbox.read("state-up/a/file") == data, "a file went in changed"


async def _check_snapshot(sandbox: Sandbox) -> None:
    snapshots = cast(Snapshots, sandbox)
    await sandbox.write("state-kept", "1")
    taken = await snapshots.snapshot()
    await sandbox.write("state-kept", "2")
    await sandbox.write("state-new", "")
    other = await snapshots.snapshot()
    assert taken.digest != other.digest, "another content has another digest"
    await snapshots.restore(taken)
    assert await sandbox.read("state-kept") == b"1", "a restore goes back"
    await _expect(FileNotFoundError, sandbox.read("state-new"))
    again = await snapshots.snapshot()
    assert again.digest == taken.digest, "equal content has an equal digest"
    for one in (taken, other, again):
        one.close()


async def _check_fork(sandbox: Sandbox) -> None:
    await sandbox.write("state-both", "1")
    fork = await cast(Forks, sandbox).fork()
    try:
        assert fork.spec == sandbox.spec, "a fork has the spec"
        await fork.write("state-fork", "")
        await sandbox.write("state-both", "2")
        assert await fork.read("state-both") == b"1", "a fork holds what was there, and that alone"
        await _expect(FileNotFoundError, sandbox.read("state-fork"))
    finally:
        await fork.close()


async def _expect(kind: type[Exception], call: Awaitable[object]) -> None:
    found: Exception | object
    try:
        found = await asyncio.wait_for(call, 10)
    except Exception as error:
        found = error
    assert not isinstance(found, TimeoutError), "the call hung"
    assert not isinstance(found, SandboxError), f"the candidate's fault became the host's: {found}"
    assert isinstance(found, kind), f"expected {kind.__name__}, got {str(found)[:100]}"
