"""The controller's end of tracked progress: adds up everybody's counts and broadcasts frontiers.

Calls come from the threads that read the hosts' channels; a lock makes them one sequence, and
broadcasts leave in that sequence.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from penstock.core.progress.deltas import decode_deltas
from penstock.core.progress.exchange import Accumulator, Flush
from penstock.core.progress.marks import MarkAligner
from penstock.core.progress.tracker import Tracker
from penstock.physical import PhysicalPlan
from penstock.tracking import TrackingPlan

__all__ = ["ProgressHub"]


class ProgressHub:
    """Counts of all hosts, frontiers for all hosts."""

    def __init__(
        self,
        plan: PhysicalPlan,
        tracking: TrackingPlan,
        resume: int,
        broadcast: Callable[[dict[str, Any]], None],
    ) -> None:
        self.tracking = tracking
        everybody = frozenset(plan.chain_of)
        self._accumulator = Accumulator(Tracker(tracking.graph))
        self._accumulator.add(tracking.held(plan, resume + 1, everybody))
        self._accumulator.flush()
        self._gates: MarkAligner[int] = MarkAligner(tracking.gate_nodes(plan), resume)
        self._cuts_us: dict[int, int] = {}
        self._closed: list[tuple[int, int | None, int]] = []
        self._broadcast = broadcast
        self._lock = threading.Lock()
        welcome = self._accumulator.welcome()
        self.welcome = (welcome.sequence, welcome.changes)

    def receive(
        self, host: int, sequence: int, deltas: Iterable[Sequence[Any]], gates: Iterable[Any]
    ) -> None:
        """A host's counts, and the epochs that its nodes have closed at their gates."""
        with self._lock:
            decoded = decode_deltas(self.tracking.graph, deltas)
            self._accumulator.receive(str(host), Flush(sequence, decoded))
            for node, epoch, watermark_us, cut_us in gates:
                self._cuts_us[epoch] = max(self._cuts_us.get(epoch, 0), cut_us)
                self._closed += [
                    (done.epoch, done.watermark_us, self._cuts_us.pop(done.epoch, 0))
                    for done in self._gates.mark(node, epoch, watermark_us)
                ]
            if self._accumulator.due or self._closed:
                sent = self._accumulator.flush()
                self._broadcast(
                    {"kind": "frontier", "n": sent.sequence, "c": sent.changes, "w": self._closed}
                )
                self._closed = []

    def frontiers(self) -> dict[int, list[tuple[int, ...]]]:
        """The frontier of each tracked chain, for people."""
        with self._lock:
            tracker = self._accumulator.tracker
            return {
                chain: [tuple(time) for time in tracker.frontier(place).elements]
                for chain, place in self.tracking.chains.items()
            }
