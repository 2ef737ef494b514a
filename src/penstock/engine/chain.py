"""A chain's vertices at work in one node: fused calls, notifications, watermarks, errors.

The chain performs what the node's machine asks for.  Output of one vertex goes straight into the
next one's ``onRecv``; what leaves the chain is split by the link's exchange and handed to the
machine, which numbers it.  Every error is given the stage, node and epoch in which it arose.
"""

from __future__ import annotations

import bisect
import traceback
from collections.abc import Callable, Iterable, Sequence
from types import EllipsisType
from typing import Any

import pyarrow as pa

from penstock.core.progress.marks import EPOCH_END, WATERMARK_END
from penstock.core.progress.notifications import Notification
from penstock.core.time import Time
from penstock.errors import FunctionError, InvariantError, PenstockError
from penstock.operators.base import Broadcast, Forward, Hash
from penstock.operators.watermark import WatermarkVertex
from penstock.physical import Chain, Link, PhysicalPlan
from penstock.vertex import Place, Vertex
from penstock.wire.hashing import split_by_shard

__all__ = ["ChainRunner"]

Part = tuple[int, pa.RecordBatch, int]
Produce = Callable[[int, Iterable[Part], Time], None]

HISTORY = 1024
"""How many epochs back a vertex may ask for the watermark."""


class ChainRunner:
    """The vertices of one node."""

    def __init__(self, plan: PhysicalPlan, chain: Chain, node: int, produce: Produce) -> None:
        shard = node - chain.first_node
        self.node_name = chain.node_name(node)
        self.counters: dict[str, int] = {}
        self.rows_out = 0
        self.now = Time.root(0)
        self.silent = False
        """Whether the notification that is being delivered has no capability to send."""
        self._produce = produce
        self.on_asked: Callable[[Time], None] | None = None
        """Called with the time of every notification asked for, where progress is tracked."""
        self.on_notified: Callable[[Time], None] | None = None
        self._stages = [
            _StageRunner(self, position, Place(stage.name, shard, chain.shards), stage.operator)
            for position, stage in enumerate(chain.stages)
        ]
        for runner, stage in zip(self._stages, chain.stages, strict=True):
            if stage.parent is not None:
                parent, port = stage.parent
                self._stages[parent].inner[port] = runner
                runner.follow(self._stages[parent])
        for link in plan.links_out_of(chain.index):
            self._stages[link.source_stage].outer.setdefault(link.source_port, []).append(
                (link, _splitter(plan, link, node))
            )

    @property
    def vertices(self) -> list[Vertex]:
        """The vertices in the order of the chain."""
        return [stage.vertex for stage in self._stages]

    def open(self) -> None:
        """Open the vertices."""
        for stage in self._stages:
            stage.guard(stage.vertex.open, stage)

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
        self.now = time
        head = self._stages[0]
        head.guard(head.vertex.onRecv, port, batch, time)

    def emit(self, batch: pa.RecordBatch, time: Time) -> None:
        """A batch that a source's reader made: the output of the head."""
        self.now = time
        self._stages[0].send(0, batch, time)

    def complete(self, epoch: int, watermark_us: int | None) -> dict[int, int | None]:
        """An epoch is complete: deliver what was asked for; give each link's watermark."""
        self._stages[0].watermarks.append(epoch, watermark_us)
        passed_on: dict[int, int | None] = {}
        for stage in self._stages:
            stage.notify_up_to(epoch)
            if stage.watermarks_out is not stage.watermarks:
                stage.watermarks_out.append(epoch, stage.watermark_after(epoch))
            for links in stage.outer.values():
                passed_on.update((link.index, stage.watermarks_out.last) for link, _ in links)
        return passed_on

    def notify(self, is_complete: Callable[[Time], bool]) -> bool:
        """Deliver one notification whose time is complete, the least first; False: none is."""
        due = [
            (_order(wanted), stage.position, stage, wanted)
            for stage in self._stages
            for wanted in stage.asked
            if is_complete(wanted.guarantee)
        ]
        if not due:
            return False
        _, _, stage, wanted = min(due, key=lambda entry: entry[:2])
        stage.deliver(wanted)
        return True

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


def _order(wanted: Notification) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return wanted.guarantee.sort_key(), (wanted.capability or Time.root(0)).sort_key()


def _waits_for_itself(guarantee: Time, capability: Time) -> bool:
    """Whether what is sent at the capability could arrive at or before the guarantee."""
    if not capability.depth:
        return capability.less_equal(guarantee)
    counters = capability.counters
    return any(
        Time(
            capability.epoch, (*counters[:k], counters[k] + 1, *(0,) * (len(counters) - k - 1))
        ).less_equal(guarantee)
        for k in range(len(counters))
    )


class _Watermarks:
    """The watermark as a step function of the epoch."""

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._values: list[int | None] = []

    @property
    def last(self) -> int | None:
        return self._values[-1] if self._values else None

    def append(self, epoch: int, value: int | None) -> None:
        self._epochs.append(epoch)
        self._values.append(value)
        if len(self._epochs) > 2 * HISTORY:
            del self._epochs[:HISTORY]
            del self._values[:HISTORY]

    def at(self, epoch: int) -> int | None:
        position = bisect.bisect_right(self._epochs, epoch)
        return self._values[position - 1] if position else None


