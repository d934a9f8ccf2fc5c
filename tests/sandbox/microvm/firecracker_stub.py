"""Stands for Firecracker's jailer and Firecracker: checks each request against the published API.

Run as the jailer is run. It serves the API on the socket in the jail's root, refuses what the
description of the API does not allow (unknown or missing fields, wrong types and values, wrong
order), writes every request to `requests` in the root, and when the guest is started answers on
its vsock as the agent would: every request succeeds, a command ends with its first argument after
`exit`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import struct
import sys
from pathlib import Path

from aiohttp import web

TEXT, NUMBER, TRUTH, OBJECT = str, int, bool, dict
FIELDS = {
    ("PUT", "/machine-config"): (
        {"vcpu_count": NUMBER, "mem_size_mib": NUMBER, "smt": TRUTH, "cpu_template": TEXT,
         "track_dirty_pages": TRUTH, "huge_pages": TEXT},
        {"vcpu_count", "mem_size_mib"},
    ),
    ("PUT", "/boot-source"): (
        {"kernel_image_path": TEXT, "initrd_path": TEXT, "boot_args": TEXT},
        {"kernel_image_path"},
    ),
    ("PUT", "/drives"): (
        {"drive_id": TEXT, "path_on_host": TEXT, "is_root_device": TRUTH, "is_read_only": TRUTH,
         "partuuid": TEXT, "cache_type": TEXT, "io_engine": TEXT, "rate_limiter": OBJECT,
         "socket": TEXT},
        {"drive_id", "is_root_device"},
    ),
    ("PUT", "/vsock"): (
        {"guest_cid": NUMBER, "uds_path": TEXT, "vsock_id": TEXT},
        {"guest_cid", "uds_path"},
    ),
    ("PUT", "/entropy"): ({"rate_limiter": OBJECT}, set()),
    ("PUT", "/actions"): ({"action_type": TEXT}, {"action_type"}),
    ("PATCH", "/vm"): ({"state": TEXT}, {"state"}),
    ("PUT", "/snapshot/create"): (
        {"mem_file_path": TEXT, "snapshot_path": TEXT, "snapshot_type": TEXT},
        {"mem_file_path", "snapshot_path"},
    ),
    ("PUT", "/snapshot/load"): (
        {"snapshot_path": TEXT, "mem_backend": OBJECT, "mem_file_path": TEXT, "resume_vm": TRUTH,
         "track_dirty_pages": TRUTH, "enable_diff_snapshots": TRUTH, "network_overrides": list,
         "vsock_override": OBJECT, "clock_realtime": TRUTH},
        {"snapshot_path"},
    ),
}  # fmt: skip
"""Method and path to the documented fields and those that are required."""
VALUES = {
    "action_type": {"FlushMetrics", "InstanceStart", "SendCtrlAltDel"},
    "state": {"Paused", "Resumed"},
    "snapshot_type": {"Full", "Diff"},
    "cache_type": {"Unsafe", "Writeback"},
}
BEFORE_START = {
    "/machine-config",
    "/boot-source",
    "/drives",
    "/vsock",
    "/entropy",
    "/snapshot/load",
}
FRAME = struct.Struct("<IIB")
HELLO, DONE, OUT, EXIT = 64, 65, 66, 68


class Refused(Exception):
    pass


class Stub:
    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name
        self.state = "Not started"
        self.vsock = ""
        self.asked: list[dict] = []

    def inside(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def check(self, method: str, path: str, body: dict) -> str:
        kind = "/drives" if path.startswith("/drives/") else path
        if (method, kind) not in FIELDS:
            raise Refused(f"Invalid request method and/or path: {method} {path}.")
        known, required = FIELDS[method, kind]
        for name, value in body.items():
            if name not in known or type(value) is not known[name]:
                raise Refused(f"An error occurred when deserializing: unknown field `{name}`.")
            if value not in VALUES.get(name, {value} if isinstance(value, str) else [value]):
                raise Refused(f"unknown variant `{value}` of `{name}`")
        if missing := required - set(body):
            raise Refused(f"missing field `{sorted(missing)[0]}`")
        if kind == "/drives" and body["drive_id"] != path.removeprefix("/drives/"):
            raise Refused("path_id and the id from the body do not match")
        if kind in BEFORE_START and self.state != "Not started":
            raise Refused("The requested operation is not supported after starting the microVM.")
        if kind in ("/vm", "/snapshot/create") and self.state == "Not started":
            raise Refused("The requested operation is not supported before starting the microVM.")
        return kind

    def act(self, kind: str, body: dict) -> None:
        if kind == "/machine-config":
            count = body["vcpu_count"]
            if not 1 <= count <= 32 or (count > 1 and count % 2):
                raise Refused("The vCPU number is invalid!")
        if kind in ("/drives", "/boot-source"):
            for field in ("path_on_host", "kernel_image_path", "initrd_path"):
                if field in body and not self.inside(body[field]).is_file():
                    raise Refused(f"cannot open {body[field]}: No such file or directory")
        if kind == "/vsock":
            if body["guest_cid"] < 3:
                raise Refused("Cannot create vsock device: the CID is reserved")
            self.vsock = body["uds_path"]
        if kind == "/actions":
            if "/boot-source" not in [one["path"] for one in self.asked]:
                raise Refused("Cannot start microvm without kernel configuration.")
            self.state = "Running"
        if kind == "/vm":
            self.state = {"Paused": "Paused", "Resumed": "Running"}[body["state"]]
        if kind == "/snapshot/create":
            if self.state != "Paused":
                raise Refused("Cannot save the microVM: it is not paused")
            self.inside(body["mem_file_path"]).write_bytes(b"memory")
            self.inside(body["snapshot_path"]).write_text(self.vsock)
        if kind == "/snapshot/load":
            self.load(body)

    def load(self, body: dict) -> None:
        if self.asked:
            raise Refused("Loading a snapshot is not allowed after configuring resources.")
        backend = body.get("mem_backend")
        if (backend is None) == ("mem_file_path" not in body):
            raise Refused("exactly one of mem_backend and mem_file_path")
        if backend is not None and (
            set(backend) != {"backend_type", "backend_path"}
            or backend["backend_type"] not in ("File", "Uffd")
            or not self.inside(backend["backend_path"]).is_file()
        ):
            raise Refused(f"bad memory backend {backend}")
        self.vsock = self.inside(body["snapshot_path"]).read_text()
        self.state = "Running" if body.get("resume_vm") else "Paused"

    async def handle(self, request: web.Request) -> web.Response:
        if request.method == "GET" and request.path == "/version":
            return web.json_response({"firecracker_version": "0.0.0-stub"})
        if request.method == "GET" and request.path == "/":
            found = {"app_name": "Firecracker", "id": self.name, "state": self.state}
            return web.json_response({**found, "vmm_version": "0.0.0-stub"})
        try:
            body = await request.json()
            kind = self.check(request.method, request.path, body)
            before = self.state
            self.act(kind, body)
        except Refused as error:
            return web.json_response({"fault_message": str(error)}, status=400)
        self.asked.append({"method": request.method, "path": request.path, "body": body})
        self.inside("requests").write_text(json.dumps(self.asked))
        if before == "Not started" and self.state == "Running":
            path = str(self.inside(self.vsock))
            await asyncio.start_unix_server(self.answer_vsock, path)
        return web.Response(status=204)

    async def answer_vsock(self, reader, writer) -> None:
        line = await reader.readline()
        if line != b"CONNECT 1024\n":
            writer.close()
            return
        writer.write(b"OK 1073741824\n" + FRAME.pack(1, 0, HELLO) + b"1")
        while True:
            try:
                size, number, kind = FRAME.unpack(await reader.readexactly(FRAME.size))
            except asyncio.IncompleteReadError:
                return
            body = await reader.readexactly(size)
            writer.write(self.answer(kind, number, body))

    def answer(self, kind: int, number: int, body: bytes) -> bytes:
        if kind == 3:
            code = int(body.rsplit(b"exit ", 1)[1].split(b"\0")[0]) if b"exit " in body else 0
            ending = struct.pack("<iiBBQII", code << 8, 0, 0, 0, 1, 0, 0)
            said = FRAME.pack(len(self.name), number, OUT) + self.name.encode()
            return said + FRAME.pack(len(ending), number, EXIT) + ending
        if kind in (4, 5):
            return b""
        return FRAME.pack(4, number, DONE) + struct.pack("<i", 0)


async def main() -> None:
    options = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("id", "exec-file", "uid", "gid", "chroot-base-dir"):
        options.add_argument(f"--{name}", required=True)
    options.add_argument("--cgroup-version", choices=["1", "2"])
    options.add_argument("--cgroup", action="append", default=[])
    options.add_argument("--resource-limit", action="append", default=[])
    argv = sys.argv[1:]
    at = argv.index("--")
    given = options.parse_args(argv[:at])
    assert "firecracker" in os.path.basename(given.exec_file)
    assert all("=" in item for item in (*given.cgroup, *given.resource_limit))
    inner = argparse.ArgumentParser()
    inner.add_argument("--api-sock", required=True)
    program = os.path.basename(given.exec_file)
    root = Path(given.chroot_base_dir, program, given.id, "root")
    (root / "run").mkdir(parents=True, exist_ok=True)
    stub = Stub(root, given.id)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", stub.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    api = socket.socket(socket.AF_UNIX)
    api.bind(str(stub.inside(inner.parse_args(argv[at + 1 :]).api_sock)))
    # The file is there before anybody listens; on a busy machine for long enough to be seen.
    await asyncio.sleep(0.1)
    await web.SockSite(runner, api).start()
    await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(main())
