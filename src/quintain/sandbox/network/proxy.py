"""The proxy of one owner: gives every networked sandbox its gate."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from quintain.sandbox.network.dial import Dialer
from quintain.sandbox.network.gate import Gate
from quintain.sandbox.network.inside import prepare
from quintain.sandbox.network.names import Rules
from quintain.sandbox.network.resolve import Resolve, Resolver
from quintain.task import NetworkPolicy
from quintain.trajectory import Event


class Proxy:
    """Serves sandboxes on the running event loop; no process or thread a sandbox.

    Args:
        resolve: gives the addresses of a name; None: the host's own resolver.
        proxies: the owner's own proxies by scheme; None: as the environment says.
    """

    def __init__(
        self, *, resolve: Resolve | None = None, proxies: Mapping[str, str] | None = None
    ) -> None:
        self._resolver = Resolver() if resolve is None else None
        chosen = resolve if resolve is not None else self._resolver
        assert chosen is not None
        self._dialer = Dialer(chosen, proxies)
        self._gates: set[Gate] = set()

    async def serve(
        self,
        listener: socket.socket | None,
        policy: NetworkPolicy,
        on_event: Callable[[Event], None] | None = None,
    ) -> Gate:
        """Lets one sandbox out through a listening socket that only it can reach.

        Args:
            listener: a listening stream socket, TCP in the sandbox's network namespace or UNIX;
                the gate owns it from now on. None: connections are handed over by
                `Gate.connected`.
            policy: what the sandbox may reach.
            on_event: called with each request as it ends.

        Returns:
            The sandbox's gate: its log and count; close it with the sandbox.

        Raises:
            ConfigError: an entry of the policy is no host, or a preset finds nothing.
        """
        try:
            found = await prepare(policy)
            gate = Gate(policy, Rules.of(policy, found.private_hosts), self._dialer, on_event)
        except BaseException:
            if listener is not None:
                listener.close()
            raise
        self._gates.add(gate)
        gate.on_closed = self._gates.discard
        if listener is not None:
            gate.listen(listener)
        return gate

    def hang_up(self) -> None:
        """Closes every gate, without waiting: its loop may be gone."""
        for gate in list(self._gates):
            gate.hang_up()
        if self._resolver is not None:
            self._resolver.close()

    async def close(self) -> None:
        """Closes every gate."""
        gates = list(self._gates)
        self.hang_up()
        for gate in gates:
            await gate.close()
