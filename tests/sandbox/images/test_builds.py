"""Builds: layers on the host's view and on images, users, failures, one build for many."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quintain.errors import BuildError, CapabilityError, ConfigError, IsolationError
from quintain.sandbox.images.builder import BuildLimits
from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec


@contextlib.asynccontextmanager
async def opened(backend, **fields):
    box = await backend.open(SandboxSpec(**fields))
    try:
        yield box
    finally:
        await box.close()


async def said(box, line, **options):
    run = await box.exec(["sh", "-c", line], **options)
    return (run.text + run.error_text).strip()


async def test_setup_on_the_host_view(backend, store):
    spec = {"setup": ("echo built > /opt/made; mkdir /srv/x; id -u > /srv/x/who",
                      "echo '#!/bin/sh\necho tool' > /usr/local/bin/a-tool",
                      "chmod 4755 /usr/local/bin/a-tool; mkfifo /srv/x/pipe",
                      # Root over its own files: others' too, whatever their modes.
                      "echo s > /srv/x/own; chown 33:50 /srv/x/own; chmod 0 /srv/x/own",
                      "cat /srv/x/own > /srv/x/read; ! chroot / true")}  # fmt: skip
    async with opened(backend, **spec) as box:
        text = await said(box, "cat /opt/made /srv/x/who; a-tool; stat -c %a $(command -v a-tool)")
        assert text.split() == ["built", "0", "tool", "755"]
        text = await said(box, "cat /srv/x/read; stat -c '%u %g %a' /srv/x/own")
        assert text.split() == ["s", "33", "50", "0"]
        # The layer and the base stay as they are; the workdir is the user's.
        assert "Read-only" in await said(box, "touch /usr/local/bin/b")
        assert "denied" in await said(box, "touch /srv/x/b")
        with pytest.raises(PermissionError):
            await box.write("/opt/made", "changed")
        assert await said(box, "touch /work/a; echo fine") == "fine"
    assert not os.path.exists("/usr/local/bin/a-tool")
    async with opened(backend, **spec, user="root") as box:
        assert await said(box, "echo more >> /opt/made; cat /opt/made") == "built\nmore"
    async with opened(backend, **spec) as box:
        assert await said(box, "cat /opt/made") == "built"
    assert [entry.kind for entry in store.entries()].count("layer") == 1


async def test_packages_on_the_host_view(one_backend, index):
    index("helper", content="VALUE = 42\n")
    index("demo", needs=["helper"], script="demo",
          content="import helper\ndef main(): print('says', helper.VALUE)\n")  # fmt: skip
    async with opened(one_backend, packages=("demo",)) as box:
        run = await box.exec(["python3", "-c", "import demo, sys; demo.main(); print(sys.path)"])
        assert run.text.startswith("says 42\n"), run
        assert await said(box, "demo") == "says 42"
        # Beside, not instead of, what the base has; compiled once, for all.
        run = await box.exec(["python3", "-c", "import helper; print(helper.__cached__)"])
        cached = run.text.strip()
        assert (await box.exec(["test", "-f", cached])).ok
        own = await box.exec(["python3", "-c", "import yaml, pygments"])
    bare = await one_backend.open(SandboxSpec())
    assert (await bare.exec(["python3", "-c", "import demo"])).exit_code == 1
    assert (await bare.exec(["python3", "-c", "import yaml, pygments"])).ok == own.ok
    await bare.close()


async def test_no_wheel_is_told(one_backend, index):
    with pytest.raises(BuildError, match=r"(?s)no-such-thing.*Only wheels"):
        await one_backend.open(SandboxSpec(packages=("no-such-thing",)))
    for name in ("-r x", "demo @ http://x/y.whl", ""):
        with pytest.raises(ConfigError, match="packages"):
            await one_backend.open(SandboxSpec(packages=(name,)))


DOCKERFILE = """
FROM {base}
ARG WHO=postgres
ENV GREETING="good day"
WORKDIR /srv/app
COPY <<EOF hello.sh
echo $GREETING
EOF
COPY --chown=postgres:staff --chmod=600 <<EOF /var/lib/postgres/secret
s
EOF
RUN sh hello.sh > said && id -u >> said
USER $WHO
RUN echo $HOME > mine || echo x > /var/lib/postgres/mine; id > /var/lib/postgres/id
CMD sleep 1
"""


async def test_a_dockerfile_on_a_base(backend, tiny, store):
    store.name("tiny", {"path": str(tiny)})
    spec = {"dockerfile": DOCKERFILE.format(base="tiny")}
    async with opened(backend, **spec) as box:
        assert (box.spec.user, box.spec.workdir) == ("postgres", "/srv/app")
        assert await said(box, "cat said; echo $GREETING; id -u") == "good day\n0\ngood day\n105"
        assert await said(box, "cat ~/secret ~/mine; stat -c '%u %g %a' ~/secret ~/id")\
            == "s\nx\n105 50 600\n105 107 644"  # fmt: skip
        assert await said(box, "echo y > ~/mine; cat ~/mine; echo $USER $HOME") == (
            "y\npostgres /var/lib/postgres"
        )
    async with opened(backend, **spec, user="root", workdir="/") as box:
        assert await said(box, "id -u; stat -c %u /data /var/lib/postgres") == "0\n0\n105"
    async with opened(backend, **spec, user="4000:staff", workdir="/w") as box:
        assert (await said(box, "id -u; id -g; touch x")).split() == ["4000", "50"]
    with pytest.raises(ConfigError, match=r"oracle.*postgres"):
        await backend.open(SandboxSpec(**spec, user="oracle"))
    assert not (tiny / "srv").exists()


async def test_a_context(one_backend, tiny, tmp_path):
    folder = tmp_path / "context"
    (folder / "src/deep").mkdir(parents=True)
    (folder / "src/run").write_text("#!/bin/sh\necho ran\n")
    (folder / "src/run").chmod(0o755)
    (folder / "src/deep/link").symlink_to("../run")
    file = folder / "Dockerfile"
    file.write_text(f"FROM {tiny}\nCOPY src /opt/src/\nCOPY src/run /opt/\nRUN /opt/run > /out\n")
    async with opened(one_backend, dockerfile=str(file)) as box:
        assert await said(box, "/opt/src/deep/link; cat /out") == "ran\nran"


async def test_an_image_without_programs_is_refused(one_backend, tmp_path):
    """Everything asked of it would fail, and count against the candidate."""
    (tmp_path / "image/etc").mkdir(parents=True)
    (tmp_path / "image/etc/passwd").write_text("")
    data = "FROM scratch\nCOPY <<EOF x\nhello\nEOF\n"
    for spec in (SandboxSpec(image=str(tmp_path / "image")), SandboxSpec(dockerfile=data)):
        with pytest.raises(ConfigError, match="the image holds no program"):
            await one_backend.open(spec)


async def test_scratch_needs_no_program(one_backend):
    text = "FROM scratch\nWORKDIR /a/b\nCOPY --chmod=755 <<EOF x\nhello\nEOF\n"
    async with opened(one_backend, dockerfile=text) as box:
        assert await box.read("x") == b"hello\n"
        assert box.spec.workdir == "/a/b"
        assert (await box.exec(["sh"])).exit_code == 127


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"setup": ("true", "echo to the end; exit 3")}, r"(?s)setup 2:.*code 3.*to the end"),
        ({"dockerfile": "FROM host\nRUN true\nRUN nothing-there"}, "(?s)line 3: RUN.*not found"),
        ({"dockerfile": "FROM host\nRUN true\nUSER x\nRUN true"}, "user 'x'"),
        ({"setup": ("python3 -c \"x = b'x' * (1 << 30)\"",)}, "(?s)setup 1.*(memory|MemoryError)"),
        ({"setup": ("sleep 60",)}, "not done in 3 s"),
        ({"setup": ("dd if=/dev/zero of=/big bs=1M count=60; sleep 60",)}, "grew to .* MB"),
    ],
)
async def test_a_failing_step_is_named(store, fields, told):
    limits = BuildLimits(wall_s=3, disk_mb=40, memory_mb=300, cpus=1)
    if "sleep" not in str(fields):
        limits = BuildLimits(memory_mb=300)
    backend = NativeBackend(build=limits)
    try:
        for _ in range(2):  # the second time from memory
            with pytest.raises((BuildError, ConfigError), match=told):
                await backend.open(SandboxSpec(**fields))
        assert [entry.kind for entry in store.entries() if entry.kind == "layer"] == []
        assert os.listdir(store.folder / "making") == []
    finally:
        await backend.close()


async def test_apt_needs_a_package_database(one_backend, tiny):
    with pytest.raises(CapabilityError, match="package database"):
        await one_backend.open(SandboxSpec(image=str(tiny), apt=("tree",)))


async def test_many_tasks_build_once(one_backend, store, tmp_path):
    spec = SandboxSpec(setup=("sleep 0.3; cat /proc/sys/kernel/random/uuid > /opt/id",))
    boxes = await asyncio.gather(*(one_backend.open(spec) for _ in range(8)))
    other = NativeBackend()
    boxes += await asyncio.gather(*(other.open(spec) for _ in range(2)))
    assert len({await box.read("/opt/id") for box in boxes}) == 1
    assert sum(entry.kind == "layer" for entry in store.entries()) == 1
    await asyncio.gather(*(box.close() for box in boxes))
    await other.close()


SCRIPT = """
import asyncio, sys
from quintain.sandbox.native import NativeBackend
from quintain.task import SandboxSpec

