"""What a build gets from outside: wheels and Debian packages, fetched here and installed inside.

The host's own pip and apt resolve and download with the host's configuration (index, proxies,
sources, keys); no code of a package runs on the host. Wheels only: to see what a source
distribution needs, pip runs its code, so those are left to the build (`setup`). The base's own
package database decides what is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from quintain.errors import BuildError, CapabilityError, ConfigError
from quintain.record import digest
from quintain.sandbox.images.store import Store

TAIL = 3000
LOCK_S = 0.2
DIES_WITH_ITS_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
)


async def call(argv: Sequence[str], what: str, env: Mapping[str, str] | None = None) -> str:
    """Runs a program of the host to its end; it dies with this process.

    Raises:
        BuildError: it failed; holds the end of its output.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", DIES_WITH_ITS_PARENT, *argv),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **(env or {})},
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = output.decode("utf-8", "replace")
    if process.returncode:
        raise BuildError(f"{what} failed (exit code {process.returncode}):\n{text[-TAIL:].strip()}")
    return text


def _plain_words(words: Sequence[str], field: str) -> None:
    for word in words:
        if not word or word.startswith("-") or any(ord(c) < 32 for c in word):
            raise ConfigError(f"{field}: expected the name of a package, got {word!r}")


# --- Python packages ----------------------------------------------------------------------------


def _pip() -> list[str]:
    from importlib.util import find_spec

    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        if path := shutil.which(name):
            return [path]
    raise CapabilityError(
        "packages are fetched by pip, and there is none here: "
        f"{sys.executable} -m ensurepip, or install it"
    )


async def wheels(names: Sequence[str], python: Mapping[str, str], folder: Path) -> None:
    """Downloads packages and all they need as wheels, and packs pip itself beside them.

    Args:
        names: as pip takes them.
        python: of the base: `version` ("3.11"), `libc` ("glibc"), `libc_version` ("2.36").
        folder: gets the wheels, and `pip.zip`.

    Raises:
        BuildError: pip found no wheels; holds its words.
        CapabilityError: no pip here.
    """
    _plain_words(names, "packages")
    for name in names:
        if "/" in name:
            raise ConfigError(
                f"packages: expected a package of the index, got {name!r}; copy files by a "
                "Dockerfile and install them by RUN or setup"
            )
    pip = _pip()
    target = folder / "wheels"
    target.mkdir(mode=0o755)
    common = ["--disable-pip-version-check", "--no-input", "--quiet", "--only-binary=:all:"]
    argv = [*pip, "download", *common, "--dest", str(target), *_platform(python), "--", *names]
    try:
        await call(argv, f"pip download {' '.join(names)}")
    except BuildError as error:
        raise BuildError(
            f"{error}\nOnly wheels are taken: a package that comes as source alone is built by "
            "`setup` commands on an image with what it needs"
        ) from error
    where = await call(
        [*_interpreter(pip), "-c", "import pip; print(pip.__path__[0])"], "looking for pip"
    )
    await asyncio.to_thread(_pack, Path(where.strip()), folder / "pip.zip")
    for path in target.iterdir():
        path.chmod(0o644)


def _interpreter(pip: Sequence[str]) -> list[str]:
    """The Python that a pip belongs to."""
    if len(pip) > 1:
        return [pip[0]]
    with contextlib.suppress(OSError, UnicodeDecodeError, IndexError):
        line = Path(pip[0]).read_text(encoding="utf-8").splitlines()[0]
        if line.startswith("#!") and "python" in line:
            return line[2:].split()
    return ["python3"]


def _platform(python: Mapping[str, str]) -> list[str]:
    """Options that make pip choose for the base's Python instead of its own."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    kind, version = python.get("libc", ""), python.get("libc_version", "")
    if python["version"] == own and kind == "glibc" == _own_libc()[0] and version == _own_libc()[1]:
        return []
    machine = os.uname().machine
    minor = int(version.partition(".")[2] or 17) if kind == "glibc" else 2
    tag = "manylinux_2" if kind == "glibc" else "musllinux_1"
    tags = [f"{tag}_{number}_{machine}" for number in range(minor + 1)]
    if kind == "glibc":
        tags += [f"manylinux2014_{machine}", f"manylinux2010_{machine}", f"manylinux1_{machine}"]
    chosen = ["--implementation", "cp", "--python-version", python["version"]]
    return [*chosen, *(word for one in tags for word in ("--platform", one))]


def _own_libc() -> tuple[str, str]:
    import platform

    return platform.libc_ver()


PROBE = (
    "import platform, sys; "
    "print('%d.%d' % sys.version_info[:2], *(platform.libc_ver()[0:2] if platform.libc_ver()[0] "
    "else ('musl', '1.2')))"
)
"""What a base's Python is asked; answers `version libc libc_version`."""


