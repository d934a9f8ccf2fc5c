"""Firecracker's API: JSON over HTTP on a UNIX socket. Unverified (see the package)."""

from __future__ import annotations

from typing import Any, Literal

import aiohttp

from quintain.errors import SandboxError

CALL_S = 30.0


class Api:
    """The API of one Firecracker process.

    Args:
        path: of its socket.
    """

    def __init__(self, path: str) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path), timeout=aiohttp.ClientTimeout(total=CALL_S)
        )

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        try:
            url = f"http://localhost{path}"
            async with self._session.request(method, url, json=body) as answer:
                if answer.status == 204:
                    return None
                found = await answer.json(content_type=None)
                if answer.status != 200:
                    why = found.get("fault_message", found) if isinstance(found, dict) else found
                    raise SandboxError(f"Firecracker refused {method} {path}: {why}")
                return found
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise SandboxError(f"Firecracker did not answer {method} {path}: {error}") from error

    async def version(self) -> str:
        """Of the process."""
        found: str = (await self._call("GET", "/version"))["firecracker_version"]
        return found

    async def state(self) -> str:
        """What it does: "Not started", "Running" or "Paused"."""
        found: str = (await self._call("GET", "/"))["state"]
        return found

    async def machine(self, *, processors: int, memory_mb: int) -> None:
        """Sets processors (1, or an even number up to 32) and memory; before the start."""
        body = {"vcpu_count": processors, "mem_size_mib": memory_mb, "smt": False}
        await self._call("PUT", "/machine-config", body)

    async def boot_source(self, *, kernel: str, initial_disk: str, arguments: str) -> None:
        """Sets what boots; paths as the process sees them."""
        body = {"kernel_image_path": kernel, "initrd_path": initial_disk, "boot_args": arguments}
        await self._call("PUT", "/boot-source", body)

    async def drive(self, name: str, path: str) -> None:
        """Adds a read-only disk; before the start."""
        body = {"drive_id": name, "path_on_host": path, "is_root_device": False}
        await self._call("PUT", f"/drives/{name}", {**body, "is_read_only": True})

    async def vsock(self, *, cid: int, path: str) -> None:
        """Adds the vsock; before the start."""
        await self._call("PUT", "/vsock", {"guest_cid": cid, "uds_path": path})

    async def entropy(self) -> None:
        """Adds the entropy device; before the start."""
        await self._call("PUT", "/entropy", {})

    async def start(self) -> None:
        """Boots the guest."""
        await self._call("PUT", "/actions", {"action_type": "InstanceStart"})

    async def set_state(self, state: Literal["Paused", "Resumed"]) -> None:
        """Pauses or resumes a running guest."""
        await self._call("PATCH", "/vm", {"state": state})

    async def save(self, *, state: str, memory: str) -> None:
        """Writes a paused guest to two files."""
        body = {"snapshot_type": "Full", "snapshot_path": state, "mem_file_path": memory}
        await self._call("PUT", "/snapshot/create", body)

    async def load(self, *, state: str, memory: str) -> None:
        """Begins with what `save` wrote, running; only as the first request of a new process."""
        backend = {"backend_type": "File", "backend_path": memory}
        body = {"snapshot_path": state, "mem_backend": backend, "resume_vm": True}
        await self._call("PUT", "/snapshot/load", body)

    async def close(self) -> None:
        """Hangs up."""
        await self._session.close()
