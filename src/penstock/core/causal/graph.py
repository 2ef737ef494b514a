"""The graph as recovery sees it: nodes, what kind of state each has, who needs determinants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from penstock.errors import GraphError

__all__ = ["CausalGraph", "NodeKind"]


class NodeKind(Enum):
    """What a node loses when it dies."""

    SOURCE = "source"
    """Nothing: its input can be read again; only where it cut batches is lost."""
    STATELESS = "stateless"
    """Nothing but its place."""
    STATEFUL = "stateful"
    """State that does not depend on the order of its inputs, within an epoch or across epochs."""
    ORDERED = "ordered"
    """State that depends on the order of its inputs."""
    SINK = "sink"
    """Rows of epochs that were not published."""


@dataclass(frozen=True)
class CausalGraph:
    """Nodes and edges without cycles.  A loop is a *unit*: its nodes fail and start together.

    Edges inside a unit are not among ``parents``.  Law: the members of a unit are neighbours in
    ``order``, and have the same descendants.

    >>> kinds = {0: NodeKind.SOURCE, 1: NodeKind.ORDERED, 2: NodeKind.SINK}
    >>> graph = CausalGraph(kinds, {1: (0,), 2: (1,)})
    >>> graph.order, graph.children[0], graph.determined
    ((0, 1, 2), (1,), frozenset())
    """

    kinds: Mapping[int, NodeKind]
    parents: Mapping[int, tuple[int, ...]]
    units: Mapping[int, int] = field(default_factory=dict)
    """The unit of each node in a loop; any number names it."""
    noted: frozenset[int] = frozenset()
    """Nodes whose steps note values: the time, random numbers, answers from outside."""
    logless: frozenset[int] = frozenset()
    """Nodes that forget what they have sent: who restarts below makes them work again.

    One that begins to log counts as such until the low epoch has passed what it had forgotten."""
    clean: frozenset[int] = frozenset()
    """Nodes that make output only when they complete an epoch, and start at the end of one."""
    lossy: frozenset[int] = frozenset()
    """Nodes that promise at most once: one that is lost starts at the present epoch, with nothing,
    and is sent nothing again.  They keep neither logs nor checkpoints."""
    doubling: frozenset[int] = frozenset()
    """Nodes that promise at least once: one that is lost is sent everything of open epochs again,
    and sends what it makes of it, also to children that have it."""
    children: Mapping[int, tuple[int, ...]] = field(init=False)
    members: Mapping[int, tuple[int, ...]] = field(init=False)
    """Per node: those that fail with it, itself included."""
    order: tuple[int, ...] = field(init=False)
    determined: frozenset[int] = field(init=False)
    """Nodes that make the order of their inputs durable, and what their steps note."""
    descendants: Mapping[int, frozenset[int]] = field(init=False)
    together: Mapping[int, tuple[int, ...]] = field(init=False)
    """Per node: those with state (or sinks) that have to be able to start at one epoch with it."""
    regions: Mapping[int, int] = field(init=False)
    """Per node: the least node that it is connected with, in whatever direction."""

    def __post_init__(self) -> None:
        nodes = sorted(self.kinds)
        parents = {node: tuple(self.parents.get(node, ())) for node in nodes}
        children = _children(parents)
        units: dict[int, list[int]] = {}
        for node, unit in sorted(self.units.items()):
            units.setdefault(unit, []).append(node)
        members = {
            node: tuple(units[self.units[node]]) if node in self.units else (node,)
            for node in nodes
        }
        for node in sorted(self.noted):
            if node in self.units or self.kinds[node] is NodeKind.SOURCE:
                raise GraphError(
                    f"node {node} notes values in a loop or in a source: put the stage that calls "
                    "ctx.now(), ctx.random() or ctx.call() behind it"
                )
        for node in sorted(self.untraced):
            if node in self.units or node in self.clean:
                raise GraphError(f"node {node} is in a loop, or clean: it has to be exactly once")
            if not self.untraced.issuperset(children[node]):
                raise GraphError(f"node {node} promises less than a node that it feeds")
        object.__setattr__(self, "parents", parents)
        object.__setattr__(self, "children", children)
        object.__setattr__(self, "members", members)
        object.__setattr__(self, "order", self._ordered(nodes))
        object.__setattr__(self, "descendants", self._below())
        object.__setattr__(self, "determined", self._determined())
        object.__setattr__(self, "together", self._together())
        object.__setattr__(self, "regions", self._regions())
        for node in sorted(self.clean):
            if self.kinds[node] is NodeKind.ORDERED:
                raise GraphError(
                    f"node {node} depends on the order of its inputs: its state cannot be cut at "
                    "the end of an epoch; leave the stage causal, or declare it order-insensitive"
                )

    def closure(self, nodes: Iterable[int]) -> frozenset[int]:
        """Nodes, and those in a loop with them: they fail together."""
        return frozenset(member for node in nodes for member in self.members[node])

    @property
    def untraced(self) -> frozenset[int]:
        """Nodes whose steps no other node knows: their output has no diffs and no order."""
        return self.lossy | self.doubling

    @cached_property
    def position_first(self) -> frozenset[int]:
        """Sources that record how far they read before rows leave: some of these may be lost."""
        return frozenset(
            node
            for node, kind in self.kinds.items()
            if kind is NodeKind.SOURCE and not self.lossy.isdisjoint(self.descendants[node])
        )

    @cached_property
    def movable(self) -> frozenset[int]:
        """Nodes that may go to another host while they live: no row is lost or doubled by it."""
        lax = {self.regions[node] for node in self.untraced}
        return frozenset(node for node in self.kinds if self.regions[node] not in lax)

    def is_clean(self, node: int) -> bool:
        """Whether a node starts at the end of an epoch, without anything of later ones."""
        if self.kinds[node] is NodeKind.SOURCE:
            return False
        return node in self.units or node in self.clean

    def _regions(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for first in sorted(self.kinds):
            reached = [] if first in found else [first]
            while reached:
                node = reached.pop()
                if node not in found:
                    found[node] = first
                    reached += (*self.parents[node], *self.children[node], *self.members[node])
        return found

    def _together(self) -> dict[int, tuple[int, ...]]:
        passing = (NodeKind.SOURCE, NodeKind.STATELESS)
        return {
            node: tuple(other for other in self.members[node] if self.kinds[other] not in passing)
            for node in self.order
        }

    def _ordered(self, nodes: list[int]) -> tuple[int, ...]:
        order: list[int] = []
        waiting = dict.fromkeys(nodes, 0)
        for node in nodes:
            for member in self.members[node]:
                waiting[member] += len(self.parents[node])
        ready = [node for node in nodes if not waiting[node] and self.members[node][0] == node]
        while ready:
            for node in self.members[ready.pop(0)]:
                order.append(node)
                for child in self.children[node]:
                    for member in self.members[child]:
                        waiting[member] -= 1
                    first = self.members[child][0]
                    if not waiting[first]:
                        ready.append(first)
        if len(order) != len(nodes):
            raise GraphError("the graph has a cycle outside of its loops")
        return tuple(order)

    def _below(self) -> dict[int, frozenset[int]]:
        found: dict[int, frozenset[int]] = {}
        for node in reversed(self.order):
            if node not in found:
                members = self.members[node]
                below = set(members).union(
                    *(found[child] for member in members for child in self.children[member])
                )
                found.update(dict.fromkeys(members, frozenset(below)))
        return found

    def _determined(self) -> frozenset[int]:
        found: set[int] = set()
        settled: dict[int, bool] = {}
        for node in self.order:
            parents = self.parents[node]
            # One line of single parents from something that fixes its own order fixes ours.
            line = not parents or (
                len(parents) == 1 and (settled[parents[0]] or parents[0] in found)
            )
            settled[node] = line and node not in self.units
            ordered = self.kinds[node] is NodeKind.ORDERED and not line
            if ordered or (node in self.noted and self.kinds[node] is not NodeKind.SINK):
                found.add(node)
        return frozenset(found) - self.untraced


def _children(parents: Mapping[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    """Per node its children; nodes with the same children share one tuple."""
    found: dict[int, list[int]] = {node: [] for node in parents}
    for node, above in parents.items():
        for parent in above:
            found[parent].append(node)
    shared: dict[tuple[int, ...], tuple[int, ...]] = {}
    return {node: shared.setdefault(tuple(below), tuple(below)) for node, below in found.items()}
