"""A task: what the policy is asked, where it works, and what only the judge may see.

`Task.public()` is all that an environment's episode, a prompt or a sandbox ever gets; `answer` and
`hidden_files` reach the verifier only, `world` reaches the host-side episode only.
"""

from __future__ import annotations

import ipaddress
from datetime import date
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from quintain.messages import Message, as_messages
from quintain.record import Json, Record, digest


class Split(StrEnum):
    """What a task may be used for. Training refuses anything but `train`."""

    TRAIN = "train"
    EVAL = "eval"
    HELDOUT = "heldout"


def split_of(task_id: str) -> Split:
    """The split of a task that names none: 80/10/10 by a stable hash of its id."""
    place = int(digest("split", task_id)[:8], 16) % 10
    return Split.TRAIN if place < 8 else Split.EVAL if place == 8 else Split.HELDOUT


class Limits(Record):
    """Bounds of one episode. A limit ends the episode; the verifier still judges it."""

    max_steps: int = Field(default=32, gt=0)
    """Actions of the policy."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Sampled tokens over the whole episode."""
    max_context_tokens: int | None = Field(default=None, gt=0)
    """Prompt and sampled tokens of one call."""
    wall_s: float = Field(default=600.0, gt=0)
    cost_usd: float | None = Field(default=None, gt=0)
    max_malformed: int = Field(default=8, gt=0)
    """Malformed tool calls in one episode."""


