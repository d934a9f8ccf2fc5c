"""What a sandbox sees: the plans that build its root, from the spec and the host.

The server's own mount namespace has a small file system as its root (the *stage*) with the host
under `/host`; a sandbox's root is made from both and then all else is unmounted. The writable
layer is one tmpfs of `disk_mb`: `/`, `/tmp`, `/dev/shm`, the home and the workdir share that
budget. The base is read-only: the host's `/usr`, or a directory (`spec.image`) as the lower layer
of an overlay.

Nothing of the host's `/etc`, `/root`, `/home`, `/tmp`, `/var` or `/run` is visible; `/etc` is made
here. Files of `/proc` that tell about the host are covered.

With an image (`images/`) the root is an overlay of its folders and the sandbox has a whole range of
ids: id-mapped mounts show the owners on disk as the same ids inside. A build (`Workshop`) writes
its layer to a folder of the host and has what root needs over its own files.

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
from quintain.sandbox.images.image import GROUP, PASSWD, USERS, Image
from quintain.sandbox.landlock import plan_restriction, plan_rules
from quintain.task import SandboxSpec

HOST = "/host"
INIT_UID, USER_UID = 0, 1000
"""Inside: the supervisor, and who runs commands."""
STAGED = "/stage"
BOX, DISK, LOWER = "/box", "/disk", "/lower"
TREES, IDENTITY, WORKSHOP, INPUTS = "/trees", "/identity", "/workshop", "/inputs"
RANGE = 65536
"""Ids of a sandbox that has an image."""
BUILD_INPUTS = "/run/build"
"""Where a build sees what it was given."""
BUILD_RIGHTS = sum(1 << number for number in (0, 1, 3, 4, 5, 6, 7, 31))
"""Of root in a build, in its own user namespace: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID,
SETUID, SETFCAP."""
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


def environment(spec: SandboxSpec, image: Image | None = None) -> dict[str, str]:
    """The environment of every command."""
    user = USERS.get(spec.user, USERS["sandbox"]) if image is None else image.user(spec.user)
    found = {
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
        "HOME": user.home,
        "USER": user.name,
        "LOGNAME": user.name,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }
    chosen = python()
    if (image is None or image.host) and chosen.prefix:
        found["PATH"] = "/opt/python/bin:" + found["PATH"]
        if list(Path(chosen.prefix, "lib").glob("libpython*.so*")):
            found["LD_LIBRARY_PATH"] = "/opt/python/lib"
    return {**found, **(image.env if image is not None else {}), **spec.env}


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


def etc_files() -> dict[str, str | bytes]:
    """What the `/etc` of a sandbox over the host's view holds."""
    files: dict[str, str | bytes] = {
        "passwd": PASSWD,
        "group": GROUP,
        "hosts": "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost\n",
        "hostname": "sandbox\n",
        "resolv.conf": "",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\n",
        "shells": "/bin/sh\n/bin/bash\n",
    }
    for name in ETC_COPIED:
        if os.path.isfile(f"/etc/{name}"):
            files[name] = Path("/etc", name).read_bytes()
    return files


def etc_links() -> dict[str, str]:
    """The links in that `/etc`: name to target."""
    links = {"os-release": "../usr/lib/os-release", "mtab": "/proc/mounts"}
    if os.path.isdir("/etc/alternatives"):
        for entry in sorted(os.scandir("/etc/alternatives"), key=lambda entry: entry.name):
            if entry.is_symlink() and os.readlink(entry).startswith("/usr/"):
                links[f"alternatives/{entry.name}"] = os.readlink(entry)
    return links


def stage_etc(plan: wire.Plan, etc: str) -> None:
    """Steps that make the `/etc` of sandboxes at a path."""
    plan.mkdir(etc)
    plan.mkdir(f"{etc}/alternatives")
    for name, data in etc_files().items():
        plan.write(f"{etc}/{name}", data, create=True)
    for name, target in etc_links().items():
        plan.link(target, f"{etc}/{name}", optional=True)


PAIRS = 8192


def pairs() -> tuple[int, int]:
    """The first of the host's ids that sandboxes without an image have in pairs; how many."""
    return 0x70000000 + os.getpid() % 32768 * PAIRS, PAIRS


