"""A persistent shell: state stays, a timeout spares it, output is kept apart and cut."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
from pathlib import Path

import pytest

from quintain.errors import SandboxError
from quintain.sandbox.kernel import Moment
from quintain.task import SandboxSpec


@pytest.fixture
async def shell(box):
    shell = await box.session()
    yield shell
    await shell.close()


async def test_state_stays(box, shell):
    assert "session" in box.capabilities
    await shell.run("cd /tmp; export A=1; B=two; f() { echo f$1; }; set -o pipefail; alias x=y")
    run = await shell.run("pwd; echo $A $B; f 3; env | grep ^A=; false | true")
    assert run.text == "/tmp\n1 two\nf3\nA=1\n"
    assert run.exit_code == 1
    assert shell.restarts == 0


async def test_output_and_exit_code_are_apart(shell):
    run = await shell.run("echo out; echo err >&2; printf '\\0\\377'; (exit 7)")
    assert (run.stdout, run.stderr, run.exit_code) == (b"out\n\0\xff", b"err\n", 7)
    run = await shell.run("cat | wc -c; cat", stdin=b"x" * 200_000)
    assert run.text.strip() == "200000"
    run = await shell.run("if")
    assert run.exit_code != 0
    assert "syntax" in run.error_text
    assert (await shell.run("echo again")).text == "again\n"


@pytest.mark.parametrize(
    "command",
    ["sleep 100; echo next", "setsid sleep 100 & sleep 100", "while :; do :; done",
     "python3 -c 'while True: pass'", "trap '' INT TERM; sleep 100 | sleep 100"],
)  # fmt: skip
async def test_a_timeout_kills_the_tree_and_keeps_the_shell(box, shell, command):
    await shell.run("cd /usr; X=5; sleep 200 &")
    run = await shell.run(command, timeout_s=0.5)
    assert (run.killed, run.exit_code) == ("timeout", 124), run
    assert "next" not in run.text
    run = await shell.run("pwd; echo $X")
    assert run.text == "/usr\n5\n", run
    assert shell.restarts == 0
    left = await box.exec(["sh", "-c", "grep -l '^sleep' /proc/[0-9]*/comm 2>/dev/null | wc -l"])
    assert left.text.strip() == "1", "the earlier background job stays, nothing else"


async def test_a_timeout_tells_what_began_just_before_from_what_began_after(box, shell):
    """The kernel's clock ticks are too coarse for it: PIDs decide."""
    count = ["sh", "-c", "grep -l '^sleep' /proc/[0-9]*/comm 2>/dev/null | wc -l"]
    for jobs in range(1, 13):
        await shell.run("sleep 300 &")
        run = await shell.run("sleep 300 & sleep 300", timeout_s=0.001 if jobs % 2 else 0.05)
        assert run.killed == "timeout", run
        assert (await box.exec(count)).text.strip() == str(jobs)
    assert shell.restarts == 0


def test_a_moment_outlives_the_turn_of_pids():
    """Within its ticks PIDs decide, also where they begin anew; outside them the ticks do."""
    moment = Moment(before=100, last=32_760, after=101)
    assert moment.precedes(32_761, 100)
    assert moment.precedes(301, 101)
    assert not moment.precedes(32_759, 101)
    assert not moment.precedes(32_761, 99), "an old process with a higher number"
    assert moment.precedes(20_000, 102), "a whole turn later"
    anew = Moment(before=100, last=305, after=100)
    assert not anew.precedes(32_767, 100)
    assert anew.precedes(306, 100)
    now = Moment.now()
    assert not now.precedes(os.getpid(), 0)
    child = subprocess.Popen(["sleep", "9"])
    started = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
    assert now.precedes(child.pid, started)
    assert not Moment.now().precedes(child.pid, started)
    child.kill()
    child.wait()


async def test_a_timeout_reaches_no_later_command(shell):
    for _ in range(15):
        await shell.run("sleep 50 & sleep 50", timeout_s=0.02)
        run = await shell.run("/bin/true && /bin/echo a && /bin/echo b | /bin/cat && /bin/true")
        assert (run.text, run.exit_code) == ("a\nb\n", 0), run


async def test_a_shell_that_will_not_answer_is_replaced(box, shell):
    run = await shell.run("trap '' USR1; while :; do :; done", timeout_s=0.5)
    assert run.killed == "timeout"
    assert "what was set in it is lost" in run.error_text
    run = await shell.run("echo new")
    assert (run.text, run.error_text) == ("new\n", "")
    assert shell.restarts == 1


