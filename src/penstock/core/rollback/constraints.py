"""The constraints between neighbours, prepared so that checking one is cheap.

Decides, for one edge and one choice at either end, whether the two choices go together; never
chooses. Most edges join nodes whose spans are whole epochs: there a constraint is a comparison of
two integers, kept in lists per node. Every other edge (iterations, sequence numbers, a user's own
transformer) is checked with spans, and only on demand.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.rollback.metadata import NodeMetadata, RollbackGraph
from penstock.core.rollback.spans import TOP, Span
from penstock.core.rollback.transformers import Custom, check_monotone
from penstock.core.time import Time
from penstock.errors import GraphError, InvariantError

__all__ = ["Constraints"]


class Constraints:
    """A graph and what its nodes keep, as tables by node and number of the offer.

    For nodes of whole epochs (``plain``) the tables hold epochs: ``state`` of the span itself,
    ``events``, ``gone`` (discarded), ``received``. Adjacency: ``above`` and ``below`` list
    neighbours over plain edges (``below_unlogged``, ``above_unlogged``: only those that are not
    logged), ``odd_in`` and ``odd_out`` list all other edges by number.
    """

    def __init__(self, graph: RollbackGraph, kept: Sequence[NodeMetadata]) -> None:
        if len(kept) != len(graph):
            raise GraphError(f"{len(graph)} nodes, but metadata of {len(kept)}")
        self.graph = graph
        self.kept: list[NodeMetadata] = list(kept)
        self.plain = [True] * len(graph)
        self.state: list[list[int]] = [[] for _ in kept]
        self.events: list[list[int]] = [[] for _ in kept]
        self.gone: list[list[int]] = [[] for _ in kept]
        self.received: list[list[int]] = [[] for _ in kept]
        self._fixed: list[dict[tuple[int, int], Span]] = [{} for _ in kept]
        self._sent: list[dict[tuple[int, int], Span]] = [{} for _ in kept]
        for node in range(len(graph)):
            self._read(node)
        self._linked = False

    def update(self, node: int, kept: NodeMetadata) -> None:
        """Take a node's new metadata; costs its offers, and the graph if its kind changed."""
        before = self.plain[node], self.kept[node].delivered.keys()
        self.kept[node] = kept
        self._fixed[node].clear()
        self._sent[node].clear()
        self._read(node)
        if before != (self.plain[node], kept.delivered.keys()):
            self._linked = False

    def top(self, node: int) -> int:
        """Return the number of the node's largest offer."""
        return len(self.kept[node].offers) - 1

    def is_live(self, node: int) -> bool:
        """Tell whether the node offers to go on as it is."""
        return self.kept[node].offers[-1].span is TOP

    def level(self, node: int, choice: int) -> int:
        """Return how far back an offer is, roughly: an epoch, to go through nodes in good order."""
        if self.plain[node]:
            return self.state[node][choice]
        tops = self.kept[node].offers[choice].span.tops
        return tops[0][0] if tops and isinstance(tops[0], Time) else -1

    def nothing_lost(self, number: int, at_source: int, at_target: int) -> bool:
        """Tell whether everything discarded at the source is part of the target's state."""
        edge = self.graph.edges[number]
        if edge.logged:
            return True
        offers = self.kept[edge.target].offers
        span = offers[at_target].span
        if span is TOP:
            if self.kept[edge.source].offers[at_source].span is TOP:
                return True
            # What was under way to a live node is lost when its sender goes back.
            span = offers[at_target].complete
            if at_target:
                span = span | offers[at_target - 1].span
        return span.includes(self.sent(number, at_source))

    def nothing_undone(self, number: int, at_source: int, at_target: int) -> bool:
        """Tell whether all events at the target are fixed by the source's choice alone."""
        events = self.kept[self.graph.edges[number].target].offers[at_target].events
        return self.fixed(number, at_source).includes(events.on(number))

    def fixed(self, number: int, at_source: int) -> Span:
        """Return φ of the source's span."""
        edge = self.graph.edges[number]
        key = (id(edge.transformer), at_source)
        found = self._fixed[edge.source].get(key)
        if found is None:
            span = self.kept[edge.source].offers[at_source].span
            found = self._fixed[edge.source][key] = edge.transformer.fixed(span)
        return found

    def sent(self, number: int, at_source: int) -> Span:
        """Return the times of what the source has discarded."""
        edge = self.graph.edges[number]
        key = (id(edge.transformer), at_source)
        found = self._sent[edge.source].get(key)
        if found is None:
            discarded = self.kept[edge.source].offers[at_source].discarded
            found = self._sent[edge.source][key] = edge.transformer.sent(discarded)
        return found

    def _read(self, node: int) -> None:
        offers = self.kept[node].offers
        if not offers:
            raise InvariantError(f"node {node} has nothing to go back to", node=node)
        state, events, gone, received = [], [], [], []
        # A node that ever had finer spans than epochs stays with the edges that can tell them.
        plain = self.plain[node]
        last = last_seen = -2
        for offer in offers if plain else ():
            here, seen, lost = offer.span.scalar, offer.events.scalar, offer.discarded.scalar
            if here is None or seen is None or lost is None or offer.complete.scalar is None:
                plain = False
                break
            if here <= last or seen < last_seen:
                break
            state.append(here)
            events.append(seen)
            gone.append(lost)
            received.append(here if offer.span is not TOP else max(offer.complete.scalar, last))
            last, last_seen = here, seen
        if plain and len(state) < len(offers):
            self._refuse(node, len(state))
        if not plain:
            state, events, gone, received = [], [], [], []
            for index in range(1, len(offers)):
                small, large = offers[index - 1], offers[index]
                grows = large.span.includes(small.span) and large.events.includes(small.events)
                if not grows or small.span == large.span:
                    self._refuse(node, index)
        self._check_transformers(node)
        self.plain[node] = plain
        self.state[node] = state
        self.events[node] = events
        self.gone[node] = gone
        self.received[node] = received

    def _check_transformers(self, node: int) -> None:
        for number in self.graph.outs[node]:
            edge = self.graph.edges[number]
            if isinstance(edge.transformer, Custom):
                chain = [offer.span for offer in self.kept[node].offers]
                where = f"the edge from {node} to {edge.target}"
                check_monotone(edge.transformer, chain, where)

    def _refuse(self, node: int, index: int) -> None:
        small, large = self.kept[node].offers[index - 1 : index + 1]
        raise GraphError(
            f"node {node} offers {large.span} with events {large.events} after {small.span} with "
            f"events {small.events}: each must have all of the one before, and a larger span",
            node=node,
        )

    def link(self) -> None:
        """Bring the adjacency up to date; readers call this first."""
        if self._linked:
            return
        self._linked = True
        nodes = range(len(self.graph))
        self.above: list[list[int]] = [[] for _ in nodes]
        self.below: list[list[int]] = [[] for _ in nodes]
        self.below_unlogged: list[list[int]] = [[] for _ in nodes]
        self.above_unlogged: list[list[int]] = [[] for _ in nodes]
        self.odd_in: list[list[int]] = [[] for _ in nodes]
        self.odd_out: list[list[int]] = [[] for _ in nodes]
        self.exact: set[int] = set()
        for kept in self.kept:
            self.exact.update(kept.delivered)
        plain = self.plain
        for number, edge in enumerate(self.graph.edges):
            source, target = edge.source, edge.target
            if (
                plain[source]
                and plain[target]
                and edge.transformer.keeps_epochs
                and number not in self.exact
            ):
                self.above[target].append(source)
                self.below[source].append(target)
                if not edge.logged:
                    self.below_unlogged[source].append(target)
                    self.above_unlogged[target].append(source)
                continue
            self.odd_in[target].append(number)
            self.odd_out[source].append(number)
