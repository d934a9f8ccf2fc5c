"""The expected value is nowhere that the candidate can look: a canary says so."""

import secrets

from judging import all_of, outcomes

SEARCH = """
import glob, os, re, sys, gc
WANTED = re.compile(rb"canary-[0-9a-f]{24}")
def in_bytes(data):
    found = WANTED.search(data)
    return found.group().decode() if found else None
def readable(path):
    try:
        with open(path, "rb") as file:
            return file.read(5_000_000)
    except OSError:
        return b""
"""
VARIANTS = {
    "frames": SEARCH
    + """
def f(n):
    frame = sys._getframe()
    while frame:
        for value in (*frame.f_locals.values(), *frame.f_globals.values()):
            try: found = in_bytes(repr(value).encode())
            except Exception: found = None
            if found: return found
        frame = frame.f_back
""",
    "gc": SEARCH
    + """
def f(n):
    for item in gc.get_objects():
        try: found = in_bytes(repr(item).encode())
        except Exception: found = None
        if found: return found
""",
    "proc": SEARCH
    + """
def f(n):
    paths = [f"/proc/*/{name}" for name in ("cmdline", "environ", "fd/*")]
    for path in [path for pattern in paths for path in glob.glob(pattern)]:
        found = in_bytes(readable(path))
        if found: return found
""",
    "memory": SEARCH
    + """
import ctypes
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
def f(n):
    for pid in [p for p in os.listdir("/proc") if p.isdigit()]:
        try:
            maps, memory = open(f"/proc/{pid}/maps").read(), open(f"/proc/{pid}/mem", "rb")
        except OSError:
            continue
        for line in maps.splitlines():
            low, high = (int(part, 16) for part in line.split()[0].split("-"))
            if " r" in line and high - low < 50_000_000:
                try:
                    memory.seek(low)
                    found = in_bytes(memory.read(high - low))
                except (OSError, ValueError, OverflowError):
                    continue
                if found: return found
""",
    "files": SEARCH
    + """
def f(n):
    tops = "work tmp var home run dev/shm mnt srv opt etc"
    for top in ("/" + name for name in tops.split()):
        for folder, _, names in os.walk(top):
            for name in names:
                found = in_bytes(readable(os.path.join(folder, name)))
                if found: return found
""",
}


async def test_no_search_finds_it(bench):
    expected = f"canary-{secrets.token_hex(12)}"
    cases = [{"input": [n], "expected": expected} for n in range(3)]
    answer = {"entry_point": "f", "cases": cases}
    found = await outcomes(bench, VARIANTS, answer, cpu_s=30, wall_s=90)
    assert found == all_of(VARIANTS, "failed")


async def test_the_searches_find_what_is_there(bench):
    """Control: each search does find the value when it stands in the code or on the disk."""
    expected = f"canary-{secrets.token_hex(12)}"
    answer = {"entry_point": "f", "cases": [{"input": [0], "expected": expected}]}
    planted = {
        name: f"import os\nos.environ['P'] = P = '{expected}'\n"
        f"open('/work/p', 'w').write(P)\nHOLD = [[P]]\nFD = open('/work/p')\n{code}"
        for name, code in VARIANTS.items()
    }
    found = await outcomes(bench, planted, answer, cpu_s=30, wall_s=90)
    assert found == all_of(VARIANTS, "solved")
