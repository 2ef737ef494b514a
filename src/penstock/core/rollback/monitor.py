"""The span monitor: what can never be needed again, as metadata arrives.

Theory of operation ------------------- Falkirk Wheel, sections 4.1 and 4.3. The **low-watermark**
is the solver's answer to "everything fails at once". It is a consistent choice among the durable
offers; offers are only ever added, or taken away beyond it by a rollback, so it stays consistent,
and every rollback, whichever nodes failed, goes back at most to it. Hence, behind a node's
low-watermark, older checkpoints may go; what is logged on edges into the node may go; a source may
forget what no child can ask for; output is final.

The low-watermark only grows. When a node offers more, only nodes that have something to gain and
are joined to it through such nodes can rise: the solver runs over these, and not at all if the
node's own neighbours rule the new offer out.

Never does anything itself: :class:`Decisions` go to the parts that store, log, acknowledge and
publish. Deterministic; its whole state is :meth:`SpanMonitor.to_plain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.core.rollback.constraints import Constraints
from penstock.core.rollback.metadata import NodeMetadata, Offer, RollbackGraph
from penstock.core.rollback.solver import Rollback, settle, solve
from penstock.core.rollback.spans import EMPTY, TOP, Span
from penstock.errors import GraphError, require

__all__ = ["Decisions", "SpanMonitor"]


@dataclass(frozen=True, slots=True)
class Decisions:
    """What became possible since the last ones; nothing is ever taken back.

    ``raised``: new low-watermarks, by node. ``checkpoints``: (node, span) that may be deleted.
    ``logs``: (edge, span in the receiver's times): messages that are never sent again.
    ``acknowledged`` by source and ``released`` by sink: input that may be forgotten, output that is
    final.
    """

    raised: Mapping[int, Span] = field(default_factory=dict)
    checkpoints: tuple[tuple[int, Span], ...] = ()
    logs: tuple[tuple[int, Span], ...] = ()
    acknowledged: Mapping[int, Span] = field(default_factory=dict)
    released: Mapping[int, Span] = field(default_factory=dict)


class SpanMonitor:
    """Metadata of every node, its low-watermark, and rollbacks.

    ``sources`` read their input again until it is acknowledged, except for what went over
    ``persisted`` edges, whose log is our own. Every node starts with the offer of the beginning.

    >>> from penstock.core.rollback.metadata import Edge
    >>> monitor = SpanMonitor(RollbackGraph(2, [Edge(0, 1, logged=True)]), sources=[0], sinks=[1])
    >>> monitor.offer(0, Offer(Span.epoch(1)), Offer(Span.epoch(2)))
    >>> monitor.advance().acknowledged
    {}
    >>> monitor.offer(1, Offer(Span.epoch(1)))
    >>> done = monitor.advance()
    >>> done.acknowledged, done.released
    ({0: Span(Time(1))}, {1: Span(Time(1))})
    """

    def __init__(
        self,
        graph: RollbackGraph,
        *,
        sources: Iterable[int] = (),
        sinks: Iterable[int] = (),
        persisted: Iterable[int] = (),
        kept: Sequence[NodeMetadata] | None = None,
    ) -> None:
        self.graph = graph
        self.sinks = frozenset(sinks)
        self.persisted = frozenset(persisted)
        self._rules = Constraints(graph, kept or [NodeMetadata.spans(EMPTY)] * len(graph))
        self._changed: set[int] = set(range(len(graph))) if kept else set()
        self._unacknowledged: dict[int, list[Span]] = {source: [] for source in sorted(sources)}

    @property
    def kept(self) -> tuple[NodeMetadata, ...]:
        """What each node can go back to, from its low-watermark on."""
        return tuple(self._rules.kept)

    def low(self, node: int) -> Span:
        """Return the node's low-watermark."""
        return self._rules.kept[node].offers[0].span

    def offer(self, node: int, *offers: Offer) -> None:
        """Learn that a node can now be restored to these spans too, each larger than all before."""
        kept = self._rules.kept[node]
        self.learn(node, replace(kept, offers=kept.offers + offers))

    def learn(self, node: int, kept: NodeMetadata) -> None:
        """Replace what is known about a node; it must still offer its low-watermark."""
        if kept.offers[0].span != self.low(node):
            raise GraphError(
                f"node {node} must go on offering its low-watermark {self.low(node)}, but its "
                f"oldest offer is {kept.offers[0].span}",
                node=node,
            )
        if kept.offers[-1].span is TOP:
            raise GraphError(f"node {node}: only what is durable is offered here", node=node)
        self._rules.update(node, kept)
        self._changed.add(node)

    def advance(self) -> Decisions:
        """Raise the low-watermarks as far as the metadata allow; say what follows."""
        rules = self._rules
        rules.link()
        region = self._region()
        self._changed.clear()
        if not region:
            return Decisions()
        at = [0] * len(self.graph)
        around: set[int] = set(region)
        for node in region:
            at[node] = rules.top(node)
            around.update(self._neighbours(node))
        settle(rules, at, sorted(around))
        risen = [node for node in region if at[node]]
        dropped: list[tuple[int, Span]] = []
        for node in risen:
            kept = rules.kept[node]
            gone = [offer.span for offer in kept.offers[: at[node]]]
            dropped += [(node, span) for span in gone]
            if node in self._unacknowledged:
                self._unacknowledged[node] += [*gone[1:], kept.offers[at[node]].span]
            rules.update(node, replace(kept, offers=kept.offers[at[node] :]))
        return Decisions(
            raised={node: self.low(node) for node in risen},
            checkpoints=tuple((node, span) for node, span in dropped if span != EMPTY),
            logs=tuple(
                (number, self.low(node).on(number))
                for node in risen
                for number in self.graph.ins[node]
                if self.graph.edges[number].logged
            ),
            acknowledged=self._acknowledge(risen),
            released={node: self.low(node) for node in risen if node in self.sinks},
        )

    def rollback(self, live: Mapping[int, Offer]) -> Rollback:
        """Choose where each node goes back to; offers beyond that are forgotten.

        ``live`` has, for every node that did not fail, its offer to go on as it is. Low-watermarks
        stay where they are.
        """
        known = [
            replace(kept, offers=(*kept.offers, live[node])) if node in live else kept
            for node, kept in enumerate(self._rules.kept)
        ]
        found = solve(self.graph, known)
        for node in found.rolled_back:
            kept = self._rules.kept[node]
            if found.choices[node] + 1 < len(kept.offers):
                left = kept.offers[: found.choices[node] + 1]
                self._rules.update(node, replace(kept, offers=left))
        return found

    def to_plain(self) -> list[Any]:
        """Return all that a new driver must know, without exact deliveries and witnesses."""
        return [
            [[offer.to_plain() for offer in kept.offers] for kept in self._rules.kept],
            {
                source: [span.to_plain() for span in spans]
                for source, spans in self._unacknowledged.items()
            },
        ]

    def restore(self, plain: Sequence[Any]) -> None:
        """Take over what :meth:`to_plain` of a monitor of the same graph gave."""
        offers, unacknowledged = plain
        require(len(offers) == len(self.graph), "metadata of another graph")
        for node, listed in enumerate(offers):
            kept = self._rules.kept[node]
            self._rules.update(node, replace(kept, offers=tuple(map(Offer.from_plain, listed))))
        for source, spans in unacknowledged.items():
            self._unacknowledged[source] = [Span.from_plain(span) for span in spans]
        self._changed = set(range(len(self.graph)))

    def _region(self) -> list[int]:
        """The nodes that may rise because of what changed."""
        rules = self._rules
        if rules.exact:
            return [n for n in range(len(self.graph)) if rules.top(n)] if self._changed else []
        start = [node for node in sorted(self._changed) if self._could_rise(node)]
        found = set(start)
        while start:
            for other in self._neighbours(start.pop()):
                if other not in found and rules.top(other):
                    found.add(other)
                    start.append(other)
        return sorted(found)

    def _could_rise(self, node: int) -> bool:
        """Tell whether the best that its neighbours offer allows the node more than it has."""
        rules = self._rules
        top = rules.top(node)
        if not top or not rules.plain[node]:
            return bool(top)
        received = min((rules.state[n][-1] for n in rules.below_unlogged[node]), default=None)
        fixed = min((rules.state[n][-1] for n in rules.above[node]), default=None)
        return any(
            (received is None or rules.gone[node][choice] <= received)
            and (fixed is None or rules.events[node][choice] <= fixed)
            for choice in range(1, top + 1)
        )

    def _neighbours(self, node: int) -> list[int]:
        edges = self.graph.edges
        return [edges[number].source for number in self.graph.ins[node]] + [
            edges[number].target for number in self.graph.outs[node]
        ]

    def _acknowledge(self, risen: Iterable[int]) -> dict[int, Span]:
        near = {
            self.graph.edges[number].source for node in risen for number in self.graph.ins[node]
        }
        near.update(risen)
        done: dict[int, Span] = {}
        for source in sorted(near & self._unacknowledged.keys()):
            waiting = self._unacknowledged[source]
            final = 0
            while final < len(waiting) and self._is_final(source, waiting[final]):
                final += 1
            if final:
                done[source] = waiting[final - 1]
                del waiting[:final]
        return done

    def _is_final(self, source: int, span: Span) -> bool:
        """Tell whether no child of a source can ever ask for input of ``span`` again."""
        for number in self.graph.outs[source]:
            edge = self.graph.edges[number]
            sent = edge.transformer.sent(span)
            if number not in self.persisted and not self.low(edge.target).includes(sent):
                return False
        return True
