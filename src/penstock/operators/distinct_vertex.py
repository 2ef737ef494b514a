"""The vertex of distinct: which keys were seen, for ever or within a time.

With a time, kept rows of one key are more than ``within`` apart.  Event time is cut into buckets of
``within`` + 1 microseconds: a key has at most one kept row in each, and whatever is within reach of
a row lies in its bucket or in a neighbouring one.  So three look-ups by (key, bucket) decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.vertex import Time
from penstock.expressions.ordering import canonical, group_codes
from penstock.operators.grouping import array_of, sort_rows
from penstock.operators.grown import Grown
from penstock.operators.key_columns import micros
from penstock.operators.keyed_store import KeyedStore
from penstock.operators.stateful import StatefulVertex, batch_of, tables

__all__ = ["DistinctVertex"]

_BUCKET, _TIME = "$bucket", "$time"


class DistinctVertex(StatefulVertex):
    """Sends the first row of each key; remembers keys, and with a time when they were seen."""

    can_follow = True

    def __init__(self, columns: Sequence[str], within_us: int | None, time: str | None) -> None:
        super().__init__()
        self.columns = list(columns)
        self.within_us = within_us
        self.time = time
        timed = [] if within_us is None else [_BUCKET]
        self._store = KeyedStore([*timed, *self.columns])
        self._oldest: int | None = None  # no kept row is older

    def work(self, time: Time, received: list[tuple[int, pa.RecordBatch]]) -> None:
        rows = tables([batch for _, batch in received]) if received else None
        if self.within_us is None:
            if rows is not None:
                self._first_ever(rows, time)
            return
        if rows is not None:
            self._first_within(rows, self.within_us, time)
        self._forget(self.watermark(time), self.within_us)

    def waits(self) -> bool:
        return self.within_us is not None and len(self._store) > 0

    def _keys(self, rows: pa.Table) -> list[pa.Array]:
        return [canonical(array_of(rows, name)) for name in self.columns]

    def _first_ever(self, rows: pa.Table, time: Time) -> None:
        rows = sort_rows(rows)
        keys = self._keys(rows)
        _, first = group_codes(keys, rows.num_rows)
        index = pa.array(first)
        new = pa.Table.from_arrays([key.take(index) for key in keys], names=self.columns)
        found = self._store.find(new)
        unseen = pa.array(np.flatnonzero(found.slots < 0))
        if len(unseen):
            self._store.put(new.take(unseen))
            self.sendBy(0, batch_of(rows.take(index.take(unseen))), time)

    # -- within a time ---------------------------------------------------------------------------

    def _first_within(self, rows: pa.Table, within: int, time: Time) -> None:
        rows = self.timely(rows, str(self.time), self.before(time), time, 1)
        if not rows.num_rows:
            return
        rows = sort_rows(rows, [str(self.time)])
        times = micros(array_of(rows, str(self.time)))
        new = ~self._near(rows, times, within)
        rows, times = rows.filter(pa.array(new)), times[new]
        codes, _ = group_codes(self._keys(rows), rows.num_rows)
        kept = np.flatnonzero(_spaced(codes, times, within))
        if not len(kept):
            return
        rows, times = rows.take(pa.array(kept)), times[kept]
        self._store.put(self._entries(rows, times // (within + 1), times))
        oldest = int(times.min())
        self._oldest = oldest if self._oldest is None else min(self._oldest, oldest)
        self.sendBy(0, batch_of(rows), time)

    def _near(self, rows: pa.Table, times: Any, within: int) -> Any:
        """Which rows have a kept row of the same key within reach."""
        near = np.zeros(rows.num_rows, bool)
        for shift in (-1, 0, 1):
            buckets = times // (within + 1) + shift
            wanted = self._entries(rows, buckets, times)
            codes, first = group_codes(
                [array_of(wanted, name) for name in self._store.keys], rows.num_rows
            )
            found = self._store.find(wanted.take(pa.array(first)))
            kept = self._store.rows(found)
            if kept is None:
                continue
            seen, at = np.zeros(len(first), bool), np.zeros(len(first), np.int64)
            seen[found.known], at[found.known] = True, array_of(kept, _TIME).to_numpy()
            near |= seen[codes] & (np.abs(times - at[codes]) <= within)
        return near

    def _entries(self, rows: pa.Table, buckets: Any, times: Any) -> pa.Table:
        return pa.Table.from_arrays(
            [pa.array(buckets), *self._keys(rows), pa.array(times)],
            names=[_BUCKET, *self.columns, _TIME],
        )

    def _forget(self, watermark: int | None, within: int) -> None:
        """Drop what no timely row can be near to any more, once it is enough to be worth it."""
        if watermark is None or self._oldest is None or self._oldest + within >= watermark:
            return
        table = self._store.table()
        if table is None:
            return
        times = array_of(table, _TIME).to_numpy()
        gone = times < watermark - within
        if 2 * int(gone.sum()) < len(times):
            # The oldest half is still in use; look again when the watermark is past its middle.
            self._oldest = int(np.partition(times, len(times) // 2)[len(times) // 2])
            return
        self._store.replace(table.filter(pa.array(~gone)))
        self._oldest = int(times[~gone].min()) if not gone.all() else None

    # -- snapshots -------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Grown]:
        """One table ``seen``: the keys (with a time: and when); the last row of a key counts."""
        rows = self._store.history()
        return {} if rows is None or not rows.rows else {"seen": rows}

    def load(self, state: Mapping[str, Any]) -> None:
        if "seen" in state:
            self._store.load(state["seen"])
            if self.within_us is not None:
                self._oldest = int(pc.min(state["seen"].table().column(_TIME)).as_py())
        else:
            self._store.clear()
            self._oldest = None


def _spaced(codes: Any, times: Any, within: int) -> Any:
    """Which rows to keep so that those of one code are more than ``within`` apart, earliest first.

    ``times`` ascend.  From each row a pointer leads to the next row of its code that is far enough
    away; what can be reached from the first rows is kept.  Doubling the pointers finds it in a
    logarithmic number of steps.
    """
    rows = len(codes)
    order = np.lexsort((times, codes))
    code, at = codes[order], times[order]
    # (code, time) as one number in which searchsorted can look: ranks of times never overflow.
    distinct, rank = np.unique(at, return_inverse=True)
    far = np.searchsorted(distinct, at + within, side="right")
    width = len(distinct) + 1
    position = code * width + rank
    jump = np.searchsorted(position, code * width + far, side="left")
    jump[code[np.minimum(jump, rows - 1)] != code] = rows
    jump = np.append(jump, rows)
    kept = np.zeros(rows + 1, bool)
    kept[np.flatnonzero(np.append(True, code[1:] != code[:-1])) if rows else []] = True
    while (jump[:-1] < rows).any():
        kept[jump[kept]] = True
        jump = jump[jump]
    out = np.zeros(rows, bool)
    out[order] = kept[:rows]
    return out
