"""The span monitor of a running flow: what every node could go back to, and what would.

Decides, from the recovery graph and from what is durable, each node's low-watermark, and who would
go back if some nodes failed; never stores or sends anything. The graph becomes a small one first:

- A node without state goes back wherever its receivers want it, so it is left out; what feeds it
  feeds its receivers.
- The nodes of a loop go back together, so they are one, which offers the epochs that all have.
- Whatever went back makes the same again here: a source reads along its boundaries, a causal node
  replays what others have seen, a clean one makes output only of whole epochs. So nothing is ever
  undone (:data:`~penstock.core.rollback.transformers.REPLAYED`), and what a log still holds is
  never lost: constraints remain only behind nodes without a log.

A node's checkpoint is not offered before the next one would do as well: if that proves damaged, the
one before it is left. What a sink has published it never takes back, so that is its offer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.core.progress.marks import EPOCH_END
from penstock.core.rollback.metadata import Edge, NodeMetadata, Offer, RollbackGraph
from penstock.core.rollback.monitor import SpanMonitor
from penstock.core.rollback.solver import Cause, Rollback, solve
from penstock.core.rollback.spans import EMPTY, TOP, Span
from penstock.core.rollback.transformers import REPLAYED

__all__ = ["SpanWatch", "WouldRestart"]

_PASSING = (NodeKind.SOURCE, NodeKind.STATELESS)
_Passes = Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class WouldRestart:
    """A node that a failure restarts: to the end of which epoch, and whose fault it is."""

    node: int
    to: int | None
    """None: it has no state, and starts where its receivers are."""
    because: int | None = None
    """The node that takes it along; None: it failed itself."""
    why: str = "failed"


class SpanWatch:
    """Low-watermarks of a flow, kept up to date; and what failures would do.

    >>> kinds = {0: NodeKind.SOURCE, 1: NodeKind.STATEFUL, 2: NodeKind.SINK}
    >>> graph = CausalGraph(kinds, {1: (0,), 2: (1,)})
    >>> watch = SpanWatch(graph)
    >>> for epoch in (4, 9, 14):
    ...     watch.saved(1, epoch)
    >>> watch.published(2, 15)
    >>> watch.advance(), watch.low(1), watch.low(0), watch.kept(1)
    (True, 9, 9, (9, 14))
    >>> watch.if_failed([1], {0: 17, 1: 17, 2: 16})
    (WouldRestart(node=1, to=14, because=None, why='failed'),)
    """

    def __init__(self, graph: CausalGraph, logless: frozenset[int] | None = None) -> None:
        self.graph = graph
        self.logless = graph.logless if logless is None else logless
        """Nodes that keep no log of what they sent."""
        self._heads = [
            node
            for node in graph.order
            if graph.kinds[node] not in _PASSING and graph.together[node][0] == node
        ]
        self._number = {
            member: number
            for number, head in enumerate(self._heads)
            for member in graph.together[head]
        }
        self._fed = self._receivers()
        self._regions: dict[int, list[int]] = {}
        for node in graph.order:
            self._regions.setdefault(graph.regions[node], []).append(node)
        self._monitor = SpanMonitor(self._reduced(lambda _: True))
        self._kept: dict[int, list[int]] = {node: [-1] for node in self._number}
        self._early: dict[int, dict[int, int]] = {}
        """Checkpoints that do not count yet, and from which epoch of all children on they do."""
        self._changed: set[int] = set()

    def anew(self, logless: frozenset[int]) -> SpanWatch:
        """The same knowledge with low-watermarks that begin anew.

        Needed where low-watermarks may fall: other nodes keep no log of what they sent, or a node
        was taken back by hand.
        """
        other = SpanWatch(self.graph, logless)
        other._kept = {node: list(epochs) for node, epochs in self._kept.items()}
        other._early = {node: dict(early) for node, early in self._early.items()}
        other._changed = set(range(len(self._heads)))
        return other

    # -- what becomes known ----------------------------------------------------------------------

    def stored(self, node: int, epochs: Mapping[int, int] | Iterable[int]) -> None:
        """All checkpoints of a node that are durable, by epoch; -1 is its initial state.

        As a mapping, with the epoch from which on the log of each serves every child
        (:func:`~penstock.core.control.retention.serves_from`).
        """
        serves = epochs if isinstance(epochs, Mapping) else dict.fromkeys(epochs, -1)
        self._kept[node] = sorted(e for e, since in serves.items() if since < 0) or [-1]
        self._early[node] = {e: since for e, since in serves.items() if since >= 0}
        self._changed.add(self._number[node])

    def saved(self, node: int, epoch: int, serves_from: int = -1) -> None:
        """One more checkpoint is durable; its log serves children from an epoch on."""
        if epoch <= self._kept[node][-1]:
            return
        if serves_from < 0:
            self._kept[node].append(epoch)
            self._changed.add(self._number[node])
        else:
            self._early.setdefault(node, {})[epoch] = serves_from

    def published(self, node: int, epoch: int) -> None:
        """A sink has published everything up to an epoch."""
        if epoch > self._kept[node][-1]:
            self._kept[node] = [epoch]
            self._changed.add(self._number[node])

    def restarted(self, node: int, epoch: int) -> None:
        """A node has started from the end of an epoch: what it had saved of later ones is void."""
        if node in self._number and self.graph.kinds[node] is not NodeKind.SINK:
            self._kept[node] = [e for e in self._kept[node] if e <= epoch] or [epoch]
            early = self._early.get(node, {})
            self._early[node] = {e: since for e, since in early.items() if e <= epoch}
            self._changed.add(self._number[node])

    def advance(self) -> bool:
        """Raise the low-watermarks as far as what is known allows; whether any rose."""
        rose = False
        self._count_early()
        while self._changed:
            rose = self._advance() or rose
            self._count_early()
        return rose

    def _count_early(self) -> None:
        """Count the checkpoints whose logs reach back far enough by now."""
        for node, early in sorted(self._early.items()):
            children = self.graph.children[node]
            reached = min((self.low(child) for child in children), default=EPOCH_END)
            ready = [epoch for epoch, since in early.items() if since <= reached]
            if ready:
                self._kept[node] = sorted({*self._kept[node], *ready})
                self._changed.add(self._number[node])
                self._early[node] = {e: early[e] for e in early if e not in ready}

    def _advance(self) -> bool:
        for number in sorted(self._changed):
            low = _epoch(self._monitor.low(number))
            self._monitor.learn(number, NodeMetadata(self._durable_offers(number, low)))
        self._changed.clear()
        raised = self._monitor.advance().raised
        for number in raised:
            low = _epoch(self._monitor.low(number))
            for member in self.graph.together[self._heads[number]]:
                kept = self._kept[member]
                self._kept[member] = [e for e in kept if e >= low] or kept[-1:]
        return bool(raised)

    # -- what follows ----------------------------------------------------------------------------

    def low(self, node: int) -> int:
        """No failure takes a node behind the end of this epoch."""
        if node in self._number:
            return _epoch(self._monitor.low(self._number[node]))
        return min((_epoch(self._monitor.low(n)) for n in self._fed[node]), default=-1)

    def region_low(self, node: int) -> int:
        """No failure takes any node that is connected with this one behind this epoch."""
        return min((self.low(other) for other in self._near(node)), default=-1)

    def low_epoch(self) -> int:
        """No failure takes any node behind this epoch."""
        lows = [_epoch(self._monitor.low(number)) for number in range(len(self._heads))]
        return min(lows, default=-1)

    def held_by(self, node: int) -> int:
        """The node whose low-watermark keeps back those that are connected with this one."""
        near = [other for other in self._near(node) if other in self._number]
        return min(near, key=lambda other: (self.low(other), other), default=node)

    def _near(self, node: int) -> list[int]:
        return self._regions[self.graph.regions[node]]

    def kept(self, node: int) -> tuple[int, ...]:
        """The epochs that a node can go back to: checkpoints, or what a sink has published."""
        return tuple(sorted({*self._kept.get(node, ()), *self._early.get(node, ())}))

    def if_failed(
        self, failed: Collection[int], reached: Mapping[int, int]
    ) -> tuple[WouldRestart, ...]:
        """Who would restart, and from where, if these nodes failed now.

        ``reached`` has the newest epoch that each node has completed.
        """
        lost = self.graph.closure(failed)
        graph = self._reduced(lambda node: node in lost or node in self.logless)
        numbers = {self._number[node] for node in lost if node in self._number}
        offers = []
        for number in range(len(self._heads)):
            low = _epoch(self._monitor.low(number))
            epochs = sorted({low, *(e for e in self._common(number) if e >= low)})
            kept = NodeMetadata(tuple(self._offer(number, epoch, epoch) for epoch in epochs))
            if number not in numbers:
                members = self.graph.together[self._heads[number]]
                done = min(reached.get(member, -1) for member in members)
                seen = Span.epoch(max(done, epochs[-1]))
                gone = seen if self._loses(number) else EMPTY
                # Who has ended durably offers no more than to go on as it is.
                before = kept.offers[:-1] if epochs[-1] == EPOCH_END else kept.offers
                kept = NodeMetadata((*before, Offer(TOP, seen, gone, Span.epoch(done))))
            offers.append(kept)
        return self._restarts(lost, solve(graph, offers))

    def _restarts(self, lost: frozenset[int], found: Rollback) -> tuple[WouldRestart, ...]:
        restarts = []
        for node in self.graph.order:
            number = self._number.get(node)
            if number is None:
                if node in lost:
                    restarts.append(WouldRestart(node, None))
            elif found.spans[number] is not TOP:
                cause: Cause | None = found.causes[number] if node not in lost else None
                restarts.append(
                    WouldRestart(
                        node,
                        _epoch(found.spans[number]),
                        None if cause is None else self._heads[cause.node],
                        "failed" if cause is None else cause.reason.value,
                    )
                )
        return tuple(restarts)

    # -- the small graph -------------------------------------------------------------------------

    def _receivers(self) -> dict[int, frozenset[int]]:
        """Per node: whom it feeds, with whatever has no state left out."""
        found: dict[int, frozenset[int]] = {}
        for node in reversed(self.graph.order):
            fed: set[int] = set()
            for child in self.graph.children[node]:
                fed |= {self._number[child]} if child in self._number else found[child]
            found[node] = frozenset(fed)
        return found

    def _reduced(self, passes: _Passes) -> RollbackGraph:
        """The constraints; ``passes`` says which nodes without state keep no log of their own."""
        reach: dict[int, frozenset[int]] = {}
        edges: set[tuple[int, int]] = set()
        for node in reversed(self.graph.order) if self.logless else ():
            fed: set[int] = set()
            for child in self.graph.children[node]:
                if child in self._number:
                    fed.add(self._number[child])
                elif passes(child):
                    fed |= reach[child]
            reach[node] = frozenset(fed)
            number = self._number.get(node)
            if number is not None and self._loses(number):
                edges |= {(number, other) for other in fed if other != number}
        return RollbackGraph(len(self._heads), [Edge(*edge, REPLAYED) for edge in sorted(edges)])

    def _loses(self, number: int) -> bool:
        """Whether what it sent is gone when it restarts, or when a receiver does."""
        members = self.graph.together[self._heads[number]]
        return any(member in self.logless for member in members)

    def _common(self, number: int) -> list[int]:
        """The epochs that all members have durably."""
        members = self.graph.together[self._heads[number]]
        return sorted(set.intersection(*(set(self._kept[member]) for member in members)))

    def _durable_offers(self, number: int, low: int) -> tuple[Offer, ...]:
        """From the low-watermark on; each but that one with the checkpoint after it in mind.

        The one before a damaged checkpoint has to do; so what counts is not it, but the other:
        that is the one which has to fit the receivers.
        """
        epochs = [epoch for epoch in self._common(number) if epoch > low]
        if self.graph.kinds[self._heads[number]] is NodeKind.SINK:
            followed = [(epoch, epoch) for epoch in epochs]
        else:
            followed = list(pairwise(epochs))
        return (
            self._offer(number, low, low),
            *(self._offer(number, epoch, gone) for epoch, gone in followed),
        )

    def _offer(self, number: int, epoch: int, gone: int) -> Offer:
        discarded = Span.epoch(gone) if self._loses(number) else EMPTY
        return Offer(Span.epoch(epoch), discarded=discarded)


def _epoch(span: Span) -> int:
    return -1 if span.scalar is None else span.scalar