async def test_exit_ends_the_shell_and_the_next_command_gets_a_new_one(box, shell):
    run = await shell.run("echo bye; exit 5")
    assert (run.text, run.exit_code) == ("bye\n", 5)
    assert "the shell ended with exit code 5: what was set in it is lost" in run.error_text
    assert (await shell.run("echo back")).text == "back\n"
    run = await shell.run("exec sh -c 'exit 6'")
    assert run.exit_code == 6
    run = await shell.run("kill -9 $$")
    assert run.exit_code == -9
    assert "the shell was killed by signal 9" in run.error_text
    pid = (await shell.run("echo $$; (sleep 0.1; kill -9 $$) &")).text.strip()
    while (await box.exec(["test", "-d", f"/proc/{pid}"])).ok:
        await asyncio.sleep(0.05)
    run = await shell.run("echo unheard")
    assert run.text == "", "it was gone before"
    assert "the shell was killed by signal 9" in run.error_text
    assert shell.restarts == 4


async def test_background_jobs_live_until_the_session_closes(box, shell):
    await shell.run("(while :; do echo x >> /tmp/beat; sleep 0.05; done) & sleep 0.2")
    first = await box.read("/tmp/beat")
    while len(await box.read("/tmp/beat")) <= len(first):
        await asyncio.sleep(0.05)
    run = await shell.run("jobs -p | wc -l")
    assert run.text.strip() == "1"
    await shell.close()
    run = await box.exec(["sh", "-c", "grep -lE '^(bash|sleep)' /proc/[0-9]*/comm | wc -l"])
    assert run.text.strip() == "0", run


async def test_output_is_cut_in_the_middle(backend):
    box = await backend.open(SandboxSpec(max_output_bytes=1000))
    shell = await box.session()
    run = await shell.run("echo first; head -c 100000 /dev/zero | tr '\\0' x; echo; echo last")
    assert run.truncated
    assert run.text.startswith("first\nxxx")
    assert run.text.endswith("xxx\nlast\n")
    assert "bytes cut" in run.text
    assert len(run.stdout) == 1000
    await shell.run("cat >/dev/null", stdin="given")
    files = await box.exec(["sh", "-c", "ls /run/session-1"])
    assert files.text.split() == [], "a command's input goes with it"
    await box.close()


async def test_two_sessions_are_apart(box):
    one, two = await box.session(), await box.session()
    await asyncio.gather(one.run("V=1; cd /tmp"), two.run("V=2; cd /usr"))
    runs = await asyncio.gather(one.run("echo $V; pwd"), two.run("echo $V; pwd"))
    assert [run.text for run in runs] == ["1\n/tmp\n", "2\n/usr\n"]
    await one.close()
    assert (await two.run("echo $V")).text == "2\n"


async def test_the_sandbox_may_close_under_it(box, shell):
    running = asyncio.create_task(shell.run("sleep 100"))
    await asyncio.sleep(0.3)
    await box.close()
    with pytest.raises(SandboxError):
        await running
    with pytest.raises(SandboxError):
        await shell.run("true")


async def test_long_scripts_and_much_output(shell):
    script = "".join(f"echo line {number}\n" for number in range(20_000))
    run = await shell.run(script)
    assert run.text.splitlines() == [f"line {number}" for number in range(20_000)]
    run = await shell.run("head -c 300000000 /dev/zero; echo end >&2")
    assert (run.exit_code, run.error_text, run.truncated) == (0, "end\n", True)


async def test_background_output_shows_with_the_next_command(shell):
    await shell.run("(sleep 0.2; echo later) &")
    run = await shell.run("wait; echo now")
    assert sorted(run.text.split()) == ["later", "now"]


async def test_a_cancelled_command_is_not_the_next_ones_answer(shell):
    await shell.run("X=1")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await shell.run("sleep 0.5; (exit 9)")
    run = await shell.run("sleep 0.5; echo [$X]; (exit 3)")
    assert (run.text, run.exit_code) == ("[]\n", 3), "a new shell"


async def test_a_closed_sandbox_holds_no_descriptors(backend):
    await (await backend.open(SandboxSpec())).close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        box = await backend.open(SandboxSpec())
        shell, python = await box.session(), await box.python()
        await asyncio.gather(shell.run("sleep 100 &"), python.run("1"))
        await box.restore(await box.snapshot())
        await shell.run("true")
        await box.close()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_the_answer_pipe_is_not_inherited(shell):
    run = await shell.run("sh -c 'echo 0 >&5'; sh -c 'echo 1 >&4'; (exit 3)")
    assert run.exit_code == 3
    run = await shell.run("echo steady")
    assert run.text == "steady\n"
