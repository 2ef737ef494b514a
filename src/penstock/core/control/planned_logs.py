"""Which nodes keep a log of what they sent, and how that changes while they run.

Theory of operation
-------------------
A node without a log forgets what it has sent.  When a receiver is lost the node restarts, too, from
a checkpoint that is not after the receiver's.  So before a log goes, checkpoints must be there that
fit each other, and they must be kept from then on:

    wanted without a log  ->  checkpoints are kept as for a node without  ->  it is told to forget

In the other direction a new log counts only once no recovery goes back behind its beginning:

    wanted with a log  ->  it is told to log, and says so  ->  the low epoch has passed that

:class:`~.retention.RetentionMachine` knows which checkpoints are kept.  Nothing is taken away while
a node is still recovering.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.core.control.retention import RetentionMachine
from penstock.core.progress.marks import EPOCH_END

__all__ = ["Logging", "PlannedLogs"]


class Logging(NamedTuple):
    """What a node said last: how far it is, and whether it keeps a log."""

    epoch: int
    logged: bool


class PlannedLogs:
    """The logs of a running flow, as they are and as they should be."""

    def __init__(self, retention: RetentionMachine) -> None:
        self._retention = retention
        logless = retention.watch.logless
        self.told = {node: node not in logless for node in retention.graph.kinds}
        """What the nodes do, or were told to do: whether they log."""
        self._wanted = dict(self.told)
        self._whole_after: dict[int, int | None] = {}
        """Nodes whose logs are not whole yet: the epoch from which on they are, once known."""

    def want(self, logged: Mapping[int, bool]) -> None:
        """Change which nodes should have a log; those that should are to be told at once."""
        self._wanted.update(logged)
        for node, wanted in self._wanted.items():
            if wanted and not self.told[node]:
                self._whole_after[node] = None
            if wanted:
                self.told[node] = True
        self._announce()

    @property
    def settled(self) -> bool:
        """Whether all logs are as they should be, and whole."""
        return self.told == self._wanted and not self._whole_after

    def settle(self, said: Mapping[int, Logging], slack: int, quiet: bool) -> bool:
        """Go on with changes that are under way; whether nodes must be told.

        ``said`` is what nodes said last, at most ``slack`` epochs ago; ``quiet``: none recovers.
        """
        reached = [one.epoch for one in said.values() if one.epoch < EPOCH_END]
        now = max(reached, default=-1) + slack
        for node, after in list(self._whole_after.items()):
            if after is None:
                if node in said and said[node].logged:
                    self._whole_after[node] = now
            elif self._retention.watch.region_low(node) > after:
                del self._whole_after[node]
        self._announce()
        going = frozenset(n for n, told in self.told.items() if told and not self._wanted[n])
        if not going or not quiet or not self._retention.can_lose_logs(going):
            return False
        self.told.update(dict.fromkeys(going, False))
        return True

    def _announce(self) -> None:
        self._retention.logs_changed(
            frozenset(
                node
                for node, told in self.told.items()
                if not (told and self._wanted[node]) or node in self._whole_after
            )
        )
