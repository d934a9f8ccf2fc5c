"""What the attacks share: sandboxes of a backend (`--backend`), and the unprotected control."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from loopback import Authority, Names
from quintain.errors import IsolationError
from quintain.registry import sandboxes
from quintain.sandbox.filter import TABLES
from quintain.sandbox.native import NativeBackend
from quintain.sandbox.network import PORT
from quintain.sandbox.weak import WeakBackend
from quintain.task import NetworkPolicy, SandboxSpec
from redteam.sandbox.gvisor import DIFFERS
from redteam.sandbox.weak import HOLDS

HERE = Path(__file__).parent


NATIVE = (
    "build_escapes", "forge_reset_proof", "hostile_archives", "judge_interpreter",
    "leaked_descriptors", "poison_template", "session_forgery", "snapshot_smuggling",
    "survive_reset", "survivors_after_session_timeout",
)  # fmt: skip
"""Attacks on what only the native backend has: builds, sessions, snapshots, resets, templates."""


def pytest_collection_modifyitems(config, items):
    """Skips what another backend (`--backend`) does not have."""
    if config.getoption("--backend") == "native":
        return
    for item in items:
        if item.path.parent == HERE and item.path.stem.removeprefix("test_") in NATIVE:
            item.add_marker(pytest.mark.skip(reason="the native backend alone has it"))
        differs = DIFFERS.get(item.function.__name__)
        if differs and config.getoption("--backend") == "gvisor":
            item.add_marker(pytest.mark.skip(reason=f"gVisor: {differs}"))


def pytest_generate_tests(metafunc):
    """Runs an attack over both launchers if it asks, and over the weak tier where that holds."""
    native = metafunc.config.getoption("--backend") == "native"
    name = metafunc.module.__name__.rpartition(".")[2]
    if "tier" in metafunc.fixturenames and metafunc.function.__name__ in HOLDS.get(name, ()):
        metafunc.parametrize("tier", ["native", "weak"] if native else ["native"])
    if "any_launcher" in metafunc.fixturenames:
        metafunc.parametrize("any_launcher", ["c", "python"] if native else ["auto"])


@pytest.fixture
def tier():
    """Which tier is attacked: the backend named on the command line, or the weak one."""
    return "native"


@pytest.fixture
async def open_sandbox(request, tier):
    """Opens sandboxes with the given spec; they are closed at the end."""
    name = request.config.getoption("--backend")
    launcher = "auto"
    if "any_launcher" in request.fixturenames:
        launcher = request.getfixturevalue("any_launcher")
    backend = NativeBackend(launcher=launcher) if name == "native" else sandboxes.get(name)()
    if tier == "weak":
        backend = WeakBackend(allow_weaker=True)
    opened = []

    async def open_(**spec):
        if tier == "weak":
            spec["isolation"] = "weak"
        try:
            sandbox = await backend.open(SandboxSpec(**spec))
        except IsolationError as error:
            pytest.skip(f"no {name} sandbox here: {error}")
        opened.append(sandbox)
        return sandbox

    yield open_
    for sandbox in opened:
        await sandbox.close()
    await backend.close()


@pytest.fixture
def native_only(request):
    """Skips where another backend is attacked: it has no such second layer."""
    if request.config.getoption("--backend") != "native":
        pytest.skip("a second layer of the native backend")


@pytest.fixture
async def sandbox(open_sandbox):
    """A sandbox of the default spec."""
    return await open_sandbox()


@pytest.fixture
def unprotected():
    """Runs a command on the host with no protection at all: the control of an attack."""

    def run(argv, **options):
        options.setdefault("timeout", 60)
        return subprocess.run(argv, capture_output=True, text=True, **options)

    return run


@pytest.fixture
def python():
    """The argv of a Python program for the host and for the sandbox."""

    def argv(code, *arguments, inside):
        return ["python3" if inside else sys.executable, "-c", code, *map(str, arguments)]

    return argv


CALL = """
import ctypes, errno, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
number, *arguments = json.loads(sys.argv[1])
buffers = []
for at, value in enumerate(arguments):
    if isinstance(value, str):
        buffers.append(ctypes.create_string_buffer(bytes.fromhex(value), 256))
        arguments[at] = buffers[-1]
    else:
        arguments[at] = ctypes.c_long(value)
