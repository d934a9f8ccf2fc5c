"""Sandboxes leased on the nodes of a Ray cluster: `ray`, over the extra of that name.

One actor a node (`landlord.py`) owns a backend of that machine and opens sandboxes for this
process, as many at once as the node has slots. A sandbox here is a proxy: what is asked of it is
carried out there, with the limits of its spec, and output is cut there before it travels. Every
call has a deadline. A node or an actor that is lost breaks its leases: their calls raise
`SandboxError`, a fault of the host, and the rollouts go on elsewhere. The actors are this process's
own: when it ends, however it ends, Ray ends them, and with each of them goes all that it opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain.errors import SandboxError, SandboxTimeout
from quintain.protocols import Probe
from quintain.record import Json
from quintain.sandbox import probe
from quintain.sandbox.asked import refuse_closed
from quintain.sandbox.ray.landlord import Landlord
from quintain.sandbox.ray.lease import LeasedSandbox, NodeLost, answer_of
from quintain.task import SandboxSpec

if TYPE_CHECKING:
    import ray

INSTALL = "pip install 'quintain[ray]'"
SLOTS_PER_CPU = 8
LOOK_S = 2.0
"""How often the cluster is asked for its nodes while someone waits for a slot."""
START_S = 60.0
"""How long an actor may take to come up."""
CLOSE_S = 20.0
AGAIN_S = 10.0
"""How old a lost actor must be before its node gets a new one."""


@dataclass(slots=True)
class Node:
    """A node of the cluster, as this process uses it."""

    id: str
    slots: int
    actor: Any
    ready: asyncio.Task[dict[str, Json]]
    used: int = 0
    lost: str = ""
    """Why it is not used any more."""
    since: float = field(default_factory=time.monotonic)
    """When its actor was started."""

    @property
    def replaceable(self) -> bool:
        """Whether a lost one may be tried again with a new actor."""
        return bool(self.lost) and self.used == 0 and time.monotonic() - self.since > AGAIN_S


class RayBackend:
    """Leases sandboxes on a Ray cluster.

    Args:
        allow_weaker: go on where a node cannot enforce a limit, instead of refusing by name.
        inner: the backend that each node opens sandboxes with, by its registered name.
        address: of the cluster; None: `RAY_ADDRESS`, or the one this process is connected to.
        slots: sandboxes at once on a node; None: 8 for each of its CPUs.
        runtime_env: for the actors, as Ray takes it; None: this process's import path, which fits
            nodes that see the same files.
    """

    name = "ray"

    def __init__(
        self,
        *,
        allow_weaker: bool = False,
        inner: str = "native",
        address: str | None = None,
        slots: int | None = None,
        runtime_env: Mapping[str, Any] | None = None,
    ) -> None:
        self._closed = False
        self.allow_weaker = allow_weaker
        self.inner = inner
        self.address = address
        self.slots = slots
        self.runtime_env = dict(runtime_env) if runtime_env is not None else _same_imports()
        self._nodes: dict[str, Node] = {}
        self._looked = 0.0
        self._connected = False
        self._looking = asyncio.Lock()
        self._freed = asyncio.Condition()

    async def open(self, spec: SandboxSpec) -> LeasedSandbox:
        """A sandbox on the node with the most free slots; waits for a slot within `startup_s`.

        The first on a node waits for this process's actor there, too.

        Raises:
            IsolationError: no node can enforce what the spec asks for, by name.
            SandboxTimeout: no slot became free in time.
            SandboxError: there is no cluster, or the sandbox did not come up.
        """
        refuse_closed(self.name, self._closed)
        node = await self._take(time.monotonic() + spec.startup_s)
        try:
            async with asyncio.timeout(spec.startup_s):
                ref = node.actor.open.remote(spec.model_dump_json())
                told = await answer_of(ref, f"node {node.id[:8]}")
        except TimeoutError as error:
            await self._give_back(node)
            if isinstance(error, SandboxError):
                raise
            raise SandboxTimeout(f"no sandbox within {spec.startup_s:g} s from Ray") from error
        except NodeLost as error:
            await self._lose(node, str(error))
            raise
        except BaseException:
            await self._give_back(node)
            raise
        return LeasedSandbox(spec, told, node.actor, node.id, self._ended(node))

    def _ended(self, node: Node) -> Any:
        async def ended(lost: str) -> None:
            if lost:
                await self._lose(node, lost)
            else:
                await self._give_back(node)

        return ended

    async def probe(self) -> Probe:
        """Attacks a sandbox on one node of the cluster; says how many nodes and slots there are."""
        details: dict[str, Json] = {"inner": self.inner}
        try:
            await self._look()
            nodes = self._usable()
            await asyncio.wait_for(asyncio.gather(*(node.ready for node in nodes)), START_S)
        except (SandboxError, TimeoutError) as error:
            return Probe(self.name, available=False, advice=str(error), details=details)
        details |= {"nodes": len(nodes), "slots": sum(node.slots for node in nodes)}
        found = await probe.probe(self, {}, "", details)
        # This machine's memory says nothing about the nodes'.
        told = {name: value for name, value in found.details.items() if name != "density"}
        return replace(found, details=told)

    async def close(self) -> None:
        """Ends every sandbox and actor of this backend."""
        self._closed = True
        nodes, self._nodes = list(self._nodes.values()), {}
        for node in nodes:
            node.ready.cancel()
        if nodes:
            import ray

            calls = [_quietly(node.actor.close.remote()) for node in nodes if not node.lost]
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*calls), CLOSE_S)
            for node in nodes:
                await asyncio.to_thread(ray.kill, node.actor)
        if self._connected:
            import ray

            self._connected = False
            await asyncio.to_thread(ray.shutdown)

    # --- nodes ------------------------------------------------------------------------------------

    def _usable(self) -> list[Node]:
        return [node for node in self._nodes.values() if not node.lost]

    async def _take(self, deadline: float) -> Node:
        """A slot, on the node that has the most free ones."""
        while True:
            await self._look()
            free = [node for node in self._usable() if node.used < node.slots]
            if free:
                node = max(free, key=lambda one: one.slots - one.used)
                node.used += 1
                try:
                    async with asyncio.timeout(START_S):
                        await asyncio.shield(node.ready)
                except (NodeLost, TimeoutError) as error:
                    await self._lose(node, str(error) or "its actor did not come up")
                    if time.monotonic() < deadline:
                        continue
                    raise SandboxTimeout(f"no node came up in time: {node.lost}") from error
                except SandboxError as error:
                    await self._lose(node, str(error))
                    raise
                except BaseException:
                    await self._give_back(node)
                    raise
                return node
            left = deadline - time.monotonic()
            if left <= 0:
                used = sum(node.used for node in self._usable())
                raise SandboxTimeout(
                    f"no slot became free in time: {used} sandboxes on {len(self._usable())} nodes"
                )
            async with self._freed:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._freed.wait(), min(left, LOOK_S))

    async def _give_back(self, node: Node) -> None:
        async with self._freed:
            node.used -= 1
            self._freed.notify_all()

    async def _lose(self, node: Node, why: str) -> None:
        async with self._freed:
            node.used -= 1
            node.lost = node.lost or why
            self._freed.notify_all()

    async def _look(self) -> None:
        """Asks the cluster for its nodes, not more often than every `LOOK_S`."""
        async with self._looking:
            if time.monotonic() - self._looked < LOOK_S and self._usable():
                return
            found = await asyncio.to_thread(self._ask)
            # A node without CPUs is one that wants no work, as heads often are.
            alive = {
                one["NodeID"]: one["Resources"]["CPU"]
                for one in found
                if one["Alive"] and one["Resources"].get("CPU")
            }
            for name, node in self._nodes.items():
                if name not in alive:
                    node.lost = node.lost or "the node left the cluster"
            for name, cpus in alive.items():
                known = self._nodes.get(name)
                if known is None or known.replaceable:
                    self._nodes[name] = self._settle(name, cpus)
            self._looked = time.monotonic()
            if not self._usable():
                raise SandboxError("the Ray cluster has no living node with a CPU")

    def _settle(self, name: str, cpus: float) -> Node:
        """Starts this process's actor on a node."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        actor = (
            ray.remote(Landlord)
            .options(
                num_cpus=0,
                max_concurrency=1000,
                max_restarts=0,
                runtime_env=self.runtime_env,
                scheduling_strategy=NodeAffinitySchedulingStrategy(name, soft=False),
            )
            .remote(self.inner, self.allow_weaker)
        )
        ready = asyncio.ensure_future(answer_of(actor.about.remote(), f"node {name[:8]}"))
        ready.add_done_callback(lambda task: task.cancelled() or task.exception())
        slots = self.slots if self.slots is not None else max(1, int(cpus * SLOTS_PER_CPU))
        return Node(name, slots, actor, ready)

    def _ask(self) -> list[dict[str, Any]]:
        if find_spec("ray") is None:
            raise SandboxError(f"Ray is not installed: {INSTALL}")
        import ray

        if not ray.is_initialized():
            address = self.address or os.environ.get("RAY_ADDRESS")
            if not address:
                raise SandboxError(
                    "no Ray cluster: give `address`, or set RAY_ADDRESS (`ray start --head` starts "
                    "one on this machine; then RAY_ADDRESS=auto)"
                )
            try:
                ray.init(address=address, log_to_driver=False, logging_level="error")
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise SandboxError(f"no Ray cluster at {address}: {error}") from error
            self._connected = True
        found: list[dict[str, Any]] = ray.nodes()
        return found


def _same_imports() -> dict[str, Any]:
    """Lets actors import what this process can: the package, and where its user's modules are."""
    source = str(Path(__file__).parents[3])
    path = [source, *(entry for entry in sys.path if entry and entry != source)]
    return {"env_vars": {"PYTHONPATH": os.pathsep.join(path)}}


async def _quietly(ref: ray.ObjectRef[Any]) -> None:
    with contextlib.suppress(SandboxError):
        await answer_of(ref, "close")
