"""The graph as recovery sees it: nodes, what kind of state each has, who needs determinants."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Nodes and edges without cycles (a loop is one unit).

    >>> graph = CausalGraph({0: Kind.SOURCE, 1: Kind.ORDERED, 2: Kind.SINK}, {1: (0,), 2: (1,)})
    >>> graph.order, graph.children[0], graph.determined
    ((0, 1, 2), (1,), frozenset())
    """

    kinds: Mapping[int, Kind]
    parents: Mapping[int, tuple[int, ...]]
    children: Mapping[int, tuple[int, ...]] = field(init=False)
    order: tuple[int, ...] = field(init=False)
    determined: frozenset[int] = field(init=False)
    """Nodes that make the order of their inputs durable."""
    descendants: Mapping[int, frozenset[int]] = field(init=False)

    def __post_init__(self) -> None:
        nodes = sorted(self.kinds)
        parents = {node: tuple(self.parents.get(node, ())) for node in nodes}
        children = {
            node: tuple(other for other in nodes if node in parents[other]) for node in nodes
        }
        order: list[int] = []
        waiting = {node: len(parents[node]) for node in nodes}
        ready = [node for node in nodes if not waiting[node]]
        while ready:
            node = ready.pop(0)
            order.append(node)
            for child in children[node]:
                waiting[child] -= 1
                if not waiting[child]:
                    ready.append(child)
        if len(order) != len(nodes):
            raise GraphError("the graph has a cycle: give a loop as one node")
        descendants: dict[int, frozenset[int]] = {}
        for node in reversed(order):
            below = {node}
            for child in children[node]:
                below |= descendants[child]
            descendants[node] = frozenset(below)
        determined: set[int] = set()
        settled: dict[int, bool] = {}
        for node in order:
            # One line of single parents from something that fixes its own order fixes ours.
            line = not parents[node] or (
                len(parents[node]) == 1
                and (settled[parents[node][0]] or parents[node][0] in determined)
            )
            settled[node] = line
            if self.kinds[node] is Kind.ORDERED and not line:
                determined.add(node)
        object.__setattr__(self, "parents", parents)
        object.__setattr__(self, "children", children)
        object.__setattr__(self, "order", tuple(order))
        object.__setattr__(self, "descendants", descendants)
        object.__setattr__(self, "determined", frozenset(determined))
