"""The simulated store: checkpoints, determinants, cuts, published epochs, the record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.diffs import Diff
from penstock.core.causal.graph import Kind
from penstock.core.causal.reports import Cut, Report, Saved, Stored
from penstock.core.causal.retention import durable_epochs, keep_from, keeps_determinant, publishable
from penstock.core.causal.times import Stamp
from penstock.core.control.recovery import Record
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
        self.record = Record(dict.fromkeys(graph.order, 0))
        self.cuts: dict[int, list[Cut]] = {}
        self.published: dict[int, dict[int, list[Row]]] = {}
        self.staged: dict[int, dict[int, list[Row]]] = {}
        """(Sinks below unrepeatable nodes) complete epochs that are durable but not published."""
        self.ahead: dict[int, tuple[int, int]] = {}
        """(Sources that feed who may lose rows) how far they have read, and in which epoch."""
        self.acknowledged: dict[int, int] = {}
        """(Sources) what they have read up to the end of this epoch may be gone."""
        self.watermarks: dict[int, dict[int, int | None]] = {}
        """(Sinks) the watermark at the end of each epoch that they have."""
        self.determinants: dict[int, list[Diff]] = {}
        self.through: dict[int, int] = {}
        self.checkpoints: dict[int, list[Kept]] = {}
        self._key = 0
        for node in graph.order:
            kind = graph.kinds[node]
            if kind is Kind.SOURCE:
                self.cuts[node] = []
                self.acknowledged[node] = -1
            elif kind is Kind.SINK:
                self.published[node] = {}
                self.staged[node] = {}
                self.watermarks[node] = {}
            elif kind is Kind.STATELESS:
                self.determinants[node] = []
            else:
                self.determinants[node] = []
                report = Report(
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
        """A sink has an epoch: it publishes it, or stages it until it may.

        Both are atomic, idempotent, and refused to those who were replaced.
        """
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
        if node in self.shape.graph.tainted:
            self.staged[node][epoch] = rows
        else:
            published[epoch] = rows
        return True

    def may_publish(self, sink: int) -> bool:
        """Whether a sink has staged what no node goes back behind any more."""
        return bool(self._due(sink))

    def publish_staged(self, sink: int) -> None:
        """Publish it."""
        for epoch in self._due(sink):
            self.published[sink][epoch] = self.staged[sink].pop(epoch)

    def _due(self, sink: int) -> list[int]:
        graph = self.shape.graph
        last = publishable(graph, sink, self.stored(graph.together[sink]))
        return sorted(epoch for epoch in self.staged[sink] if last is None or epoch <= last)

    def keep(self, node: int, checkpoint: Checkpoint, vertex: Vertex) -> None:
        """A checkpoint is durable."""
        self._key += 1
        self.checkpoints[node].append(Kept(self._key, checkpoint, vertex))

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
        if node in self.staged and key is not None:
            self.staged[node] = {e: rows for e, rows in self.staged[node].items() if e <= key}
        if node in self.determinants:
            self.determinants[node] = [d for d in self.determinants[node] if d[0].stamp <= trim]
            self.through[node] = max(through, self.through.get(node, -1))

    def forget(self, lows: Mapping[int, int]) -> None:
        """Drop checkpoints that no recovery asks for, and determinants before the oldest."""
        graph = self.shape.graph
        durable = durable_epochs(graph, self.stored(graph.order))
        for node in self.acknowledged:
            self.acknowledged[node] = max(self.acknowledged[node], lows[node])
        for node, epoch in keep_from(graph, *durable, *self.shape.kept).items():
            self.checkpoints[node] = [
                k for k in self.checkpoints[node] if k.checkpoint.report.completed >= epoch
            ]
            oldest = self.checkpoints[node][0].checkpoint.report
            self.determinants[node] = [
                d
                for d in self.determinants[node]
                if d[0].stamp > oldest.stamp or keeps_determinant(d, oldest.completed)
            ]

        for node in self.determinants.keys() - self.checkpoints.keys():
            self.determinants[node] = [
                d for d in self.determinants[node] if keeps_determinant(d, lows[node])
            ]

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
        for epoch in (max(self.published[node], default=-1), *sorted(self.staged[node])):
            clock = {parent: Position((), epoch) for parent in self.shape.graph.parents[node]}
            yield Saved(epoch, Report(node, completed=epoch, newest=epoch, clock=clock))

    def stored(self, nodes: Iterable[int]) -> dict[int, Stored]:
        """What a plan may build on."""
        graph = self.shape.graph
        found: dict[int, Stored] = {}
        for node in nodes:
            kind = graph.kinds[node]
            if kind is Kind.SOURCE:
                past = [c for c in self.cuts[node] if c.epoch <= self.acknowledged[node]]
                kept = self.cuts[node][max(0, len(past) - 1) :]
                ahead = self.ahead.get(node, (0, -1))
                seen = max([ahead[1], *(cut.epoch for cut in kept)]) if node in self.ahead else -1
                found[node] = Stored(cuts=tuple(kept), ahead=ahead, through=seen)
            elif kind is Kind.SINK:
                found[node] = Stored(tuple(self._sink(node)))
            elif kind is Kind.STATELESS:
                found[node] = Stored(determinants=tuple(self.determinants.get(node, ())))
            else:
                found[node] = Stored(
                    tuple(Saved(k.key, k.checkpoint.report) for k in self.checkpoints[node]),
                    tuple(self.determinants[node]),
                    through=self.through.get(node, -1),
                )
        return found
