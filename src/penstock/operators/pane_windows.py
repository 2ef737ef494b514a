"""The vertex of tumbling and sliding windows, and the kernel that makes their partial rows.

State: per pane (see :mod:`penstock.operators.window_assign`) a short list of tables of partial
rows.  A new table is merged with the ones before it while those are not much larger, so that a key
is touched a logarithmic number of times and a pane's last step is small: the latency from the end
of a window to its result does not grow with the number of rows in it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
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
from penstock.operators.window_assign import Panes

__all__ = ["PANE", "PaneVertex", "pane_kernel"]

PANE = "$pane"


def pane_kernel(column: str, panes: Panes, aggregation: Aggregation) -> Kernel:
    """A function of a batch to its partial rows: pane, keys, partial columns."""
    keys = aggregation.keys

    def kernel(batch: pa.RecordBatch) -> pa.RecordBatch:
        times = batch.column(column)
        names, arrays = aggregation.prepared(batch)
        instants = micros(times)
        if keys and not times.null_count and batch.num_rows:
            low, high = panes.pane_of(int(instants.min())), panes.pane_of(int(instants.max()))
            if low == high:
                # All in one pane, as most batches are: one key less to group by.
                table = pa.Table.from_arrays(arrays, names=names)
                made = aggregation.combine(table, keys)
                pane = from_micros(np.full(made.num_rows, low), times.type)
                return batch_of(made.add_column(0, PANE, pane))
        mask = times.is_null().to_numpy(zero_copy_only=False) if times.null_count else None
        numbers = pa.array(panes.numbers_of(instants), mask=mask)
        table = pa.Table.from_arrays([numbers, *arrays], names=[PANE, *names])
        made = aggregation.combine(table, [PANE, *keys])
        return batch_of(made.set_column(0, PANE, _starts(array_of(made, PANE), panes, times.type)))

    return kernel


def _starts(numbers: pa.Array, panes: Panes, kind: pa.DataType) -> pa.Array:
    starts = from_micros(panes.starts_of(numbers.fill_null(0).to_numpy()), kind)
    if not numbers.null_count:
        return starts
    return pc.if_else(numbers.is_valid(), starts, pa.scalar(None, kind))


class PaneVertex(PartialVertex):
    """Merges partial rows per pane and emits windows when the watermark passes them.

    With a ``kernel`` the input is rows, and late ones leave on port 1; without, partial rows.
    """

    def __init__(
        self,
        panes: Panes,
        aggregation: Aggregation,
        lateness_us: int,
        name: str,
        column: str,
        kernel: Kernel | None,
    ) -> None:
        super().__init__(kernel, keep_rows=True)
        self.panes = panes
        self.aggregation = aggregation
        self.lateness_us = lateness_us
        self.name = name
        self.column = column
        self._runs: dict[int, Runs] = {}
        self._bound: pa.DataType = None  # the type of event times, known from the first batch

    # -- input -----------------------------------------------------------------------------------

    def take(self, time: Time, partials: Runs | None, rows: list[pa.RecordBatch]) -> None:
        before, now = self.before(time), self.watermark(time)
        fresh: dict[int, pa.Table] = {}
        if partials is not None:
            # Windows that come again need this epoch's rows by key; others are merged only once.
            again = bool(self.lateness_us)
            table = partials.merged() if again else partials.unmerged()
            self._bound = table.schema.field(PANE).type
            fresh = self._accepted(table, before, time, rows)
            for pane, part in fresh.items():
                runs = self._runs_of(pane)
                (runs.add if again else runs.add_unmerged)(part)
        if now is None:
            return
        self._emit(time, before, now, fresh)
        for pane in [p for p in self._runs if self._passed(p, now)]:
            del self._runs[pane]

    def waits(self) -> bool:
        return bool(self._runs)

    def merged(self, partials: pa.Table) -> pa.Table:
        return self.aggregation.merge(partials, [PANE, *self.aggregation.keys])

    def _passed(self, pane: int, watermark: int | None) -> bool:
        return watermark is not None and self.panes.last_end(pane) + self.lateness_us <= watermark

    def _accepted(
        self,
        partials: pa.Table,
        before: int | None,
        time: Time,
        rows: list[pa.RecordBatch],
    ) -> dict[int, pa.Table]:
        """The partial rows of this epoch per pane; late ones and those without a time leave."""
        column = array_of(partials, PANE)
        if column.null_count:
            lost = array_of(partials.filter(column.is_null()), ROWS)
            self.without_time(int(np.asarray(lost).sum()), rows, self.column, time)
            partials = partials.filter(column.is_valid())
            column = array_of(partials, PANE)
        starts = micros(column)
        late = [pane for pane in np.unique(starts).tolist() if self._passed(pane, before)]
        fresh = _split(partials, starts)
        for pane in late:
            self.count("rows_late", int(np.asarray(array_of(fresh.pop(pane), ROWS)).sum()))
        if late and rows:
            self._send_late(rows, late, time)
        return fresh

    def _send_late(self, batches: list[pa.RecordBatch], late: list[int], time: Time) -> None:
        rows = tables(batches)
        times = array_of(rows, self.column)
        chosen = np.isin(self.panes.panes_of(micros(times)), late)
        if times.null_count:
            chosen &= times.is_valid().to_numpy(zero_copy_only=False)
        self.sendBy(1, batch_of(sort_rows(rows.filter(pa.array(chosen)), [self.column])), time)

    # -- state -----------------------------------------------------------------------------------

    def _runs_of(self, pane: int) -> Runs:
        if pane not in self._runs:
            self._runs[pane] = Runs(self._by_key)
        return self._runs[pane]

    def _by_key(self, partials: pa.Table) -> pa.Table:
        """Partial rows of one pane or window, one per key."""
        return self.aggregation.merge(partials, self.aggregation.keys)

    def _whole(self, inside: Sequence[int]) -> pa.Table:
        """The partial rows of a window that is made of the given panes."""
        if len(inside) == 1:
            return self._runs[inside[0]].merged()
        parts = [table for pane in inside for table in self._runs[pane].tables()]
        return self._by_key(pa.concat_tables(parts).combine_chunks())

    # -- output ----------------------------------------------------------------------------------

    def _emit(self, time: Time, before: int | None, now: int, fresh: dict[int, pa.Table]) -> None:
        size = self.panes.size_us
        made: list[tuple[int, pa.Table]] = []
        for start in self._due(before, now):
            made.append((start, self._whole(self._inside(start))))
        if before is not None and self.lateness_us:
            for start in sorted({w for pane in fresh for w in self.panes.windows_of(pane)}):
                if start + size <= before < start + size + self.lateness_us:
                    made.append((start, self._changed(start, fresh)))
        if made:
            self.sendBy(0, self._results(made), time)

    def _due(self, before: int | None, now: int) -> list[int]:
        """The windows with something in them that the watermark passed in this epoch, ascending."""
        if not self._runs:
            return []
        size, slide = self.panes.size_us, self.panes.slide_us
        panes = sorted(self._runs)
        first, last = next(self.panes.windows_of(panes[0])), self.panes.last_window(panes[-1])
        if before is not None and before - size >= first:
            first = self.panes.last_window(before - size) + slide
        last = min(last, self.panes.last_window(now - size))
        if (last - first) // slide > len(panes) * (size // slide + 1):
            # Far apart: go by what there is rather than by what there could be.
            found = {start for pane in panes for start in self.panes.windows_of(pane)}
            return sorted(start for start in found if first <= start <= last)
        return [
            start
            for start in range(first, last + 1, slide)
            if (at := bisect_left(panes, start)) < len(panes) and panes[at] < start + size
        ]

    def _inside(self, start: int) -> list[int]:
        end = start + self.panes.size_us
        if self.panes.tumbling:
            return [start] if start in self._runs else []
        return sorted(pane for pane in self._runs if start <= pane < end)

    def _changed(self, start: int, fresh: Mapping[int, pa.Table]) -> pa.Table:
        """The partial rows of an emitted window whose keys rows of this epoch changed."""
        inside, keys = self._inside(start), self.aggregation.keys
        whole = self._whole(inside)
        news = [fresh[pane].select(keys) for pane in inside if pane in fresh]
        both = pa.concat_tables([whole.select(keys), *news]).combine_chunks()
        codes, _ = group_codes([array_of(both, key) for key in keys], both.num_rows)
        # The keys of the whole are all different: their codes are their row numbers.
        return whole.take(pa.array(np.unique(codes[whole.num_rows :]))) if keys else whole

    def _results(self, windows: Sequence[tuple[int, pa.Table]]) -> pa.RecordBatch:
        """The output rows of windows' partial rows, sorted by window and key."""
        keys = self.aggregation.keys
        if len(windows) > 1:
            windows = sorted(windows, key=lambda one: one[0])
        starts = np.repeat([start for start, _ in windows], [part.num_rows for _, part in windows])
        parts = pa.concat_tables([part for _, part in windows]).combine_chunks()
        table = parts.add_column(0, PANE, pa.array(starts))
        table = sort_by(table, [PANE, *keys] if len(windows) > 1 else keys)
        starts = array_of(table, PANE).to_numpy()
        bounds = [from_micros(at, self._bound) for at in (starts, starts + self.panes.size_us)]
        columns = [
            pa.StructArray.from_arrays(bounds, names=["start", "end"]),
            *(array_of(table, key) for key in keys),
            *self.aggregation.results(table),
        ]
        names = [self.name, *keys, *(one.name for one in self.aggregation.aggregates)]
        return pa.RecordBatch.from_arrays(columns, names=names)

    # -- snapshots -------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """``panes``: each one's start and tables of partial rows, in which keys may repeat."""
        if not self._runs:
            return {}
        panes = [(pane, self._runs[pane].tables()) for pane in sorted(self._runs)]
        return {"panes": panes, "bound": self._bound}

    def load(self, state: Mapping[str, Any]) -> None:
        self._runs = {}
        self._bound = state.get("bound")
        for pane, parts in state.get("panes", ()):
            self._runs_of(pane).take(parts)


def _split(partials: pa.Table, starts: Any) -> dict[int, pa.Table]:
    """Partial rows by pane, without the pane column, panes ascending."""
    rest = partials.drop_columns([PANE])
    if not len(starts):
        return {}
    if starts[0] == starts[-1] and (starts == starts[0]).all():
        return {int(starts[0]): rest}
    order = np.argsort(starts, kind="stable")
    rest, starts = rest.take(pa.array(order)), starts[order]
    cuts = np.flatnonzero(np.diff(starts)) + 1
    bounds = [0, *cuts.tolist(), len(starts)]
    return {
        int(starts[low]): rest.slice(low, high - low) for low, high in itertools.pairwise(bounds)
    }
