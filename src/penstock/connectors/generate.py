"""Rows made by a function of their offset: rate-limited, sharded, replayable from any offset.

Offsets are dealt out to the shards so that all of them advance together in whatever grows with the
offset, event time above all:

- a function with a parameter ``stride`` is asked for rows ``offset, offset + stride, ...``: shard
  ``s`` of ``S`` makes every ``S``-th row, in one call per batch;
- any other function makes contiguous rows: block ``b`` of ``block`` rows belongs to shard
  ``b % S``, and a block is about a millisecond of the total rate.

A position is the number of rows that the shard has made.  What maps it to offsets (the block and
the number of shards) is journalled with the first epoch, so a changed rate does not move rows.

Rows are due by the wall clock, counted from the start of the run.  A new run goes on at its
recorded position from the moment it first reads; a reader that is opened again within a run keeps
up with its siblings, because the run's origin is journalled as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.connectors.base import Position, Reader, Source, SourceContext
from penstock.errors import SchemaError, SettingsError, SourceError
from penstock.operators.conform import Conform

__all__ = ["Generate"]

BLOCK_ROWS_MAX = 65_536
_BLOCK_S = 0.001
_JOIN_ROWS = 16_384
"""Blocks are joined (copied) into a batch only up to this many rows."""
_UNLIMITED = 1 << 62
_VALVE_S = 0.005
"""How often a source with a valve looks whether it was opened."""


class Generate(Source):
    """``function(offset, n)`` or ``function(offset, n, stride)``, asked for ever new offsets."""

    def __init__(
        self,
        function: Callable[..., pa.RecordBatch],
        rate: float | None = None,
        rows: int | None = None,
        shards: int | None = None,
        schema: pa.Schema | None = None,
        start_us: int | None = None,
    ) -> None:
        if not callable(function):
            raise SettingsError(
                f"generate: expected a function of (offset, n), got {type(function).__name__}"
            )
        if rate is not None and not rate > 0:
            raise SettingsError(f"generate: rate must be above 0 rows per second, got {rate!r}")
        if rows is not None and rows < 0:
            raise SettingsError(f"generate: rows must be 0 or more, got {rows!r}")
        if shards is not None and shards < 1:
            raise SettingsError(f"generate: shards must be 1 or more, got {shards!r}")
        self.function = function
        self.rate = rate
        self.rows = rows
        self.shards_wanted = shards
        self.start_us = start_us
        """Wall clock at which the first row is due; None: when the run starts."""
        self.valve: Callable[[int], int] | None = None
        """Maps the rows due by the clock to the rows handed out.  Tests hold input back with it."""
        self.strided = _takes_stride(function)
        self.schema = schema if schema is not None else self._inferred()

    def shards(self, wanted: int) -> int:
        return self.shards_wanted or max(1, wanted)

    def open(self, context: SourceContext) -> Reader:
        if context.available_now and self.rows is None:
            raise SourceError(
                "generate: a run with availableNow never ends without rows=...; say how many rows "
                "to make"
            )
        return GenerateReader(self, context)

    def describe(self) -> str:
        parts = [getattr(self.function, "__qualname__", type(self.function).__name__)]
        if self.rate is not None:
            parts.append(f"rate={self.rate:g}/s")
        if self.rows is not None:
            parts.append(f"rows={self.rows}")
        return ", ".join(parts)

    def block_rows(self) -> int:
        """Rows per block of a function without stride: about a millisecond's worth."""
        if self.rate is None:
            return BLOCK_ROWS_MAX
        return max(1, min(BLOCK_ROWS_MAX, round(self.rate * _BLOCK_S)))

    def make(self, offset: int, n: int, stride: int, conform: Conform) -> pa.RecordBatch:
        """Call the function and check what it gives."""
        if self.strided:
            batch = self.function(offset, n, stride=stride)
        else:
            batch = self.function(offset, n)
        batch = conform(batch)
        if batch.num_rows != n:
            raise SourceError(
                f"generate: asked for {n} rows from offset {offset}, the function gave "
                f"{batch.num_rows}",
                offset=offset,
            )
        return batch

    def _inferred(self) -> pa.Schema:
        """The schema of the function's rows, seen by asking for none or for one."""
        failure: Exception | None = None
        for n in (1, 0):  # no rows may leave a type open
            try:
                batch = self.function(0, n, stride=1) if self.strided else self.function(0, n)
            except Exception as error:
                failure = error
                continue
            if not isinstance(batch, pa.RecordBatch):
                raise SchemaError(
                    f"generate: the function must give a pyarrow RecordBatch, got a "
                    f"{type(batch).__name__}"
                )
            return batch.schema
        raise SourceError(
            f"generate: cannot find out the schema, the function raised "
            f"{type(failure).__name__} for (0, 1): {failure}; mend it, or give schema=..."
        ) from failure


