"""Random rollback problems from a seed: mixed regimes, time domains, cycles, witnesses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random

from penstock.core.rollback.metadata import Edge, Need, NodeMetadata, Offer, RollbackGraph, Witness
from penstock.core.rollback.spans import EMPTY, TOP, Moment, NumberedTime, Span
from penstock.core.rollback.transformers import (
    ENTERING,
    LEAVING,
    SAME,
    TURNING,
    UNKNOWN,
    Custom,
    Recorded,
    Transformer,
)
from penstock.core.time import CONVERGED, Time

__all__ = ["RollbackCases", "growing"]

EPOCHS, LOOP, ITERATIONS, NUMBERS = "epochs", "loop", "iterations", "numbers"
_DEEP = (LOOP, ITERATIONS)


@dataclass
class RollbackCases:
    """Draws graphs and metadata; the same seed draws the same.

    Ephemeral and lazy nodes lose what they sent, batch and eager ones do not, a causal one has lost
    what was truncated. ``live``: the chance that a node goes on as it is.

    >>> graph, kept = RollbackCases(Random(1)).draw(4)
    >>> len(graph), len(kept)
    (4, 4)
    """

    random: Random
    live: float = 0.6
    witnesses: bool = True
    epochs: int = 6
    offers: int = 3
    domains: Sequence[str] = (EPOCHS, EPOCHS, EPOCHS, LOOP, ITERATIONS, NUMBERS)

    def draw(self, nodes: int) -> tuple[RollbackGraph, list[NodeMetadata]]:
        """Return a graph of ``nodes`` nodes and what they keep."""
        graph, domains = self.graph(nodes)
        kept = [self.kept(graph, node, domains[node]) for node in range(nodes)]
        if self.witnesses:
            kept = self._with_witnesses(graph, kept, domains)
        return graph, kept

    def graph(self, nodes: int) -> tuple[RollbackGraph, list[str]]:
        """Return a graph and the domain of each node's times; most edges lead onwards."""
        random = self.random
        domains = [random.choice(self.domains) for _ in range(nodes)]
        edges: list[Edge] = []
        for _ in range(random.randint(nodes - 1, 2 * nodes)):
            source, target = random.randrange(nodes), random.randrange(nodes)
            if source > target and random.random() < 0.8:
                source, target = target, source
            transformer = self._transformer(len(edges), domains[source], domains[target])
            edges.append(Edge(source, target, transformer, random.random() < 0.3))
        return RollbackGraph(nodes, edges), domains

    def kept(self, graph: RollbackGraph, node: int, domain: str) -> NodeMetadata:
        """Return what a node keeps: a chain of offers, and maybe the one to go on as it is."""
        random = self.random
        ins = graph.ins[node]
        regime = random.choice(["loses", "loses", "keeps", "truncates"])
        offers = []
        for span in growing(self.span(domain, ins) for _ in range(random.randint(0, self.offers))):
            gone = {"loses": span, "keeps": EMPTY, "truncates": span & self.span(domain, ins)}
            offers.append(Offer(span, discarded=gone[regime]))
        known = NodeMetadata(tuple(offers))
        if random.random() >= self.live:
            return known
        return known.alive(
            TOP if random.random() < 0.1 else self.span(domain, ins),
            discarded=random.choice([None, EMPTY, self.span(domain, ins)]),
            complete=self.span(domain, ins),
        )

    def span(self, domain: str, edges: Sequence[int]) -> Span:
        """Return a random span, not often empty."""
        count = self.random.choice([0, 1, 1, 1, 1, 2, 2, 3])
        return Span.of(*(self.moment(domain, edges) for _ in range(count)))

    def moment(self, domain: str, edges: Sequence[int]) -> Moment:
        """Return a random time of a domain."""
        number = self.random.randrange(self.epochs)
        if domain == EPOCHS:
            return Time(number)
        if domain == LOOP:
            return Time(number, (CONVERGED,))
        if domain == ITERATIONS:
            return Time(number, (self.random.choice([0, 1, 2, CONVERGED, CONVERGED]),))
        return NumberedTime(self.random.choice(edges) if edges else 0, number)

    def _transformer(self, number: int, source: str, target: str) -> Transformer:
        random = self.random
        if source == EPOCHS and target == EPOCHS:
            return random.choice([SAME, SAME, SAME, SAME, Custom("half", _half, _double)])
        if source == EPOCHS and target in _DEEP:
            return ENTERING
        if source in _DEEP and target in _DEEP:
            return random.choice([SAME, TURNING])
        if source in _DEEP and target == EPOCHS:
            return LEAVING
        steps = random.randint(0, 5)
        keys = growing(self.span(source, [number]) for _ in range(steps))[1:]
        images = growing(self.span(target, [number]) for _ in range(steps + 2))[1:]
        return Recorded(zip(keys, images, strict=False)) if keys and images else UNKNOWN

    def _with_witnesses(
        self, graph: RollbackGraph, kept: list[NodeMetadata], domains: list[str]
    ) -> list[NodeMetadata]:
        """Exact deliveries on some edges, and witnesses whose needs come earlier in one order."""
        random = self.random
        messages: list[Need] = []
        delivered: list[dict[int, frozenset[Moment]]] = [{} for _ in kept]
        for number, edge in enumerate(graph.edges):
            if random.random() < 0.5:
                times = {self.moment(domains[edge.target], [number]) for _ in range(4)}
                delivered[edge.target][number] = frozenset(times)
                messages += [(number, time) for time in sorted(times, key=lambda t: t.sort_key())]
        random.shuffle(messages)
        witnesses: list[list[Witness]] = [[] for _ in kept]
        for index, (number, time) in enumerate(messages):
            sender = graph.edges[number].source
            before = [m for m in messages[:index] if graph.edges[m[0]].target == sender]
            if random.random() < 0.7:
                needs = random.sample(before, min(len(before), random.randint(0, 2)))
                witnesses[sender].append(Witness(number, time, tuple(needs)))
        return [
            replace(
                known,
                delivered=delivered[node],
                notified=frozenset(
                    self.moment(domains[node], graph.ins[node])
                    for _ in range(random.choice([0, 0, 1]))
                ),
                witnesses=tuple(witnesses[node]),
            )
            for node, known in enumerate(kept)
        ]


def growing(spans: Iterable[Span]) -> list[Span]:
    """Return a chain of different spans from ``EMPTY`` up, each with all of the one before."""
    chain = [EMPTY]
    for span in spans:
        larger = chain[-1] | span
        if larger != chain[-1]:
            chain.append(larger)
    return chain


def _half(span: Span) -> Span:
    return Span.epoch((span.scalar or 0) // 2) if span != EMPTY else EMPTY


def _double(span: Span) -> Span:
    return Span.epoch(2 * (span.scalar or 0) + 1) if span is not TOP else TOP
