"""A shell and a Python that stay, inside a guest: its agent holds them."""

from __future__ import annotations

import pytest

from quintain.errors import SandboxError
from quintain.sandbox.microvm.attached import MAX_SCRIPT_BYTES

pytestmark = [pytest.mark.microvm, pytest.mark.slow]

SLEEPS = ["sh", "-c", "grep -l '^sleep' /proc/[0-9]*/comm 2>/dev/null | wc -l"]


async def test_a_timeout_kills_what_began_with_the_command_and_nothing_older(sandbox):
    shell = await sandbox.session()
    await shell.run("cd /usr; X=5")
    for jobs in (1, 2, 3):
        await shell.run("sleep 900 &")
        run = await shell.run("setsid sleep 900 & sleep 900", timeout_s=0.5)
        assert (run.killed, run.exit_code) == ("timeout", 124), run
        assert (await sandbox.exec(SLEEPS, timeout_s=60)).text.strip() == str(jobs)
    run = await shell.run("pwd; echo $X")
    assert (run.text, shell.restarts) == ("/usr\n5\n", 0), run
    await shell.close()
    assert (await sandbox.exec(SLEEPS, timeout_s=60)).text.strip() == "0"


async def test_output_is_kept_apart_and_cut_for_each_command(sandbox):
    shell = await sandbox.session()
    for _ in range(2):
        run = await shell.run("head -c 5000000 /dev/zero | tr '\\0' x; echo; echo last; echo e >&2")
        assert (len(run.stdout), run.truncated) == (sandbox.spec.max_output_bytes, True)
        assert run.stdout.startswith(b"xxxx")
        assert run.stdout.endswith(b"xx\nlast\n")
        assert b" bytes cut ..." in run.stdout
        assert run.stderr == b"e\n"
        run = await shell.run("cat; (exit 3)", stdin=b"\x00\xff")
        assert (run.stdout, run.stderr, run.exit_code) == (b"\x00\xff", b"", 3), run
    with pytest.raises(ValueError, match="write a file"):
        await shell.run("#" * (MAX_SCRIPT_BYTES + 1))
    assert (await shell.run("echo still")).text == "still\n"


async def test_a_shell_that_is_lost_says_so(sandbox):
    shell = await sandbox.session()
    run = await shell.run("echo bye; exit 7")
    assert (run.text, run.exit_code) == ("bye\n", 7)
    assert "the shell ended with exit code 7: what was set in it is lost" in run.error_text
    run = await shell.run("trap '' USR1; while :; do :; done", timeout_s=0.5)
    assert run.killed == "timeout"
    assert "did not stop and was killed" in run.error_text
    assert (await shell.run("echo new")).text == "new\n"
    assert shell.restarts == 2


async def test_python_keeps_its_names_and_says_how_it_ended(sandbox):
    python = await sandbox.python()
    run = await python.run("import os\nx = b'\\xff' * 3\nprint('o')\nlen(x)")
    assert (run.value, run.text, run.ok) == ("3", "o\n", True), run
    run = await python.run("'v' * 3_000_000")
    assert run.truncated
    assert len(run.value) < 1_100_000
    run = await python.run("kept = [b'x' * (1 << 20) for _ in range(4000)]", timeout_s=200)
    assert (run.killed, run.restarted) == ("memory", True), run
    run = await python.run("os._exit(4)")
    assert (run.restarted, python.restarts) == (False, 1), "a new one"
    assert "NameError" in run.error, "which has no os"
    run = await python.run("import os\nos._exit(4)")
    assert "ended with exit code 4; its state is lost" in run.error, run
    other = await sandbox.python()
    assert (await other.run("1 + 1")).value == "2"


async def test_a_fork_has_none_of_the_sessions_and_a_dead_machine_is_the_hosts_fault(sandbox):
    shell = await sandbox.session()
    await shell.run("sleep 900 & cd /tmp")
    fork = await sandbox.fork()
    assert (await fork.exec(SLEEPS, timeout_s=60)).text.strip() == "0"
    assert (await (await fork.session()).run("pwd")).text == "/work\n"
    assert (await shell.run("pwd")).text == "/tmp\n", "the one that was forked went on"
    sandbox.machine.process.kill()
    with pytest.raises(SandboxError):
        await shell.run("true", timeout_s=60)
    await shell.close()
