"""What a sandbox sees: the plans that build its root, from the spec and the host.

The server's own mount namespace has a small file system as its root (the *stage*) with the host
under `/host`; a sandbox's root is made from both and then all else is unmounted. The writable
layer is one tmpfs of `disk_mb`: `/`, `/tmp`, `/dev/shm`, the home and the workdir share that
budget. The base is read-only: the host's `/usr`, or a directory (`spec.image`) as the lower layer
of an overlay.

Nothing of the host's `/etc`, `/root`, `/home`, `/tmp`, `/var` or `/run` is visible; `/etc` is made
here. Files of `/proc` that tell about the host are covered.

Python inside: the host's `/usr/bin/python3` when it has the version (3.x) of the interpreter that
runs Quintain; else that interpreter's installation, read-only at `/opt/python`, without its
site-packages. So code inside meets the version that its author has outside.
"""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from quintain.sandbox import network, wire
from quintain.sandbox.filter import program
from quintain.sandbox.landlock import plan_restriction, plan_rules
from quintain.task import SandboxSpec

HOST = "/host"
INIT_UID, USER_UID = 0, 1000
"""Inside: the supervisor, and who runs commands."""
STAGED = "/stage"
BOX, DISK, LOWER = "/box", "/disk", "/lower"
CLEAN = "/clean"
"""In the server's namespace: where the root of a base is put together."""
STAGE_SIZE = "size=8m,mode=755"

COVERED = (
    "cmdline", "kallsyms", "config.gz", "modules", "interrupts", "iomem", "ioports", "timer_list",
    "keys", "key-users", "diskstats", "partitions", "zoneinfo", "vmallocinfo", "sched_debug",
    "slabinfo", "kcore", "kmsg", "locks", "sysrq-trigger", "sys/kernel/random/boot_id",
)  # fmt: skip
"""Files of `/proc`; those that only root may read need no cover."""
EMPTIED = ("acpi", "asound", "bus", "driver", "fs", "irq", "scsi", "pressure")
DEVICES = {
    "null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9),
    "tty": (5, 0),
}  # fmt: skip
ETC_COPIED = ("ld.so.cache", "services", "protocols", "mime.types", "localtime")


@dataclass(frozen=True, slots=True)
class Python:
    """Where `python3` inside comes from."""

    prefix: str
    """A folder of the host to show at `/opt/python`; empty: the host's `/usr` has it."""
    version: str


@cache
def python() -> Python:
    """Chooses the interpreter for host-based sandboxes (see the module's docstring)."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if os.path.basename(os.path.realpath("/usr/bin/python3")) == f"python{version}":
        return Python("", version)
    prefix = os.path.realpath(sys.base_prefix)
    if prefix.startswith("/usr/") or prefix == "/usr":
        return Python("", version)
    return Python(prefix, version)


@cache
def covered() -> tuple[list[str], list[str]]:
    """Files and folders of this host's `/proc` to cover."""
    files = [
        name
        for name in COVERED
        if os.path.isfile(f"/proc/{name}") and os.stat(f"/proc/{name}").st_mode & 0o006
    ]
    folders = [name for name in EMPTIED if os.path.isdir(f"/proc/{name}")]
    return files, folders


def environment(spec: SandboxSpec) -> dict[str, str]:
    """The environment of every command."""
    found = {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
        "HOME": "/root" if spec.user == "root" else "/home/sandbox",
        "USER": spec.user,
        "LOGNAME": spec.user,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }
    chosen = python()
    if spec.image is None and chosen.prefix:
        found["PATH"] = "/opt/python/bin:" + found["PATH"]
        if list(Path(chosen.prefix, "lib").glob("libpython*.so*")):
            found["LD_LIBRARY_PATH"] = "/opt/python/lib"
    return {**found, **spec.env}