class NetworkPolicy(Record):
    """What a sandbox may reach, through a proxy that decides by name; see `docs/network.md`.

    An entry of `hosts` or `private_hosts` is a name, `*.suffix` (every name below the suffix, not
    the suffix itself) or an address, optionally with `:port`; an IPv6 address stands in brackets.
    """

    mode: Literal["none", "allowlist", "open"] = "none"
    """`allowlist`: what is listed. `open`: any public host, and what is listed as private. When
    not given: `allowlist` if anything is listed."""
    hosts: tuple[str, ...] = ()
    """What may be reached at public addresses."""
    private_hosts: tuple[str, ...] = ()
    """What may be reached at any address, loopback and private networks included;
    `host.internal` is the loopback of the host that Quintain runs on."""
    presets: tuple[Literal["pip"], ...] = ()
    """`pip`: the package index of the host's own pip configuration."""
    ports: tuple[int, ...] = (80, 443)
    """Of entries that name no port."""
    max_bytes: int | None = Field(default=1_000_000_000, gt=0)
    """In both directions together, over the sandbox's life."""
    bytes_per_s: int | None = Field(default=None, ge=1024)
    """In both directions together; what is faster waits."""
    requests_per_s: float = Field(default=50.0, gt=0)
    """Connections and requests, refused ones too; what is faster waits, a few seconds at most."""
    max_connections: int = Field(default=64, gt=0, le=1024)
    """At once; more wait to be accepted."""
    encrypted_hello: bool = False
    """Whether TLS hellos may pass that carry a second, encrypted name (ECH)."""

    @model_validator(mode="before")
    @classmethod
    def _listed_means_allowlist(cls, data: Any) -> Any:
        if isinstance(data, dict) and "mode" not in data:
            listed = any(data.get(name) for name in ("hosts", "private_hosts", "presets"))
            return {**data, "mode": "allowlist"} if listed else data
        return data

    @model_validator(mode="after")
    def _lists_with_allowlist(self) -> NetworkPolicy:
        if self.mode == "none" and (self.hosts or self.private_hosts or self.presets):
            raise ValueError("hosts and presets go with mode 'allowlist', not with 'none'")
        if self.mode == "open" and self.hosts:
            raise ValueError("mode 'open' lets any public host pass: 'hosts' would change nothing")
        if self.mode == "allowlist" and not (self.hosts or self.private_hosts or self.presets):
            raise ValueError("mode 'allowlist' needs hosts, private_hosts or presets")
        return self

    @field_validator("hosts", "private_hosts")
    @classmethod
    def _names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            if not entry or any(letter in "/@?#%\\ \t\r\n" for letter in entry):
                raise ValueError(f"expected a host name like 'example.org:443', got {entry!r}")
            host, colon, port = entry.rpartition(":")
            if not colon or entry.endswith("]"):
                host, port = entry, ""
            if colon and not entry.endswith("]") and not _is_port(port):
                raise ValueError(f"{entry!r}: ports are numbers from 1 to 65535, got {port!r}")
            if "*" in host.removeprefix("*.") or host == "*.":
                raise ValueError(
                    f"{entry!r}: '*' stands for names below a suffix, as in '*.example.org'; mode "
                    "'open' lets every public host pass"
                )
        return value

    @field_validator("hosts")
    @classmethod
    def _public(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            host = entry if entry.endswith("]") else entry.rpartition(":")[0] or entry
            try:
                address = ipaddress.ip_address(host.strip("[]"))
            except ValueError:
                continue  # a name: where it leads is found out at each request
            if not address.is_global:
                raise ValueError(
                    f"{entry!r} is no public address: what is on this host or in a network of its "
                    "own is listed in private_hosts"
                )
        return value

    @field_validator("ports")
    @classmethod
    def _ports(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or not all(0 < port < 65536 for port in value):
            raise ValueError(f"ports are numbers from 1 to 65535, got {value!r}")
        return value


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65536


def _refuse_text(value: Any, info: ValidationInfo) -> Any:
    """A text in place of a list would be taken apart, or refused in words that help nobody."""
    if isinstance(value, str | bytes):
        raise ValueError(f"{info.field_name} is a list such as [{value!r}], got the text {value!r}")
    return value


class SandboxSpec(Record):
    """What a sandbox holds and may use; equal specs may share a cached image and a pool.

    `image` names a base the backend knows; `packages`, `apt`, `setup` and `dockerfile` are built
    on top of it once per content hash.
    """

    image: str | None = None
    """A folder with a root file system, a tar of `docker save`, an OCI image layout, or a name that
    the backend knows; None: the host's own `/usr`, read-only."""
    packages: tuple[str, ...] = ()
    """Python packages, as pip takes them."""
    apt: tuple[str, ...] = ()
    """Debian packages, by name."""
    setup: tuple[str, ...] = ()
    """Shell commands run once when the image is built."""
    dockerfile: str | None = None
    """The text of a Dockerfile, or the path of one (its folder is the context)."""
    cpus: float = Field(default=1.0, gt=0)
    memory_mb: int = Field(default=512, gt=0)
    disk_mb: int = Field(default=256, gt=0)
    """Size of everything writable, `/tmp` and `/dev/shm` included."""
    max_pids: int = Field(default=128, gt=0)
    network: NetworkPolicy = NetworkPolicy()
    isolation: Literal["weak", "namespaces", "gvisor", "microvm"] = "namespaces"
    """The least acceptable isolation."""
    user: str = "sandbox"
    """`sandbox`, `root`, or a user of the image. A number, no rights: nobody inside has any."""
    workdir: str = "/work"
    env: dict[str, str] = Field(default_factory=dict)
    startup_s: float = Field(default=30.0, gt=0)
    exec_s: float = Field(default=60.0, gt=0)
    """Default wall-clock limit of one command."""
    max_output_bytes: int = Field(default=1_000_000, gt=0)
    """Of stdout and of stderr each; of more the middle is read, dropped and told."""

    _lists = field_validator("packages", "apt", "setup", mode="before")(_refuse_text)

    @field_validator("workdir")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not value.startswith("/") or ".." in value.split("/"):
            raise ValueError(f"workdir is an absolute path without '..', got {value!r}")
        return value

    @property
    def needs_build(self) -> bool:
        """Whether anything must be built on top of the image."""
        return bool(self.packages or self.apt or self.setup or self.dockerfile)


def _as_bytes(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            path: data.encode() if isinstance(data, str) else data for path, data in value.items()
        }
    return value


class PublicTask(Record):
    """The part of a task that the policy's side may see."""

    id: str
    prompt: tuple[Message, ...]
    files: dict[str, bytes] = Field(default_factory=dict)
    """Path in the sandbox (relative to its workdir, or absolute) to content."""
    split: Split = Split.TRAIN
    metadata: dict[str, Json] = Field(default_factory=dict)


class Task(Record):
    """One task. In Python, `prompt` may be a string and file contents may be strings."""

    id: str = Field(min_length=1)
    prompt: tuple[Message, ...]
    answer: Json = None
    """Gold answer or whatever the verifier compares with: reaches the verifier only."""
    world: Json = None
    """State of the host-side episode (a simulated user's instruction): never in prompt or
    sandbox."""
    files: dict[str, bytes] = Field(default_factory=dict)
    hidden_files: dict[str, bytes] = Field(default_factory=dict)
    """Files for the judge's clean room only."""
    sandbox: SandboxSpec | None = None
    """Overrides the environment's."""
    limits: Limits | None = None
    """Overrides the environment's."""
    split: Split
    """When not given: by a stable hash of the id, 80/10/10."""
    created: date | None = None
    source: str | None = None
    license: str | None = None
    metadata: dict[str, Json] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _conveniences(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        if isinstance(data.get("prompt"), str | Message):
            data["prompt"] = as_messages(data["prompt"])
        if data.get("split") is None and isinstance(data.get("id"), str):
            data["split"] = split_of(data["id"])
        return data

    @field_validator("files", "hidden_files", mode="before")
    @classmethod
    def _text_files(cls, value: Any, info: ValidationInfo) -> Any:
        return _as_bytes(value) if info.mode == "python" else value

    def public(self) -> PublicTask:
        """The task without answer, hidden files and world."""
        return PublicTask(
            id=self.id,
            prompt=self.prompt,
            files=self.files,
            split=self.split,
            metadata=self.metadata,
        )
