"""The graph as recovery sees it: nodes, what kind of state each has, who needs determinants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from penstock.errors import GraphError

__all__ = ["CausalGraph", "Kind"]


class Kind(Enum):
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

    >>> graph = CausalGraph({0: Kind.SOURCE, 1: Kind.ORDERED, 2: Kind.SINK}, {1: (0,), 2: (1,)})
    >>> graph.order, graph.children[0], graph.determined
    ((0, 1, 2), (1,), frozenset())
    """

    kinds: Mapping[int, Kind]
    parents: Mapping[int, tuple[int, ...]]
    units: Mapping[int, int] = field(default_factory=dict)
    """The unit of each node in a loop; any number names it."""
    noted: frozenset[int] = frozenset()
    """Nodes whose steps note values: the time, random numbers, answers from outside."""
    children: Mapping[int, tuple[int, ...]] = field(init=False)
    members: Mapping[int, tuple[int, ...]] = field(init=False)
    """Per node: those that fail with it, itself included."""
    order: tuple[int, ...] = field(init=False)
    determined: frozenset[int] = field(init=False)
    """Nodes that make the order of their inputs durable, and what their steps note."""
    descendants: Mapping[int, frozenset[int]] = field(init=False)

    def __post_init__(self) -> None:
        nodes = sorted(self.kinds)
        parents = {node: tuple(self.parents.get(node, ())) for node in nodes}
        children = {
            node: tuple(other for other in nodes if node in parents[other]) for node in nodes
        }
        units: dict[int, list[int]] = {}
        for node, unit in sorted(self.units.items()):
            units.setdefault(unit, []).append(node)
        members = {
            node: tuple(units[self.units[node]]) if node in self.units else (node,)
            for node in nodes
        }
        for node in sorted(self.noted):
            if node in self.units or self.kinds[node] is Kind.SOURCE:
                raise GraphError(
                    f"node {node} notes values in a loop or in a source: put the stage that calls "
                    "ctx.now(), ctx.random() or ctx.call() behind it"
                )
        object.__setattr__(self, "parents", parents)
        object.__setattr__(self, "children", children)
        object.__setattr__(self, "members", members)
        object.__setattr__(self, "order", self._ordered(nodes))
        object.__setattr__(self, "descendants", self._below())
        object.__setattr__(self, "determined", self._determined())

    def closure(self, nodes: Iterable[int]) -> frozenset[int]:
        """Nodes, and those that fail with them."""
        return frozenset(member for node in nodes for member in self.members[node])

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
            ordered = self.kinds[node] is Kind.ORDERED and not line
            if ordered or (node in self.noted and self.kinds[node] is not Kind.SINK):
                found.add(node)
        return frozenset(found)
