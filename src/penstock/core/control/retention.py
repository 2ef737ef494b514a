"""What a flow may forget: logs, checkpoints, sources' positions, initial states.

Theory of operation
-------------------
    checkpoints saved, epochs published, nodes restarted  ->  low epochs rise  ->  Forget

A recovery may ask for anything after the *low epoch* of a node, and for nothing before it.  Two low
epochs are kept for each node (:class:`Low`):

- its own: no failure takes the node itself behind it, so older checkpoints may go;
- its region's: no failure takes any connected node behind it, so senders may cut their logs, and
  sources may let go of what they read.

The own ones come from the span watch (:mod:`penstock.core.rollback.watch`).  A region's is the
least of its nodes' own and of what its sinks have published, less the epochs that are kept for
rollbacks by hand (``window_epochs``).

Once a region has a low epoch, its nodes cannot start from their initial states any more: what came
before is forgotten.  That must be durable before anyone forgets: a driver that is started again
must not plan from the beginning.  So a :class:`Forget` is performed in two steps, and counts
(``forgotten``) only when both are done.

While nodes go back by hand they may need what is older than any low epoch: nothing is due then.

Nodes that keep no log of what they sent (``logless``) bind checkpoints to those of their receivers.
Which nodes these are can change while the flow runs (:mod:`.planned_logs`).

The slow form of the same rule is in :mod:`penstock.testing.reference_retention`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.core.causal.reports import NodeReport, Stored
from penstock.core.causal.times import ZERO
from penstock.core.rollback.watch import SpanWatch

__all__ = [
    "KEPT_MIN",
    "WITH_STATE",
    "Forget",
    "Low",
    "RetentionMachine",
    "oldest_kept",
    "serves_from",
]

WITH_STATE = (NodeKind.STATEFUL, NodeKind.ORDERED)
KEPT_MIN = 2
"""Checkpoints that a node keeps at least, in case the newest is damaged."""


class Low(NamedTuple):
    """Behind which epochs no recovery goes."""

    region: int = -1
    """No connected node goes back behind the end of this epoch."""
    own: int = -1
    """The node itself does not go back behind the end of this one."""


@dataclass(frozen=True)
class Forget:
    """Make it durable that initial states are of no use any more, then tell nodes the low epochs.

    Report ``forgotten`` when both are done.  Doing it again is harmless.
    """

    begun: tuple[int, ...]
    """The nodes that can no longer start from their initial states."""
    lows: Mapping[int, Low]


def serves_from(report: NodeReport) -> int:
    """The log of a checkpoint serves every child that starts at the end of this epoch or later.

    >>> from penstock.core.causal.clocks import Floor
    >>> serves_from(NodeReport(1, completed=7, floors={2: Floor(ZERO, 4, 6), 3: Floor((9,), 4, 6)}))
    6
    >>> serves_from(NodeReport(1, completed=7, floors={2: Floor((9,), 7, 3)}))
    7
    """
    floors = report.floors.values()
    return max((max(f.epoch, f.horizon if f.stamp > ZERO else -1) for f in floors), default=-1)


def oldest_kept(epochs: Mapping[int, int], low: int, at_least: int = KEPT_MIN) -> int | None:
    """The oldest checkpoint that a node keeps, given the epochs of all by key; None: all stay.

    It is the newest one at or before the node's low epoch, and not one of the newest few.

    >>> oldest_kept({1: 4, 2: 9, 3: 14, 4: 19}, low=11)
    2
    >>> oldest_kept({1: 4, 2: 9}, low=9)
    """
    keys = list(epochs)
    before = [key for key in keys if epochs[key] <= low]
    if not before or len(keys) <= at_least:
        return None
    return min(before[-1], keys[-at_least])


class RetentionMachine:
    """Decides what may be forgotten.

    >>> kinds = {0: NodeKind.SOURCE, 1: NodeKind.STATEFUL, 2: NodeKind.SINK}
    >>> graph = CausalGraph(kinds, {1: (0,), 2: (1,)})
    >>> machine = RetentionMachine(graph)
    >>> for epoch in (4, 9, 14):
    ...     machine.checkpoint_saved(1, epoch)
    >>> machine.sink_published(2, 12)
    >>> machine.due(going_back=False)
    Forget(begun=(1,), lows={0: Low(region=9, own=9), 1: Low(region=9, own=9), 2: \
Low(region=9, own=12)})
    """

    def __init__(
        self,
        graph: CausalGraph,
        window_epochs: int = 0,
        forgotten: Mapping[int, int] | None = None,
    ) -> None:
        self.graph = graph
        self.lows: Mapping[int, Low] = {}
        """The low epochs that nodes were told last."""
        self._window = window_epochs
        self.watch = SpanWatch(graph)
        """What every node could go back to."""
        self._published: dict[int, int] = {}
        self._told: dict[int, int] = {}
        """Per region: the greatest low epoch that any node was told."""
        for node, epoch in (forgotten or {}).items():
            region = graph.regions[node]
            self._told[region] = max(epoch, self._told.get(region, -1))

    # -- events ----------------------------------------------------------------------------------

    def checkpoint_saved(self, node: int, epoch: int, serves: int = -1) -> None:
        """A checkpoint is durable, and its log serves children from an epoch on."""
        self.watch.saved(node, epoch, serves)

    def stored_read(self, stored: Mapping[int, Stored], whole: Collection[int]) -> None:
        """What is durable of some nodes was read: of those in ``whole``, all of it."""
        for node, found in stored.items():
            if self.graph.kinds[node] not in WITH_STATE:
                continue
            reports = [saved.report for saved in found.checkpoints]
            epochs = {report.completed: serves_from(report) for report in reports}
            if node in whole:
                self.watch.stored(node, epochs)
            for epoch, serves in epochs.items():
                self.watch.saved(node, epoch, serves)

    def sink_published(self, node: int, epoch: int) -> None:
        """A node's sinks have published everything up to an epoch."""
        self._published[node] = epoch
        if self.graph.kinds[node] is NodeKind.SINK:
            self.watch.published(node, epoch)

    def node_restarted(self, node: int, epoch: int) -> None:
        """A node starts from the end of an epoch: checkpoints of later ones are void.

        Only a rollback by hand takes it behind its low epoch; then that falls.
        """
        falls = self.graph.kinds[node] in WITH_STATE and epoch < self.watch.low(node)
        self.watch.restarted(node, epoch)
        if falls:
            self.watch = self.watch.anew(self.watch.logless)

    def logs_changed(self, logless: frozenset[int]) -> None:
        """Other nodes than before keep no log of what they sent, or are about to."""
        if logless != self.watch.logless:
            self.watch = self.watch.anew(logless)

    def begun(self) -> None:
        """A driver that starts knows all that is durable.

        An earlier one may have told nodes to forget: no more than what would be due now, or than
        what was recorded when a person took nodes back.
        """
        due = self.due(going_back=False)
        if due is not None:
            self._tell(due.lows)

    def forgotten(self, done: Forget) -> None:
        """What was due is durable, and nodes were told."""
        self.lows = done.lows
        self._tell(done.lows)

    def _tell(self, lows: Mapping[int, Low]) -> None:
        for node, low in lows.items():
            region = self.graph.regions[node]
            self._told[region] = max(low.region, self._told.get(region, -1))

    # -- decisions -------------------------------------------------------------------------------

    def due(self, going_back: bool) -> Forget | None:
        """What may be forgotten now; ``going_back``: nodes are being taken back by hand."""
        if going_back:
            return None
        self.watch.advance()
        regions = self.graph.regions
        own = {node: self.watch.low(node) for node in self.graph.kinds}
        bounds: dict[int, int] = {}
        held = {node: epoch - self._window for node, epoch in self._published.items()}
        for node, low in (*held.items(), *own.items()):
            bounds[regions[node]] = min(low, bounds.get(regions[node], low))
        lows = {}
        for node, low in own.items():
            bound = bounds[regions[node]]
            lows[node] = Low(bound, min(low, bound) if self._window else low)
        begun = tuple(
            node
            for node in self.graph.order
            if self.graph.kinds[node] in WITH_STATE and bounds[regions[node]] >= 0
        )
        return Forget(begun, lows)

    def can_lose_logs(self, nodes: Iterable[int]) -> bool:
        """Whether nodes may lose their logs now: checkpoints that fit each other are there.

        They must have been announced (``logs_changed``).
        """
        self.watch.advance()
        return all(self.watch.region_low(node) >= 0 for node in nodes)

    # -- what is known ---------------------------------------------------------------------------

    def newest_checkpoint(self, node: int) -> int:
        """The epoch of the newest durable checkpoint of a node; -1: its initial state."""
        return self.watch.kept(node)[-1]

    def gone_before(self) -> dict[int, int]:
        """Per node: what came before the end of this epoch may be forgotten already."""
        return {node: self._told.get(region, -1) for node, region in self.graph.regions.items()}
