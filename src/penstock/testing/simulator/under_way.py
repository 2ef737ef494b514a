"""The truth about a loop: which rows are under way in it, and which gates are open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from penstock.core.progress.marks import EPOCH_END
from penstock.testing.simulator.violations import Violation

__all__ = ["UnderWay"]


class UnderWay:
    """What one generation of a loop holds; knows at once what trackers learn later."""

    def __init__(self, gates: Iterable[int], epoch: int) -> None:
        self._rows: Counter[int] = Counter()
        self._open = dict.fromkeys(gates, epoch + 1)
        """Per gate: its first epoch that is open."""

    def closed(self, node: int, epoch: int) -> None:
        """A gate is closed, or says that it starts behind an epoch."""
        self._open[node] = epoch + 1
        if epoch >= EPOCH_END:
            del self._open[node]

    def added(self, epoch: int) -> None:
        """Rows were sent round, or wait."""
        self._rows[epoch] += 1

    def handled(self, epoch: int) -> None:
        """Rows were handled, and what they led to is under way."""
        self._rows[epoch] -= 1

    def check(self, least_open: int, who: object) -> None:
        """A frontier must not pass an epoch of which something is under way, or may come."""
        rows = sorted(epoch for epoch, count in self._rows.items() if count and epoch < least_open)
        gates = sorted(node for node, epoch in self._open.items() if epoch < least_open)
        if rows or gates:
            raise Violation(
                "progress",
                f"{who} takes all before epoch {least_open} for complete, but rows of {rows} are "
                f"under way, and the gates of {gates} are open",
            )
