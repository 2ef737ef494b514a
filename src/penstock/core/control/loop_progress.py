"""Progress in a loop: the counts of all hosts, and the frontiers that follow from them.

Theory of operation
-------------------
Every unit of a flow (an outermost loop with all that is in it) has one :class:`LoopProgress` on the
driver and one :class:`~penstock.core.control.host_progress.HostProgress` on each host that runs
nodes of it.  A host counts what its nodes do to pointstamps and sends the net effect; the driver
adds up and sends the frontiers that moved back to all hosts:

    receive(host, ProgressMade)   ->  MoveFrontier, or nothing while no frontier moved
    restart(epoch)                    the counts begin anew, in the next generation
    welcome()                     ->  UnitProgress for a host that begins to count

*Gates.*  Where rows enter the loop, each node holds one count at the first epoch that its senders
have not ended.  The driver holds these counts for all nodes when a generation begins, so no epoch
is complete before every gate was heard of.  With its counts a host sends the epochs that its nodes
have closed, with their watermarks; an epoch that is closed at all gates is broadcast as a
:class:`~penstock.core.control.host_orders.ClosedEpoch`, with the frontier that passes it or before.

*Generations.*  When a loop restarts, all its nodes start from one epoch at which nothing was under
way.  What hosts counted before is void, what a lost host had counted as well, and what is still on
its way belongs to an older generation: both ends refuse it.  The count of broadcasts goes on, so a
welcome says which of them it includes; the others follow it on the same channel.

The machine has no lock and sends nothing.  Its caller makes one sequence of the calls, and of the
effects that they return.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from penstock.core.antichain import Antichain
from penstock.core.control.assignment import UnitProgress
from penstock.core.control.host_orders import ClosedEpoch, MoveFrontier
from penstock.core.control.host_reports import GateClosing, ProgressMade
from penstock.core.graph import LogicalGraph
from penstock.core.progress.deltas import Delta, check_deltas
from penstock.core.progress.exchange import Accumulator, Flush
from penstock.core.progress.marks import MarkAligner
from penstock.core.progress.tracker import Tracker
from penstock.core.time import Time

__all__ = ["LoopProgress", "gate_counts"]


def gate_counts(gates: Mapping[int, int], epoch: int) -> list[Delta]:
    """What some nodes hold at their gates when an epoch is the first that is open there.

    >>> gate_counts({7: 1, 8: 1}, 4)
    [(1, Time(4), 2)]
    """
    held = Counter(gates.values())
    return [(place, Time.root(epoch), count) for place, count in held.items()]


class LoopProgress:
    """The driver's end of one unit's progress.

    Laws
      * no frontier that is broadcast passes an epoch of which anything is under way, or which a
        gate has not closed;
      * every epoch that all gates closed is broadcast once per generation, no later than a
        frontier that passes it;
      * a report of another generation changes nothing.

    >>> from penstock.core.graph import GraphBuilder
    >>> b = GraphBuilder()
    >>> names = b.input("gate"), b.stage("body"), b.connect("gate", "body")
    >>> progress = LoopProgress(0, b.build(), {5: 0}, resume=-1)
    >>> closed = ((0, Time(1), 1), (0, Time(0), -1))
    >>> made = ProgressMade(0, 0, 1, closed, (GateClosing(5, 0, 30, 9),))
    >>> [moved.closed for moved in progress.receive(1, made)]
    [(ClosedEpoch(epoch=0, watermark_us=30, cut_us=9),)]
    >>> progress.restart(0)
    >>> progress.receive(1, made), progress.welcome().generation
    ([], 1)
    """

    def __init__(
        self, unit: int, graph: LogicalGraph, gates: Mapping[int, int], resume: int
    ) -> None:
        self.unit = unit
        self.graph = graph
        self._gate_places = dict(gates)
        """The place of each node's gate."""
        self._accumulator = Accumulator(Tracker(graph))
        self._accumulator.add(gate_counts(gates, resume + 1))
        self._accumulator.flush()
        self._gates: MarkAligner[int] = MarkAligner(gates, resume)
        self._epoch = resume
        self.generation = 0
        """How often the counts began anew."""
        self._cuts_us: dict[int, int] = {}

    def restart(self, epoch: int) -> None:
        """The unit starts anew after an epoch: so do its counts, and what was told before."""
        self.generation += 1
        self._epoch = epoch
        self._accumulator.restart(gate_counts(self._gate_places, epoch + 1))
        self._gates = MarkAligner(self._gate_places, epoch, keeps=False)
        self._cuts_us = {}

    def welcome(self) -> UnitProgress:
        """Where the counts are, for a host that begins to count."""
        welcome = self._accumulator.welcome()
        return UnitProgress(self.generation, self._epoch, welcome.sequence, welcome.changes)

    def receive(self, host: int, made: ProgressMade) -> list[MoveFrontier]:
        """A host's counts, and the epochs that its nodes have closed at their gates."""
        if made.generation != self.generation:
            return []
        deltas = check_deltas(self.graph, made.deltas)
        self._accumulator.receive(str(host), Flush(made.sequence, deltas))
        closed = [done for closing in made.gates for done in self._closed(closing)]
        if not self._accumulator.due and not closed:
            return []
        sent = self._accumulator.flush()
        return [
            MoveFrontier(self.unit, self.generation, sent.sequence, sent.changes, tuple(closed))
        ]

    def _closed(self, closing: GateClosing) -> list[ClosedEpoch]:
        """The epochs that a gate was the last to close.

        A restarted node first says at which watermark it starts, by the epoch where it does.
        """
        node, epoch, watermark_us, cut_us = closing
        if epoch <= self._epoch:
            self._gates.restate({node: watermark_us})
            return []
        self._cuts_us[epoch] = max(self._cuts_us.get(epoch, 0), cut_us)
        return [
            ClosedEpoch(done.epoch, done.watermark_us, self._cuts_us.pop(done.epoch, 0))
            for done in self._gates.mark(node, epoch, watermark_us)
        ]

    def frontier(self, place: int) -> Antichain[Time]:
        """The times that may still happen at a place, as far as the hosts have told."""
        return self._accumulator.tracker.frontier(place)
