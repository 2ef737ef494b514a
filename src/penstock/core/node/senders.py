"""What a node knows of its senders: how much of each was handled, and what that was made from."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from penstock.core.causal.clocks import Position
from penstock.core.causal.logs import DiffLog
from penstock.core.causal.reports import NodeReport
from penstock.core.causal.times import ZERO, Stamp
from penstock.core.node.messages import DATA, MARK
from penstock.core.node.standing import Item

__all__ = ["Senders"]


class Senders:
    """Clocks, marks and diffs, by sender."""

    def __init__(self, ids: Iterable[int], completed: int) -> None:
        self.ids = sorted(set(ids))
        self.clock: dict[int, Stamp] = dict.fromkeys(self.ids, ZERO)
        """The last stamp of each that was handled."""
        self.base = dict(self.clock)
        """Clocks as the present connections began: what they bring again was handled before."""
        self.marked = dict.fromkeys(self.ids, completed)
        """The last epoch of each that was marked."""
        self.diffs = DiffLog()

    def start(self, clock: Mapping[int, Position], saved: NodeReport | None) -> None:
        """Begin at these clocks, with what a checkpoint knows."""
        for sender, position in clock.items():
            self.clock[sender] = self.base[sender] = position.stamp
        if saved is not None:
            self.diffs.diffs = deque(saved.diffs)
            self.diffs.minimum = {(f.node, f.parent): f for f in saved.facts}

    def fence(self, sender: int) -> None:
        """A sender has a new incarnation."""
        self.base[sender] = self.clock[sender]

    def is_known(self, item: Item) -> bool:
        """Whether a bundle has only marks, and of epochs that were marked before."""
        return all(m.kind == MARK and m.time.epoch <= self.marked[m.sender] for m in item)

    def handled(self, item: Item) -> None:
        """A bundle was handled: clock and diffs move on."""
        first = item[0]
        # Marks may overtake rows in a replay, so they do not move the clock.
        if first.stamp > self.clock[first.sender] and any(m.kind == DATA for m in item):
            self.clock[first.sender] = first.stamp
        if first.diff:
            self.diffs.append(first.diff)

    def positions(self) -> dict[int, Position]:
        """How much of each sender was handled."""
        return {one: Position(self.clock[one], self.marked[one]) for one in self.ids}
