"""One vertex of a chain and the context that it sees.

What a vertex sends goes straight into the vertices behind it and out over the links of the chain;
what it asks for is remembered until its time is complete.  Sending or asking in the past is refused
here, and whatever a vertex raises is given the stage, node and epoch in which it arose.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.api.vertex import Place, Vertex
from penstock.core.progress.marks import EPOCH_END, WATERMARK_END
from penstock.core.progress.notifications import Notification
from penstock.core.time import Time
from penstock.engine.host.chain_state import StageState, Watermarks, captured, given_back
from penstock.engine.host.split import Splitter
from penstock.errors import FunctionError, InvariantError, NotWrittenError, PenstockError
from penstock.operators.base import Operator
from penstock.operators.conform import Conform
from penstock.operators.watermark import WatermarkVertex
from penstock.planning.physical import Link, PlannedStage

if TYPE_CHECKING:
    from penstock.engine.host.chain import ChainRunner

__all__ = ["StageRunner", "order_of"]


def order_of(wanted: Notification) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Notifications come in this order."""
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


def _checks(stage: PlannedStage) -> list[Conform] | None:
    if not stage.operator.foreign:
        return None
    return [Conform(schema, f"stage {stage.name!r}") for schema in stage.outputs]


class StageRunner:
    """One vertex and the context it sees."""

    def __init__(
        self, chain: ChainRunner, position: int, place: Place, stage: PlannedStage
    ) -> None:
        self.place = place
        self.operator = operator = stage.operator
        self._conform = _checks(stage)
        """Per port; None: what the stage sends is known to have its schema."""
        self.initial: dict[str, Any] = {}
        """The vertex's attributes once it was open."""
        self._chain = chain
        self.guard(self._make, operator)
        self.inner: dict[int, StageRunner] = {}
        self.outer: dict[int, list[tuple[Link, Splitter]]] = {}
        self.watermarks = Watermarks()
        self.watermarks_out = self.watermarks
        if isinstance(self.vertex, WatermarkVertex):
            self.watermarks_out = Watermarks()
        self.position = position
        self.asked: dict[Notification, None] = {}

    def _make(self, operator: Operator) -> None:
        self.vertex: Vertex = operator.vertex()

    def follow(self, parent: StageRunner) -> None:
        """Take over the watermark of the stage that feeds this one."""
        if self.watermarks_out is self.watermarks:
            self.watermarks_out = parent.watermarks_out
        self.watermarks = parent.watermarks_out

    # -- VertexContext ---------------------------------------------------------------------------

    def send(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        if not self._chain.may_send(time):
            raise self._error(f"it sent rows at {time} while working on {self._chain.now}")
        if self._conform is not None:
            if not 0 <= port < len(self._conform):
                raise self._error(f"it sent rows on port {port} of {len(self._conform)}")
            batch = self._conform[port](batch)
        inner = self.inner.get(port)
        if inner is not None:
            before, self._chain.now = self._chain.now, time
            try:
                inner.guard(inner.vertex.onRecv, 0, batch, time)
            finally:
                self._chain.now = before
        if self._chain.is_muted:
            return
        for link, splitter in self.outer.get(port, ()):
            at = link.shifted(time) if link.shifts else time
            if at is not None:
                self._chain.rows_out += batch.num_rows
                self._chain.produce(link.index, splitter(batch), at)

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
        self._ask(Notification(time, capability))

    def _ask(self, wanted: Notification) -> None:
        if wanted not in self.asked:
            self.asked[wanted] = None
            if self._chain.on_asked is not None and wanted.capability is not None:
                self._chain.on_asked(wanted.capability)

    def watermark(self, time: Time) -> int | None:
        return self.watermarks.at(time.epoch)

    def count(self, name: str, value: int) -> None:
        counters = self._chain.counters
        key = f"{self.place.stage}.{name}"
        counters[key] = counters.get(key, 0) + value

    def now(self) -> int:
        return self._chain.outside.now_us()

    def random(self) -> float:
        return self._chain.outside.random()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._chain.outside.call(function, *arguments)

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
            wanted = min(self.asked, key=order_of)
            if wanted.guarantee.epoch > last:
                break
            self.deliver(wanted)

    def deliver(self, wanted: Notification) -> None:
        """Deliver a notification."""
        del self.asked[wanted]
        capability = wanted.capability
        self._chain.now, self._chain.silent = capability or wanted.guarantee, capability is None
        try:
            self.guard(self.vertex.onNotify, wanted.guarantee)
        except NotWrittenError:
            self.asked[wanted] = None
            raise
        finally:
            self._chain.silent = False
        if self._chain.on_notified is not None and capability is not None:
            self._chain.on_notified(capability)

    def snapshot(self) -> StageState:
        """What the vertex keeps, and the watermark that it passes on if it sets one."""
        found: list[StageState] = []
        self.guard(
            lambda: found.append(captured(self.operator, self.vertex, self.initial, self.asked))
        )
        if not self.sets_watermark:
            return found[0]
        return replace(found[0], watermarks=self.watermarks_out.entries())

    def restore(self, state: StageState, time: Time) -> None:
        """Take back a :meth:`snapshot` into the open vertex."""
        if self.sets_watermark:
            for entry in state.watermarks:
                self.watermarks_out.append(*entry)
        self.guard(given_back, state, self.vertex, time)
        for wanted in state.asked:
            self._ask(wanted)

    @property
    def sets_watermark(self) -> bool:
        """Whether the watermark behind it is its own."""
        return isinstance(self.vertex, WatermarkVertex)

    def watermark_after(self, epoch: int, unread: bool) -> int | None:
        """What a WithWatermark stage passes on after an epoch; ``unread``: more rows are known."""
        if not isinstance(self.vertex, WatermarkVertex):
            raise InvariantError(f"stage {self.place.stage!r} sets no watermark")
        after = self.vertex.after(epoch, unread)
        return WATERMARK_END if self.watermarks.at(epoch) == WATERMARK_END else after

    def guard(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call into a vertex; whatever it raises gets stage, node and epoch."""
        if self._chain.on_call is not None:
            self._chain.on_call(self)
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
        except SystemExit as error:
            raise self._error(
                f"it called sys.exit({error.code!r})", traceback="".join(_user_frames(error))
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