def stage_plan(*, rootless: bool) -> wire.Plan:
    """Steps by which the server enters its own view of the host and makes what boxes share."""
    plan = wire.Plan()
    if rootless:
        maps = (f"0 {os.geteuid()} 1\n", f"0 {os.getegid()} 1\n")
        plan.add(wire.USERNS, *maps, a=wire.NOBODY, flags=wire.SELF_MAP)
    plan.add(wire.UNSHARE, a=wire.NEW_MOUNT)
    plan.mount("", "/", flags=wire.MS_REC | wire.MS_SLAVE)
    plan.mount("stage", "/tmp", "tmpfs", wire.MS_NOSUID, STAGE_SIZE)
    plan.mkdir(f"/tmp{HOST}")
    plan.add(wire.PIVOT, "/tmp", HOST.lstrip("/"), flags=wire.KEEP_OLD)
    for folder in (STAGED, CLEAN, f"{STAGED}/empty", f"{STAGED}/network"):
        plan.mkdir(folder)
    if trusted := network.certificates():
        name = os.path.basename(network.CERTIFICATES)
        plan.write(f"{STAGED}/network/{name}", Path(trusted).read_bytes(), create=True)
    plan.link(f"{HOST.lstrip('/')}/proc", "/proc")
    plan.write(f"{STAGED}/nothing", "", create=True)
    stage_etc(plan, f"{STAGED}/etc")
    if rootless:
        plan.mkdir(f"{STAGED}/dev")
        for name in DEVICES:
            plan.write(f"{STAGED}/dev/{name}", "", create=True)
            plan.mount(f"{HOST}/dev/{name}", f"{STAGED}/dev/{name}", flags=wire.MS_BIND)
    plan.mount("", "/", flags=wire.MS_REMOUNT | wire.MS_RDONLY | wire.MS_NOSUID, data=STAGE_SIZE)
    return plan


def stage_etc(plan: wire.Plan, etc: str) -> None:
    """Steps that make the `/etc` of sandboxes at a path."""
    plan.mkdir(etc)
    files: dict[str, str | bytes] = {
        "passwd": "root:x:0:0:root:/root:/bin/sh\n"
        f"sandbox:x:{USER_UID}:{USER_UID}:sandbox:/home/sandbox:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
        "group": f"root:x:0:\nsandbox:x:{USER_UID}:\ntty:x:5:\nnogroup:x:65534:\n",
        "hosts": "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost\n",
        "hostname": "sandbox\n",
        "resolv.conf": "",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\n",
        "shells": "/bin/sh\n/bin/bash\n",
    }
    for name in ETC_COPIED:
        if os.path.isfile(f"/etc/{name}"):
            files[name] = Path("/etc", name).read_bytes()
    for name, data in files.items():
        plan.write(f"{etc}/{name}", data, create=True)
    plan.link("../usr/lib/os-release", f"{etc}/os-release")
    plan.link("/proc/mounts", f"{etc}/mtab")
    plan.mkdir(f"{etc}/alternatives")
    if os.path.isdir("/etc/alternatives"):
        for entry in sorted(os.scandir("/etc/alternatives"), key=lambda entry: entry.name):
            if entry.is_symlink() and os.readlink(entry).startswith("/usr/"):
                plan.link(os.readlink(entry), f"{etc}/alternatives/{entry.name}", optional=True)


@dataclass(frozen=True, slots=True)
class Ids:
    """Whose ids a sandbox has on the host."""

    rootless: bool
    init: int
    """Host uid and gid of the supervisor."""
    user: int
    """Host uid and gid of commands."""

    def inside(self, spec: SandboxSpec) -> int:
        """The uid inside that runs commands."""
        return INIT_UID if spec.user == "root" and not self.rootless else USER_UID