def first_id() -> int:
    """The first of the host's ids that this process gives to sandboxes with an image."""
    return 0x50000000 + os.getpid() % 4096 * RANGE


@dataclass(frozen=True, slots=True)
class Ids:
    """Whose ids a sandbox has on the host, and who runs commands inside."""

    rootless: bool
    init: int
    """Host uid and gid of the supervisor."""
    user: int
    """Host uid of commands."""
    group: int
    """Host gid of commands."""
    uid: int
    """Inside, of commands."""
    gid: int
    ranged: bool = False
    """Whether the sandbox has `RANGE` ids from `init` on, instead of two."""
    nested: bool = False
    """Whether the first process is born in a template's user namespace: it makes no devices."""

    def inside(self, number: int) -> int:
        """What an id of the host is inside; −1 − number where nobody inside has it."""
        if self.rootless:
            return self.uid
        if self.ranged:
            return number - self.init if 0 <= number - self.init < RANGE else -1 - number
        return {self.init: INIT_UID, self.user: USER_UID}.get(number, -1 - number)

    def outside(self, number: int) -> int:
        """What an id inside is on the host; the reverse of `inside`."""
        if number < 0:
            return -1 - number
        if self.ranged:
            return self.init + number
        return {INIT_UID: self.init, USER_UID: self.user}.get(number, number)


@dataclass(frozen=True, slots=True)
class Workshop:
    """What a build has besides a sandbox."""

    folder: str
    """Of the host: `upper/N` and `work/N` for each tree of the image."""
    inputs: str
    """Of the host: shown read-only at `BUILD_INPUTS`."""
    file_mb: int
    """What one file may become; the layer as a whole is measured by the builder."""


def base_plan(
    spec: SandboxSpec, ids: Ids, image: Image | None = None, workshop: Workshop | None = None
) -> tuple[str, wire.Plan]:
    """What every sandbox of the same base is born into: a name, and steps that make it once.

    A mount namespace without the host: an empty root with the read-only base, the `/etc` of
    sandboxes and folders to mount on. A sandbox gets a copy of it, which costs a few mounts instead
    of the host's, and nothing has to be unmounted.
    """
    plan = wire.Plan()
    plan.add(wire.UNSHARE, a=wire.NEW_MOUNT)
    plan.mount("", "/", flags=wire.MS_REC | wire.MS_PRIVATE)
    plan.mount("base", CLEAN, "tmpfs", wire.MS_NOSUID, STAGE_SIZE)
    for folder in (BOX, DISK, LOWER, TREES, STAGED, "/usr", "/dev", "/proc"):
        plan.mkdir(CLEAN + folder)
    plan.mount(STAGED, CLEAN + STAGED, flags=wire.MS_BIND | wire.MS_REC)
    if ids.rootless:
        # The kernel lets a user mount /proc only where one is in sight; a sandbox drops this one.
        plan.mount(f"{HOST}/proc", f"{CLEAN}/proc", flags=wire.MS_BIND | wire.MS_REC)
    name = "host"
    if image is None:
        plan.bind(f"{HOST}/usr", f"{CLEAN}/usr")
        for folder in real_folders():
            plan.mkdir(f"{CLEAN}/{folder}")
            plan.bind(f"{HOST}/{folder}", f"{CLEAN}/{folder}")
        chosen = python()
        if chosen.prefix:
            plan.mkdir(f"{CLEAN}/python")
            plan.bind(f"{HOST}{chosen.prefix}", f"{CLEAN}/python")
    else:
        name = f"image {image.key}"
        _base_trees(plan, image, ids, shared=workshop is None)
        for file, text in (("passwd", image.passwd), ("group", image.group)):
            plan.mkdir(CLEAN + IDENTITY, flags=wire.OPTIONAL)
            plan.write(f"{CLEAN}{IDENTITY}/{file}", text, create=True)
    if workshop is not None:
        name = f"build {workshop.folder}"
        plan.mkdir(CLEAN + WORKSHOP)
        plan.mount(HOST + workshop.folder, CLEAN + WORKSHOP, flags=wire.MS_BIND)
        guarded = wire.MS_BIND | wire.MS_REMOUNT | wire.MS_NOSUID | wire.MS_NODEV
        plan.mount("", CLEAN + WORKSHOP, flags=guarded)
        plan.mkdir(CLEAN + INPUTS)
        plan.bind(HOST + workshop.inputs, CLEAN + INPUTS)
    plan.add(wire.PIVOT, CLEAN)
    plan.mount("", "/", flags=wire.MS_REMOUNT | wire.MS_RDONLY | wire.MS_NOSUID, data=STAGE_SIZE)
    return name, plan


