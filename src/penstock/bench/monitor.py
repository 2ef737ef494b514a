"""The span monitor's benchmark: how long it takes to choose a rollback on a large graph.

Fig. 10 of "Falkirk Wheel": the ad-serving application of Fig. 1, 107 stages, with more and more
shards. Tweets are selected and persisted; mentions go round the loop of connected components
(lazy checkpoints, some of single iterations); tweets go through three batch steps; both meet in an
ephemeral join that serves queries; billing is eager and counts messages. One node that maps input
and two in the loop fail, as in section 5.1. Checkpoints are not aligned, so the rollback cascades.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from penstock.core.rollback.metadata import Edge, Offer, RollbackGraph
from penstock.core.rollback.monitor import SpanMonitor
from penstock.core.rollback.regimes import BATCH, EPHEMERAL, SOURCE, RollbackRegime, lazy
from penstock.core.rollback.spans import EMPTY, TOP, NumberedTime, Span
from penstock.core.rollback.transformers import ENTERING, LEAVING, SAME, TURNING, Transformer
from penstock.core.rollback.transformers import epochs_to_numbers as to_numbers
from penstock.core.time import CONVERGED, Time

__all__ = ["AdServingModel", "bench_monitor"]

SIZES = (1_000, 10_000, 100_000, 500_000)
NOW = 60
EVERY = 20
ALIGNED = NOW - EVERY
"""The last epoch of which every node has a checkpoint."""
CHECKPOINTS = 12
LOOP_STAGES = 60
BATCH_STAGES = 24
SERVING_STAGES = 18
MESSAGES = 5
"""Messages that one node of the join sends to billing in an epoch."""


@dataclass
class AdServingModel:
    """The application with a number of shards per stage, and what its nodes have kept.

    >>> small = AdServingModel(2)
    >>> len(small.stages), small.nodes, min(len(offers) for offers in small.offers) >= 10
    (107, 214, True)
    """

    shards: int
    seed: int = 2021
    stages: list[str] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    offers: list[list[Offer]] = field(default_factory=list)
    live: list[Offer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        tweets = self._stage("tweets", SOURCE)
        mentions = self._stage("select mentions", EPHEMERAL)
        ratings = self._stage("select ratings", EPHEMERAL)
        self._join(tweets, mentions, logged=True)
        self._join(tweets, ratings, logged=True)
        components = self._loop(mentions)
        model = self._line("batch", ratings, BATCH_STAGES, BATCH, first_logged=True)
        serving = self._line("serve", model, SERVING_STAGES, EPHEMERAL, first_logged=True)
        self._join(components, serving, spread=True, logged=True)
        self._billing(serving)

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return len(self.offers)

    def monitor(self) -> SpanMonitor:
        """Return a monitor that knows all of it."""
        graph = RollbackGraph(self.nodes, self.edges)
        monitor = SpanMonitor(graph, sources=range(self.shards))
        for node, offers in enumerate(self.offers):
            monitor.offer(node, *offers)
        return monitor

    def failed(self) -> set[int]:
        """Return one node that selects mentions and two in the loop."""
        first = self.stages.index("components 0") * self.shards
        return {self.shards, first, first + LOOP_STAGES // 2 * self.shards}

    def _loop(self, mentions: range) -> range:
        stages = [self._stage(f"components {n}", lazy(EVERY), n) for n in range(LOOP_STAGES)]
        self._join(mentions, stages[0], ENTERING, spread=True, logged=True)
        for number, (one, two) in enumerate(pairwise(stages)):
            self._join(one, two, spread=number % 4 == 0)
        self._join(stages[-1], stages[0], TURNING, spread=True)
        components = self._stage("components", EPHEMERAL)
        self._join(stages[-1], components, LEAVING, spread=True)
        return components

    def _line(
        self, name: str, above: range, count: int, regime: RollbackRegime, *, first_logged: bool
    ) -> range:
        for number in range(count):
            stage = self._stage(f"{name} {number}", regime)
            self._join(above, stage, spread=number % 3 == 0, logged=first_logged and not number)
            above = stage
        return above

    def _billing(self, serving: range) -> None:
        sent = {epoch: MESSAGES * (epoch + 1) for epoch in range(ALIGNED, NOW + 1)}
        self.stages.append("billing")
        for above in serving:
            number = len(self.edges)
            self.edges.append(Edge(above, self.nodes, to_numbers(number, sent)))
            counts = [MESSAGES * (epoch + 1) - self.random.randrange(3) for epoch in sent]
            spans = [Span.of(NumberedTime(number, count)) for count in counts]
            self.offers.append([Offer(span, discarded=EMPTY) for span in spans])
            self.live.append(Offer(TOP, spans[-1], EMPTY, spans[-1]))

    def _stage(self, name: str, regime: RollbackRegime, loop_stage: int | None = None) -> range:
        self.stages.append(name)
        first = self.nodes
        for _ in range(self.shards):
            if loop_stage is None:
                self.offers.append([regime.offer(epoch) for epoch in range(ALIGNED, NOW)])
                now = Span.epoch(NOW)
                gone = EMPTY if regime.keeps_output else now
                self.live.append(Offer(TOP, now, gone, Span.epoch(NOW - 1)))
            else:
                self.offers.append(self._checkpoints(single=loop_stage % 10 == 9))
                now = Span.epoch(NOW, 1)
                self.live.append(Offer(TOP, now, now, Span.epoch(NOW - 1, 1)))
        return range(first, self.nodes)

    def _checkpoints(self, *, single: bool) -> list[Offer]:
        """Checkpoints that share only one epoch with those of other nodes."""
        epochs = {ALIGNED, *self.random.sample(range(ALIGNED + 1, NOW), CHECKPOINTS)}
        counter = self.random.randrange(1, 9) if single else 0
        return [
            Offer(
                Span.of(Time(epoch, (CONVERGED,)), Time(epoch + 1, (counter,)))
                if single and epoch != ALIGNED
                else Span.epoch(epoch, 1)
            )
            for epoch in sorted(epochs)
        ]

    def _join(
        self,
        above: range,
        below: range,
        transformer: Transformer = SAME,
        *,
        spread: bool = False,
        logged: bool = False,
    ) -> None:
        if spread:
            pairs = [(source, target) for source in above for target in below]
        else:
            pairs = list(zip(above, below, strict=True))
        self.edges += [Edge(source, target, transformer, logged) for source, target in pairs]


def bench_monitor(sizes: Sequence[int] = SIZES, runs: int = 5) -> dict[str, Any]:
    """Return the seconds from a failure to the chosen spans, for graphs of each size.

    ``seconds`` includes reading what live nodes report; the best of ``runs``, since the work is the
    same in each. ``watermark_seconds``: the first low-watermark of the whole graph, from nothing.
    """
    result: dict[str, Any] = {
        "edges": [],
        "nodes": [],
        "spans_per_node_min": [],
        "rolled_back_percent": [],
        "seconds": [],
        "watermark_seconds": [],
    }
    for size in sizes:
        flow = _of_size(size)
        seconds, watermark = [], []
        rolled_back = 0
        for _ in range(runs):
            monitor = flow.monitor()
            failed = flow.failed()
            live = {node: offer for node, offer in enumerate(flow.live) if node not in failed}
            started = time.perf_counter()
            found = monitor.rollback(live)
            seconds.append(time.perf_counter() - started)
            rolled_back = len(found.rolled_back)
            started = time.perf_counter()
            monitor.advance()
            watermark.append(time.perf_counter() - started)
        result["edges"].append(len(flow.edges))
        result["nodes"].append(flow.nodes)
        result["spans_per_node_min"].append(min(map(len, flow.offers)))
        result["rolled_back_percent"].append(round(100.0 * rolled_back / flow.nodes, 1))
        result["seconds"].append(round(min(seconds), 4))
        result["watermark_seconds"].append(round(min(watermark), 4))
    result["microseconds_per_edge"] = [
        round(1e6 * taken / edges, 2)
        for taken, edges in zip(result["seconds"], result["edges"], strict=True)
    ]
    return result


def _of_size(edges: int) -> AdServingModel:
    """Return the application with the fewest shards that give at least ``edges`` edges."""
    shards = 1
    while len((flow := AdServingModel(shards)).edges) < edges:
        # Exchanges make the number of edges quadratic in the number of shards.
        shards = max(shards + 1, int(0.97 * shards * (edges / len(flow.edges)) ** 0.5))
    return flow
