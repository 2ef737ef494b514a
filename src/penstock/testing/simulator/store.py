"""The simulated store: checkpoints, determinants, cuts, published epochs, the record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.codec import report_from, to_plain
from penstock.core.causal.diffs import Diff
from penstock.core.causal.graph import NodeKind
from penstock.core.causal.reports import Cut, NodeReport, Saved, Stored
from penstock.core.causal.times import ZERO, Stamp
from penstock.core.control.recovery import RecoveryRecord
from penstock.core.control.retention import oldest_kept
from penstock.core.node.causal_effects import Checkpoint, StoreCut
from penstock.core.node.messages import Complete
from penstock.testing.simulator.disk import torn_cuts, torn_determinants
from penstock.testing.simulator.stages import Row, Rows, Shape, Vertex, source_rows
from penstock.testing.simulator.violations import Violation

__all__ = ["Kept", "Store"]


class Kept(NamedTuple):
    """A durable checkpoint."""

    key: int
    checkpoint: Checkpoint
    vertex: Vertex


class Store:
    """Durable and never lost; writes of a fenced incarnation are refused."""

    def __init__(self, shape: Shape) -> None:
        graph = shape.graph
        self.shape = shape
        self.fences = dict.fromkeys(graph.order, 0)
        self.record = RecoveryRecord(dict.fromkeys(graph.order, 0))
        self.cuts: dict[int, list[Cut]] = {}
        self.published: dict[int, dict[int, list[Row]]] = {}
        self.ahead: dict[int, tuple[int, int]] = {}
        """(Sources that feed who may lose rows) how far they have read, and in which epoch."""
        self.acknowledged: dict[int, int] = {}
        """(Sources) what they have read up to the end of this epoch may be gone."""
        self.begun: frozenset[int] = frozenset()
        """Nodes that can no longer start from their initial states: what came next is forgotten."""
        self._cut: set[int] = set()
        """Nodes whose logs of determinants no longer reach back to their initial states."""
        self.watermarks: dict[int, dict[int, int | None]] = {}
        """(Sinks) the watermark at the end of each epoch that they have."""
        self.determinants: dict[int, list[Diff]] = {}
        self.through: dict[int, int] = {}
        self.checkpoints: dict[int, list[Kept]] = {}
        self.damaged: set[tuple[int, int]] = set()
        """Nodes and keys of checkpoints that cannot be read."""
        self._key = 0
        for node in graph.order:
            kind = graph.kinds[node]
            if kind is NodeKind.SOURCE:
                self.cuts[node] = []
                self.acknowledged[node] = -1
            elif kind is NodeKind.SINK:
                self.published[node] = {}
                self.watermarks[node] = {}
            elif kind is not NodeKind.STATELESS:
                self.determinants[node] = []
                report = NodeReport(
                    node,
                    clock=dict.fromkeys(graph.parents[node], Position()),
                    floors=dict.fromkeys(graph.children[node], Floor()),
                )
                self.checkpoints[node] = [Kept(0, Checkpoint(report, {}), shape.vertex(node))]

    def allowed(self, node: int, incarnation: int) -> bool:
        """Whether a writer is the one that counts."""
        return self.fences[node] == incarnation

    def fence(self, incarnations: Mapping[int, int]) -> None:
        """Refuse every other incarnation from now on."""
        self.fences.update(incarnations)

    def cut(self, node: int, effect: StoreCut) -> None:
        """A source's epoch ends, durably."""
        cuts = self.cuts[node]
        if cuts and effect.epoch <= cuts[-1].epoch:
            raise Violation("exactly-once", f"source {node} cut {effect.epoch} after {cuts[-1]}")
        cuts.append(Cut(effect.epoch, effect.offset, effect.watermark_us))

    def publish(self, node: int, incarnation: int, effect: Complete, rows: list[Row]) -> bool:
        """A sink publishes an epoch: atomically, once, and not if it was replaced."""
        epoch = effect.epoch
        if not self.allowed(node, incarnation):
            return False
        published = self.published[node]
        if epoch in published and published[epoch] != rows:
            raise Violation(
                "exactly-once",
                f"sink {node} published epoch {epoch} again as {rows}, not {published[epoch]}",
            )
        if epoch not in published and epoch < max(published, default=-1):
            raise Violation("exactly-once", f"sink {node} published {epoch} too late")
        self.watermarks[node][epoch] = effect.watermark_us
        published[epoch] = rows
        return True

    def keep(self, node: int, checkpoint: Checkpoint, vertex: Vertex) -> None:
        """A checkpoint is durable."""
        self._key += 1
        if self._key % 4 == 0:  # as all would be on disk
            report = report_from(to_plain(checkpoint.report))
            checkpoint = checkpoint._replace(report=report)
        self.checkpoints[node].append(Kept(self._key, checkpoint, vertex))

    def set_aside(self, node: int, key: int) -> None:
        """A checkpoint cannot be read: it is put out of the way."""
        self.damaged.discard((node, key))
        self.checkpoints[node] = [kept for kept in self.checkpoints[node] if kept.key != key]

    def find(self, node: int, key: int) -> Kept:
        """The checkpoint with a key."""
        for kept in self.checkpoints[node]:
            if kept.key == key:
                return kept
        raise LookupError(f"checkpoint {key} of node {node} was deleted, but is asked for")

    def roll_back(self, node: int, key: int | None, trim: Stamp, through: int) -> None:
        """A node starts from a checkpoint: newer ones and unbound determinants are void."""
        if node in self.checkpoints and key is not None:
            self.checkpoints[node] = [k for k in self.checkpoints[node] if k.key <= key]
        if node in self.determinants:
            self.determinants[node] = [d for d in self.determinants[node] if d[0].stamp <= trim]
            self.through[node] = max(through, self.through.get(node, -1))

    def prune(self, node: int, low: int) -> None:
        """Drop checkpoints that no recovery asks for, and the determinants before the oldest."""
        first, *saved = self.checkpoints[node]
        epochs = {kept.key: kept.checkpoint.report.completed for kept in saved}
        oldest = oldest_kept(epochs, low)
        if oldest is None:
            return
        saved = [kept for kept in saved if kept.key >= oldest]
        self.checkpoints[node] = [first, *saved]
        begin = saved[0].checkpoint.report.stamp
        self.determinants[node] = [d for d in self.determinants[node] if d[0].stamp > begin]
        if begin > ZERO:
            self._cut.add(node)

    def tear(self, node: int, what: str, value: Any, random: Random) -> None:
        """A machine failed while it appended to a log: the log reads as before."""
        if what == "cut":
            kept: Sequence[object] = self.cuts[node]
            last = Cut(value.epoch, value.offset, value.watermark_us)
            found: Sequence[object] = torn_cuts(self.cuts[node], last, random)
        else:
            kept = self.determinants[node]
            found = torn_determinants(self.determinants[node], value.diffs, random)
        if list(found) != list(kept):
            raise Violation("store", f"the log of {node} reads {found} after a torn write")

    def persisted(self, source: int, completed: int) -> tuple[int, int, int | None] | None:
        """What a source reads after an epoch: the next one, where its rows end, its watermark."""
        sink = self.shape.pairs[source]
        published = self.published[sink]
        epoch = min((epoch for epoch in published if epoch > completed), default=None)
        if epoch is None:
            return None
        end = sum(len(rows) for other, rows in published.items() if other <= epoch)
        return epoch, end, self.watermarks[sink][epoch]

    def rows(self, source: int, start: int, end: int) -> Rows:
        """Rows of a source by offset."""
        if source not in self.shape.pairs:
            return source_rows(source, start, end)
        published = self.published[self.shape.pairs[source]]
        rows = [row for epoch in sorted(published) for row in published[epoch]]
        return tuple(rows[start:end])

    def _sink(self, node: int) -> Iterator[Saved]:
        epoch = max(self.published[node], default=-1)
        clock = {parent: Position((), epoch) for parent in self.shape.graph.parents[node]}
        yield Saved(epoch, NodeReport(node, completed=epoch, newest=epoch, clock=clock))

    def stored_of_all(self) -> dict[int, Stored]:
        """What is durable of all nodes."""
        return self.stored(dict.fromkeys(self.shape.graph.order))

    def stored(self, nodes: Mapping[int, int | None]) -> dict[int, Stored]:
        """What a plan may build on; of some nodes only their newest checkpoints."""
        graph = self.shape.graph
        found: dict[int, Stored] = {}
        for node, newest in nodes.items():
            kind = graph.kinds[node]
            if kind is NodeKind.SOURCE:
                past = [c for c in self.cuts[node] if c.epoch <= self.acknowledged[node]]
                cuts = self.cuts[node][max(0, len(past) - 1) :]
                ahead = self.ahead.get(node, (0, -1))
                seen = max([ahead[1], *(cut.epoch for cut in cuts)]) if node in self.ahead else -1
                found[node] = Stored(cuts=tuple(cuts), ahead=ahead, through=seen)
            elif kind is NodeKind.SINK:
                found[node] = Stored(tuple(self._sink(node)))
            elif kind is NodeKind.STATELESS:
                found[node] = Stored()
            else:
                first, *saved = self.checkpoints[node]
                kept = [] if node in self.begun or node in self._cut else [first]
                kept += saved if newest is None else saved[-newest:]
                found[node] = Stored(
                    tuple(Saved(k.key, k.checkpoint.report) for k in kept),
                    tuple(self.determinants[node]),
                    through=self.through.get(node, -1),
                )
        return found