class _StageRunner:
    """One vertex and the context it sees."""

    def __init__(self, chain: ChainRunner, position: int, place: Place, operator: Any) -> None:
        self.place = place
        self._chain = chain
        self.guard(self._make, operator)
        self.inner: dict[int, _StageRunner] = {}
        self.outer: dict[int, list[tuple[Link, _Splitter]]] = {}
        self.watermarks = _Watermarks()
        self.watermarks_out = self.watermarks
        if isinstance(self.vertex, WatermarkVertex):
            self.watermarks_out = _Watermarks()
        self.position = position
        self.asked: dict[Notification, None] = {}

    def _make(self, operator: Any) -> None:
        self.vertex: Vertex = operator.vertex()

    def follow(self, parent: _StageRunner) -> None:
        """Take over the watermark of the stage that feeds this one."""
        if self.watermarks_out is self.watermarks:
            self.watermarks_out = parent.watermarks_out
        self.watermarks = parent.watermarks_out

    # -- VertexContext ---------------------------------------------------------------------------

    def send(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        if not self._chain.may_send(time):
            raise self._error(f"it sent rows at {time} while working on {self._chain.now}")
        inner = self.inner.get(port)
        if inner is not None:
            before, self._chain.now = self._chain.now, time
            try:
                inner.guard(inner.vertex.onRecv, 0, batch, time)
            finally:
                self._chain.now = before
        for link, splitter in self.outer.get(port, ()):
            at = link.shifted(time) if link.shifts else time
            if at is not None:
                self._chain.rows_out += batch.num_rows
                self._chain._produce(link.index, splitter(batch), at)

    def notify(self, time: Time, capability: Time | EllipsisType | None = ...) -> None:
        if isinstance(capability, EllipsisType):
            capability = time
        if capability is not None and not self._chain.may_send(capability):
            raise self._error(
                f"it asked for a notification at {capability} while working on {self._chain.now}"
            )
        if capability is not None and capability != time and _waits_for_itself(time, capability):
            raise self._error(
                f"it asked to be notified when {time} is complete and to send at {capability} "
                "then, which is before that or could come round a loop before it: the "
                "notification would wait for itself"
            )
        wanted = Notification(time, capability)
        if wanted not in self.asked:
            self.asked[wanted] = None
            if self._chain.on_asked is not None and capability is not None:
                self._chain.on_asked(capability)

    def watermark(self, time: Time) -> int | None:
        return self.watermarks.at(time.epoch)

    def count(self, name: str, value: int) -> None:
        counters = self._chain.counters
        key = f"{self.place.stage}.{name}"
        counters[key] = counters.get(key, 0) + value

    # -- for the chain ---------------------------------------------------------------------------

    def notify_up_to(self, epoch: int) -> None:
        """Deliver the notifications that are due, also those that these ask for in turn.

        At the end of the stream every time is complete, so a vertex that always asks for the next
        epoch would never be done: then only what was asked for before counts.
        """
        last = epoch
        if epoch >= EPOCH_END:
            last = max((wanted.guarantee.epoch for wanted in self.asked), default=-1)
        while self.asked:
            wanted = min(self.asked, key=_order)
            if wanted.guarantee.epoch > last:
                break
            self.deliver(wanted)

    def deliver(self, wanted: Notification) -> None:
        """Deliver a notification."""
        del self.asked[wanted]
        capability = wanted.capability
        self._chain.now, self._chain.silent = capability or wanted.guarantee, capability is None
        self.guard(self.vertex.onNotify, wanted.guarantee)
        self._chain.silent = False
        if self._chain.on_notified is not None and capability is not None:
            self._chain.on_notified(capability)

    def watermark_after(self, epoch: int) -> int | None:
        """What a WithWatermark stage passes on after an epoch."""
        if not isinstance(self.vertex, WatermarkVertex):
            raise InvariantError(f"stage {self.place.stage!r} sets no watermark")
        after = self.vertex.after(epoch)
        return WATERMARK_END if self.watermarks.at(epoch) == WATERMARK_END else after

    def guard(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call into a vertex; whatever it raises gets stage, node and epoch."""
        try:
            function(*arguments)
        except PenstockError as error:
            for key, value in self._where().items():
                error.parameters.setdefault(key, value)
            raise
        except Exception as error:
            raise self._error(
                f"{type(error).__name__}: {error}", traceback="".join(_user_frames(error))
            ) from error

    def _error(self, what: str, **parameters: Any) -> FunctionError:
        where = self._where()
        return FunctionError(
            f"stage {where['stage']!r}, node {where['node']}, epoch {where['epoch']}: {what}",
            **where,
            **parameters,
        )

    def _where(self) -> dict[str, Any]:
        return {
            "stage": self.place.stage,
            "node": self._chain.node_name,
            "epoch": self._chain.now.epoch,
        }


def _user_frames(error: BaseException) -> Sequence[str]:
    """The traceback, from the call into the vertex on."""
    return traceback.format_exception(error)


_Splitter = Callable[[pa.RecordBatch], list[Part]]


def _splitter(plan: PhysicalPlan, link: Link, node: int) -> _Splitter:
    """How a link divides a batch among its targets."""
    targets = plan.targets(link, node)
    exchange = link.exchange
    if isinstance(exchange, Hash) and len(targets) > 1:
        columns, shards, first = exchange.columns, len(targets), targets[0]

        def by_hash(batch: pa.RecordBatch) -> list[Part]:
            parts = split_by_shard(batch, columns, shards)
            return [
                (first + shard, part, part.nbytes)
                for shard, part in enumerate(parts)
                if part is not None and part.num_rows
            ]

        return by_hash
    if isinstance(exchange, Broadcast):
        return lambda batch: [(target, batch, batch.nbytes) for target in targets]
    if isinstance(exchange, Forward) or len(targets) == 1:
        only = targets[0]
        return lambda batch: [(only, batch, batch.nbytes)]
    raise InvariantError(f"link {link.index}: {len(targets)} targets behind {exchange}")
