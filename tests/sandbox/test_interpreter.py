"""A persistent Python: state stays, values come back, a timeout spares the state where it can."""

from __future__ import annotations

import asyncio
import os

import pytest

from quintain.errors import SandboxError
from quintain.task import SandboxSpec


@pytest.fixture
async def python(box):
    python = await box.python()
    yield python
    await python.close()


async def test_state_stays_and_the_last_value_is_told(box, python):
    assert "python" in box.capabilities
    assert (await python.run("import os\nx = [1, 2]\ndef f(y): return y + 1")).value == ""
    run = await python.run("x.append(f(2))\nprint('out')\nx")
    assert (run.value, run.text, run.ok) == ("[1, 2, 3]", "out\n", True)
    assert (await python.run("_")).value == "[1, 2, 3]"
    assert (await python.run("None")).value == ""
    await python.run("os.chdir('/tmp')")
    assert (await python.run("os.getcwd()")).value == "'/tmp'"
    await box.write("/tmp/mine.py", "y = 5")
    assert (await python.run("import mine; mine.y")).value == "5"
    assert (await python.run("__name__")).value == "'__main__'"
    assert (await python.run("sorted(n for n in globals() if n[0] != '_')")).value == (
        "['f', 'mine', 'os', 'x']"
    )
    assert python.restarts == 0


async def test_output_errors_and_bytes_are_apart(python):
    code = "import sys; sys.stdout.buffer.write(b'\\0\\xff'); print('e', file=sys.stderr); 1 / 0"
    run = await python.run(code)
    assert (run.stdout, run.stderr, run.value) == (b"\0\xff", b"e\n", "")
    assert run.error.startswith("Traceback")
    assert "ZeroDivisionError" in run.error
    assert "1 / 0" in run.error, "the line is shown"
    assert "repl" not in run.error, "and nothing of ours"
    await python.run("def deep():\n    raise KeyError('here')")
    run = await python.run("deep()")
    assert "raise KeyError('here')" in run.error
    assert "SyntaxError" in (await python.run("1 +")).error
    assert "SystemExit: 3" in (await python.run("raise SystemExit(3)")).error
    assert "EOFError" in (await python.run("input()")).error
    assert (await python.run("'\\udcff' + chr(233)")).value == "'\\udcff\u00e9'"
    assert python.restarts == 0


@pytest.mark.parametrize(
    "code",
    ["import time; time.sleep(100)", "while True: pass",
     "import subprocess; subprocess.run(['sleep', '100'])",
     "import threading; threading.Event().wait()"],
)  # fmt: skip
async def test_a_timeout_interrupts_and_keeps_the_state(box, python, code):
    await python.run("x = 41; import subprocess; old = subprocess.Popen(['sleep', '200'])")
    await asyncio.sleep(0.1)
    run = await python.run(code, timeout_s=0.5)
    assert (run.killed, run.restarted, run.ok) == ("timeout", False, False), run
    assert "KeyboardInterrupt" in run.error
    run = await python.run("x + 1, old.poll()")
    assert run.value == "(42, None)", run
    left = await box.exec(["sh", "-c", "cat /proc/[0-9]*/comm 2>/dev/null | grep -c '^sleep'"])
    assert left.text.strip() == "1", "what the cell started is gone, what was there before stays"


@pytest.mark.parametrize(
    "code",
    ["sum(range(10**12))",
     "import signal; signal.signal(2, signal.SIG_IGN)\nwhile True: pass"],
)  # fmt: skip
async def test_what_does_not_stop_loses_the_state_and_says_so(python, code):
    await python.run("x = 1")
    run = await python.run(code, timeout_s=2)
    assert (run.killed, run.restarted) == ("timeout", True), run
    assert "state is lost" in run.error
    assert "NameError" in (await python.run("x")).error
    assert python.restarts == 1


async def test_an_end_of_the_interpreter_is_told(backend):
    box = await backend.open(SandboxSpec(memory_mb=64, disk_mb=16))
    python = await box.python()
    run = await python.run("import os; print('last', flush=True); os._exit(7)")
    assert (run.text, run.restarted, run.killed) == ("last\n", True, "")
    assert "exit code 7" in run.error
    run = await python.run("x = bytearray(500_000_000)")
    assert run.killed == "memory" or "MemoryError" in run.error, run
    run = await python.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert "exit code -9" in run.error
    assert (await python.run("'new'")).value == "'new'"


async def test_children_of_a_fork_do_not_come_back(python):
    run = await python.run("import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n'once'")
    assert run.value == "'once'"
    assert (await python.run("'still'")).value == "'still'"
    assert python.restarts == 0


async def test_everything_long_is_cut_in_the_middle(backend):
    box = await backend.open(SandboxSpec(max_output_bytes=1000))
    python = await box.python()
    run = await python.run("print('a' + 'x' * 5000 + 'b')\n'c' + 'y' * 5000 + 'd'")
    assert run.truncated
    assert len(run.stdout) == 1000
    assert (run.stdout[:1], run.stdout[-2:]) == (b"a", b"b\n")
    assert run.value.startswith("'cyy")
    assert run.value.endswith("yyd'")
    assert "bytes cut" in run.value
    run = await python.run("raise ValueError('z' * 5000)")
    assert len(run.error) < 1100


async def test_a_forged_answer_ends_the_interpreter_not_the_host(python):
    run = await python.run("import os; os.write(5, b'junk\\n' * 100)")
    assert run.restarted
    assert (await python.run("1 + 1")).value == "2"
    flood = "import os\nwhile True: os.write(5, b'1 9999999999 0 0\\n' + b'x' * 60000)"
    run = await python.run(flood)
    assert run.restarted
    assert (await python.run("1 + 1")).value == "2"


async def test_two_are_apart_and_closing_ends_what_they_started(box):
    one, two = await box.python(), await box.python()
    await asyncio.gather(one.run("x = 1"), two.run("x = 2"))
    found = await asyncio.gather(one.run("x"), two.run("x"))
    assert [run.value for run in found] == ["1", "2"]
    await one.run("import subprocess; subprocess.Popen(['sleep', '300'])")
    await one.close()
    await one.close()
    left = await box.exec(["sh", "-c", "cat /proc/[0-9]*/comm 2>/dev/null | grep -c '^sleep'"])
    assert left.text.strip() == "0"
    assert (await two.run("x")).value == "2"
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        other = await box.python()
        await other.close()
    assert len(os.listdir("/proc/self/fd")) <= before, "descriptors leak"


async def test_the_sandbox_may_close_under_it(box, python):
    running = asyncio.create_task(python.run("import time; time.sleep(100)"))
    await asyncio.sleep(0.3)
    await box.close()
    with pytest.raises(SandboxError):
        await running
    with pytest.raises(SandboxError):
        await python.run("1")
