"""withWatermark: follow the event time of a stream.

The watermark after an epoch is the largest event time seen in it or before, less the delay.  It is
a function of the epochs' contents, never of the order in which batches arrived within or across
epochs, so that a replay decides the same rows to be late.

A shard is idle once it has *ended* ``idle`` epochs in a row without rows.  Epochs that it never
ended do not count: it was slow, or not running, and may have unread rows.  Nor do those that ended
while the shard's reader knew of unread rows; these wake a shard that is idle.  What it has ended,
and what its reader knew then, is durable: a restart neither makes a shard idle nor wakes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.vertex import Time, Vertex
from penstock.core.progress.marks import EPOCH_END, WATERMARK_IDLE
from penstock.errors import SchemaError
from penstock.operators.base import Operator
from penstock.operators.columns import require_column

__all__ = ["WatermarkVertex", "WithWatermark"]

IDLE_EPOCHS = 50
"""Epochs ended without rows after which a shard counts as idle: 5 seconds by default."""

_PER_UNIT = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}


class WithWatermark(Operator):
    """Takes ``column`` as event time; rows may come up to ``delay_us`` late."""

    kind = "watermark"

    def __init__(self, column: str, delay_us: int, idle_epochs: int = IDLE_EPOCHS) -> None:
        self.column = column
        self.delay_us = delay_us
        self.idle_epochs = idle_epochs

    def output_schemas(self, inputs: Sequence[pa.Schema]) -> tuple[pa.Schema, ...]:
        (schema,) = inputs
        kind = require_column(schema, self.column, "withWatermark").type
        if not (pa.types.is_timestamp(kind) or kind == pa.int64()):
            raise SchemaError(
                f"withWatermark: column {self.column!r} is of type {kind}; event time is a "
                "timestamp, or int64 microseconds since 1970",
                column=self.column,
                type=kind,
            )
        return (schema,)

    def vertex(self) -> WatermarkVertex:
        return WatermarkVertex(self.column, self.delay_us, self.idle_epochs)

    def describe(self) -> str:
        return f"{self.column}, {self.delay_us / 1_000_000:g} s"


class WatermarkVertex(Vertex):
    """Passes batches on and keeps the largest event time per epoch (O(open epochs) memory)."""

    def __init__(self, column: str, delay_us: int, idle_epochs: int = IDLE_EPOCHS) -> None:
        self._column = column
        self._idle_epochs = idle_epochs
        self._quiet = 0
        """Epochs that ended without rows since the last one with rows."""
        self._ended = -1
        """The last of them."""
        self._delay_us = delay_us
        self._seen_us: int | None = None
        self._complete_us: int | None = None
        self._open: dict[int, int] = {}

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        if batch.num_rows:
            largest = _largest_us(batch.column(self._column))
            if largest is not None:
                epoch = time.epoch
                self._open[epoch] = max(largest, self._open.get(epoch, largest))
                self._seen_us = _later(self._seen_us, largest)
            self.sendBy(0, batch, time)

    def seen_us(self) -> int | None:
        """The largest event time received so far, less the delay; None before the first row."""
        return None if self._seen_us is None else self._seen_us - self._delay_us

    def after(self, epoch: int, unread: bool = False) -> int | None:
        """The watermark once ``epoch`` is complete; asked for in ascending order of epochs.

        What lies at or before ``epoch`` is folded into one number and forgotten.  A shard that has
        ended many epochs without rows says that it is idle, so that no watermark waits for it,
        unless its reader had ``unread`` rows.
        Asking again changes nothing, and neither does the end of the stream.
        """
        done = [other for other in self._open if other <= epoch]
        for other in done:
            self._complete_us = _later(self._complete_us, self._open.pop(other))
        fresh = self._ended < epoch < EPOCH_END
        if done or (fresh and unread and self._quiet >= self._idle_epochs):
            self._quiet = 0
        elif fresh and not unread:
            self._quiet += 1
        self._ended = max(self._ended, epoch)
        if self._quiet >= self._idle_epochs:
            return WATERMARK_IDLE
        return None if self._complete_us is None else self._complete_us - self._delay_us

    def snapshot(self) -> dict[str, Any]:
        """What it has seen, open epochs included; seeing some of it again changes nothing."""
        return {"plain": self.to_plain()}

    def restore(self, state: Mapping[str, Any], time: Time) -> None:
        """Take back what :meth:`snapshot` gave."""
        self.from_plain(state["plain"])

    def to_plain(self) -> list[Any]:
        """The same as JSON can carry it."""
        opened = [[epoch, largest] for epoch, largest in self._open.items()]
        return [self._quiet, self._seen_us, self._complete_us, opened, self._ended]

    def from_plain(self, plain: Sequence[Any]) -> None:
        """Take back what :meth:`to_plain` gave."""
        self._quiet, self._seen_us, self._complete_us, opened, self._ended = plain
        self._open = dict(opened)


def _later(one: int | None, other: int) -> int:
    return other if one is None or other > one else one


def _largest_us(column: pa.Array) -> int | None:
    """The largest event time in microseconds (rounded down), or None if all are null."""
    largest = pc.max(column)
    if not largest.is_valid:
        return None
    if not pa.types.is_timestamp(column.type):
        return int(largest.as_py())
    up, down = _PER_UNIT[column.type.unit]
    return int(largest.value) * up // down
