"""Built images inside guests: what a native build made is a guest's read-only disk."""

from __future__ import annotations

import os

import pytest

from quintain.errors import BuildError
from quintain.sandbox.images.store import Store
from quintain.task import SandboxSpec

pytestmark = [pytest.mark.microvm, pytest.mark.slow]

DOCKERFILE = """
FROM host
ENV GREETING=hello
WORKDIR /srv/app
COPY --chown=1000 <<EOF greet.sh
echo $GREETING
EOF
RUN sh greet.sh > said && chmod 600 said
"""


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The store of this test."""
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    return Store()


async def test_what_is_built_is_there_and_is_nobodys_to_change(backend, store, index):
    index("greeter", content="VALUE = 7\n", script="greet")
    spec = SandboxSpec(
        isolation="microvm",
        dockerfile=DOCKERFILE,
        packages=("greeter",),
        setup=("mkdir /opt/data", "seq 100 > /opt/data/numbers", "chown 1000 /opt/data"),
        memory_mb=128,
        disk_mb=32,
    )
    box = await backend.open(spec)
    assert (box.spec.workdir, box.spec.memory_mb) == ("/srv/app", 128)
    script = (
        "pwd; echo $GREETING; cat said 2>&1; wc -l < /opt/data/numbers; stat -c '%u %a' greet.sh "
        "said /opt/data; python3 -c 'import greeter; print(greeter.VALUE, greeter.__file__)'"
    )
    run = await box.exec(["sh", "-c", script], timeout_s=100)
    lines = run.text.splitlines()
    assert lines[:3] == ["/srv/app", "hello", "cat: said: Permission denied"], run
    assert lines[3:7] == ["100", "1000 644", "0 600", "1000 755"], run
    value, path = lines[7].split()
    assert value == "7"
    attack = f"echo 'VALUE = 8' > {path} || rm {path}; rm -rf /usr/bin/python3 /opt/data/numbers"
    await box.exec(["sh", "-c", attack], timeout_s=100)
    run = await box.exec(["python3", "-c", "import greeter; print(greeter.VALUE)"], timeout_s=100)
    assert run.text == "7\n", run
    other = await backend.open(spec)
    assert await other.read("/opt/data/numbers") == b"".join(b"%d\n" % n for n in range(1, 101))
    assert len(store.entries()) == 2, "the view and one layer"


async def test_debian_packages_of_the_real_archive(backend):
    if os.geteuid() != 0 or not os.path.isfile("/var/lib/dpkg/status"):
        pytest.skip("needs root on a Debian-like host")
    try:
        box = await backend.open(SandboxSpec(isolation="microvm", apt=("hello",), memory_mb=128))
    except BuildError as error:
        if "fetch" in str(error).lower() or "resolv" in str(error).lower():
            pytest.skip(f"no archive reached: {str(error)[-300:]}")
        raise
    run = await box.exec(["hello", "--greeting=built"], timeout_s=100)
    assert run.text == "built\n", run


async def test_a_build_that_fails_says_which_step(backend, store):
    spec = SandboxSpec(isolation="microvm", setup=("echo doomed >&2; exit 3",))
    with pytest.raises(BuildError, match=r"(?s)exit 3.*doomed"):
        await backend.open(spec)
