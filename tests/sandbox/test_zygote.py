"""Interpreters forked into sandboxes: warm, each alone, and as confined as any command."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quintain.errors import CapabilityError, ConfigError, IsolationError, SandboxError
from quintain.sandbox import build, cgroups, template, wire
from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec

MODULES = ("json", "decimal", "unittest")
NAMESPACES = ("mnt", "pid", "net", "ipc", "uts", "user", "cgroup")


@pytest.fixture
async def backend():
    if build.library() is None:
        pytest.skip("no C compiler: sandboxes are forked by the C helper only")
    backend = NativeBackend(launcher="c")
    try:
        await (await backend.open(SandboxSpec())).close()
    except IsolationError as error:
        await backend.close()
        pytest.skip(f"no native sandbox here: {error}")
    yield backend
    await backend.close()


@pytest.fixture
async def warm(backend):
    """Opens warm sandboxes; the backend closes them."""

    async def open_(modules=MODULES, **spec):
        return await backend.warm(SandboxSpec(**spec), modules)

    return open_


async def value(box, code, **options):
    """What an expression is inside."""
    run = await box.run_python(f"import os, sys; print(repr(({code})))", **options)
    assert run.ok, run
    return ast.literal_eval(run.text)


async def test_it_runs_as_an_interpreter_would(warm):
    box = await warm(env={"WHO": "me"})
    assert {"zygote", "session", "list"} <= box.capabilities
    assert await value(box, "[m in sys.modules for m in ('json', 'unittest')]") == [True, True]
    assert await value(box, "sys.argv", arguments=["a", "b c"]) == ["-c", "a", "b c"]
    assert await value(box, "(__name__, sys.path[0], os.getcwd())") == ("__main__", "", "/work")
    assert await value(box, "os.environ['WHO'], os.environ['X']", env={"X": "1"}) == ("me", "1")
    assert await value(box, "'OMP_NUM_THREADS' in os.environ") is False
    assert await value(box, "sys.stdin.read()", stdin="héllo") == "héllo"
    failed = await box.run_python("import sys\nprint('out')\ndef f(): 1/0\nf()")
    assert (failed.exit_code, failed.text) == (1, "out\n")
    assert failed.error_text == (
        'Traceback (most recent call last):\n  File "<string>", line 4, in <module>\n'
        '  File "<string>", line 3, in f\nZeroDivisionError: division by zero\n'
    )
    assert (await box.run_python("def")).error_text.endswith("SyntaxError: invalid syntax\n")
    assert (await box.run_python("raise SystemExit(7)")).exit_code == 7
    told = await box.run_python("import sys; sys.exit('why')")
    assert (told.exit_code, told.error_text) == (1, "why\n")
    late = "import atexit, threading, time\natexit.register(print, 'at exit')\n"
    late += "threading.Thread(target=lambda: (time.sleep(.05), print('thread'))).start()"
    assert (await box.run_python(late)).text == "thread\nat exit\n"


async def test_what_an_ordinary_sandbox_can_it_can_too(warm):
    box = await warm()
    await box.write("/work/tool.py", "def add(a, b): return a + b")
    assert await value(box, "__import__('tool').add(2, 3)") == 5
    assert (await box.exec(["sh", "-c", "echo $0; exit 4"])).exit_code == 4
    shell = await box.session()
    await shell.run("cd /tmp; echo kept > file")
    assert await value(box, "open('/tmp/file').read()") == "kept\n"
    pool = "from concurrent.futures import ProcessPoolExecutor as P\n"
    pool += "with P(2) as p: print(sum(p.map(abs, [-1, -2])))"
    assert (await box.run_python(pool)).text == "3\n"
    code = "import subprocess; print(subprocess.run(['id', '-u'], capture_output=True).stdout)"
    assert (await box.run_python(code)).text == "b'1000\\n'\n"


async def test_limits_hold(warm):
    box = await warm(memory_mb=64, max_pids=8, disk_mb=8, exec_s=20)
    assert (await box.run_python("bytearray(200 << 20)")).killed == "memory"
    forks = "import os, time\nfor _ in range(20): os.fork() or time.sleep(5)"
    assert (await box.run_python(forks)).killed == "pids"
    assert (
        "No space"
        in (await box.run_python("open('/tmp/x', 'wb').write(bytes(20 << 20))")).error_text
    )
    slow = await box.run_python("import os, time\nos.fork()\ntime.sleep(60)", timeout_s=0.3)
    assert slow.killed == "timeout"
    flood = await box.run_python("print('x' * 3_000_000)")
    assert flood.truncated
    assert (await value(box, "len(os.listdir('/proc')) and 1")) == 1


async def test_it_is_as_confined_as_any_command(backend, warm):
    box = await warm()
    status = await value(box, "open('/proc/self/status').read()")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Uid"].split() == ["1000"] * 4
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[name], 16) == 0, (name, fields[name])
    assert await value(box, "sorted(os.listdir('/proc/self/fd'))") == ["0", "1", "2", "3"]
    plain = await backend.open(SandboxSpec())
    listing = "sorted(os.listdir('/')), sorted(os.listdir('/dev')), sorted(os.listdir('/etc'))"
    same = await plain.exec(["python3", "-c", f"import os; print(repr(({listing})))"])
    assert await value(box, listing) == ast.literal_eval(same.text)
    mounts = "[l.split()[1] for l in open('/proc/mounts') if not l.split()[1].startswith('/dev')]"
    same = await plain.exec(["python3", "-c", f"print(repr({mounts}))"])
    assert await value(box, mounts) == ast.literal_eval(same.text)


async def test_each_is_in_namespaces_and_groups_of_its_own(warm):
    boxes = [await warm() for _ in range(3)]
    read = f"[os.readlink('/proc/self/ns/' + n) for n in {NAMESPACES}]"
    seen = [await value(box, read) for box in boxes]
    outside = [os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES]
    for at, name in enumerate(NAMESPACES):
        assert len({row[at] for row in (*seen, outside)}) == 4, name
    assert len({tuple(box.groups.values()) for box in boxes}) == (3 if boxes[0].groups else 1)
    ids = [await value(box, "open('/proc/self/uid_map').read()") for box in boxes]
    assert len(set(ids)) == 3


async def test_no_state_goes_from_one_fork_to_another(warm):
    spoil = """