result = libc.syscall(ctypes.c_long(number), *arguments)
print("refused" if result < 0 and ctypes.get_errno() == errno.EPERM else
      f"allowed {result} {errno.errorcode.get(ctypes.get_errno(), '')}")
"""


@pytest.fixture
def system_call(sandbox, unprotected, python):
    """Makes a system call unprotected (which must do something) and inside; both answers.

    A string is a buffer, in hex, zero-filled to 256 bytes.
    """

    async def call(name, *arguments):
        table = TABLES.get(platform.machine())
        if table is None or name not in table:
            pytest.skip(f"{name} has no number on {platform.machine()}")
        wanted = json.dumps([table[name], *arguments])
        control = unprotected(python(CALL, wanted, inside=False)).stdout.strip()
        run = await sandbox.exec(python(CALL, wanted, inside=True))
        assert run.ok, run
        return control, run.text.strip()

    return call


@pytest.fixture
def as_root():
    """Skips where the control needs to be root."""
    if os.geteuid() != 0:
        pytest.skip("the control needs root")


# --- the network --------------------------------------------------------------------------------

RAW = """
import json, socket, sys
address, port, close = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
answers = []
for data in json.load(sys.stdin):
    with socket.create_connection((address, port), timeout=15) as s:
        got = b""
        try:
            s.sendall(bytes.fromhex(data))
            if close:
                s.shutdown(socket.SHUT_WR)
            while piece := s.recv(65536):
                got += piece
        except (ConnectionResetError, BrokenPipeError):
            pass
    answers.append(got.decode("latin-1"))
print(json.dumps(answers))
"""


@pytest.fixture
def names():
    """The resolver of networked sandboxes; every name is on loopback."""
    return Names(site_test=[["127.0.0.1"]], other_test=[["127.0.0.1"]])


@pytest.fixture
async def networked(request, names):
    """Opens sandboxes with the given network policy."""
    launcher = "auto"
    if "any_launcher" in request.fixturenames:
        launcher = request.getfixturevalue("any_launcher")
    name = request.config.getoption("--backend")
    if name == "native":
        backend = NativeBackend(launcher=launcher, resolve=names)
    else:
        backend = sandboxes.get(name)(resolve=names)
    opened = []

    async def open_(**policy):
        try:
            opened.append(await backend.open(SandboxSpec(network=NetworkPolicy(**policy))))
        except IsolationError as error:
            pytest.skip(f"no {name} sandbox with a network here: {error}")
        return opened[-1]

    yield open_
    for sandbox in opened:
        await sandbox.close()
    await backend.close()


@pytest.fixture
def raw(unprotected, python):
    """Sends bytes to a port: of the sandbox's proxy, or unprotected to a host's port itself.

    Each of the pieces goes over a connection of its own; the answers come back in their order.
    """

    async def send(sandbox, *pieces, port=PORT, then_close=False):
        encoded = [one.encode() if isinstance(one, str) else one for one in pieces]
        data = json.dumps([one.hex() for one in encoded])
        words = ["127.0.0.1", port, *(["close"] if then_close else [])]
        if sandbox is None:
            control = python(RAW, *words, inside=False)
            text = (await asyncio.to_thread(unprotected, control, input=data)).stdout
        else:
            argv = python(RAW, *words, inside=True)
            run = await sandbox.exec(argv, stdin=data, timeout_s=60)
            assert run.ok, run
            text = run.text
        answers = json.loads(text)
        return answers[0] if len(answers) == 1 else answers

    return send


@pytest.fixture
def decisions():
    """What a sandbox's network log says: decision and reason of each request."""

    async def read(sandbox):
        events = await sandbox.network_log()
        return [(event.data["decision"], event.data["reason"]) for event in events]

    return read


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    """A certificate authority of the tests."""
    return Authority(tmp_path_factory.mktemp("authority"))
