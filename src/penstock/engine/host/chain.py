"""A chain's vertices at work in one node: fused calls, notifications, watermarks, errors.

The chain performs what the node's machine asks for.  Output of one vertex goes straight into the
next one's ``onRecv``; what leaves the chain is split by the link's exchange and handed to the
machine, which numbers it.  Every error is given the stage, node and epoch in which it arose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from penstock.api.vertex import EpochVertex, Place, Vertex
from penstock.core.progress.marks import WATERMARK_UNREAD
from penstock.core.time import Time
from penstock.engine.host.chain_stage import StageRunner, order_of
from penstock.engine.host.chain_state import ChainState, Pending, keeps
from penstock.engine.host.outside import Outside
from penstock.engine.host.split import Part, splitter_of
from penstock.errors import PenstockError
from penstock.operators.combine import CombineVertex
from penstock.operators.watermark import WatermarkVertex
from penstock.planning.physical import Chain, PhysicalPlan

__all__ = ["ChainRunner"]

Produce = Callable[[int, Iterable[Part], Time], None]


class ChainRunner:
    """The vertices of one node."""

    def __init__(
        self,
        plan: PhysicalPlan,
        chain: Chain,
        node: int,
        produce: Produce,
        incarnation: int = 0,
    ) -> None:
        shard = node - chain.first_node
        self.node_name = chain.node_name(node)
        self.counters: dict[str, int] = {}
        self.rows_out = 0
        self.now = Time.root(0)
        self.rows_given = 0
        """How many rows the head was given last; 0 while an epoch is completed."""
        self.silent = False
        """Whether the notification that is being delivered has no capability to send."""
        self.produce = produce
        """Called with what leaves the chain: link, parts, time."""
        self.on_asked: Callable[[Time], None] | None = None
        """Called with the time of every notification asked for, where progress is tracked."""
        self.on_notified: Callable[[Time], None] | None = None
        self.on_call: Callable[[StageRunner], None] | None = None
        """Called before every call into a stage, where that may be the last one."""
        self.repeatable = False
        """Set before ``open``: whether stages without state must keep nothing between batches."""
        self.keep_pending = False
        """Whether snapshots are wanted: batches of open epochs are kept for them."""
        self._pending: dict[int, list[Pending]] = {}
        self.is_muted = False
        """Whether what leaves the chain is discarded."""
        self._completed = 0
        """Stages that have completed the epoch that is being completed."""
        self._depth = len(chain.loops)
        self._stages = [
            StageRunner(self, position, Place(stage.name, shard, chain.shards, incarnation), stage)
            for position, stage in enumerate(chain.stages)
        ]
        for runner, stage in zip(self._stages, chain.stages, strict=True):
            if stage.parent is not None:
                parent, port = stage.parent
                self._stages[parent].inner[port] = runner
                runner.follow(self._stages[parent])
        self._asks = any(stage.operator.asks for stage in chain.stages)
        self.outside = Outside(self._asks, notes=False)
        ways = {keeps(stage.operator, stage.vertex) for stage in self._stages}
        self._needs_pending = "epochs" in ways
        for link in plan.links_out_of(chain.index):
            self._stages[link.source_stage].outer.setdefault(link.source_port, []).append(
                (link, splitter_of(plan, link, node))
            )

    @property
    def stages(self) -> Sequence[StageRunner]:
        """The stages in the order of the chain."""
        return self._stages

    @property
    def vertices(self) -> list[Vertex]:
        """The vertices in the order of the chain."""
        return [stage.vertex for stage in self._stages]

    def open(self) -> None:
        """Open the vertices."""
        self.outside = Outside(self._asks, notes=self.repeatable)
        for stage in self._stages:
            if self.repeatable and isinstance(stage.vertex, CombineVertex):
                stage.vertex.gathers = False
            stage.guard(stage.vertex.open, stage)
            stage.initial = dict(vars(stage.vertex))

    def released(self, low: int, completed: int) -> None:
        """No recovery goes back behind an epoch; the node has completed another one."""
        for stage in self._stages:
            stage.guard(stage.vertex.released, low, completed)

    def close(self) -> None:
        """Close the vertices; each is closed even if another one fails."""
        failed: PenstockError | None = None
        for stage in self._stages:
            try:
                stage.guard(stage.vertex.close)
            except PenstockError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def deliver(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        """A batch for the head of the chain."""
        self.now, self.rows_given = time, batch.num_rows
        if self.keep_pending and self._needs_pending:
            self._pending.setdefault(time.epoch, []).append((port, time, batch))
        head = self._stages[0]
        head.guard(head.vertex.onRecv, port, batch, time)

    def emit(self, batch: pa.RecordBatch, time: Time) -> None:
        """A batch that a source's reader made: the output of the head."""
        self.now, self.rows_given = time, batch.num_rows
        self._stages[0].send(0, batch, time)

    def complete(self, epoch: int, watermark_us: int | None) -> dict[int, int | None]:
        """An epoch is complete: deliver what was asked for; give each link's watermark.

        When a vertex raises NotWrittenError, calling it again goes on at that vertex.
        """
        self.rows_given = 0
        for done in [other for other in self._pending if other <= epoch]:
            del self._pending[done]
        return self._pass_watermark(epoch, watermark_us, notify=True)

    def restate(self, epoch: int, watermark_us: int | None) -> dict[int, int | None]:
        """Say what ``complete`` said of an epoch: sets watermarks and notifies no vertex."""
        return self._pass_watermark(epoch, watermark_us, notify=False)

    def _pass_watermark(
        self, epoch: int, watermark_us: int | None, notify: bool
    ) -> dict[int, int | None]:
        unread = watermark_us == WATERMARK_UNREAD
        self._stages[0].watermarks.append(epoch, None if unread else watermark_us)
        for stage in self._stages[self._completed :]:
            if notify:
                stage.notify_up_to(epoch)
                if isinstance(stage.vertex, EpochVertex):
                    stage.guard(stage.vertex.onEpoch, epoch, stage.watermarks.last)
            if stage.watermarks_out is not stage.watermarks:
                stage.watermarks_out.append(epoch, stage.watermark_after(epoch, unread))
            self._completed += 1
        self._completed = 0
        return {
            link.index: stage.watermarks_out.last
            for stage in self._stages
            for links in stage.outer.values()
            for link, _ in links
        }

    def notify(self, is_complete: Callable[[Time], bool]) -> bool:
        """Deliver one notification whose time is complete, the least first; False: none is."""
        due = [
            (order_of(wanted), stage.position, stage, wanted)
            for stage in self._stages
            for wanted in stage.asked
            if is_complete(wanted.guarantee)
        ]
        if not due:
            return False
        _, _, stage, wanted = min(due, key=lambda entry: entry[:2])
        stage.deliver(wanted)
        return True

    # -- state -----------------------------------------------------------------------------------

    @contextmanager
    def muted(self) -> Iterator[None]:
        """What leaves the chain meanwhile is discarded: it was sent before."""
        self.is_muted = True
        try:
            yield
        finally:
            self.is_muted = False

    def snapshot(self) -> ChainState:
        """The state between two steps; needs ``keep_pending`` since the chain was opened."""
        pending = [one for epoch in sorted(self._pending) for one in self._pending[epoch]]
        watermarks = self._stages[0].watermarks.entries()
        return ChainState(
            tuple(stage.snapshot() for stage in self._stages), tuple(pending), watermarks
        )

    def restore(
        self, state: ChainState, completed: int, ready: Sequence[Vertex | None] = ()
    ) -> None:
        """Open new vertices in a state that reflects every epoch up to ``completed``.

        Vertices that were made ``ready``, per stage, take the places of new ones.
        """
        for stage, vertex in zip(self._stages, ready, strict=False):
            if vertex is not None:
                stage.vertex = vertex
        self.open()
        time = Time(max(completed, 0), (0,) * self._depth)
        for entry in state.watermarks:
            self._stages[0].watermarks.append(*entry)
        for stage, kept in zip(self._stages, state.stages, strict=True):
            self.now = time
            stage.restore(kept, time)
        with self.muted():
            for port, at, batch in state.pending:
                self.deliver(port, batch, at)

    def watermark_state(self) -> list[Any]:
        """What its watermark stages know, as JSON can carry it."""
        return [
            stage.vertex.to_plain()
            for stage in self._stages
            if isinstance(stage.vertex, WatermarkVertex)
        ]

    def restore_watermarks(self, state: Sequence[Any]) -> None:
        """Take back a :meth:`watermark_state` into open vertices."""
        vertices = [v for v in self.vertices if isinstance(v, WatermarkVertex)]
        for vertex, plain in zip(vertices, state, strict=True):
            vertex.from_plain(plain)

    def may_send(self, time: Time) -> bool:
        """Whether what is being handled allows sending at a time."""
        return not self.silent and self.now.less_equal(time)

    @property
    def asked(self) -> bool:
        """Whether any vertex waits for a notification."""
        return any(stage.asked for stage in self._stages)

    @property
    def watermark_us(self) -> int | None:
        """The watermark after the last complete epoch, as the end of the chain has it."""
        return self._stages[-1].watermarks_out.last

    def seen_us(self) -> int | None:
        """Event time as far as the rows so far show it, for early epoch cuts."""
        seen: int | None = None
        for stage in self._stages:
            if isinstance(stage.vertex, WatermarkVertex):
                seen = stage.vertex.seen_us()
        return seen
