"""The spawn server of weak sandboxes: no namespaces, commands confined by the package `sandlock`.

Run as `python -m quintain.sandbox.weak.keeper FD`; it speaks the frames of `wire.py`, as the native
launchers do. Four generations keep what no namespace keeps here:

    keeper ── steward (one a sandbox) ── minder (one a command) ── host of sandlock ── command

Each of the first three is the reaper of its descendants, and none of the four can be signalled,
traced or read by the command: Landlock puts them outside its domain. A killed generation leaves its
orphans to the one above, which kills them; without sandlock's host the command's tree can start
nothing more, since the kernel asks the dead listener first.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import shutil
import signal
import socket
import struct
import sys
import traceback
from typing import Any

from quintain.sandbox import wire
from quintain.sandbox.kernel import prctl, remove_system_v
from quintain.sandbox.weak.steward import DUMPABLE, Steward, become_reaper, kill_all_below


def remove_tree(folder: str) -> None:
    """Removes a folder, also where its owner made parts of it unreadable."""

    def retry(_function: object, path: str, _error: object) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(path), 0o700)
            os.chmod(path, 0o700, follow_symlinks=False)
        with contextlib.suppress(OSError):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)

    shutil.rmtree(folder, onerror=retry)


class Keeper:
    """Serves one owner; ends with it, and nothing is left then."""

    def __init__(self, owner: socket.socket) -> None:
        self.owner = owner
        self.folder = ""
        self.stewards: dict[int, tuple[int, str, int]] = {}
        """PID to the sandbox's number, folder and user."""
        self.removers: dict[int, int] = {}
        """PID of who removes a sandbox's folder, to its number."""
        self.statuses: dict[int, int] = {}

    def run(self) -> None:
        """Serves until the owner is gone."""
        parent = os.getppid()
        frame = wire.receive(self.owner)
        if frame is None or frame[0] != wire.INIT:
            return
        become_reaper()
        prctl(DUMPABLE, 0)
        wake_r, wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            self.folder = json.loads(frame[2])["folder"]
            _load()
            os.mkdir(self.folder, 0o711)
        except (OSError, ImportError) as error:
            code = error.errno if isinstance(error, OSError) else errno.ENOSYS
            self._tell(wire.FAILED, 0, wire.ERRNO.pack(code or errno.EIO) + str(error).encode())
            return
        try:
            wire.send(self.owner, wire.READY, wire.VERSION)
            self._loop(wake_r, os.pidfd_open(parent))
        finally:
            kill_all_below(set())
            for _, _, uid in self.stewards.values():
                remove_system_v(range(uid, uid + 1))
            remove_tree(self.folder)

    def _loop(self, wake: int, watch: int) -> None:
        poll = select.poll()
        for fd in (self.owner.fileno(), wake, watch):
            poll.register(fd, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if watch in ready:
                return
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
                self._reap()
            if self.owner.fileno() in ready:
                frame = wire.receive(self.owner)
                if frame is None:
                    return
                kind, number, body, fds = frame
                if kind == wire.OPEN:
                    self._open(number, body, fds[0])
                elif kind == wire.CLOSE:
                    for pid, (found, _, _) in self.stewards.items():
                        if found == number:
                            os.kill(pid, signal.SIGKILL)

    def _open(self, number: int, body: bytes, control: int) -> None:
        plan = json.loads(body)
        folder = f"{self.folder}/{number}"
        try:
            make_folders(folder, plan)
            pid = os.fork()
        except OSError as error:
            what = wire.ERRNO.pack(error.errno or errno.EIO) + str(error.strerror).encode()
            self._tell(wire.FAILED, number, what)
            remove_tree(folder)
            return
        finally:
            if "pid" not in locals() or pid:
                os.close(control)
        if pid == 0:
            try:
                Steward(folder, plan, control).run()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(2)
        self.stewards[pid] = (number, folder, plan["uid"])

    def _reap(self) -> None:
        strays = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            strays = True
            if pid in self.stewards:
                number, folder, uid = self.stewards.pop(pid)
                self.statuses[number] = status
                kill_all_below({*self.stewards, *self.removers})
                remove_system_v(range(uid, uid + 1))
                self._remove(number, folder)
            elif pid in self.removers:
                number = self.removers.pop(pid)
                self._tell(wire.GONE, number, struct.pack("<i", self.statuses.pop(number)))
        if strays:
            kill_all_below({*self.stewards, *self.removers})

    def _remove(self, number: int, folder: str) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                remove_tree(folder)
            finally:
                os._exit(0)
        self.removers[pid] = number

    def _tell(self, kind: int, number: int, body: bytes) -> None:
        with contextlib.suppress(OSError):
            wire.send(self.owner, kind, number, body)


def _load() -> None:
    """Imports what the children need: they may not be able to read it any more."""
    import encodings.idna  # noqa: F401

    import sandlock._sdk
    import sandlock.exceptions  # noqa: F401


def make_folders(folder: str, plan: dict[str, Any]) -> None:
    """What a sandbox may write to, and its `/etc`, laid out as it will see them."""
    uid = plan["uid"]
    os.mkdir(folder, 0o755)
    for path, mode in plan["folders"].items():
        made = folder
        for part in path.strip("/").split("/"):
            made += "/" + part
            with contextlib.suppress(FileExistsError):
                os.mkdir(made, 0o755)
                os.chown(made, uid, uid)
        os.chmod(made, mode)
    os.mkdir(f"{folder}/etc", 0o755)
    for name, text in plan["etc"].items():
        with open(f"{folder}/etc/{name}", "x", encoding="latin-1") as file:
            file.write(text)
    os.mkdir(f"{folder}/etc/alternatives")
    for name, target in plan["links"].items():
        os.symlink(target, f"{folder}/etc/{name}")


if __name__ == "__main__":
    Keeper(socket.socket(fileno=int(sys.argv[1]))).run()
