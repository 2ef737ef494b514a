"""The controller's end of tracked progress: adds up all counts and broadcasts frontiers.

Every unit of a flow (:mod:`penstock.planning.tracking`) has a hub of its own.

Calls come from the threads that read the hosts' channels; a lock makes them one sequence, and
broadcasts leave in that sequence.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.core.control.assignment import UnitProgress
from penstock.core.control.host_orders import ClosedEpoch, MoveFrontier
from penstock.core.control.host_reports import ProgressMade
from penstock.core.progress.deltas import check_deltas
from penstock.core.progress.exchange import Accumulator, Flush
from penstock.core.progress.marks import MarkAligner
from penstock.core.progress.tracker import Tracker
from penstock.planning.physical import PhysicalPlan
from penstock.planning.tracking import TrackingPlan

__all__ = ["ProgressHub"]


class ProgressHub:
    """Counts of all hosts, frontiers for all hosts."""

    def __init__(
        self,
        plan: PhysicalPlan,
        tracking: TrackingPlan,
        resume: int,
        broadcast: Callable[[MoveFrontier], None],
    ) -> None:
        self.tracking = tracking
        self._plan = plan
        nodes = frozenset(plan.chain_of)
        self._accumulator = Accumulator(Tracker(tracking.graph))
        self._accumulator.add(tracking.held(plan, resume + 1, nodes))
        self._accumulator.flush()
        self._gates: MarkAligner[int] = MarkAligner(tracking.gate_nodes(plan), resume)
        self._epoch = resume
        self.generation = 0
        """How often the counts began anew."""
        self._cuts_us: dict[int, int] = {}
        self._closed: list[ClosedEpoch] = []
        self._broadcast = broadcast
        self._lock = threading.Lock()
        self.first = self._progress()
        """Where the counts begin."""

    def restart(self, epoch: int) -> None:
        """The unit starts anew after an epoch: so do its counts, and what was told before."""
        with self._lock:
            self.generation += 1
            self._epoch = epoch
            nodes = frozenset(self._plan.chain_of)
            self._accumulator.restart(self.tracking.held(self._plan, epoch + 1, nodes))
            gates = self.tracking.gate_nodes(self._plan)
            self._gates = MarkAligner(gates, epoch, keeps=False)
            self._cuts_us, self._closed = {}, []

    @contextmanager
    def welcomed(self) -> Iterator[UnitProgress]:
        """Where the counts are, for a host; what is broadcast waits until it was told so."""
        with self._lock:
            self._advance()
            yield self._progress()

    def _progress(self) -> UnitProgress:
        welcome = self._accumulator.welcome()
        return UnitProgress(self.generation, self._epoch, welcome.sequence, welcome.changes)

    def receive(self, host: int, made: ProgressMade) -> None:
        """A host's counts, and the epochs that its nodes have closed at their gates."""
        with self._lock:
            if made.generation != self.generation:
                return
            deltas = check_deltas(self.tracking.graph, made.deltas)
            self._accumulator.receive(str(host), Flush(made.sequence, deltas))
            for node, epoch, watermark_us, cut_us in made.gates:
                if epoch <= self._epoch:
                    self._gates.restate({node: watermark_us})
                    continue
                self._cuts_us[epoch] = max(self._cuts_us.get(epoch, 0), cut_us)
                self._closed += [
                    ClosedEpoch(done.epoch, done.watermark_us, self._cuts_us.pop(done.epoch, 0))
                    for done in self._gates.mark(node, epoch, watermark_us)
                ]
            self._advance()

    def _advance(self) -> None:
        """Tell all hosts what has moved."""
        if self._accumulator.due or self._closed:
            sent = self._accumulator.flush()
            closed, self._closed = tuple(self._closed), []
            unit, generation = self.tracking.unit, self.generation
            moved = MoveFrontier(unit, generation, sent.sequence, sent.changes, closed)
            self._broadcast(moved)

    def frontiers(self) -> dict[int, list[tuple[int, ...]]]:
        """The frontier of each tracked chain, for people."""
        with self._lock:
            tracker = self._accumulator.tracker
            return {
                chain: [tuple(time) for time in tracker.frontier(place).elements]
                for chain, place in self.tracking.chains.items()
            }
