"""The second layer: rules by version, alone on a bare process, and nothing lost inside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from quintain.sandbox import landlock, wire

ALONE = """
import os, signal, sys
from quintain.sandbox import landlock, wire
from quintain.sandbox.steps import Steps
root, victim, layer = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "on"
if layer:
    from quintain.sandbox.kernel import prctl
    prctl(38, 1)
    rules = landlock.create_ruleset(0xFFFF, 0, 3)
    landlock.allow_below(rules, root, 0xFFFF & ~(landlock.MAKE_CHAR | landlock.MAKE_BLOCK))
    landlock.restrict_self(rules)
def attempt(what, action):
    try:
        action()
        print(what, "open")
    except OSError as error:
        print(what, error.strerror)
attempt("inside", lambda: open(root + "/file", "w").close())
attempt("outside", lambda: open(root + "/../outside").close())
attempt("signal", lambda: os.kill(victim, signal.SIGCONT))
attempt("device", lambda: os.mknod(root + "/null", 0o20666, os.makedev(1, 3)))
"""


def alone(tmp_path, victim, layer):
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    (tmp_path / "outside").write_text("x")
    argv = [sys.executable, "-c", ALONE, str(root), str(victim), layer]
    run = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    (root / "null").unlink(missing_ok=True)
    return dict(line.split(" ", 1) for line in run.stdout.splitlines())


@pytest.mark.skipif(landlock.version() < 6, reason="needs Landlock version 6")
def test_it_holds_alone(tmp_path):
    with subprocess.Popen(["sleep", "60"]) as victim:
        try:
            without, with_it = (alone(tmp_path, victim.pid, layer) for layer in ("off", "on"))
        finally:
            victim.send_signal(signal.SIGKILL)
    assert without["outside"] == without["signal"] == without["inside"] == "open"
    if os.geteuid() == 0:
        assert without["device"] == "open"
    assert with_it["inside"] == "open"
    assert with_it["outside"] == with_it["device"] == "Permission denied"
    assert with_it["signal"] == "Operation not permitted"


@pytest.mark.parametrize(("spoken", "files", "scopes"), [(2, 14, 0), (3, 15, 0), (4, 15, 0),
                         (5, 16, 0), (6, 16, 3), (9, 16, 3)])  # fmt: skip
def test_rules_follow_the_version(spoken, files, scopes):
    plan = wire.Plan()
    landlock.plan_rules(plan, spoken, "/layer")
    landlock.plan_restriction(plan, spoken)
    steps = wire.steps(bytes(plan.data))
    assert [step[0] for step in steps] == [
        wire.RULES, *[wire.ALLOW] * (3 if spoken >= 5 else 2), wire.RESTRICT
    ]  # fmt: skip
    assert steps[0][2:5] == ((1 << files) - 1, 0, scopes)
    allowed = steps[2][2]
    assert not allowed & ((1 << 6) | (1 << 11)), "no device may be made"
    assert allowed & ~((1 << files) - 1) == 0


@pytest.mark.parametrize("spoken", [0, 1])
def test_an_old_kernel_gets_no_rules(spoken):
    plan = wire.Plan()
    landlock.plan_rules(plan, spoken, "/layer")
    landlock.plan_restriction(plan, spoken)
    assert not plan.data
    assert landlock.layers(spoken) == ()


NEEDED = """
import asyncio, multiprocessing, os, pty, shutil, signal, socket, subprocess, sys, tempfile
os.makedirs("a/b"); os.makedirs("c")
open("a/b/x", "w").write("1"); os.rename("a/b/x", "c/x"); os.link("c/x", "a/y")
os.symlink("c", "l"); os.mkfifo("pipe"); os.truncate("c/x", 5); shutil.rmtree("a")
for path in ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", "/dev/stdin", "/dev/fd/0"):
    os.close(os.open(path, os.O_RDONLY))
open("/dev/null", "w").write("x"); open("/dev/shm/s", "w").write("x")
with tempfile.TemporaryFile() as file: file.write(b"x")
memory = os.memfd_create("m"); os.close(os.open(f"/proc/self/fd/{memory}", os.O_RDWR))
main, worker = pty.openpty(); assert os.isatty(worker)
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname()).close()
with socket.socket(socket.AF_UNIX) as server:
    server.bind("\\0own"); server.listen()
    with socket.socket(socket.AF_UNIX) as client: client.connect("\\0own")
with socket.socket(socket.AF_UNIX) as server: server.bind("sock"); os.stat("sock")
with multiprocessing.Pool(2) as pool: assert pool.map(abs, [-1, -2]) == [1, 2]
async def main():
    child = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    assert (await child.communicate(b"x"))[0] == b"x"
asyncio.run(main())
child = subprocess.Popen(["sleep", "60"]); child.terminate(); assert child.wait() == -15
print("all")
"""


async def test_commands_keep_what_they_need(box):
    run = await box.exec(["python3", "-c", NEEDED])
    assert run.text == "all\n", run


SERVER = """
import socket
server = socket.socket(socket.AF_UNIX)
server.bind("\\0x")
server.listen()
open("/tmp/up", "w")
server.accept()
"""


async def test_commands_of_one_sandbox_reach_each_other(box):
    await box.write("server.py", SERVER)
    shell = await box.session()
    await shell.run("python3 server.py & sleep 100 & echo $! > pid")
    wait = "while ! test -e /tmp/up; do sleep 0.02; done"
    connect = "import socket; s = socket.socket(1); s.connect('\\0x')"
    run = await box.exec(["sh", "-c", f'{wait}; python3 -c "{connect}" && kill $(cat pid)'])
    assert run.ok, run
