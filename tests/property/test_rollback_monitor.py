"""The span monitor against one that keeps everything and starts from scratch every time."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.rollback.metadata import NodeMetadata, Offer, RollbackGraph
from penstock.core.rollback.monitor import Decisions, SpanMonitor
from penstock.core.rollback.solver import Rollback, solve
from penstock.core.rollback.spans import EMPTY, TOP, Span
from penstock.testing.rollback_cases import RollbackCases

seeds = st.integers(0, 2**32)
sizes = st.integers(1, 10)


class History:
    """A run of a random flow: offers arrive, nodes fail; beside the monitor, a hoarder."""

    def __init__(self, nodes: int, seed: int) -> None:
        self.random = Random(seed)
        self.cases = RollbackCases(self.random, witnesses=False, epochs=12)
        self.graph, self.domains = self.cases.graph(nodes)
        self.regimes = [self.random.choice(["loses", "keeps"]) for _ in range(nodes)]
        self.sources = [n for n in range(nodes) if not self.graph.ins[n]]
        for source in self.sources:
            self.regimes[source] = "keeps"
        self.graph = RollbackGraph(
            nodes,
            [replace(e, logged=e.logged or e.source in self.sources) for e in self.graph.edges],
        )
        self.sinks = [n for n in range(nodes) if not self.graph.outs[n]]
        self.monitor = SpanMonitor(self.graph, sources=self.sources, sinks=self.sinks)
        self.all = [NodeMetadata.spans(EMPTY) for _ in range(nodes)]

    def grow(self) -> None:
        """Some node offers more."""
        node = self.random.randrange(len(self.graph))
        last = self.all[node].offers[-1]
        more = last.span | self.cases.span(self.domains[node], self.graph.ins[node])
        if more != last.span:
            gone = more if self.regimes[node] == "loses" else EMPTY
            offer = Offer(more, discarded=gone)
            self.all[node] = replace(self.all[node], offers=(*self.all[node].offers, offer))
            self.monitor.offer(node, offer)

    def fail(self) -> tuple[Rollback, Rollback]:
        """Some nodes fail; the answers of the hoarder and of the monitor."""
        live: dict[int, Offer] = {}
        for node in range(len(self.graph)):
            if self.random.random() < 0.6:
                ins, domain = self.graph.ins[node], self.domains[node]
                events = self.all[node].offers[-1].events | self.cases.span(domain, ins)
                complete = self.cases.span(domain, ins)
                live[node] = Offer(TOP, events, events, complete)
        known = [
            replace(kept, offers=(*kept.offers, live[node])) if node in live else kept
            for node, kept in enumerate(self.all)
        ]
        expected = solve(self.graph, known)
        for node in expected.rolled_back:
            left = self.all[node].offers[: expected.choices[node] + 1]
            self.all[node] = replace(self.all[node], offers=left)
        return expected, self.monitor.rollback(live)

    def lows(self) -> list[Span]:
        return [self.monitor.low(node) for node in range(len(self.graph))]

    def steps(self) -> Iterator[Decisions | tuple[Rollback, Rollback]]:
        for _ in range(40):
            if self.random.random() < 0.12:
                yield self.fail()
            else:
                for _ in range(self.random.choice([1, 1, 3])):
                    self.grow()
                yield self.monitor.advance()


@settings(max_examples=60, deadline=None)
@given(sizes, seeds)
def test_the_incremental_low_watermark_is_the_worst_case_solved_from_scratch(
    nodes: int, seed: int
) -> None:
    history = History(nodes, seed)
    for step in history.steps():
        if isinstance(step, Decisions):
            assert history.lows() == list(solve(history.graph, history.all).spans)


@settings(max_examples=60, deadline=None)
@given(sizes, seeds)
def test_collecting_garbage_changes_no_rollback_and_none_passes_the_low_watermark(
    nodes: int, seed: int
) -> None:
    history = History(nodes, seed)
    graph = history.graph
    logs: dict[int, Span] = {}
    acknowledged: dict[int, Span] = {}
    released: dict[int, Span] = {}
    deleted: set[tuple[int, Span]] = set()
    for step in history.steps():
        if isinstance(step, Decisions):
            logs.update(step.logs)
            acknowledged.update(step.acknowledged)
            released.update(step.released)
            deleted.update(step.checkpoints)
            continue
        expected, found = step
        assert found.spans == expected.spans
        spans = found.spans
        assert all(s.includes(low) for s, low in zip(spans, history.lows(), strict=True))
        assert not deleted & set(enumerate(spans))
        assert all(spans[graph.edges[edge].target].includes(cut) for edge, cut in logs.items())
        assert all(spans[sink].includes(span) for sink, span in released.items())
        for source, span in acknowledged.items():
            assert spans[source].includes(span)
            for number in graph.outs[source]:
                edge = graph.edges[number]
                assert spans[edge.target].includes(edge.transformer.sent(span))


@settings(max_examples=60, deadline=None)
@given(sizes, seeds)
def test_low_watermarks_only_grow_and_survive_a_restart(nodes: int, seed: int) -> None:
    history = History(nodes, seed)
    before = history.lows()
    for step in history.steps():
        if not isinstance(step, Decisions):
            continue
        after = history.lows()
        assert all(new.includes(old) for new, old in zip(after, before, strict=True))
        assert step.raised == {n: s for n, s in enumerate(after) if s != before[n]}
        before = after
    restored = SpanMonitor(history.graph, sources=history.sources, sinks=history.sinks)
    restored.restore(history.monitor.to_plain())
    assert restored.kept == history.monitor.kept
    assert restored.to_plain() == history.monitor.to_plain()
