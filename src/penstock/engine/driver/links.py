"""The driver's connections to hosts: orders to one, to some, to all.

The driver is a host of its own, number 0; orders to its agent go through its loop.  Called in the
controller's thread, but for :meth:`HostLinks.to_all`, which hubs of progress call from theirs.
"""

from __future__ import annotations

from functools import partial

from penstock.core.control.host_orders import AgentOrder, HostOrder, KillHost, SeverPeers, SlowNodes
from penstock.core.control.roster import DRIVER, Roster
from penstock.engine.host.causal_agent import CausalAgent
from penstock.engine.host.host import Host
from penstock.errors import TransientError

__all__ = ["HostLinks"]


class HostLinks:
    """Sends orders."""

    def __init__(self, host: Host, address: str, roster: Roster) -> None:
        self.host = host
        """The driver's own."""
        self.address = address
        self.agent: CausalAgent | None = None
        """The driver's own agent, where there is recovery."""
        self.delays_us: dict[int, int] = {}
        """How long nodes wait after each batch, in a drill."""
        self._roster = roster

    def to(self, host: int, order: HostOrder) -> None:
        """Give an order to a host, but not to the driver's own."""
        self.host.transport.control(host, order)

    def to_agent(self, host: int, order: AgentOrder) -> None:
        """Give an order to a host's agent, which may be the driver's own."""
        if host != DRIVER:
            self.host.transport.control(host, order)
        elif self.agent is not None:
            self.host.call(partial(self.agent.take, order))

    def to_all(self, order: HostOrder) -> None:
        """Give an order to every host that is up, but not to the driver's own.

        A host that has registered is known a little before the channel to it is opened.  It needs
        nothing of what is said until then: its assignment comes later and has all of it.
        """
        transport = self.host.transport
        known = [one.number for one in list(self._roster.hosts.values()) if one.address]
        transport.control_all([n for n in known if transport.outgoing(n) is not None], order)

    def to_agents(self, order: AgentOrder) -> None:
        """Give an order to every agent, the driver's own as well."""
        self.to_agent(DRIVER, order)
        self.to_all(order)

    def address_of(self, host: int) -> str | None:
        """Where a host can be reached, once it has its assignment."""
        if host == DRIVER:
            return self.address
        member = self._roster.hosts.get(host)
        ready = member is not None and host in self._roster.assigned
        return member.address if member is not None and ready else None

    def addresses(self) -> dict[int, str]:
        """The hosts that have their assignments."""
        found = {host: self.address_of(host) for host in (DRIVER, *self._roster.hosts)}
        return {host: address for host, address in found.items() if address is not None}

    # -- drills ----------------------------------------------------------------------------------

    def kill(self, host: int) -> None:
        """Let a host's process end itself as a crash would."""
        member = self._roster.hosts.get(host)
        if member is None or not member.address:
            raise TransientError(f"host {host} is not up yet: it cannot be killed", host=host)
        self.host.transport.control(host, KillHost())

    def sever(self, host: int) -> None:
        """Break every connection of a host; nothing may be lost by it."""
        peers = (DRIVER, *(number for number in self._roster.hosts if number != host))
        self.host.transport.control(host, SeverPeers(peers))
        self.host.transport.sever(host)

    def slow_down(self, delays_us: dict[int, int]) -> None:
        """Let nodes wait after each batch, wherever they run."""
        kept = {**self.delays_us, **delays_us}
        self.delays_us = {node: us for node, us in kept.items() if us}
        self.to_all(SlowNodes(self.delays_us))
        self.host.call(partial(self.host.slow_down, self.delays_us))
