"""Attacks that the probe runs inside a sandbox: each a small Python program, standard library only.

An attack prints `held` as its last line when the wall held, and else what it could do. Programs
read their arguments from `sys.argv[1]` (JSON), see `Facts`. The limits (memory, processes, disk,
time, output) are judged from outside, by how the command ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quintain.protocols import ExecResult

_START = """
import ctypes, errno, json, os, select, signal, socket, sys
facts = json.loads(sys.argv[1])
broken = []
def attempt(what, function):
    try:
        found = function()
    except OSError as error:
        return error
    broken.append(f"{what}: {str(found)[:80]}")
"""
_END = """
print("\\n".join(broken))
print("broken" if broken else "held")
"""


def _said_held(run: ExecResult) -> bool:
    return run.text.splitlines()[-1:] == ["held"]


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack and how to tell whether it was contained."""

    wall: str
    """The name of the wall or limit that it tests."""
    code: str
    held: Callable[[ExecResult], bool] = _said_held
    timeout_s: float = 10.0
    control: bool = True
    """Whether it may be run unprotected, to see that it would work."""
    alone: bool = False
    """Whether it tells nothing while others use the processors too."""


def _program(code: str) -> str:
    return _START + code + _END


FILES = """
for way in ("", "/proc/1/root", "/proc/self/root", "/proc/1/cwd", "/" + "../" * 30, "/host"):
    attempt("read", lambda: open(way + facts["canary"]).read())
attempt("write to /usr", lambda: open("/usr/.quintain-probe", "w") if facts["inside"] else 1)
attempt("raw memory", lambda: os.open("/dev/mem", os.O_RDONLY) if facts["inside"] else 1)
"""
NETWORK = """
def connect(family, address):
    with socket.socket(family) as s:
        s.settimeout(2)
        s.connect(address)
        return address
attempt("host loopback", lambda: connect(socket.AF_INET, ("127.0.0.1", facts["port"])))
attempt("abstract socket", lambda: connect(socket.AF_UNIX, facts["abstract"].replace("@", "\\0")))
def fast_open():
    with socket.socket() as s:
        s.settimeout(2)
        try:
            s.sendto(b"x", 0x20000000, ("127.0.0.1", facts["port"]))
        except BlockingIOError:
            select.select([], [s], [], 2)
        code = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, "refused")
        return s.getpeername()
attempt("host loopback by fast open", fast_open)
def domain(family):
    with socket.socket(family, socket.SOCK_RAW) as s:
        if s.getsockopt(socket.SOL_SOCKET, 39) != family:
            raise OSError("a stand-in")
        return "opened"
for family in (socket.AF_NETLINK, socket.AF_PACKET, 38, 40):
    attempt(f"socket family {family}", lambda: domain(family))
links = [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line]
if links != ["lo"]:
    broken.append(f"interfaces: {links}")
"""
PROCESSES = """
seen = [name for name in os.listdir("/proc") if name.isdigit()]
if len(seen) > 8:
    broken.append(f"{len(seen)} processes are visible")
attempt("signal the victim", lambda: os.kill(facts["victim"], 0) if facts["victim"] else 1)
attempt("its memory", lambda: open("/proc/1/mem", "rb"))
attempt("its environment", lambda: open("/proc/1/environ", "rb").read())
"""
CALLS = """
libc = ctypes.CDLL(None, use_errno=True)
for name, number in facts["calls"].items():
    minus = [ctypes.c_long(-1)] * 6
    if libc.syscall(ctypes.c_long(number), *minus) == 0 or ctypes.get_errno() != errno.EPERM:
        broken.append(f"{name}: {os.strerror(ctypes.get_errno())}")
"""
NAMESPACES = """
libc = ctypes.CDLL(None, use_errno=True)
for name, flag in (("user", 0x10000000), ("mount", 0x20000), ("network", 0x40000000)):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if libc.unshare(flag) else 1)
    if os.waitpid(pid, 0)[1]:
        broken.append(f"a new {name} namespace")
"""
RIGHTS = """
state = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    if int(state.get(name, "0"), 16):
        broken.append(f"{name} {state[name].strip()}")
if ctypes.CDLL(None).prctl(39, 0, 0, 0, 0) != 1:
    broken.append("new privileges")
attempt("become root", lambda: os.setuid(0))
"""
HOST_FACTS = """
for name in ("cmdline", "kallsyms", "iomem", "interrupts", "config.gz"):
    path = "/proc/" + name
    if os.path.exists(path) and open(path, "rb").read(64):
        broken.append(path)
total = int(next(line for line in open("/proc/meminfo") if "MemTotal" in line).split()[1]) // 1024
if total != facts["memory_mb"]:
    broken.append(f"the host's memory: {total} MB")
if socket.gethostname() == facts["host_name"]:
    broken.append("the host's name")
"""
FORKS = """
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            signal.pause()
        made += 1
except OSError:
    pass
if made > facts["max_pids"]:
    broken.append(f"{made} processes")
"""
MEMORY = "kept = [b'x' * (1 << 20) for _ in range(200)]\nbroken.append('200 MB')\n"
DISK = """
def fill(folder):
    with open(folder + "/fill", "wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
for folder in ("/tmp", "/dev/shm", "/work", "/home/sandbox"):
    attempt(folder, lambda: fill(folder))
    if os.path.exists(folder + "/fill"):
        os.unlink(folder + "/fill")
"""
TIME = """
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
while True:
    signal.pause()
"""
OUTPUT = "os.write(1, b'x' * 3_000_000)\n"
CPU = """
import time
end = time.monotonic() + 1
while time.monotonic() < end:
    pass
"""

ATTACKS: tuple[Attack, ...] = (
    Attack("files", _program(FILES)),
    Attack("network", _program(NETWORK)),
    Attack("processes", _program(PROCESSES)),
    Attack("seccomp", _program(CALLS), control=False),
    Attack("namespaces", _program(NAMESPACES)),
    Attack("capabilities", _program(RIGHTS)),
    Attack("host facts", _program(HOST_FACTS)),
    Attack(
        "pids",
        _program(FORKS),
        lambda run: _said_held(run) or run.killed in ("pids", "memory"),
        control=False,
    ),
    Attack("memory", _program(MEMORY), lambda run: run.killed == "memory"),
    Attack("disk", _program(DISK), control=False),
    Attack("time", _program(TIME), lambda run: run.killed == "timeout", 0.5, control=False),
    Attack("output", _program(OUTPUT), lambda run: run.truncated, control=False),
    Attack(
        "cpus", _program(CPU), lambda run: run.cpu_s < 0.75 * run.wall_s, control=False, alone=True
    ),
)
"""In the order in which they are run."""
