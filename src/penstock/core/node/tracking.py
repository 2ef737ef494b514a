"""Counting a node's events where progress is tracked.

A node in a loop counts what it does to pointstamps: a message handled is one less at its link, a
message sent one more at its own link, a notification asked for one more at the stage until it was
delivered, an open epoch at the gate one at the gate.  All counts of one step are handed over
together (:meth:`NodeCounts.take`), so that news of an event that is gone comes with what it
caused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.progress.deltas import Delta
from penstock.core.progress.marks import EPOCH_END
from penstock.core.time import Time

__all__ = ["NodeCounts", "NodeTracking"]


@dataclass(frozen=True)
class NodeTracking:
    """Where a node is in the tracked graph."""

    place: int
    links: Mapping[int, int]
    """Places of the links between tracked chains."""
    gate: int | None
    depth: int
    """How many loops the node is in."""
    unit: int = 0
    """The part of the flow whose counts its own are added to."""


class NodeCounts:
    """The counts of one node's current step.

    >>> counts = NodeCounts(NodeTracking(0, {7: 3}, gate=1, depth=0), epoch=0)
    >>> counts.handled(7, Time(0)); counts.closed(4)
    >>> counts.take()
    [(3, Time(0), -1), (1, Time(5), 1), (1, Time(0), -1)]
    """

    def __init__(self, tracking: NodeTracking, epoch: int) -> None:
        self.tracking = tracking
        self._held: int | None = epoch if tracking.gate is not None else None
        self._step: list[Delta] = []

    def handled(self, link: int, time: Time) -> None:
        """A message was taken from a link."""
        place = self.tracking.links.get(link)
        if place is not None:
            self._step.append((place, time, -1))

    def sent(self, link: int, time: Time) -> None:
        """A message was put on a link."""
        place = self.tracking.links.get(link)
        if place is not None:
            self._step.append((place, time, 1))

    def asked(self, time: Time) -> None:
        """A notification was asked for."""
        self._step.append((self.tracking.place, time, 1))

    def notified(self, time: Time) -> None:
        """A notification was delivered."""
        self._step.append((self.tracking.place, time, -1))

    def closed(self, epoch: int) -> None:
        """An epoch was closed at the gate; the end closes the gate for good."""
        gate, held = self.tracking.gate, self._held
        if gate is None or held is None:
            return
        self._held = None if epoch >= EPOCH_END else epoch + 1
        if self._held is not None:
            self._step.append((gate, Time.root(self._held), 1))
        self._step.append((gate, Time.root(held), -1))

    def take(self) -> list[Delta]:
        """Everything that this step changed; the next step starts empty."""
        step, self._step = self._step, []
        return step
