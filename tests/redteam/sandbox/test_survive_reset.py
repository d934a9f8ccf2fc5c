"""Attack: outlive a reset with processes, files, shared memory, semaphores, sockets or a port."""

from __future__ import annotations

import asyncio

HOLD = r"""
import ctypes, os, signal, socket, sys, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
for path in ("/tmp", "/dev/shm", "/work", "/home/sandbox"):
    open(path + "/held", "w").write("x")
libc = ctypes.CDLL(None)
libc.shmget(0x51756E74, 4096, 0o1666)
libc.semget(0x51756E74, 1, 0o1666)
abstract = socket.socket(socket.AF_UNIX); abstract.bind("\0held"); abstract.listen()
port = socket.create_server(("127.0.0.1", 4545))
for folder in ("/tmp", "/work", "/dev/shm"):  # busy as mount points, working folders, mappings
    if os.fork() == 0:
        os.setsid(); os.chdir(folder)
        if os.fork():
            os._exit(0)
        held = open(folder + "/held"); libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, None)
        time.sleep(30); os._exit(0)
print("holding", flush=True)
time.sleep(30)
"""
LOOK = r"""
import ctypes, os, socket
found = [p for p in ("/tmp", "/dev/shm", "/work", "/home/sandbox") if os.path.exists(p + "/held")]
libc = ctypes.CDLL(None)
found += [n for n, ok in (("shm", libc.shmget(0x51756E74, 4096, 0) >= 0),
                          ("sem", libc.semget(0x51756E74, 1, 0) >= 0)) if ok]
for name, family, address in (("abstract", socket.AF_UNIX, "\0held"),
                              ("port", socket.AF_INET, ("127.0.0.1", 4545))):
    with socket.socket(family) as s:
        if s.connect_ex(address) == 0:
            found.append(name)
running = sum(1 for p in os.listdir("/proc") if p.isdigit())
found += ["processes"] if running > 3 else []
print(sorted(found))
"""
ALL = sorted(["/tmp", "/dev/shm", "/work", "/home/sandbox", "shm", "sem", "abstract", "port"])


async def test_survive_reset(open_sandbox, any_launcher, python):
    box = await open_sandbox()
    fresh = await box.survey()
    session = await box.session()
    await box.write("/work/hold.py", HOLD)
    await box.write("/work/said", "")
    await session.run("python3 /work/hold.py > /work/said 2>&1 &")
    async with asyncio.timeout(20):
        while b"holding" not in await box.read("/work/said"):
            await asyncio.sleep(0.05)
    # The control: whoever is given the same place without a reset finds all of it.
    control = await box.exec(python(LOOK, inside=True))
    assert control.text == f"{sorted([*ALL, 'processes'])}\n", control
    heir = await box.reset()
    run = await heir.exec(python(LOOK, inside=True))
    assert run.text == "[]\n", run
    async with asyncio.timeout(20):  # the command that looked is being reaped
        while (after := await heir.survey())["processes"] != fresh["processes"]:
            await asyncio.sleep(0.05)
    assert {aspect for aspect in fresh if after[aspect] != fresh[aspect]} <= {"network"}
    await heir.close()
