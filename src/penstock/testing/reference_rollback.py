"""The largest consistent rollback by trying everything: slow, and as the definitions read.

Shares the metadata and the spans with :mod:`penstock.core.rollback`, and nothing of its solver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from penstock.core.rollback.metadata import Need, NodeMetadata, RollbackGraph
from penstock.core.rollback.spans import TOP

__all__ = ["consistent", "consistent_choices", "largest_choice"]


def largest_choice(graph: RollbackGraph, kept: Sequence[NodeMetadata]) -> tuple[int, ...]:
    """Return the node-by-node largest of all consistent choices.

    >>> from penstock.core.rollback.metadata import Edge
    >>> from penstock.core.rollback.spans import EMPTY, Span
    >>> graph = RollbackGraph(2, [Edge(0, 1)])
    >>> kept = [NodeMetadata.spans(EMPTY, Span.epoch(last)) for last in (2, 3)]
    >>> largest_choice(graph, kept)
    (0, 0)
    """
    return tuple(map(max, zip(*consistent_choices(graph, kept), strict=True)))


def consistent_choices(
    graph: RollbackGraph, kept: Sequence[NodeMetadata]
) -> Iterator[tuple[int, ...]]:
    """Yield every choice of one offer per node under which all constraints hold."""
    for choice in product(*(range(len(node.offers)) for node in kept)):
        if consistent(graph, kept, choice):
            yield choice


def consistent(graph: RollbackGraph, kept: Sequence[NodeMetadata], choice: Sequence[int]) -> bool:
    """Tell whether the constraints of every edge hold."""
    return all(
        _nothing_lost(graph, kept, choice, number) and _nothing_undone(graph, kept, choice, number)
        for number in range(len(graph.edges))
    )


def _nothing_lost(
    graph: RollbackGraph, kept: Sequence[NodeMetadata], choice: Sequence[int], number: int
) -> bool:
    edge = graph.edges[number]
    if edge.logged:
        return True
    source = kept[edge.source].offers[choice[edge.source]]
    target = kept[edge.target].offers[choice[edge.target]]
    arrived = target.span
    if target.span is TOP and source.span is not TOP:
        arrived = target.complete
        for other in kept[edge.target].offers[:-1]:
            arrived = arrived | other.span
    return arrived.includes(edge.transformer.sent(source.discarded))


def _nothing_undone(
    graph: RollbackGraph, kept: Sequence[NodeMetadata], choice: Sequence[int], number: int
) -> bool:
    edge = graph.edges[number]
    source = kept[edge.source].offers[choice[edge.source]]
    target = kept[edge.target].offers[choice[edge.target]]
    exact = kept[edge.target].delivered.get(number)
    if exact is None:
        return edge.transformer.fixed(source.span).includes(target.events.on(number))
    return all(
        _fixed(graph, kept, choice, (number, time))
        for time in exact | kept[edge.target].notified
        if time in target.span
    )


def _fixed(
    graph: RollbackGraph, kept: Sequence[NodeMetadata], choice: Sequence[int], message: Need
) -> bool:
    number, time = message
    edge = graph.edges[number]
    state = kept[edge.source].offers[choice[edge.source]].span
    if time in edge.transformer.fixed(state):
        return True
    return any(
        all(
            made in state or _fixed(graph, kept, choice, (inward, made)) for inward, made in w.needs
        )
        for w in kept[edge.source].witnesses
        if (w.edge, w.time) == message
    )
