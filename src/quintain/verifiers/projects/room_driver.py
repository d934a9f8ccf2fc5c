"""Starts the tests and carries their requests out and the answers in; sent into their sandbox.

It runs in a Python session of the sandbox that holds the tests. `begin` starts pytest in a process
of its own; it and `step` return the next message of that process, as JSON.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
import subprocess
import sys
import zipfile
from typing import Any

FOLDER = "/tmp/judge"
STARTER = """
import json, socket, sys
sys.path.insert(0, {folder!r})
import room_tests
room_tests.run(json.loads({job!r}), socket.socket(fileno={fd}))
"""
STATE: dict[str, Any] = {}


def begin(line: str) -> str:
    """Unpacks pytest and starts it on the job in a word of base64."""
    job = base64.b64decode(line).decode()
    with zipfile.ZipFile(FOLDER + ".zip") as archive:
        archive.extractall(FOLDER)
    ours, theirs = socket.socketpair()
    code = STARTER.format(folder=FOLDER, job=job, fd=theirs.fileno())
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONHASHSEED": "0",
    }
    environment.pop("PYTEST_ADDOPTS", None)
    STATE["process"] = subprocess.Popen(
        [sys.executable, "-I", "-B", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=[theirs.fileno()],
        cwd=json.loads(job)["root"],
        env=environment,
    )
    theirs.close()
    STATE["socket"] = ours
    return receive()


def step(line: str) -> str:
    """Hands on an answer."""
    data = base64.b64decode(line)
    STATE["socket"].sendall(struct.pack(">I", len(data)) + data)
    return receive()


def receive() -> str:
    """The next message of the tests' process; how it ended where none comes."""
    head = exactly(4)
    data = exactly(struct.unpack(">I", head)[0]) if len(head) == 4 else b""
    if data:
        return data.decode()
    STATE["process"].kill()
    error = STATE["process"].stderr.read()[-2000:].decode("utf-8", "replace")
    return json.dumps({"died": error})


def exactly(size: int) -> bytes:
    """So many bytes, or fewer at the end."""
    data = bytearray()
    while len(data) < size:
        chunk = STATE["socket"].recv(min(1 << 20, size - len(data)))
        if not chunk:
            break
        data += chunk
    return bytes(data)