def base_plan(spec: SandboxSpec, *, rootless: bool) -> tuple[str, wire.Plan]:
    """What every sandbox of the same base is born into: a name, and steps that make it once.

    A mount namespace without the host: an empty root with the read-only base, the `/etc` of
    sandboxes and folders to mount on. A sandbox gets a copy of it, which costs a few mounts instead
    of the host's, and nothing has to be unmounted.
    """
    plan = wire.Plan()
    plan.add(wire.UNSHARE, a=wire.NEW_MOUNT)
    plan.mount("", "/", flags=wire.MS_REC | wire.MS_PRIVATE)
    plan.mount("base", CLEAN, "tmpfs", wire.MS_NOSUID, STAGE_SIZE)
    for folder in (BOX, DISK, LOWER, STAGED, "/usr"):
        plan.mkdir(CLEAN + folder)
    plan.mount(STAGED, CLEAN + STAGED, flags=wire.MS_BIND | wire.MS_REC)
    if rootless:
        # The kernel lets a user mount /proc only where one is in sight; a sandbox drops this one.
        plan.mkdir(f"{CLEAN}/proc")
        plan.mount(f"{HOST}/proc", f"{CLEAN}/proc", flags=wire.MS_BIND | wire.MS_REC)
    image = "" if spec.image is None else os.path.realpath(spec.image)
    if image:
        plan.bind(HOST + image, CLEAN + LOWER)
    else:
        plan.bind(f"{HOST}/usr", f"{CLEAN}/usr")
        for name in _real_folders():
            plan.mkdir(f"{CLEAN}/{name}")
            plan.bind(f"{HOST}/{name}", f"{CLEAN}/{name}")
        chosen = python()
        if chosen.prefix:
            plan.mkdir(f"{CLEAN}/python")
            plan.bind(f"{HOST}{chosen.prefix}", f"{CLEAN}/python")
    plan.add(wire.PIVOT, CLEAN)
    plan.mount("", "/", flags=wire.MS_REMOUNT | wire.MS_RDONLY | wire.MS_NOSUID, data=STAGE_SIZE)
    if not image:
        return "host", plan
    state = os.stat(image)
    return f"{image}:{state.st_dev}:{state.st_ino}", plan


