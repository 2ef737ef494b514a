"""What the sinks on the driver share: rows are gathered per epoch and handed over when it ends.

Such a sink is one object with two sides.  The user holds it on the driver; the engine runs its
vertex in the same process.  It never travels: pickled, it arrives as an inert copy without rows,
locks or the user's function.

The engine tells it these things, from any thread:

- ``resume(epoch)``: a run goes on at this epoch; the ones before it were handed over earlier;
- ``advance(epoch)`` (through the vertex or the sink): every epoch up to this one is complete,
  those without rows included;
- ``stopping()``: the flow is about to drain, so no consumer may hold it up any more;
- ``fail(error)``: the flow failed and nothing will come;
- ``end()`` (the vertex's ``close`` calls it): the flow ended and nothing will come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.api.vertex import Time, Vertex, VertexContext
from penstock.connectors.base import Sink
from penstock.operators.base import Exchange, Single

if TYPE_CHECKING:
    from penstock.engine.store.logs import CommitLog

__all__ = ["DriverSink", "GatherVertex"]


class DriverSink(Sink):
    """A sink whose single node lives in the driver's process."""

    on_driver = True
    schema: pa.Schema | None = None
    """The schema of its input, known once the sink is part of a flow."""
    caveat = "epochs that were handed over shortly before a driver died come again after a restart"

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        self.schema = inputs[0]
        return ()

    def exchanges(self, inputs: Sequence[pa.Schema]) -> tuple[Exchange, ...]:
        return tuple(Single() for _ in inputs)

    def vertex(self) -> Vertex:
        return GatherVertex(self)

    def record_in(self, log: CommitLog | None) -> None:
        """Where to note what was handed over; None: nowhere.  Called before a run begins."""

    def begin(self) -> None:
        """A run begins: forget how an earlier one ended."""

    def resume(self, epoch: int) -> None:
        """The epochs before this one were handed over by an earlier run."""

    def publish(self, epoch: int, rows: pa.Table) -> None:
        """Take the rows of a completed epoch, in the order in which they arrived."""
        raise NotImplementedError

    def advance(self, epoch: int) -> None:
        """Every epoch up to and including this one is complete."""

    def stopping(self) -> None:
        """The flow is about to drain: do not hold it up any more."""

    def fail(self, error: BaseException) -> None:
        """The flow failed."""

    def end(self) -> None:
        """The flow ended."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


class GatherVertex(Vertex):
    """Keeps the batches of open epochs and publishes each epoch once, when it is complete."""

    def __init__(self, sink: DriverSink) -> None:
        self._sink = sink
        self._open: dict[int, list[pa.RecordBatch]] = {}

    def open(self, context: VertexContext) -> None:
        super().open(context)
        self._sink.begin()

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        batches = self._open.get(time.epoch)
        if batches is None:
            batches = self._open[time.epoch] = []
            self.notifyAt(time)
        batches.append(batch)

    def onNotify(self, time: Time) -> None:
        batches = self._open.get(time.epoch)
        if batches is not None:
            self._sink.publish(time.epoch, pa.Table.from_batches(batches))
            del self._open[time.epoch]
        self._sink.advance(time.epoch)

    def advance(self, epoch: int) -> None:
        """Told by the engine that every epoch up to this one is complete and was notified."""
        self._sink.advance(epoch)

    def close(self) -> None:
        self._sink.end()
