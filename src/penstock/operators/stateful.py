"""What the stateful vertices share: input kept per time, worked on when the time is complete.

A stateful vertex keeps what it received per time and touches its state only when the time is
complete.  What it does is then a function of the *set* of rows of each epoch and of the watermarks,
never of the order in which messages arrived.

``snapshot`` gives the state after the completed times as Arrow tables; input of times that are not
complete is no part of it (its sender still has it).  ``restore`` takes such tables back into a new
vertex, together with the last time that they reflect, and asks for the notifications that the
state waits for.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from penstock.vertex import Time, Vertex

__all__ = ["StatefulVertex", "batch_of", "tables"]


class StatefulVertex(Vertex):
    """Keeps batches per time and port; ``work`` gets them when the time is complete."""

    def __init__(self) -> None:
        self._pending: dict[Time, list[tuple[int, pa.RecordBatch]]] = {}

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        waiting = self._pending.get(time)
        if waiting is None:
            waiting = self._pending[time] = []
            self.notifyAt(time)
        waiting.append((port, batch))

    def onNotify(self, time: Time) -> None:
        self.work(time, self._pending.pop(time, []))
        if self.waits():
            self.notifyAt(time.next_epoch())

    def work(self, time: Time, received: list[tuple[int, pa.RecordBatch]]) -> None:
        """Take everything that came at ``time`` into the state and send what follows from it."""
        raise NotImplementedError

    def waits(self) -> bool:
        """Whether something can become due in the next epoch even if nothing arrives."""
        return False

    def before(self, time: Time) -> int | None:
        """The watermark before ``time``'s epoch: rows of this epoch below it are late."""
        return self.watermark(Time.root(time.epoch - 1)) if time.epoch > 0 else None

    def snapshot(self) -> dict[str, pa.Table]:
        """The state after the completed times, as named Arrow tables."""
        raise NotImplementedError

    def restore(self, state: Mapping[str, pa.Table], time: Time) -> None:
        """Take back a snapshot that reflects everything up to ``time``; call after ``open``."""
        self.load(state)
        if self.waits():
            self.notifyAt(time.next_epoch())

    def load(self, state: Mapping[str, pa.Table]) -> None:
        """Take the tables of a snapshot as the state."""
        raise NotImplementedError


def tables(batches: list[pa.RecordBatch]) -> pa.Table:
    """Batches of one schema as a table of contiguous columns."""
    table = pa.Table.from_batches(batches)
    return table.combine_chunks() if len(batches) > 1 else table


def batch_of(table: pa.Table) -> pa.RecordBatch:
    """A table as one record batch."""
    return pa.RecordBatch.from_arrays(
        [
            column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            for column in table.columns
        ],
        schema=table.schema,
    )