def _base_trees(plan: wire.Plan, image: Image, ids: Ids, *, shared: bool) -> None:
    """The folders of an image; all but its root are put together once for every sandbox.

    For those of a template the root is, too: inside its user namespace the marks by which layers
    hide what is below them are not read.
    """
    for at, tree in enumerate(image.trees):
        below = [f"{CLEAN}{LOWER}/{at}.{number}" for number in range(len(tree.lowers))]
        for folder, lower in zip(below, tree.lowers, strict=True):
            plan.mkdir(folder)
            if ids.ranged:
                plan.add(wire.IDMAP, HOST + lower, folder, f"0 {ids.init} {RANGE}\n")
            else:
                plan.bind(HOST + lower, folder)
        if (at or (ids.nested and len(below) > 1)) and shared:
            target = f"{CLEAN}{TREES}/{at}"
            plan.mkdir(target)
            if len(below) == 1:
                plan.mount(below[0], target, flags=wire.MS_BIND)
            else:
                options = f"lowerdir={':'.join(below)}" + (",userxattr" if ids.rootless else "")
                flags = wire.MS_RDONLY | wire.MS_NOSUID | wire.MS_NODEV
                plan.mount("overlay", target, "overlay", flags, options)


def real_folders() -> list[str]:
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
    image: Image | None = None,
    workshop: Workshop | None = None,
) -> None:
    """Steps by which a sandbox's first process builds its root and gives up its rights.

    Args:
        plan: holds the steps for the control groups already.
        spec: what is wanted.
        ids: as the host sees them.
        grouped: whether a control group limits the memory; else each process gets the limit.
        fill: whether the owner puts a snapshot into the writable layer.
        landlock: the version of Landlock to use; 0: none.
        image: None: the view of the host.
        workshop: of a build.
    """
    name, base = base_plan(spec, ids, image, workshop)
    plan.add(wire.BASE, name, bytes(base.data))
    spaces = wire.NEW_MOUNT | wire.NEW_IPC | wire.NEW_UTS | wire.NEW_NET | wire.NEW_CGROUP
    plan.add(wire.UNSHARE, a=spaces)
    plan.add(wire.HOSTNAME, "sandbox")
    plan.add(wire.LOOPBACK)
    if spec.network.mode != "none":
        plan.add(wire.LISTEN, a=network.PORT, b=spec.network.max_connections)
    size = f"size={spec.disk_mb}m,nr_inodes={max(4096, spec.disk_mb * 256)},mode=755"
    own = f",uid={ids.init},gid={ids.init}"
    disk = root_plan(plan, ids, size + own, image, workshop, fill=fill)
    if workshop is None:
        _user_folders(plan, spec, ids, image)
    if spec.network.mode != "none":
        plan.mkdir(f"{BOX}{network.FOLDER}", flags=wire.OPTIONAL)
        plan.mount(f"{STAGED}/network", f"{BOX}{network.FOLDER}", flags=wire.MS_BIND)
    _proc(plan, spec, disk, ids.rootless and not ids.nested)
    plan.add(wire.KEEP, disk, a=1)
    if fill and image is None:
        # Behind the mounts: they are no part of a snapshot, and stay when one is put back.
        plan.add(wire.OFFER, BOX)
    plan_rules(plan, landlock, disk)
    plan.add(wire.ENTER, BOX)
    if workshop is not None:
        plan.add(wire.RIGHTS, a=BUILD_RIGHTS)
    file_mb = spec.disk_mb if workshop is None else workshop.file_mb
    _rights(plan, spec, ids, grouped, file_mb << 20)
    plan_restriction(plan, landlock)


