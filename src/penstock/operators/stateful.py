"""What the stateful vertices share: input kept per time, worked on when the time is complete.

A stateful vertex keeps what it received per time and touches its state only when the time is
complete.  What it does is then a function of the *set* of rows of each epoch and of the watermarks,
never of the order in which messages arrived.

Inside a loop times are not complete in one order: epoch 4 may come round for the first time before
epoch 3 does for the fifth.  There they take turns at the state: all of an epoch before the next
one, and with loops in loops all of an outer iteration before the next one.

``snapshot`` gives the state after the completed times as Arrow tables; input of times that are not
complete is no part of it (its sender still has it).  It copies nothing, and says of tables that
only grow that they do (:mod:`penstock.operators.grown`).  ``restore`` takes such tables back into a
new vertex, together with the last time that they reflect, and asks for the notifications that the
state waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.api.vertex import Time, Vertex
from penstock.core.time import CONVERGED
from penstock.operators.base import Kernel
from penstock.operators.grouping import array_of, sort_rows
from penstock.operators.key_columns import micros, plain_schema

__all__ = ["PartialVertex", "Runs", "StatefulVertex", "batch_of", "tables", "turns"]


class StatefulVertex(Vertex):
    """Keeps batches per time and port; ``work`` gets them when the time is complete."""

    can_follow = False
    """Whether ``load`` may come again, with a later state, and costs what has changed since."""

    def __init__(self) -> None:
        self._pending: dict[Time, list[tuple[int, pa.RecordBatch]]] = {}
        self._waiting: dict[Time, list[Time]] = {}
        """(In loops) per time that must be complete first: the times that wait for it."""

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        waiting = self._pending.get(time)
        if waiting is None:
            waiting = self._pending[time] = []
            self.ask(time)
        waiting.append((port, batch))

    def ask(self, time: Time) -> None:
        """Let ``work`` be called when it is the turn of a time."""
        self._wait(time, turns(time)[0])

    def _wait(self, time: Time, first: Time) -> None:
        if first != time:
            self._waiting.setdefault(first, []).append(time)
        self.notifyAt(first, capability=time)

    def onNotify(self, time: Time) -> None:
        if time in self._waiting:
            self._step_up(time)
            return
        self.work(time, self._pending.pop(time, []))
        if self.waits():
            self.notifyAt(time.next_epoch())

    def _step_up(self, passed: Time) -> None:
        """A time is complete for which another one waits, of several the first."""
        waiting = self._waiting[passed]
        time = min(waiting, key=Time.sort_key)
        waiting.remove(time)
        if not waiting:
            del self._waiting[passed]
        before = turns(time)
        self._wait(time, before[before.index(passed) + 1])

    def work(self, time: Time, received: list[tuple[int, pa.RecordBatch]]) -> None:
        """Take everything that came at ``time`` into the state and send what follows from it."""
        raise NotImplementedError

    def waits(self) -> bool:
        """Whether something can become due in the next epoch even if nothing arrives."""
        return False

    def before(self, time: Time) -> int | None:
        """The watermark before ``time``'s epoch: rows of this epoch below it are late."""
        return self.watermark(Time.root(time.epoch - 1)) if time.epoch > 0 else None

    def timely(
        self, rows: pa.Table, column: str, oldest: int | None, time: Time, port: int
    ) -> pa.Table:
        """The rows from ``oldest`` on.  Older ones and those without a time leave on ``port``."""
        times = array_of(rows, column)
        late = np.zeros(rows.num_rows, bool) if oldest is None else micros(times) < oldest
        if times.null_count:
            missing = times.is_null().to_numpy(zero_copy_only=False)
            self.count("rows_without_time", times.null_count)
            late &= ~missing
            gone = late | missing
        else:
            gone = late
        if not gone.any():
            return rows
        if late.any():
            self.count("rows_late", int(late.sum()))
        self.sendBy(port, batch_of(sort_rows(rows.filter(pa.array(gone)), [column])), time)
        return rows.filter(pa.array(~gone))

    def snapshot(self) -> Mapping[str, Any]:
        """The state after the completed times, as Arrow data by name."""
        raise NotImplementedError

    def restore(self, state: Mapping[str, Any], time: Time) -> None:
        """Take back a snapshot that reflects everything up to ``time``; call after ``open``."""
        self.load(state)
        if self.waits():
            self.notifyAt(time.next_epoch())

    def load(self, state: Mapping[str, Any]) -> None:
        """Take a snapshot as the state."""
        raise NotImplementedError