def _pack(source: Path, target: Path) -> None:
    """pip as one file that the base's Python runs: it needs no pip of its own."""
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(source.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                archive.write(path, Path("pip", path.relative_to(source)))
    target.chmod(0o644)


# --- Debian packages ----------------------------------------------------------------------------


async def debs(names: Sequence[str], root: str, folder: Path, store: Store) -> None:
    """Downloads Debian packages and what they need beyond what the base has.

    Args:
        names: of packages, with `=version` where one matters.
        root: of the base: its sources, keys and package database.
        folder: gets `debs`.
        store: keeps the lists of packages.

    Raises:
        BuildError: apt failed; holds its words.
        CapabilityError: no apt here, or the base is not Debian-like.
    """
    _plain_words(names, "apt")
    status = os.path.join(root, "var/lib/dpkg/status")
    if not os.access(status, os.R_OK):
        raise CapabilityError("apt: the base has no package database (/var/lib/dpkg/status)")
    if shutil.which("apt-get") is None:
        raise CapabilityError(
            "apt: packages are resolved and fetched by apt-get, and there is none here"
        )
    target = folder / "debs"
    target.mkdir(mode=0o755)
    etc = os.path.join(root, "etc/apt")
    state = store.folder / "apt" / digest("sources", etc, _sources(etc))
    (state / "lists/partial").mkdir(parents=True, exist_ok=True)
    (target / "partial").mkdir()
    config = folder / "apt.conf"
    config.write_text(await _config(etc, status, state, target), encoding="utf-8")
    env = {"APT_CONFIG": str(config), "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        await _locked(lock)
        await call(["apt-get", "-q", "update"], "apt-get update", env)
        argv = ["apt-get", "-qy", "install", "--download-only", "--", *names]
        await call(argv, f"apt-get install {' '.join(names)}", env)
    finally:
        os.close(lock)
    shutil.rmtree(target / "partial")
    (target / "lock").unlink(missing_ok=True)
    for path in target.iterdir():
        path.chmod(0o644)


async def _locked(lock: int) -> None:
    """Waits for a lock, until the build's own deadline."""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(LOCK_S)
        else:
            return


def _sources(etc: str) -> list[str]:
    found = []
    for top, _, files in os.walk(etc):
        for name in sorted(files):
            if name.endswith((".list", ".sources")):
                found.append(Path(top, name).read_text(encoding="utf-8", errors="replace"))
    return found


async def _config(etc: str, status: str, state: Path, target: Path) -> str:
    """An apt configuration with folders of its own; of the host's only how to acquire."""
    dump = await call(["apt-config", "dump"], "apt-config dump")
    kept = [line for line in dump.splitlines() if line.startswith(("Acquire::", "APT::Archi"))]
    own = {
        "Dir::Etc::Parts": str(state / "none"),
        "Dir::Etc::Main": str(state / "none"),
        "Dir::Etc::SourceList": f"{etc}/sources.list",
        "Dir::Etc::SourceParts": f"{etc}/sources.list.d",
        "Dir::Etc::Trusted": f"{etc}/trusted.gpg",
        "Dir::Etc::TrustedParts": f"{etc}/trusted.gpg.d",
        "Dir::Etc::Preferences": f"{etc}/preferences",
        "Dir::Etc::PreferencesParts": f"{etc}/preferences.d",
        "Dir::State": str(state),
        "Dir::State::Lists": str(state / "lists"),
        "Dir::State::Status": status,
        "Dir::State::extended_states": str(state / "extended_states"),
        "Dir::Cache": str(state),
        "Dir::Cache::Archives": str(target),
        "Dir::Log": str(state),
        "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
        "APT::Install-Recommends": "false",
        "Acquire::Languages": "none",
        "Debug::NoLocking": "true",
    }
    return "\n".join([*kept, *(f'{name} "{value}";' for name, value in own.items())]) + "\n"
