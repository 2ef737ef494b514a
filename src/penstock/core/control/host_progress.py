"""A host's end of the progress of one loop: what its nodes counted, and what the driver said.

Theory of operation
-------------------
All nodes of a unit on one host share a buffer of counts and a mirror of the driver's frontiers
(:class:`~penstock.core.progress.exchange.LocalProgress`).  What one node's message does to another
on the same host cancels out here and is never sent.

    record(deltas of one step)   ->  ProgressMade, or nothing while sending could move no frontier
    gate_closed(GateClosing)         travels with the counts of the step that closed it, or later
    receive(MoveFrontier)        ->  whether it counted, and ProgressMade if counts must leave now

It belongs to one generation.  When the unit restarts, another one takes its place, made from the
driver's welcome; a broadcast of any other generation is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.core.control.assignment import UnitProgress
from penstock.core.control.host_orders import MoveFrontier
from penstock.core.control.host_reports import GateClosing, ProgressMade
from penstock.core.graph import LogicalGraph
from penstock.core.node.tracking import NodeTracking
from penstock.core.progress.deltas import Delta, check_changes
from penstock.core.progress.exchange import Flush, LocalProgress, ProgressBroadcast
from penstock.core.progress.view import FrontierView

__all__ = ["NOTHING_LEFT", "Heard", "HostProgress"]

NOTHING_LEFT = 1 << 63
"""Later than any epoch: the least open epoch of a node to which nothing comes any more."""


class Heard(NamedTuple):
    """What a broadcast led to."""

    counted: bool
    """False: it was of another generation."""
    made: ProgressMade | None
    """Counts that must leave now."""


class HostProgress:
    """The progress of one unit on one host, in one generation.

    >>> from penstock.core.graph import GraphBuilder
    >>> from penstock.core.time import Time
    >>> b = GraphBuilder()
    >>> names = b.input("gate"), b.stage("body"), b.connect("gate", "body")
    >>> everywhere = tuple((place, (Time(0),)) for place in range(3))
    >>> here = HostProgress(0, b.build(), UnitProgress(0, -1, 1, everywhere), [(0, Time(0), 1)])
    >>> here.gate_closed(GateClosing(5, 0, None, 0))
    >>> here.record([(0, Time(1), 1), (0, Time(0), -1)]).gates
    (GateClosing(node=5, epoch=0, watermark_us=None, cut_us=0),)
    >>> here.least_open(NodeTracking(1, {}, 0, depth=1))
    0
    """

    def __init__(
        self, unit: int, graph: LogicalGraph, welcome: UnitProgress, held: Iterable[Delta]
    ) -> None:
        self.unit = unit
        self.generation = welcome.generation
        self._graph = graph
        begun = ProgressBroadcast(welcome.sequence, (), check_changes(graph, welcome.changes))
        self._local = LocalProgress(graph, begun, held=held)
        self._gates: list[GateClosing] = []

    @property
    def view(self) -> FrontierView:
        """The frontiers, as the driver last told them."""
        return self._local.view

    def gate_closed(self, closing: GateClosing) -> None:
        """A node has closed an epoch where rows enter the loop."""
        self._gates.append(closing)

    def record(self, deltas: Iterable[Delta]) -> ProgressMade | None:
        """Take all counts of one step of a node; give what must be sent now."""
        return self._made(self._local.record(deltas))

    def receive(self, moved: MoveFrontier) -> Heard:
        """Take the driver's word on frontiers, unless it is of another generation."""
        if moved.generation != self.generation:
            return Heard(False, None)
        changes = check_changes(self._graph, moved.changes)
        _, flush = self._local.receive(ProgressBroadcast(moved.sequence, (), changes))
        return Heard(True, self._made(flush))

    def least_open(self, tracking: NodeTracking) -> int:
        """The least epoch of which something can still reach (in a loop: happen at) a node."""
        view, place = self._local.view, tracking.place
        open_ = view.frontier(place) if tracking.depth else view.upstream(place)
        return min((time.epoch for time in open_.elements), default=NOTHING_LEFT)

    def _made(self, flush: Flush | None) -> ProgressMade | None:
        if flush is None:
            return None
        gates, self._gates = tuple(self._gates), []
        return ProgressMade(self.unit, self.generation, flush.sequence, flush.deltas, gates)
