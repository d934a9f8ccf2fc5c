"""`check_sandbox`: what every sandbox must do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from quintain.errors import SandboxError
from quintain.protocols import Sandbox, SandboxBackend
from quintain.task import SandboxSpec


async def check_sandbox(backend: SandboxBackend, spec: SandboxSpec | None = None) -> None:
    """Checks a sandbox backend, which stays open.

    Commands report exit code, stdout, stderr and the limit that ended them, leave nothing running,
    and run side by side; files go in and out byte for byte, links lead nowhere outside and nothing
    but a regular file is read; one sandbox does not see another; closing twice is allowed and ends
    everything.

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


async def _expect(kind: type[Exception], call: Awaitable[object]) -> None:
    found: Exception | object
    try:
        found = await asyncio.wait_for(call, 10)
    except Exception as error:
        found = error
    assert not isinstance(found, TimeoutError), "the call hung"
    assert not isinstance(found, SandboxError), f"the candidate's fault became the host's: {found}"
    assert isinstance(found, kind), f"expected {kind.__name__}, got {str(found)[:100]}"