def root_plan(
    plan: wire.Plan,
    ids: Ids,
    size: str,
    image: Image | None,
    workshop: Workshop | None = None,
    *,
    fill: bool = False,
) -> str:
    """Steps that put a root together from the base and a writable layer; where that lies."""
    disk = BOX if image is None else DISK
    plan.mount("tmpfs", disk, "tmpfs", wire.MS_NOSUID, size)
    if image is None:
        _host_base(plan, ids)
    else:
        _image_base(plan, ids, image, workshop, fill)
    _devices(plan, disk, ids)
    return disk


def make_devices(plan: wire.Plan, folder: str) -> None:
    """Steps that make the devices of a sandbox; only the host's root can."""
    for name, (major, minor) in DEVICES.items():
        plan.add(wire.MKNOD, f"{folder}/{name}", a=0o020666, b=os.makedev(major, minor))


def _host_base(plan: wire.Plan, ids: Ids) -> None:
    for name in ("usr", "etc", "proc", "dev", "home", "opt", "run", "var", "mnt", "srv"):
        plan.mkdir(f"{BOX}/{name}", owner=ids.init)
    plan.mkdir(f"{BOX}/root", 0o700, ids.init)
    plan.mkdir(f"{BOX}/tmp", 0o1777, ids.init)
    plan.mkdir(f"{BOX}/var/tmp", 0o1777, ids.init)
    # A copy of a read-only mount is read-only.
    plan.mount("/usr", f"{BOX}/usr", flags=wire.MS_BIND)
    for name in real_folders():
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


def _image_base(
    plan: wire.Plan, ids: Ids, image: Image, workshop: Workshop | None, fill: bool
) -> None:
    for name in ("upper", "work", "dev"):
        plan.mkdir(f"{DISK}/{name}", owner=ids.init)
    if fill:
        # Before it is mounted: the kernel forbids changes below a live overlay.
        plan.add(wire.OFFER, f"{DISK}/upper")
    if workshop is None:
        _overlay(plan, ids, image, 0, BOX, f"{DISK}/upper", f"{DISK}/work")
    for at, tree in enumerate(image.trees):
        if workshop is not None:
            where = f"{WORKSHOP}/upper/{at}", f"{WORKSHOP}/work/{at}"
            _overlay(plan, ids, image, at, BOX + tree.target.rstrip("/"), *where)
        elif at:
            plan.mount(f"{TREES}/{at}", BOX + tree.target, flags=wire.MS_BIND)
    for name in ("etc", "proc", "dev", "home", "run", "var", "root"):
        plan.mkdir(f"{BOX}/{name}", owner=ids.init, flags=wire.OPTIONAL)
    for name in ("tmp", "var/tmp"):
        plan.mkdir(f"{BOX}/{name}", 0o1777, ids.init, flags=wire.OPTIONAL)
    if workshop is not None:
        plan.mkdir(f"{BOX}{BUILD_INPUTS}", owner=ids.init, flags=wire.OPTIONAL)
        plan.mount(INPUTS, f"{BOX}{BUILD_INPUTS}", flags=wire.MS_BIND)
        return
    for name in ("hosts", "hostname", "resolv.conf", "nsswitch.conf", "passwd", "group"):
        source = IDENTITY if name in ("passwd", "group") else f"{STAGED}/etc"
        plan.write(f"{BOX}/etc/{name}", "", create=True, optional=True)
        plan.mount(f"{source}/{name}", f"{BOX}/etc/{name}", flags=wire.MS_BIND, optional=True)


def _overlay(
    plan: wire.Plan, ids: Ids, image: Image, at: int, target: str, upper: str, work: str
) -> None:
    """The overlay of one of an image's trees; every change goes to `upper`."""
    count = len(image.trees[at].lowers)
    lowers = ":".join(f"{LOWER}/{at}.{number}" for number in range(count))
    if ids.nested and count > 1:
        lowers = f"{TREES}/{at}"
    options = f"lowerdir={lowers},upperdir={upper},workdir={work}"
    options += ",userxattr" if ids.rootless or ids.nested else ",redirect_dir=off,metacopy=off"
    plan.mount("overlay", target, "overlay", wire.MS_NOSUID | wire.MS_NODEV, options)


