"""The vertex of the stream join: rows kept per side, found by the hash of their keys.

Each side keeps its rows in a few tables ("runs"), each sorted by event time and with an index of
its keys' hashes.  An epoch's new rows are looked up in the other side's runs by binary search; keys
themselves are compared afterwards.  Runs are joined while the older is not much larger, so a row is
sorted a logarithmic number of times, and an epoch costs what its own rows and matches cost.

Rows that the watermark has passed are a prefix of each run: they no longer match, and leave memory
when they are half of their run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.vertex import Time
from penstock.expressions.ordering import bits, canonical
from penstock.operators.grouping import array_of, sort_rows
from penstock.operators.grown import Grown, Lineage
from penstock.operators.key_columns import micros
from penstock.operators.key_hash import key_hashes
from penstock.operators.stateful import StatefulVertex, batch_of, tables

__all__ = ["JoinVertex"]


class _Run:
    """Rows of one side in the order of their event times, and an index by key."""

    def __init__(self, table: pa.Table, on: Sequence[str], time: str, matched: Any = None) -> None:
        times = micros(array_of(table, time))
        order = np.argsort(times, kind="stable")
        self.table = table.take(pa.array(order))
        self.times = times[order]
        self.matched = np.zeros(len(times), bool) if matched is None else matched[order]
        self.lineage: object = Lineage()
        self.passed = 0
        """Rows before this one have been passed by the watermark."""
        self.keys = [array_of(self.table, name) for name in on]
        hashes = key_hashes(self.keys, len(times))
        self.by_hash = np.argsort(hashes, kind="stable")
        self.hashes = hashes[self.by_hash]

    def __len__(self) -> int:
        return len(self.times)

    def kept(self) -> pa.Table:
        """The rows that the watermark has not passed."""
        return self.table.slice(self.passed)

    def matches(self, keys: list[pa.Array], hashes: Any, times: Any, within: int) -> Any:
        """Pairs (row of theirs, row of ours) with equal keys and times at most ``within`` apart."""
        low = np.searchsorted(self.hashes, hashes, side="left")
        count = np.searchsorted(self.hashes, hashes, side="right") - low
        theirs = np.repeat(np.arange(len(hashes)), count)
        step = np.arange(len(theirs)) - np.repeat(np.cumsum(count) - count, count)
        ours = self.by_hash[np.repeat(low, count) + step]
        near = (np.abs(times[theirs] - self.times[ours]) <= within) & (ours >= self.passed)
        theirs, ours = theirs[near], ours[near]
        for one, other in zip(keys, self.keys, strict=True):
            same = pc.equal(bits(one).take(pa.array(theirs)), bits(other).take(pa.array(ours)))
            chosen = pc.fill_null(same, False).to_numpy(zero_copy_only=False)
            if not chosen.all():
                theirs, ours = theirs[chosen], ours[chosen]
        return theirs, ours


class JoinVertex(StatefulVertex):
    """Joins the two inputs; see :class:`penstock.operators.join.Join`."""

    def __init__(
        self,
        on: Sequence[str],
        how: str,
        within_us: int,
        times: Sequence[str],
        right: pa.Schema | None = None,
    ) -> None:
        super().__init__()
        self.on = list(on)
        self.how = how
        self.within_us = within_us
        self.times = tuple(times)
        self._sides: tuple[list[_Run], list[_Run]] = ([], [])
        self._schemas: list[pa.Schema | None] = [None, right]

    def work(self, time: Time, received: list[tuple[int, pa.RecordBatch]]) -> None:
        before, now = self.before(time), self.watermark(time)
        fresh: list[_Run | None] = []
        for port in (0, 1):
            batches = [batch for where, batch in received if where == port]
            fresh.append(self._accepted(port, batches, before, time) if batches else None)
        pieces: list[pa.Table] = []
        left, right = fresh
        if left is not None:
            for run in [*self._sides[1], *([right] if right is not None else [])]:
                mine, theirs = self._pairs(left, run)
                left.matched[mine] = True
                pieces.append(self._paired(left.table, mine, run.table, theirs))
        if right is not None:
            for run in self._sides[0]:
                mine, theirs = self._pairs(right, run)
                run.matched[theirs] = True
                pieces.append(self._paired(run.table, theirs, right.table, mine))
        for port, new in enumerate(fresh):
            if new is not None:
                self._keep(port, new)
        if now is not None:
            pieces += self._pass(now)
        pieces = [piece for piece in pieces if piece.num_rows]
        if pieces:
            self.sendBy(0, batch_of(sort_rows(pa.concat_tables(pieces).combine_chunks())), time)

    def waits(self) -> bool:
        return any(len(run) > run.passed for side in self._sides for run in side)

    # -- input -----------------------------------------------------------------------------------

    def _accepted(
        self, port: int, batches: list[pa.RecordBatch], before: int | None, time: Time
    ) -> _Run | None:
        """The rows of an epoch that are not late, keys first."""
        at = self.times[port]
        oldest = None if before is None else before - self.within_us
        rows = self.timely(tables(batches), at, oldest, time, 1 + port)
        if before is not None and (behind := micros(array_of(rows, at)) < before).any():
            self.count("rows_behind", int(behind.sum()))
        rest = [name for name in rows.column_names if name not in self.on]
        columns = [canonical(array_of(rows, name)) for name in self.on]
        columns += [array_of(rows, name) for name in rest]
        rows = pa.Table.from_arrays(columns, names=[*self.on, *rest])
        self._schemas[port] = rows.schema
        if self.how == "inner" or port == 1:  # a null key matches nothing
            for name in self.on:
                key = array_of(rows, name)
                rows = rows.filter(key.is_valid()) if key.null_count else rows
        return _Run(rows.combine_chunks(), self.on, self.times[port]) if rows.num_rows else None

    def _keep(self, port: int, run: _Run) -> None:
        side = self._sides[port]
        side.append(run)
        while len(side) > 1 and len(side[-2]) <= 2 * len(side[-1]):
            last, previous = side.pop(), side.pop()
            table = pa.concat_tables([previous.kept(), last.kept()]).combine_chunks()
            matched = [previous.matched[previous.passed :], last.matched[last.passed :]]
            side.append(_Run(table, self.on, self.times[port], np.concatenate(matched)))

    # -- output ----------------------------------------------------------------------------------

    def _pairs(self, mine: _Run, other: _Run) -> Any:
        hashes = np.empty(len(mine), np.uint64)
        hashes[mine.by_hash] = mine.hashes
        return other.matches(mine.keys, hashes, mine.times, self.within_us)

    def _paired(self, left: pa.Table, mine: Any, right: pa.Table, theirs: Any) -> pa.Table:
        one = left.take(pa.array(mine))
        other = right.select(right.column_names[len(self.on) :]).take(pa.array(theirs))
        for name in other.column_names:
            one = one.append_column(name, other.column(name))
        return one

    def _pass(self, now: int) -> list[pa.Table]:
        """Move on to a new watermark; for a left join, the rows that stayed alone."""
        alone = []
        for port, side in enumerate(self._sides):
            for run in side:
                passed = int(np.searchsorted(run.times, now - self.within_us, side="left"))
                if port == 0 and self.how == "left" and passed > run.passed:
                    rows = np.arange(run.passed, passed)
                    rows = rows[~run.matched[run.passed : passed]]
                    alone.append(self._with_nulls(run.table.take(pa.array(rows))))
                run.passed = max(run.passed, passed)
            side[:] = [self._trimmed(port, run) for run in side if run.passed < len(run)]
        return alone

    def _trimmed(self, port: int, run: _Run) -> _Run:
        if 2 * run.passed < len(run):
            return run
        table = run.kept().combine_chunks()
        return _Run(table, self.on, self.times[port], run.matched[run.passed :])

    def _with_nulls(self, rows: pa.Table) -> pa.Table:
        for field in self._right_fields():
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        return rows

    def _right_fields(self) -> list[pa.Field]:
        schema = self._schemas[1]
        return [] if schema is None else list(schema)[len(self.on) :]

    # -- snapshots -------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """``left`` and ``right``: per run its rows, how many are passed, which were matched."""
        out = {}
        for port, name in enumerate(("left", "right")):
            told = port == 0 and self.how == "left"
            runs = [
                (
                    Grown.of(run.table, run.lineage),
                    run.passed,
                    np.packbits(run.matched) if told else None,
                )
                for run in self._sides[port]
            ]
            if runs:
                out[name] = runs
        return out

    def load(self, state: Mapping[str, Any]) -> None:
        for port, name in enumerate(("left", "right")):
            for rows, passed, packed in state.get(name, ()):
                table = rows.table().combine_chunks()
                matched = None
                if packed is not None:
                    matched = np.unpackbits(packed, count=table.num_rows).astype(bool)
                self._schemas[port] = table.schema
                run = _Run(table, self.on, self.times[port], matched)
                run.passed, run.lineage = passed, rows.lineage
                self._sides[port].append(run)