def _real_folders() -> list[str]:
    """Top-level folders of programs that are no links into `/usr`."""
    names = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
    return [name for name in names if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")]


def box_plan(
    plan: wire.Plan,
    spec: SandboxSpec,
    ids: Ids,
    *,
    grouped: bool = True,
    fill: bool = False,
    landlock: int = 0,
) -> None:
    """Steps by which a sandbox's first process builds its root and gives up its rights.

    Args:
        plan: holds the steps for the control groups already.
        spec: what is wanted.
        ids: as the host sees them.
        grouped: whether a control group limits the memory; else each process gets the limit.
        fill: whether the owner puts a snapshot into the writable layer.
        landlock: the version of Landlock to use; 0: none.
    """
    name, base = base_plan(spec, rootless=ids.rootless)
    plan.add(wire.BASE, name, bytes(base.data))
    spaces = wire.NEW_MOUNT | wire.NEW_IPC | wire.NEW_UTS | wire.NEW_NET | wire.NEW_CGROUP
    plan.add(wire.UNSHARE, a=spaces)
    plan.add(wire.HOSTNAME, "sandbox")
    plan.add(wire.LOOPBACK)
    if spec.network.mode != "none":
        plan.add(wire.LISTEN, a=network.PORT, b=spec.network.max_connections)
    size = f"size={spec.disk_mb}m,nr_inodes={max(4096, spec.disk_mb * 256)},mode=755"
    own = f",uid={ids.init},gid={ids.init}"
    disk = BOX if spec.image is None else DISK
    plan.mount("tmpfs", disk, "tmpfs", wire.MS_NOSUID, size + own)
    if spec.image is None:
        _host_base(plan, ids)
    else:
        _image_base(plan, ids, fill)
    _devices(plan, disk, ids)
    _user_folders(plan, spec, ids)
    if spec.network.mode != "none":
        plan.mkdir(f"{BOX}{network.FOLDER}", flags=wire.OPTIONAL)
        plan.mount(f"{STAGED}/network", f"{BOX}{network.FOLDER}", flags=wire.MS_BIND)
    _proc(plan, spec, disk, ids.rootless)
    plan.add(wire.KEEP, disk, a=1)
    if fill and spec.image is None:
        # Behind the mounts: they are no part of a snapshot, and stay when one is put back.
        plan.add(wire.OFFER, BOX)
    plan_rules(plan, landlock, disk)
    plan.add(wire.ENTER, BOX)
    _rights(plan, spec, ids, grouped)
    plan_restriction(plan, landlock)


def _host_base(plan: wire.Plan, ids: Ids) -> None:
    for name in ("usr", "etc", "proc", "dev", "home", "opt", "run", "var", "mnt", "srv"):
        plan.mkdir(f"{BOX}/{name}", owner=ids.init)
    plan.mkdir(f"{BOX}/root", 0o700, ids.init)
    plan.mkdir(f"{BOX}/tmp", 0o1777, ids.init)
    plan.mkdir(f"{BOX}/var/tmp", 0o1777, ids.init)
    # A copy of a read-only mount is read-only.
    plan.mount("/usr", f"{BOX}/usr", flags=wire.MS_BIND)
    for name in _real_folders():
        plan.mkdir(f"{BOX}/{name}")
        plan.mount(f"/{name}", f"{BOX}/{name}", flags=wire.MS_BIND)
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink(f"/{name}"):
            plan.link(os.readlink(f"/{name}"), f"{BOX}/{name}")
    plan.mount(f"{STAGED}/etc", f"{BOX}/etc", flags=wire.MS_BIND)
    chosen = python()
    if chosen.prefix:
        plan.mkdir(f"{BOX}/opt/python", owner=ids.init)
        plan.mount("/python", f"{BOX}/opt/python", flags=wire.MS_BIND)
        packages = f"{BOX}/opt/python/lib/python{chosen.version}/site-packages"
        plan.mount(f"{STAGED}/empty", packages, flags=wire.MS_BIND, optional=True)


def _image_base(plan: wire.Plan, ids: Ids, fill: bool) -> None:
    for name in ("upper", "work", "dev"):
        plan.mkdir(f"{DISK}/{name}", owner=ids.init)
    if fill:
        # Before it is mounted: the kernel forbids changes below a live overlay.
        plan.add(wire.OFFER, f"{DISK}/upper")
    options = f"lowerdir={LOWER},upperdir={DISK}/upper,workdir={DISK}/work"
    options += ",userxattr" if ids.rootless else ",redirect_dir=off"
    plan.mount("overlay", BOX, "overlay", wire.MS_NOSUID | wire.MS_NODEV, options)
    for name in ("etc", "proc", "dev", "home", "run", "var", "root"):
        plan.mkdir(f"{BOX}/{name}", flags=wire.OPTIONAL)
    for name in ("tmp", "var/tmp"):
        plan.mkdir(f"{BOX}/{name}", 0o1777, flags=wire.OPTIONAL)
    for name in ("passwd", "group", "hosts", "hostname", "resolv.conf", "nsswitch.conf"):
        plan.write(f"{BOX}/etc/{name}", "", create=True, optional=True)
        plan.mount(f"{STAGED}/etc/{name}", f"{BOX}/etc/{name}", flags=wire.MS_BIND, optional=True)


def _devices(plan: wire.Plan, disk: str, ids: Ids) -> None:
    dev = f"{disk}/dev"
    for name, (major, minor) in DEVICES.items():
        if ids.rootless:
            plan.write(f"{dev}/{name}", "", create=True)
            plan.mount(f"{STAGED}/dev/{name}", f"{dev}/{name}", flags=wire.MS_BIND)
        else:
            plan.add(wire.MKNOD, f"{dev}/{name}", a=0o020666, b=os.makedev(major, minor))
    for target, name in (("fd", "fd"), ("fd/0", "stdin"), ("fd/1", "stdout"), ("fd/2", "stderr")):
        plan.link(f"/proc/self/{target}", f"{dev}/{name}")
    plan.mkdir(f"{dev}/shm", 0o1777, ids.init)
    plan.mkdir(f"{dev}/pts", owner=ids.init)
    plan.link("pts/ptmx", f"{dev}/ptmx")
    terminals = "newinstance,ptmxmode=0666,mode=0620"
    plan.mount("devpts", f"{dev}/pts", "devpts", wire.MS_NOSUID | wire.MS_NOEXEC, terminals)
    if disk != BOX:
        plan.mount(dev, f"{BOX}/dev", flags=wire.MS_BIND | wire.MS_REC)


def _user_folders(plan: wire.Plan, spec: SandboxSpec, ids: Ids) -> None:
    owner = ids.init if spec.user == "root" else ids.user
    plan.add(wire.MKDIR, f"{BOX}/home/sandbox", a=0o755, b=owner, c=owner, flags=wire.OPTIONAL)
    made = BOX
    for part in spec.workdir.strip("/").split("/"):
        made += "/" + part
        plan.add(wire.MKDIR, made, a=0o755, b=owner, c=owner, flags=wire.OPTIONAL)


def _proc(plan: wire.Plan, spec: SandboxSpec, disk: str, rootless: bool) -> None:
    guarded = wire.MS_NOSUID | wire.MS_NODEV | wire.MS_NOEXEC
    plan.mount("proc", f"{BOX}/proc", "proc", guarded)
    if rootless:
        plan.add(wire.UMOUNT, "/proc")
    plan.add(wire.KEEP, f"{BOX}/proc", a=0)
    plan.mount(f"{BOX}/proc", f"{BOX}/proc", flags=wire.MS_BIND)
    locked = wire.MS_BIND | wire.MS_REMOUNT | wire.MS_RDONLY | guarded
    plan.mount("", f"{BOX}/proc", flags=locked)
    files, folders = covered()
    for name in files:
        plan.mount(f"{STAGED}/nothing", f"{BOX}/proc/{name}", flags=wire.MS_BIND, optional=True)
    for name in folders:
        plan.mount(f"{STAGED}/empty", f"{BOX}/proc/{name}", flags=wire.MS_BIND, optional=True)
    total = spec.memory_mb * 1024
    lines = {"MemTotal": total, "MemFree": total, "MemAvailable": total, "Buffers": 0, "Cached": 0}
    lines |= {"SwapTotal": 0, "SwapFree": 0}
    text = "".join(f"{name + ':':<16}{value:>8} kB\n" for name, value in lines.items())
    plan.write(f"{disk}/.meminfo", text, create=True)
    plan.mount(f"{disk}/.meminfo", f"{BOX}/proc/meminfo", flags=wire.MS_BIND)
    plan.add(wire.UNLINK, f"{disk}/.meminfo")


def _rights(plan: wire.Plan, spec: SandboxSpec, ids: Ids, grouped: bool) -> None:
    # The sandbox's /proc is read-only; the one below it is reached by the descriptor kept.
    kept = f"/proc/self/fd/{wire.KEPT_FD}"
    # Should the host run out of memory, a sandbox goes before its owner.
    plan.write(f"{kept}/self/oom_score_adj", "500", optional=True)
    if ids.rootless:
        maps = (f"{USER_UID} 0 1\n", f"{USER_UID} 0 1\n")
        plan.add(wire.USERNS, *maps, a=wire.NOBODY, flags=wire.SELF_MAP)
    else:
        maps = (f"{INIT_UID} {ids.init} 1\n{USER_UID} {ids.user} 1\n",) * 2
        plan.add(wire.USERNS, *maps, a=INIT_UID, b=INIT_UID)
    plan.write(f"{kept}/sys/user/max_user_namespaces", "0", optional=True)
    limits = {
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_NOFILE: (1024, 4096),
        resource.RLIMIT_MEMLOCK: (8 << 20, 8 << 20),
        resource.RLIMIT_MSGQUEUE: (819_200, 819_200),
        resource.RLIMIT_FSIZE: (spec.disk_mb << 20, spec.disk_mb << 20),
        resource.RLIMIT_STACK: (8 << 20, 64 << 20),
    }
    if ids.rootless:
        limits[resource.RLIMIT_NPROC] = (spec.max_pids, spec.max_pids)
    if not grouped:
        limits[resource.RLIMIT_DATA] = (spec.memory_mb << 20, spec.memory_mb << 20)
    for kind, (soft, hard) in limits.items():
        plan.add(wire.RLIMIT, str(soft), str(hard), a=kind)
    plan.add(wire.FILTER, program())