import builtins, json, os, sys
json.LEFT = builtins.LEFT = sys.LEFT = 1
json.dumps = lambda value: "poisoned"
os.environ["LEFT"] = "1"
sys.modules["left"] = sys
sys.path.append("/left")
os.chdir("/tmp")
os.umask(0)
open("/tmp/left", "w").close()
"""
    look = """
import builtins, json, os, sys
print([hasattr(json, "LEFT"), hasattr(builtins, "LEFT"), hasattr(sys, "LEFT"), json.dumps([1]),
       "LEFT" in os.environ, "left" in sys.modules, "/left" in sys.path, os.getcwd(),
       os.path.exists("/tmp/left"), oct(os.umask(0))])
"""
    clean = "[False, False, False, '[1]', False, False, False, '/work', {file}, '0o22']\n"
    box, other = await warm(), await warm()
    assert (await box.run_python(spoil)).ok
    assert (await box.run_python(look)).text == clean.format(file=True)
    for next_one in (other, await warm()):
        assert (await next_one.run_python(look)).text == clean.format(file=False)


async def test_random_numbers_differ_and_hashes_do_not(warm):
    box = await warm(("random", "uuid", "tempfile"))
    draw = "__import__('random').random(), __import__('uuid').uuid4().hex, os.urandom(8)"
    draws = [
        await value(one, draw) for one in (box, box, await warm(("random", "uuid", "tempfile")))
    ]
    for column in zip(*draws, strict=True):
        assert len(set(column)) == 3
    assert await value(box, "hash('text')") == await value(await warm(), "hash('text')")


async def test_a_module_that_cannot_be_imported_is_named(warm):
    with pytest.raises(SandboxError, match="no_such_module: ModuleNotFoundError"):
        await warm(("json", "no_such_module"))
    assert await value(await warm(("json",)), "1") == 1


def test_a_module_that_starts_threads_is_refused(tmp_path):
    source = "import threading, time\n"
    source += "threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
    (tmp_path / "starter.py").write_text(source)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    start = "import os, sys; os.dup2(int(sys.argv[1]), 3); os.execv(sys.argv[2], sys.argv[2:])"
    argv = [sys.executable, "-c", start, str(theirs.fileno())]
    argv += [sys.executable, template.__file__, "unused.so", "json", "starter"]
    with ours:
        with theirs:
            path = {"PYTHONPATH": str(tmp_path)}
            subprocess.run(argv, pass_fds=[theirs.fileno()], env=path, timeout=30)
        kind, _, body, _ = wire.receive(ours)
    assert kind == wire.FAILED
    assert b"import starter starts threads" in body


async def test_the_python_launcher_refuses_by_name():
    backend = NativeBackend(launcher="python", allow_weaker=True)
    try:
        with pytest.raises(CapabilityError, match="compiler"):
            await backend.warm(SandboxSpec())
    finally:
        await backend.close()


async def test_what_is_no_module_is_refused(warm):
    with pytest.raises(ConfigError, match="import"):
        await warm(("import os",))


async def test_an_ordinary_sandbox_has_no_template(backend):
    box = await backend.open(SandboxSpec())
    with pytest.raises(CapabilityError, match="warm"):
        await box.run_python("1")


async def test_many_at_once(warm):
    boxes = await asyncio.gather(*(warm() for _ in range(40)))
    runs = await asyncio.gather(
        *(box.run_python(f"print({n} ** 2)") for n, box in enumerate(boxes))
    )
    assert [int(run.text) for run in runs] == [n**2 for n in range(40)]
    groups = [folder for box in boxes for folder in box.groups.values()]
    await asyncio.gather(*(box.close() for box in boxes))
    assert not [folder for folder in groups if os.path.exists(folder)]


async def test_a_template_that_dies_breaks_its_sandboxes_and_is_replaced(backend, warm):
    box = await warm()
    (server,) = backend._templates.values()
    children = Path(f"/proc/{server._process.pid}/task/{server._process.pid}/children")
    (template,) = [int(pid) for pid in children.read_text().split()]
    os.kill(template, signal.SIGKILL)
    with pytest.raises(SandboxError):
        await box.run_python("import time; time.sleep(30)")
    assert await value(await warm(), "1") == 1


OWNER = """
import asyncio
from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec

async def main():
    backend = NativeBackend(launcher="c")
    boxes = [await backend.warm(SandboxSpec(), ("json",)) for _ in range(3)]
    runs = [asyncio.create_task(box.run_python("import time; time.sleep(999)", timeout_s=999))
            for box in boxes]
    await asyncio.sleep(0.3)
    print(list(backend._templates.values())[0]._process.pid, flush=True)
    await asyncio.sleep(999)

asyncio.run(main())
"""


def test_an_owner_killed_leaves_nothing(backend):
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE)
    try:
        server = int(owner.stdout.readline())
        family = _below(server)
        assert len(family) >= 7, family
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    mine = f"{cgroups.PREFIX}{owner.pid}-"
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        groups = [n for p in cgroups.find().places() for n in os.listdir(p) if n.startswith(mine)]
        if not groups and not [pid for pid in (server, *family) if _alive(pid)]:
            return
        time.sleep(0.02)
    pytest.fail(f"left: {groups}, {[pid for pid in (server, *family) if _alive(pid)]}")


def _below(pid):
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *_below(int(child))]
    return found


def _alive(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
