"""Sessions: per key, rows with no pause longer than the gap between them.

A session is ``[first, last + gap)``; a row exactly ``gap`` after the last one still belongs to it,
as in Spark and Flink.  Whether rows are late is decided by the session they end up in: rows of an
epoch are merged among themselves and with the open sessions first.  Joining intervals that overlap
gives the same sessions in whatever order it is done, so partial sessions can be combined early.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.vertex import Time
from penstock.expressions.ordering import group_codes
from penstock.operators.aggregates import ROWS, Aggregation
from penstock.operators.base import Kernel
from penstock.operators.grouping import array_of, sort_by, sort_rows
from penstock.operators.key_columns import from_micros, micros
from penstock.operators.stateful import PartialVertex, Runs, batch_of, tables

__all__ = ["LAST", "START", "SessionVertex", "session_kernel"]

START, LAST = "$start", "$last"


def session_kernel(column: str, gap_us: int, aggregation: Aggregation) -> Kernel:
    """A function of a batch to its partial sessions: first and last time, keys, partials."""

    def kernel(batch: pa.RecordBatch) -> pa.RecordBatch:
        times = batch.column(column)
        names, arrays = aggregation.prepared(batch)
        instants = micros(times)
        labels, first, last = _sessions(
            arrays[: len(aggregation.keys)], instants, instants, gap_us, _missing(times)
        )
        table = pa.Table.from_arrays(arrays, names=names) if arrays else batch
        made = aggregation.combine_codes(labels, len(first), table)
        row = np.empty(len(first), np.int64)
        row[labels] = np.arange(len(labels))
        keys = [array.take(pa.array(row)) for array in arrays[: len(aggregation.keys)]]
        return pa.RecordBatch.from_arrays(
            [
                *_bounds(labels, first, last, times),
                *keys,
                *(array_of(made, name) for name in made.column_names),
            ],
            names=[START, LAST, *aggregation.keys, *made.column_names],
        )

    return kernel


def _missing(times: pa.Array) -> Any:
    return times.is_null().to_numpy(zero_copy_only=False) if times.null_count else None


def _bounds(labels: Any, first: Any, last: Any, times: pa.Array) -> list[pa.Array]:
    """First and last times of sessions, null for the rows that have none."""
    heads = [from_micros(first, times.type), from_micros(last, times.type)]
    missing = _missing(times)
    if missing is None:
        return heads
    without = np.zeros(len(first), bool)
    without[labels[missing]] = True
    mask = pa.array(without)
    return [pc.if_else(mask, pa.scalar(None, times.type), head) for head in heads]


def _sessions(
    keys: list[pa.Array], first: Any, last: Any, gap_us: int, missing: Any = None
) -> tuple[Any, Any, Any]:
    """Join intervals of equal keys that are at most a gap apart.

    Returns each interval's session (numbered from 0), and each session's first and last time.
    Intervals that are ``missing`` a time form a session of their own per key.
    """
    rows = len(first)
    codes, _ = group_codes(keys, rows)
    if missing is not None:
        codes = codes * 2 + missing
        first, last = np.where(missing, 0, first), np.where(missing, 0, last)
    if rows and (first[1:] >= first[:-1]).all():
        order = np.argsort(
            codes if codes.max() >= 1 << 15 else codes.astype(np.int16), kind="stable"
        )
    else:
        order = np.lexsort((first, codes))
    code, begin, end = codes[order], first[order], last[order]
    # The greatest end so far within each key: ranks keep keys apart without overflow.
    ranks = np.empty(rows, np.int64)
    ranks[np.argsort(end, kind="stable")] = np.arange(rows)
    key_start = np.ones(rows, bool)
    key_start[1:] = code[1:] != code[:-1]
    key_number = np.cumsum(key_start) - 1
    reach = np.maximum.accumulate(key_number * rows + ranks)
    by_rank = np.empty(rows, np.int64)
    by_rank[ranks] = end
    so_far = by_rank[reach - key_number * rows] if rows else end
    new = key_start.copy()
    new[1:] |= begin[1:] - so_far[:-1] > gap_us
    number = np.cumsum(new) - 1
    labels = np.empty(rows, np.int64)
    labels[order] = number
    starts = np.flatnonzero(new)
    stops = np.append(starts[1:], rows) - 1 if rows else starts
    return labels, begin[starts], so_far[stops]


class SessionVertex(PartialVertex):
    """Merges partial sessions and emits them when the watermark passes their ends."""

    def __init__(
        self,
        gap_us: int,
        aggregation: Aggregation,
        lateness_us: int,
        name: str,
        column: str,
        kernel: Kernel | None,
    ) -> None:
        super().__init__(kernel, keep_rows=True)
        self.gap_us = gap_us
        self.aggregation = aggregation
        self.lateness_us = lateness_us
        self.name = name
        self.column = column
        self._open: pa.Table | None = None

    def take(self, time: Time, partials: Runs | None, rows: list[pa.RecordBatch]) -> None:
        before, now = self.before(time), self.watermark(time)
        table, touched = self._open, np.zeros(0 if self._open is None else len(self._open), bool)
        if partials is not None:
            table, touched = self._joined(self._with_time(partials.merged(), rows, time))
            table, touched = self._without_late(table, touched, before, rows, time)
        if table is None or now is None:
            self._open = table
            return
        ends = micros(array_of(table, LAST)) + self.gap_us
        due = ends <= now
        if before is not None:
            due &= touched | (ends > before)
        if due.any():
            self.sendBy(0, self._results(table.filter(pa.array(due))), time)
        self._open = table.filter(pa.array(ends > now - self.lateness_us)).combine_chunks()

    def waits(self) -> bool:
        return self._open is not None and self._open.num_rows > 0

    def merged(self, partials: pa.Table) -> pa.Table:
        return self._merge(partials)[0]

    def _with_time(self, partials: pa.Table, rows: list[pa.RecordBatch], time: Time) -> pa.Table:
        starts = array_of(partials, START)
        if not starts.null_count:
            return partials
        gone = array_of(partials.filter(starts.is_null()), ROWS)
        self.without_time(int(np.asarray(gone).sum()), rows, self.column, time)
        return partials.filter(starts.is_valid()).combine_chunks()

    def _joined(self, fresh: pa.Table) -> tuple[pa.Table, Any]:
        """Open sessions joined with new ones; and which of the results a new one took part in."""
        old = self._open
        table = fresh if old is None else pa.concat_tables([old, fresh]).combine_chunks()
        table, labels = self._merge(table)
        touched = np.zeros(table.num_rows, bool)
        touched[labels[0 if old is None else old.num_rows :]] = True
        return table, touched

    def _merge(self, table: pa.Table) -> tuple[pa.Table, Any]:
        """Sessions with equal keys and no gap between them made one; where each row went."""
        keys = [array_of(table, key) for key in self.aggregation.keys]
        starts = array_of(table, START)
        labels, first, last = _sessions(
            keys, micros(starts), micros(array_of(table, LAST)), self.gap_us, _missing(starts)
        )
        row = np.empty(len(first), np.int64)
        row[labels] = np.arange(len(labels))
        index = pa.array(row)
        arrays = _bounds(labels, first, last, starts)
        arrays += [key.take(index) for key in keys]
        arrays += self.aggregation.merge_codes(labels, len(first), table)
        return pa.Table.from_arrays(arrays, schema=table.schema), labels

    def _without_late(
        self,
        table: pa.Table,
        touched: Any,
        before: int | None,
        batches: list[pa.RecordBatch],
        time: Time,
    ) -> tuple[pa.Table, Any]:
        if before is None:
            return table, touched
        ends = micros(array_of(table, LAST)) + self.gap_us
        late = ends + self.lateness_us <= before
        if not late.any():
            return table, touched
        gone = table.filter(pa.array(late))
        self.count("rows_late", int(np.asarray(array_of(gone, ROWS)).sum()))
        if batches:
            self._send_late(gone, batches, time)
        return table.filter(pa.array(~late)), touched[~late]

    def _send_late(self, late: pa.Table, batches: list[pa.RecordBatch], time: Time) -> None:
        """Send the rows that late sessions are made of: all of this epoch, by key and time."""
        rows = tables(batches)
        times = array_of(rows, self.column)
        names, arrays = self.aggregation.prepared(rows)
        count = len(self.aggregation.keys)
        late_keys = [array_of(late, name) for name in names[:count]]
        keys = [pa.concat_arrays(pair) for pair in zip(late_keys, arrays[:count], strict=True)]
        begins = np.concatenate([micros(array_of(late, START)), micros(times)])
        ends = np.concatenate([micros(array_of(late, LAST)), micros(times)])
        missing = np.concatenate(
            [np.zeros(late.num_rows, bool), times.is_null().to_numpy(zero_copy_only=False)]
        )
        labels, first, _ = _sessions(keys, begins, ends, self.gap_us, missing)
        is_late = np.zeros(len(first), bool)
        is_late[labels[: late.num_rows]] = True
        chosen = rows.filter(pa.array(is_late[labels[late.num_rows :]]))
        self.sendBy(1, batch_of(sort_rows(chosen, [self.column])), time)

    def _results(self, table: pa.Table) -> pa.RecordBatch:
        keys = self.aggregation.keys
        table = sort_by(table, [START, *keys])
        kind = table.schema.field(START).type
        start, last = (micros(array_of(table, name)) for name in (START, LAST))
        bounds = [from_micros(start, kind), from_micros(last + self.gap_us, kind)]
        columns = [
            pa.StructArray.from_arrays(bounds, names=["start", "end"]),
            *(array_of(table, key) for key in keys),
            *self.aggregation.results(table),
        ]
        names = [self.name, *keys, *(one.name for one in self.aggregation.aggregates)]
        return pa.RecordBatch.from_arrays(columns, names=names)

    def snapshot(self) -> dict[str, pa.Table]:
        """One table ``sessions``: first and last time, keys, partial columns."""
        if self._open is None or not self._open.num_rows:
            return {}
        return {"sessions": self._open}

    def load(self, state: Mapping[str, pa.Table]) -> None:
        sessions = state.get("sessions")
        self._open = None if sessions is None else sessions.combine_chunks()
