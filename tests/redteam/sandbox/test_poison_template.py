"""Attack: reach the interpreter that sandboxes are forked from, or what other forks get of it."""

from __future__ import annotations

import hashlib
import os
import secrets

import pytest

from quintain.errors import CapabilityError, IsolationError
from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec

POISON = r"""
import builtins, json, sys
json.dumps = lambda value: "poisoned"
builtins.poisoned = True
"""
LOOK = r"""
import builtins, json
print(json.dumps([1]), hasattr(builtins, "poisoned"))
"""
REACH = r"""
import ctypes, gc, json, os, signal, socket, sys
done = []
def tried(name, call):
    try:
        call()
        done.append(name)
    except BaseException:
        pass
libc = ctypes.CDLL(None, use_errno=True)
mine = {os.getpid(), os.getppid()}
others = [int(p) for p in os.listdir("/proc") if p.isdigit() and int(p) not in mine]
for pid in {os.getppid(), 1, *others}:
    tried(f"signal {pid}", lambda: os.kill(pid, signal.SIGUSR1))
    tried(f"memory {pid}", lambda: open(f"/proc/{pid}/mem", "rb"))
    tried(f"environment {pid}", lambda: open(f"/proc/{pid}/environ").read())
    tried(f"descriptors {pid}", lambda: os.listdir(f"/proc/{pid}/fd"))
    tried(f"root {pid}", lambda: os.listdir(f"/proc/{pid}/root"))
    tried(f"trace {pid}", lambda: libc.ptrace(16, pid, 0, 0) == 0 or 1 / 0)
for path in ("/.template/main.py", "/.template/box.so", "/proc/self/exe"):
    tried(f"write {path}", lambda: open(path, "r+b"))
tried("own server", lambda: socket.socket(fileno=3).send(b"\x02\0\0\0\1\0\0\0"))
for fd in range(3, 256):
    try:
        kind = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        continue
    if not kind.startswith("/proc"):
        done.append(f"descriptor {fd} {kind}")
for namespace, flag in (("mnt", 0x20000), ("pid", 0x20000000), ("user", 0x10000000)):
    place = f"/proc/1/ns/{namespace}"
    tried(f"enter {namespace}", lambda: libc.setns(os.open(place, 0), flag) == 0 or 1 / 0)
# The library's own functions are in this memory: they can do no more than any call can.
for thing in gc.get_objects():
    if isinstance(thing, ctypes.PyDLL) and hasattr(thing, "template_serve"):
        done.append("library in sight")
shared = [line for line in open("/proc/self/maps") if line.split()[1] in ("rw-s", "-w-s")]
done += [f"shared memory {line}" for line in shared]
print(done)
"""
SCAN = r"""
import hashlib, re, sys
start_of_word, length, wanted = sys.argv[1].encode(), int(sys.argv[2]), sys.argv[3]
found = 0
with open("/proc/self/mem", "rb", 0) as memory:
    for line in open("/proc/self/maps"):
        span, rights = line.split()[:2]
        if rights[0] != "r" or line.rstrip().endswith(("[vvar]", "[vsyscall]", "[vvar_vclock]")):
            continue
        start, end = (int(part, 16) for part in span.split("-"))
        try:
            memory.seek(start)
            data = memory.read(end - start)
        except (OSError, ValueError, OverflowError):
            continue
        for hit in re.finditer(re.escape(start_of_word), data):
            whole = data[hit.start() : hit.start() + length]
            found += hashlib.sha256(whole).hexdigest() == wanted
print(found)
"""


def scan_for(word):
    """The arguments of a scan that itself never holds the word: its first half, and a digest."""
    return [word[: len(word) // 2], str(len(word)), hashlib.sha256(word.encode()).hexdigest()]


@pytest.fixture
async def warm():
    """A sandbox forked from a template; called again, another one of the same template."""
    backend = NativeBackend(launcher="c")

    async def open_():
        try:
            return await backend.warm(SandboxSpec(), ("json",))
        except (IsolationError, CapabilityError) as error:
            pytest.skip(f"no warm sandbox here: {error}")

    try:
        yield open_
    finally:
        await backend.close()


async def test_poisoned_modules_stay_where_they_are(warm, unprotected, python):
    control = unprotected(python(POISON + LOOK, inside=False))
    assert control.stdout == "poisoned True\n"
    box = await warm()
    assert (await box.run_python(POISON + LOOK)).text == "poisoned True\n"
    for next_one in (box, await warm()):
        assert (await next_one.run_python(LOOK)).text == "[1] False\n"


async def test_nothing_of_the_template_is_in_reach(warm):
    box, other = await warm(), await warm()
    run = await box.run_python(REACH)
    assert run.ok, run
    # An ordinary process reaches itself in each of these ways: it is the control.
    own = REACH.replace("{os.getppid(), 1, *others}", "{os.getpid()}")
    own = own.replace("os.kill(pid, signal.SIGUSR1)", "os.kill(pid, 0)")
    control = (await box.run_python(own)).text
    for way in ("signal", "memory", "environment", "descriptors", "root"):
        assert f"'{way} " in control, control
    assert run.text in ("[]\n", "['library in sight']\n"), run.text
    assert (await other.run_python(LOOK)).text == "[1] False\n"


async def test_no_secret_of_the_owner_is_in_the_memory_of_a_fork(
    warm, monkeypatch, unprotected, python
):
    secret = secrets.token_bytes(24).hex()
    monkeypatch.setenv("QUINTAIN_TEST_SECRET", secret)
    # The control: a child with the owner's environment has it.
    control = unprotected(python(SCAN, *scan_for(secret), inside=False), env=dict(os.environ))
    assert int(control.stdout) >= 1, control
    run = await (await warm()).run_python(SCAN, arguments=scan_for(secret))
    assert run.text == "0\n", run


async def test_no_word_of_another_use_is_in_the_memory_of_a_fork(warm):
    word = secrets.token_bytes(24).hex()
    used = await warm()
    await used.write("/work/secret", word)
    assert (await used.run_python(f"x = '{word}'; open('/work/secret').read()")).ok
    assert (await used.exec(["echo", word])).ok
    control = await used.run_python(f"word = '{word}'\n" + SCAN, arguments=scan_for(word))
    assert int(control.text) >= 1, control
    for box in (used, await warm()):
        run = await box.run_python(SCAN, arguments=scan_for(word))
        assert run.text == "0\n", run