class PartialVertex(StatefulVertex):
    """Turns rows into partial rows as they come, and merges these before the epoch ends.

    Merging partial rows gives the same in any order, so it need not wait: little is left to do
    when the epoch is complete.  Without a kernel the input is partial rows already; keys may repeat
    in a batch of them, since a sender that sends batches again may send several as one.
    """

    def __init__(self, kernel: Kernel | None, keep_rows: bool) -> None:
        super().__init__()
        self._kernel = kernel
        self._keep_rows = keep_rows and kernel is not None
        self._partials: dict[Time, Runs] = {}

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        if self._keep_rows:
            super().onRecv(port, batch, time)
        runs = self._partials.get(time)
        if runs is None:
            # Messages in a loop, and those of an edge that is read again, come joined.
            runs = Runs(self.merged, tail=16, repeats=self._kernel is None)
            self._partials[time] = runs
            self.ask(time)
        partial = self._kernel(batch) if self._kernel else batch
        runs.add(pa.Table.from_batches([partial]))

    def work(self, time: Time, received: list[tuple[int, pa.RecordBatch]]) -> None:
        runs = self._partials.pop(time, None)
        self.take(time, runs, [batch for _, batch in received])

    def take(self, time: Time, partials: Runs | None, rows: list[pa.RecordBatch]) -> None:
        """Take the partial rows of ``time`` into the state, and send what follows."""
        raise NotImplementedError

    def without_time(
        self, many: int, batches: list[pa.RecordBatch], column: str, time: Time
    ) -> None:
        """Rows without event time belong to no window: they leave on port 1."""
        self.count("rows_without_time", many)
        if batches:
            rows = tables(batches)
            missing = array_of(rows, column).is_null()
            self.sendBy(1, batch_of(sort_rows(rows.filter(missing))), time)

    def merged(self, partials: pa.Table) -> pa.Table:
        """Partial rows with equal keys made one."""
        raise NotImplementedError


class Runs:
    """Tables of partial rows on their way to being one.

    Keys repeat in a table only if ``repeats`` says so, or in one for :meth:`add_unmerged`.  Up to
    ``tail`` tables are kept as they came and then merged into a run; a run is merged with the one
    before it while that is not much larger.  So a row takes part in a logarithmic number of merges,
    however many tables there are.
    """

    def __init__(
        self, merge: Callable[[pa.Table], pa.Table], tail: int = 1, repeats: bool = False
    ) -> None:
        self._merge = merge
        self._limit = tail
        self._repeats = repeats
        self._tail: list[pa.Table] = []
        self._runs: list[pa.Table] = []

    def add(self, table: pa.Table) -> None:
        """Take one more table."""
        self._tail.append(table)
        if len(self._tail) < self._limit:
            return
        run = self._joined(self._tail)
        self._tail = []
        while self._runs and self._runs[-1].num_rows <= 2 * run.num_rows:
            run = self._joined([self._runs.pop(), run])
        self._runs.append(run)

    def add_unmerged(self, table: pa.Table) -> None:
        """Take a table in which keys may repeat: one merge, with the runs that are not larger."""
        parts, rows = [table], table.num_rows
        while self._runs and self._runs[-1].num_rows <= 2 * rows:
            rows += self._runs[-1].num_rows
            parts.append(self._runs.pop())
        self._runs.append(self._merge(pa.concat_tables(parts).combine_chunks()))

    def take(self, tables: list[pa.Table]) -> None:
        """Go on with the :meth:`tables` of others like it."""
        self._runs = list(tables)

    def tables(self) -> list[pa.Table]:
        """What is there, unmerged."""
        return self._runs + self._tail

    def unmerged(self) -> pa.Table:
        """All as one table in which keys may repeat."""
        return pa.concat_tables(self.tables()).combine_chunks()

    def merged(self) -> pa.Table:
        """All as one table; what was merged stays merged."""
        self._runs, self._tail = [self._joined(self.tables())], []
        return self._runs[0]

    def _joined(self, parts: list[pa.Table]) -> pa.Table:
        is_merged = not (self._repeats and self._tail)
        if len(parts) == 1 and is_merged:
            return parts[0]
        return self._merge(pa.concat_tables(parts).combine_chunks())


def turns(time: Time) -> list[Time]:
    """What must be complete, one after the other, before it is a time's turn; itself in the end.

    >>> [tuple(one) for one in turns(Time(0, (7,)))]
    [(0, 7)]
    >>> turns(Time(3, (7,)))[0] == Time(2, (0,)).converged()
    True
    """
    ends = [
        Time.from_wire((*time[:k], time[k] - 1, *(CONVERGED,) * (time.depth - k)))
        for k in range(time.depth)
        if time[k]
    ]
    return [*ends, time]


def tables(batches: list[pa.RecordBatch]) -> pa.Table:
    """Batches of one schema as a table of contiguous columns, dictionaries as plain values."""
    table = pa.Table.from_batches(batches)
    schema = plain_schema(table.schema)
    if schema != table.schema:
        table = table.cast(schema)
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
