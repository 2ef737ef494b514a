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
        self._plan = plan
        everybody = frozenset(plan.chain_of)
        self._accumulator = Accumulator(Tracker(tracking.graph))
        self._accumulator.add(tracking.held(plan, resume + 1, everybody))
        self._accumulator.flush()
        self._gates: MarkAligner[int] = MarkAligner(tracking.gate_nodes(plan), resume)
        self._epoch = resume
        self.generation = 0
        """How often the counts began anew."""
        self._cuts_us: dict[int, int] = {}
        self._closed: list[tuple[int, int | None, int]] = []
        self._broadcast = broadcast
        self._lock = threading.Lock()
        welcome = self._accumulator.welcome()
        self.welcome = (welcome.sequence, welcome.changes)

    def restart(self, epoch: int) -> None:
        """All loops start anew after an epoch: so do their counts, and what was told before."""
        with self._lock:
            self.generation += 1
            self._epoch = epoch
            everybody = frozenset(self._plan.chain_of)
            self._accumulator.restart(self.tracking.held(self._plan, epoch + 1, everybody))
            gates = self.tracking.gate_nodes(self._plan)
            self._gates = MarkAligner(gates, epoch, keeps=False)
            self._cuts_us, self._closed = {}, []

    def welcomed(self, tell: Callable[[dict[str, Any]], None]) -> None:
        """Tell a host where the counts are; what is broadcast later reaches it later."""
        with self._lock:
            self._advance()
            welcome = self._accumulator.welcome()
            tell(
                {
                    "generation": self.generation,
                    "epoch": self._epoch,
                    "welcome": (welcome.sequence, welcome.changes),
                }
            )

    def receive(
        self,
        host: int,
        generation: int,
        sequence: int,
        deltas: Iterable[Sequence[Any]],
        gates: Iterable[Any],
    ) -> None:
        """A host's counts, and the epochs that its nodes have closed at their gates."""
        with self._lock:
            if generation != self.generation:
                return
            decoded = decode_deltas(self.tracking.graph, deltas)
            self._accumulator.receive(str(host), Flush(sequence, decoded))
            for node, epoch, watermark_us, cut_us in gates:
                if epoch <= self._epoch:
                    self._gates.restate({node: watermark_us})
                    continue
                self._cuts_us[epoch] = max(self._cuts_us.get(epoch, 0), cut_us)
                self._closed += [
                    (done.epoch, done.watermark_us, self._cuts_us.pop(done.epoch, 0))
                    for done in self._gates.mark(node, epoch, watermark_us)
                ]
            self._advance()

    def _advance(self) -> None:
        """Tell everybody what has moved."""
        if self._accumulator.due or self._closed:
            sent = self._accumulator.flush()
            self._broadcast(
                {
                    "kind": "frontier",
                    "t": self.generation,
                    "n": sent.sequence,
                    "c": sent.changes,
                    "w": self._closed,
                }
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