async def main():
    backend = NativeBackend(allow_weaker=True)
    box = await backend.open(SandboxSpec(setup=(sys.argv[1],)))
    print((await box.read("/opt/id")).decode(), flush=True)
    await box.close()
    await backend.close()

asyncio.run(main())
"""


def start(setup):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, setup], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def test_many_processes_build_once(store):
    running = [
        start("sleep 0.5; cat /proc/sys/kernel/random/uuid > /opt/id") for _ in range(3)
    ]  # fmt: skip
    answers = {process.communicate(timeout=60)[0] for process in running}
    assert len(answers) == 1
    assert len(answers.pop()) > 30
    assert sum(entry.kind == "layer" for entry in store.entries()) == 1


def test_an_interrupted_build_leaves_nothing(store):
    def left():
        """Processes that see the store in a mount of their own, or work in it."""
        found = []
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                files = (Path("/proc", pid, name) for name in ("cmdline", "mountinfo"))
                if str(store.folder) in "".join(file.read_text() for file in files):
                    found.append(pid)
        return found

    line = "for i in 1 2 3 4 5 6 7 8; do echo $i > /opt/$i; sleep 0.05; done; echo done > /opt/id"
    kills = 0
    for delay_s in (0.9, 1.2, 1.5, 1.8, 2.1):
        process = start(line)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=delay_s)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
        kills += process.returncode == -signal.SIGKILL
        for entry in store.entries():
            if entry.kind == "layer":
                assert (store.folder / entry.key / "root/opt/id").read_text() == "done\n"
        deadline = time.monotonic() + 10
        while left() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left() == []
    assert kills
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(store.sweep()):
        time.sleep(0.1)
    assert not (store.folder / "making").exists() or os.listdir(store.folder / "making") == []
    assert start(line).communicate(timeout=60)[0].strip() == "done"


async def test_a_cancelled_build_stops(one_backend, store):
    opening = asyncio.ensure_future(one_backend.open(SandboxSpec(setup=("sleep 60",))))
    while not list(store.folder.glob("making/*/shop")):
        await asyncio.sleep(0.05)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert os.listdir(store.folder / "making") == []


@pytest.fixture
def unmappable(tmp_path, tiny):
    """The tiny base on a file system that has no id-mapped mounts."""
    if os.geteuid() != 0:
        pytest.skip("mounting an overlay needs root")
    for name in ("upper", "work", "merged"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={tiny},upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    merged = str(tmp_path / "merged")
    done = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, merged])
    if done.returncode:
        pytest.skip("no overlay here")
    yield merged
    subprocess.run(["umount", "-l", merged], check=True)


@pytest.mark.parametrize("launcher", ["c", "python"])
async def test_owners_that_cannot_be_shown_are_refused_by_name(store, unmappable, launcher):
    strict = NativeBackend(launcher=launcher)
    with pytest.raises(IsolationError, match="id-mapped mounts") as caught:
        await strict.open(SandboxSpec(image=unmappable))
    assert caught.value.missing == ("owners",)
    await strict.close()
    weaker = NativeBackend(launcher=launcher, allow_weaker=True)
    async with opened(weaker, image=unmappable) as box:
        assert "owners" in box.missing
        assert await said(box, "id -u; stat -c %u /data; touch /work/x") == "1000\n65534"
    with pytest.raises(IsolationError, match="postgres"):
        await weaker.open(SandboxSpec(image=unmappable, user="postgres"))
    await weaker.close()


async def test_a_start_limit_is_not_the_builds(one_backend):
    from quintain.rollouts import Host

    host = Host(None, None, backend=one_backend)
    box = await host.open_sandbox(SandboxSpec(setup=("sleep 1.2",), startup_s=1))
    assert box.spec.startup_s == 1
    await box.close()