class GenerateReader(Reader):
    """One shard: maps its own row numbers to offsets and keeps to the rate."""

    def __init__(self, source: Generate, context: SourceContext) -> None:
        self._source = source
        who = f"source {context.stage!r}: generate: the function"
        self._conform = Conform(source.schema, who, SchemaError)
        self._shard = context.shard
        self._shards = context.shards
        self._made: int = context.position or 0
        self._started_us = context.started_us
        self._block = 1 if source.strided else source.block_rows()
        # Due rows over all shards are (now - origin) * rate; None: decided by the first read.
        self._origin_us: float | None = None
        self._per_us = None if source.rate is None else source.rate / 1e6
        self._told = False
        for entry in context.journal:
            self._recall(entry)
        if context.position is None and self._origin_us is None:
            start_us = context.started_us if source.start_us is None else source.start_us
            self._origin_us = float(start_us)
        self._total = _UNLIMITED if source.rows is None else self._owned(source.rows)

    def read(self, rows_max: int, now_us: int, until: Position = None) -> pa.RecordBatch | None:
        if until is not None:
            ready = until - self._made
        else:
            ready = self._due(now_us) - self._made
        n = min(rows_max, ready)
        if n <= 0:
            return None
        return self._make(n)

    def read_again(self, rows: int) -> pa.RecordBatch | None:
        n = min(rows, self._total - self._made)
        return self._make(n) if n > 0 else None

    def position(self) -> Position:
        return self._made

    def journal(self) -> Any | None:
        if self._told or (self._per_us is not None and self._origin_us is None):
            return None
        self._told = True
        entry: dict[str, Any] = {
            "block": self._block,
            "shards": self._shards,
            "strided": self._source.strided,
        }
        if self._per_us is not None:
            entry["run_us"] = self._started_us
            entry["rate"] = self._source.rate
            entry["origin_us"] = self._origin_us
        return entry

    def exhausted(self) -> bool:
        return self._made >= self._total

    def pending(self) -> bool:
        return not self.exhausted()

    def wait_s(self, now_us: int) -> float:
        if self._per_us is None or self._origin_us is None:
            return 0.0
        due_us = self._origin_us + (self._offset(self._made) + 1) / self._per_us
        if self._source.valve is not None and due_us <= now_us:
            return _VALVE_S
        return min(0.1, max(0.0001, (due_us - now_us) / 1e6))

    # -- offsets ---------------------------------------------------------------------------------

    def _offset(self, number: int) -> int:
        """The offset of this shard's ``number``-th row."""
        block, within = divmod(number, self._block)
        return (block * self._shards + self._shard) * self._block + within

    def _owned(self, end: int) -> int:
        """How many offsets below ``end`` are this shard's."""
        rounds, rest = divmod(end, self._block * self._shards)
        return rounds * self._block + min(max(rest - self._shard * self._block, 0), self._block)

    def _due(self, now_us: int) -> int:
        due = _UNLIMITED
        if self._per_us is not None:
            if self._origin_us is None:
                # A new run goes on where the last one ended, as if no time had passed.
                self._origin_us = now_us - self._offset(self._made) / self._per_us
            due = max(0, int((now_us - self._origin_us) * self._per_us))
        if self._source.valve is not None:
            due = self._source.valve(due)
        return min(self._owned(due), self._total)

    def _make(self, n: int) -> pa.RecordBatch:
        source = self._source
        if source.strided or self._shards == 1:
            batch = source.make(self._offset(self._made), n, self._shards, self._conform)
            self._made += n
            return batch
        batches: list[pa.RecordBatch] = []
        rows = 0
        while rows < n and (not batches or rows < _JOIN_ROWS):
            take = min(n - rows, self._block - self._made % self._block)
            if batches and rows + take > max(_JOIN_ROWS, self._block):
                break
            batches.append(source.make(self._offset(self._made), take, 1, self._conform))
            self._made += take
            rows += take
        if len(batches) == 1:
            return batches[0]
        return pa.concat_batches(batches)

    def _recall(self, entry: dict[str, Any]) -> None:
        """Take the mapping of an earlier run, and its origin if it is this run's."""
        source = self._source
        if entry["shards"] != self._shards:
            raise SourceError(
                f"generate: the recorded positions are of {entry['shards']} shards, now there are "
                f"{self._shards}; start with shards={entry['shards']}, or with a new "
                "checkpointLocation",
                shards=self._shards,
            )
        if entry["strided"] != source.strided:
            raise SourceError(
                "generate: the recorded positions are of a function "
                f"{'with' if entry['strided'] else 'without'} a stride parameter; keep it so, or "
                "start with a new checkpointLocation"
            )
        self._block = entry["block"]
        if entry.get("run_us") == self._started_us and entry.get("rate") == source.rate:
            self._origin_us = entry["origin_us"]
            self._told = True


def _takes_stride(function: Callable[..., Any]) -> bool:
    try:
        return "stride" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
