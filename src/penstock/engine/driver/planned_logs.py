"""Which nodes keep a log of what they sent, and how that is changed while they run.

A node whose receivers are no anchors forgets what it has sent: when a receiver is lost it restarts,
too, from a checkpoint that is not after the receiver's.  So before a log goes, checkpoints must be
there that fit each other, and they must be kept from then on:

    wanted without a log  ->  checkpoints are kept as for a node without  ->  it is told to forget

and the other way round a new log counts only once nobody goes back behind its beginning:

    wanted with a log  ->  it is told to log, and says so  ->  the low epoch has passed that
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.control.figures import NodeFigures
from penstock.core.progress.marks import EPOCH_END
from penstock.engine.driver.recovery import Recovery

__all__ = ["PlannedLogs"]


class PlannedLogs:
    """The logs of a running flow, as they are and as they should be."""

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = recovery
        logless = recovery.watch.logless
        self.told = {node: node not in logless for node in recovery.graph.kinds}
        """What the nodes do, or were told to do: whether they log."""
        self._wanted = dict(self.told)
        self._whole_after: dict[int, int | None] = {}
        """Nodes whose logs are not whole yet: the epoch from which on they are, once known."""

    def want(self, logged: Mapping[int, bool]) -> None:
        """Say who should have a log; those who should are to be told at once."""
        self._wanted.update(logged)
        for node, wanted in self._wanted.items():
            if wanted and not self.told[node]:
                self._whole_after[node] = None
            if wanted:
                self.told[node] = True
        self._expect()

    @property
    def settled(self) -> bool:
        """Whether all logs are as they should be, and whole."""
        return self.told == self._wanted and not self._whole_after

    def settle(self, figures: Mapping[int, NodeFigures], slack: int) -> bool:
        """Go on with changes that are under way; whether somebody must be told.

        ``figures`` are the latest heartbeats; nothing in them is more than ``slack`` epochs old.
        """
        reached = [one.epoch for one in figures.values() if one.epoch < EPOCH_END]
        now = max(reached, default=-1) + slack
        low = self._recovery.watch.region_low
        for node, after in list(self._whole_after.items()):
            if after is None:
                causal = figures[node].causal if node in figures else None
                if causal is not None and causal.logged:
                    self._whole_after[node] = now
            elif low(node) > after:
                del self._whole_after[node]
        self._expect()
        going = frozenset(n for n, told in self.told.items() if told and not self._wanted[n])
        if not going or not self._recovery.machine.quiet or not self._recovery.can_lose(going):
            return False
        self.told.update(dict.fromkeys(going, False))
        return True

    def _expect(self) -> None:
        self._recovery.expect_logless(
            frozenset(
                node
                for node, told in self.told.items()
                if not (told and self._wanted[node]) or node in self._whole_after
            )
        )
