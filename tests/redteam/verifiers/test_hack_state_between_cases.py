"""Nothing written, started or set in one case is there in the next."""

from judging import SQUARE, all_of, outcomes

LEAVE = {
    "work": "trace('/work/t')",
    "tmp": "trace('/tmp/t')",
    "deep": "os.makedirs('/tmp/a/b', exist_ok=True) or trace('/tmp/a/b/t')",
    "locked": "os.path.exists('/tmp/x/t') or (os.mkdir('/tmp/x'), open('/tmp/x/t', 'w'), "
    "os.chmod('/tmp/x', 0))[1:1] and 1",
    "shm": "trace('/dev/shm/t')",
    "var_tmp": "os.access('/var/tmp', os.W_OK) and trace('/var/tmp/t')",
    "home": "trace(os.path.expanduser('~/t'))",
    "hidden": "trace('/work/.t')",
    "relative": "trace('t')",
    "module": "hasattr(os, 'seen') or setattr(os, 'seen', 1)",
    "environment": "'SEEN' in os.environ or os.environ.__setitem__('SEEN', '1')",
    "process": "others() or background()",
    "session": "others() or background(True)",
    "abstract_socket": "listen()",
    "cwd": "os.getcwd() != '/work' or os.chdir('/tmp')",
    "umask": "os.umask(0o77) == 0o77",
    "nice": "os.nice(1) > 1",
}
CODE = """
import os, socket, time
def trace(path):
    if os.path.exists(path):
        return True
    open(path, "w").close()
def others():
    mine = {{os.getpid(), os.getppid(), 1}}
    seen = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) not in mine:
            if os.stat("/proc/" + entry).st_uid == os.getuid():
                seen.append(entry)
    return seen
def background(session=False):
    if os.fork() == 0:
        if session:
            os.setsid()
            if os.fork():
                os._exit(0)
        time.sleep(60)
        os._exit(0)
    time.sleep(0.05)
KEEP = []
def listen():
    server = socket.socket(socket.AF_UNIX)
    KEEP.append(server)
    try:
        server.bind(chr(0) + "seen")
    except OSError as error:
        return error.errno == 98
def f(n):
    return "seen" if {leave} else n * n
"""


async def test_every_case_starts_clean(bench):
    variants = {name: CODE.format(leave=leave) for name, leave in LEAVE.items()}
    assert await outcomes(bench, variants, SQUARE) == all_of(variants, "solved")


async def test_control(bench):
    """Within one case the traces are seen: the same program then fails."""
    twice = {
        name: CODE.format(leave=f"({leave}) or ({leave})")
        for name, leave in LEAVE.items()
        if name in ("work", "tmp", "home", "module", "environment", "process", "abstract_socket")
    }
    assert await outcomes(bench, twice, SQUARE) == all_of(twice, "failed")