def _devices(plan: wire.Plan, disk: str, ids: Ids) -> None:
    dev = f"{disk}/dev"
    if ids.rootless or ids.nested:
        made = f"{STAGED}/dev" if ids.rootless else "/dev"
        for name in DEVICES:
            plan.write(f"{dev}/{name}", "", create=True)
            plan.mount(f"{made}/{name}", f"{dev}/{name}", flags=wire.MS_BIND)
    else:
        make_devices(plan, dev)
    for target, name in (("fd", "fd"), ("fd/0", "stdin"), ("fd/1", "stdout"), ("fd/2", "stderr")):
        plan.link(f"/proc/self/{target}", f"{dev}/{name}")
    plan.mkdir(f"{dev}/shm", 0o1777, ids.init)
    plan.mkdir(f"{dev}/pts", owner=ids.init)
    plan.link("pts/ptmx", f"{dev}/ptmx")
    terminals = "newinstance,ptmxmode=0666,mode=0620"
    plan.mount("devpts", f"{dev}/pts", "devpts", wire.MS_NOSUID | wire.MS_NOEXEC, terminals)
    if disk != BOX:
        plan.mount(dev, f"{BOX}/dev", flags=wire.MS_BIND | wire.MS_REC)


def _user_folders(plan: wire.Plan, spec: SandboxSpec, ids: Ids, image: Image | None) -> None:
    own = {"a": 0o755, "b": ids.user, "c": ids.group}
    home = "/home/sandbox" if image is None else image.user(spec.user).home
    if home.startswith("/home/"):
        plan.add(wire.MKDIR, BOX + home, **own, flags=wire.OPTIONAL)
    parts = [part for part in spec.workdir.split("/") if part]
    # The workdir is its user's, also one that the image brings: work would be impossible there.
    taken = image is not None and ids.uid
    for depth in range(1, len(parts) + 1):
        last = depth == len(parts)
        flags = wire.CREATE if last and taken else wire.OPTIONAL
        plan.add(wire.MKDIR, "/".join([BOX, *parts[:depth]]), **own, flags=flags)


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


def _rights(plan: wire.Plan, spec: SandboxSpec, ids: Ids, grouped: bool, file_bytes: int) -> None:
    # The sandbox's /proc is read-only; the one below it is reached by the descriptor kept.
    kept = f"/proc/self/fd/{wire.KEPT_FD}"
    # Should the host run out of memory, a sandbox goes before its owner.
    plan.write(f"{kept}/self/oom_score_adj", "500", optional=True)
    if ids.rootless:
        maps = (f"{ids.uid} 0 1\n", f"{ids.gid} 0 1\n")
        plan.add(wire.USERNS, *maps, a=wire.NOBODY, flags=wire.SELF_MAP)
    else:
        maps = (f"{INIT_UID} {ids.init} 1\n{USER_UID} {ids.user} 1\n",) * 2
        if ids.ranged:
            maps = (f"0 {ids.init} {RANGE}\n",) * 2
        plan.add(wire.USERNS, *maps, a=INIT_UID, b=INIT_UID)
    plan.write(f"{kept}/sys/user/max_user_namespaces", "0", optional=True)
    limits = {
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_NOFILE: (1024, 4096),
        resource.RLIMIT_MEMLOCK: (8 << 20, 8 << 20),
        resource.RLIMIT_MSGQUEUE: (819_200, 819_200),
        resource.RLIMIT_FSIZE: (file_bytes, file_bytes),
        resource.RLIMIT_STACK: (8 << 20, 64 << 20),
    }
    if ids.rootless:
        limits[resource.RLIMIT_NPROC] = (spec.max_pids, spec.max_pids)
    if not grouped:
        limits[resource.RLIMIT_DATA] = (spec.memory_mb << 20, spec.memory_mb << 20)
    for kind, (soft, hard) in limits.items():
        plan.add(wire.RLIMIT, str(soft), str(hard), a=kind)
    plan.add(wire.FILTER, program())
