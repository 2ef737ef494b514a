"""Orders about nodes: what the recovery machine asks for, sent to the hosts where nodes are.

An order that needs a host which is not up yet waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace

from penstock.api.regimes import PAUSES
from penstock.core.causal.graph import CausalGraph
from penstock.core.control import host_orders as orders
from penstock.core.control.deadly_rows import Care
from penstock.core.control.recovery import FenceHosts, OpenEdge, StartNode
from penstock.engine.driver.links import HostLinks
from penstock.engine.driver.progress_hub import ProgressHub
from penstock.engine.store.changed_flow import foreign_stages
from penstock.engine.store.description import FlowDescription
from penstock.planning.physical import PhysicalPlan

__all__ = ["NodeOrders"]


class NodeOrders:
    """Where nodes are, and what their hosts are told."""

    def __init__(
        self,
        plan: PhysicalPlan,
        graph: CausalGraph,
        description: FlowDescription,
        placement: dict[int, int],
        links: HostLinks,
        hubs: Mapping[int, ProgressHub],
    ) -> None:
        self.plan = plan
        self.graph = graph
        self.placement = placement
        self.care: Callable[[int], Care] = lambda node: Care()
        """What a node must know of rows that it may not survive."""
        self._description = description
        self._links = links
        self._hubs = hubs
        self._visited: set[int] = set()
        """Hosts that have had nodes: they hear of everything, also when they have none."""
        self._gone: list[int] = []
        """Hosts that were given up."""
        self._held: list[tuple[int, orders.StartNodes | orders.OpenEdges, frozenset[int]]] = []
        """Orders that wait for hosts: the receiver, and others that it must know of."""

    # -- where nodes are -------------------------------------------------------------------------

    def place(self, places: Mapping[int, int]) -> None:
        """Nodes will run on these hosts."""
        self._visited.update(self.placement.values())
        self.placement.update(places)

    def host_gone(self, host: int) -> None:
        """A host was given up."""
        self._visited.discard(host)
        self._gone.append(host)

    def hosts(self) -> list[int]:
        """The hosts that can be told something, and have nodes or had some."""
        found = sorted({*self.placement.values(), *self._visited})
        return [host for host in found if self._links.address_of(host) is not None]

    # -- orders ----------------------------------------------------------------------------------

    def tell_all(self, order: orders.AgentOrder) -> None:
        """Tell all these hosts something."""
        for host in self.hosts():
            self._links.to_agent(host, order)

    def save(self, nodes: list[int]) -> None:
        """Let some nodes save their states now."""
        for host in sorted({self.placement[node] for node in nodes}):
            here = frozenset(node for node in nodes if self.placement[node] == host)
            self._links.to_agent(host, orders.SaveCheckpoints(-1, now=True, nodes=here))

    def fence(self, effect: FenceHosts) -> None:
        """Tell hosts which nodes have new incarnations."""
        self._held.clear()  # what it was about is planned again
        order = orders.FenceNodes(effect.round, dict(effect.incarnations), tuple(self._gone))
        for host in effect.hosts:
            self._links.to_agent(host, order)

    def start(self, effects: list[StartNode], hold: int | None) -> None:
        """Start nodes; where all wait for checkpoints, they hold their input after an epoch."""
        loops = [effect for effect in effects if effect.node in self.graph.units]
        for unit, epoch in {self.graph.units[e.node]: e.start.completed for e in loops}.items():
            self._hubs[unit].restart(epoch)
        # Edges inside a loop are open from the start: its nodes must know all its hosts.
        looping = frozenset(self.placement[effect.node] for effect in loops)
        starts: dict[int, list[StartNode]] = {}
        for effect in effects:
            starts.setdefault(self.placement[effect.node], []).append(effect)
        for host, some in starts.items():
            some.sort(key=self._first_to_start)
            nodes = tuple(self._node_start(effect, hold) for effect in some)
            near = looping if host in looping else frozenset()
            self._send(host, orders.StartNodes(nodes, {}, {}, {}), near)

    def _first_to_start(self, effect: StartNode) -> int:
        return -PAUSES.index(self.plan.chain_of_node(effect.node).pause)

    def _node_start(self, effect: StartNode, hold: int | None) -> orders.NodeStart:
        foreign = None
        if effect.start.checkpoint:
            foreign = foreign_stages(self._description, effect.node, effect.start.checkpoint)
        return orders.NodeStart(
            node=effect.node,
            incarnation=effect.incarnation,
            incarnations=dict(effect.incarnations),
            start=effect.start,
            foreign=None if foreign is None else tuple(foreign),
            hold=hold,
            care=self.care(effect.node),
        )

    def open(self, effects: list[OpenEdge]) -> None:
        """Open edges.  All hosts hear of it: credit goes back on a channel of the receiver's."""
        for host in self.hosts():
            opened = tuple(
                orders.EdgeOpening(e.sender, e.target, e.incarnation, e.position)
                for e in effects
                if self.placement[e.sender] == host
            )
            self._send(host, orders.OpenEdges(opened, {}, {}))

    def host_ready(self) -> None:
        """One more host can take nodes: send what waited for it."""
        held, self._held = self._held, []
        for host, order, near in held:
            self._send(host, order, near)

    def _send(
        self,
        host: int,
        order: orders.StartNodes | orders.OpenEdges,
        near: frozenset[int] = frozenset(),
    ) -> None:
        """Send an order with where all nodes are now, once the hosts concerned can be reached."""
        address_of = self._links.address_of
        if any(address_of(one) is None for one in {host, *near}):
            self._held.append((host, order, near))
            return
        addresses = {one: str(address_of(one)) for one in self.hosts()}
        order = replace(order, addresses=addresses, placement=dict(self.placement))
        if isinstance(order, orders.OpenEdges):
            self._links.to_agent(host, order)
            return
        nodes = [one.node for one in order.nodes]
        units = sorted({self.graph.units[node] for node in nodes if node in self.graph.units})
        with ExitStack() as told:
            # What a hub broadcasts reaches the host after the welcome.
            progress = {unit: told.enter_context(self._hubs[unit].welcomed()) for unit in units}
            self._links.to_agent(host, replace(order, progress=progress))
