"""The driver's end of tracked progress: one machine per unit, behind a lock.

Calls come from the threads that read the hosts' channels; the lock makes them one sequence, and
broadcasts leave in that sequence.  :mod:`penstock.core.control.loop_progress` decides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.core.control.assignment import UnitProgress
from penstock.core.control.host_orders import MoveFrontier
from penstock.core.control.host_reports import ProgressMade
from penstock.core.control.loop_progress import LoopProgress
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
        self._chains = tracking.chains
        gates = tracking.gate_places(plan)
        self._machine = LoopProgress(tracking.unit, tracking.graph, gates, resume)
        self._broadcast = broadcast
        self._lock = threading.Lock()
        self.first = self._machine.welcome()
        """Where the counts begin."""

    def restart(self, epoch: int) -> None:
        """The unit starts anew after an epoch."""
        with self._lock:
            self._machine.restart(epoch)

    @contextmanager
    def welcomed(self) -> Iterator[UnitProgress]:
        """Where the counts are, for a host; what is broadcast waits until it was told so."""
        with self._lock:
            yield self._machine.welcome()

    def receive(self, host: int, made: ProgressMade) -> None:
        """A host's counts, and the epochs that its nodes have closed at their gates."""
        with self._lock:
            for moved in self._machine.receive(host, made):
                self._broadcast(moved)

    def frontiers(self) -> dict[int, list[tuple[int, ...]]]:
        """The frontier of each tracked chain, for people."""
        with self._lock:
            return {
                chain: [tuple(time) for time in self._machine.frontier(place).elements]
                for chain, place in self._chains.items()
            }
