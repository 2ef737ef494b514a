"""Guarantees of a simulated flow: below which nodes rows may be lost, or come twice.

A promise can be dropped down the flow and never gained, so who feeds a node promises at least as
much.  Nodes of loops, and who feeds them, are exactly once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.testing.simulator.stages import Row, Shape

__all__ = ["GUARANTEES", "broken_promise", "doubled", "with_guarantees"]

GUARANTEES = ("at-most-once", "at-least-once")


def with_guarantees(shape: Shape, random: Random) -> Shape:
    """The same flow with less than exactly once for some of its nodes."""
    graph = shape.graph
    share = random.choice((0.2, 0.5, 0.9))
    chosen: dict[int, str] = {}
    for node in reversed(graph.order):
        below = [chosen.get(child) for child in graph.children[node]]
        if node in graph.units or None in below or len(set(below)) > 1:
            continue
        if graph.kinds[node] is NodeKind.SINK:
            chosen[node] = random.choice(GUARANTEES)
        elif below and below[0] is not None and random.random() < share:
            chosen[node] = below[0]
    lossy = frozenset(node for node, promise in chosen.items() if promise == "at-most-once")
    doubling = frozenset(chosen) - lossy
    kinds = {node: _kind(graph, node, lossy, doubling) for node in graph.kinds}
    return replace(
        shape,
        graph=CausalGraph(
            kinds,
            graph.parents,
            graph.units,
            graph.noted - lossy - doubling,
            logless=lossy,
            lossy=lossy,
            doubling=doubling,
        ),
        functions={node: graph.kinds[node] for node in chosen},
    )


def _kind(
    graph: CausalGraph, node: int, lossy: frozenset[int], doubling: frozenset[int]
) -> NodeKind:
    """What recovery takes a node for: what may be lost is not restored, nor is its order."""
    kind = graph.kinds[node]
    if node in lossy and kind not in (NodeKind.SOURCE, NodeKind.SINK):
        return NodeKind.STATELESS
    if node in doubling and kind is NodeKind.ORDERED:
        return NodeKind.STATEFUL
    return kind


def broken_promise(shape: Shape, node: int, found: list[Row], wanted: list[Row]) -> str | None:
    """What an epoch's rows at a node show that its guarantee excludes; a row is its id.

    Where less than exactly once is promised, what was read of an open epoch may count for a later
    one: there nothing is too much in a single epoch.
    """
    had = Counter(row[0] for row in found)
    due = Counter(row[0] for row in wanted)
    missing = [] if node in shape.graph.lossy else sorted(due - had)
    extra = [] if node in shape.graph.untraced else sorted(had - due)
    return f"without {missing}, and with {extra} too many" if missing or extra else None


def doubled(found: list[Row], wanted: list[Row]) -> list[int]:
    """What came too often in the end, of all rows that had to come at all."""
    had = Counter(row[0] for row in found)
    due = Counter(row[0] for row in wanted)
    return sorted(one for one in due if had[one] > due[one])
