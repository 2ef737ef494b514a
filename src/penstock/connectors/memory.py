"""Rows pushed from the driver, and rows kept on the driver: for tests and small results.

Both live in the driver's process and die with it.  The source can be read again from any position
that was not truncated, so a flow restarted in the same process repeats itself; what an earlier
process pushed is gone, and asking for it is an error rather than a silent gap.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.connectors.base import Position, Reader, Source, SourceContext
from penstock.connectors.driver import DriverSink
from penstock.errors import SchemaError, SettingsError, SourceError
from penstock.operators.conform import Conform

__all__ = ["MemorySink", "MemorySource", "Rows"]

Rows: TypeAlias = "pa.RecordBatch | pa.Table | Sequence[Mapping[str, Any]] | Mapping[str, Any]"
"""What can be pushed: Arrow data, a list of dicts, or a dict of lists."""

UNREAD_ROWS_MAX = 1_000_000
UNREAD_BYTES_MAX = 64 << 20


class MemorySource(Source):
    """A source that the driver pushes rows into; one shard, positions are numbers of rows."""

    on_driver = True
    caveat = "rows that were pushed and are not published yet are gone when the driver ends"

    def __init__(
        self,
        schema: pa.Schema,
        *,
        manual_epochs: bool = False,
        rows_max: int = UNREAD_ROWS_MAX,
        bytes_max: int = UNREAD_BYTES_MAX,
    ) -> None:
        if not isinstance(schema, pa.Schema):
            raise SchemaError(f"memory: expected a pyarrow schema, got {type(schema).__name__}")
        self.schema = schema
        self.manual_epochs = manual_epochs
        """Whether epochs end where ``close_epoch`` says, and nowhere else."""
        self.on_push: Callable[[], None] | None = None
        """Called after every push and after close, from the pushing thread."""
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._changed = threading.Condition()
        self._batches: list[pa.RecordBatch] = []
        self._starts: list[int] = []
        self._end = 0
        self._base = 0
        self._read_to = 0
        self._unread_bytes = 0
        self._closed = False
        self._ends: list[int] = []
        self._failure: BaseException | None = None
        self._readers = 0
        self._opened = False

    def __reduce__(self) -> tuple[Any, ...]:
        return MemorySource, (self.schema,)

    def describe(self) -> str:
        return "memory"

    def shards(self, wanted: int) -> int:
        return 1

    def open(self, context: SourceContext) -> Reader:
        return MemoryReader(self, context)

    # -- the user's side -------------------------------------------------------------------------

    def push(self, rows: Rows, timeout: float | None = None) -> None:
        """Add rows; waits while the flow is behind.

        Raises TimeoutError after ``timeout`` seconds, with none of the rows added.
        """
        batches = [batch for batch in _to_batches(rows, self.schema) if batch.num_rows]
        with self._changed:
            self._wait_for_room(timeout)
            for batch in batches:
                self._batches.append(batch)
                self._starts.append(self._end)
                self._end += batch.num_rows
                self._unread_bytes += batch.nbytes
            self._changed.notify_all()
        self._wake()

    def close_epoch(self) -> None:
        """End the current epoch after the rows pushed so far."""
        if not self.manual_epochs:
            raise SettingsError(
                "closeEpoch: the epochs of this stream end by the clock; make the stream with "
                "flow.memory(schema, manualEpochs=True) to end them yourself"
            )
        with self._changed:
            self._ends.append(self._end)
        self._wake()

    def close(self) -> None:
        """Say that no more rows will be pushed; the flow ends when it has used up what there is."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._wake()

    @property
    def end(self) -> int:
        """How many rows were pushed so far."""
        return self._end

    @property
    def read_to(self) -> int:
        """How many of them the flow has read."""
        return self._read_to

    def _wait_for_room(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._failure is not None:
                raise SourceError(f"push: the flow has failed: {self._failure}") from self._failure
            if self._closed:
                raise SourceError("push: the stream is closed")
            if not self._full():
                return
            if not self._readers:
                raise SourceError(
                    f"push: {self._end - self._read_to} rows wait and no flow reads them; "
                    "start the flow before pushing more"
                )
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(
                    f"push: no room within {timeout} s, {self._end - self._read_to} rows wait"
                )
            self._changed.wait(left)

    def _full(self) -> bool:
        unread = self._end - self._read_to
        return unread > 0 and (unread >= self._rows_max or self._unread_bytes >= self._bytes_max)

    # -- the engine's side -----------------------------------------------------------------------

    def truncate(self, position: Position) -> None:
        """Forget rows before a position from which no reader starts again."""
        with self._changed:
            drop = bisect_right(self._starts, min(position or 0, self._read_to)) - 1
            if drop > 0:
                del self._batches[:drop], self._starts[:drop]
                self._base = self._starts[0]

    def fail(self, error: BaseException) -> None:
        """The flow failed: wake and refuse those who push."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _wake(self) -> None:
        wake = self.on_push
        if wake is not None:
            wake()


class MemoryReader(Reader):
    """Reads what was pushed, from any position that was not truncated."""

    def __init__(self, source: MemorySource, context: SourceContext) -> None:
        self._source = source
        wanted = context.position or 0
        with source._changed:
            if not source._opened:
                # A new process: what it pushes comes after what earlier ones did.
                shift = max(wanted, context.recorded or 0)
                source._starts = [start + shift for start in source._starts]
                source._ends = [end + shift for end in source._ends]
                source._base += shift
                source._end += shift
            if wanted < source._base or wanted > source._end:
                raise SourceError(
                    f"memory: rows from {wanted} on are wanted, but only {source._base} to "
                    f"{source._end} are kept: the rest was pushed in an earlier process, which "
                    "ended before they were published. Start with a new checkpointLocation and "
                    "push again what was not published, or use a source that can be read again",
                    position=wanted,
                )
            source._opened = True
            source._readers += 1
            source._failure = None
            source._read_to = wanted
            source._unread_bytes = sum(
                batch.nbytes
                for start, batch in zip(source._starts, source._batches, strict=True)
                if start >= wanted
            )
            self._stop_at = source._end if context.available_now else None
        self._next = wanted
        self._closed = False
        self._ends_passed = bisect_left(source._ends, wanted)
        if context.position is not None:
            self._pass_ends(wanted)

    def read(self, rows_max: int, now_us: int, until: Position = None) -> pa.RecordBatch | None:
        source = self._source
        with source._changed:
            end = source._end
            if until is not None:
                if until > end:
                    raise SourceError(
                        f"memory: the rows up to {until} must be read again, but only {end} are "
                        "here; rows pushed in an earlier process are gone",
                        position=until,
                    )
                end = until
            elif self._stop_at is not None:
                end = self._stop_at
            if until is None and self._ends_passed < len(source._ends):
                end = min(end, source._ends[self._ends_passed])
            if self._next >= end:
                if until is not None:
                    self._pass_ends(until)
                return None
            taken: list[pa.RecordBatch] = []
            room = min(rows_max, end - self._next)
            index = bisect_right(source._starts, self._next) - 1
            while room > 0:
                batch = source._batches[index]
                skip = self._next - source._starts[index]
                taken.append(batch.slice(skip, room))
                self._next += taken[-1].num_rows
                room -= taken[-1].num_rows
                if skip + taken[-1].num_rows == batch.num_rows:
                    source._unread_bytes = max(0, source._unread_bytes - batch.nbytes)
                index += 1
            source._read_to = self._next
            source._changed.notify_all()
            return taken[0] if len(taken) == 1 else pa.concat_batches(taken)

    def position(self) -> Position:
        return self._next

    def epoch_ended(self) -> bool | None:
        source = self._source
        if not source.manual_epochs:
            return None
        with source._changed:
            passed = self._ends_passed
            if passed < len(source._ends) and source._ends[passed] == self._next:
                self._ends_passed += 1
                return True
        return False

    def _pass_ends(self, position: int) -> None:
        """The epochs up to a recorded position have ended already."""
        self._ends_passed = bisect_right(self._source._ends, position)

    def exhausted(self) -> bool:
        source = self._source
        with source._changed:
            if self._ends_passed < len(source._ends):
                return False
            if self._stop_at is not None and self._next >= self._stop_at:
                return True
            return source._closed and self._next >= source._end

    def pending(self) -> bool:
        # Where the user ends epochs, an empty one is meant to be empty.
        return not self._source.manual_epochs and self._next < self._source.end

    def wait_s(self, now_us: int) -> float:
        return 0.002 if self._source.on_push is None else 0.1

    def release(self, position: Position) -> None:
        self._source.truncate(position)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with self._source._changed:
                self._source._readers -= 1
                self._source._changed.notify_all()


class MemorySink(DriverSink):
    """Keeps the rows of completed epochs.

    Within an epoch rows are in the order of their arrival, which may differ from run to run.
    """

    kind = "memory_sink"
    caveat = "its rows are gone when the driver ends, and after a restart it gets later ones only"

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._epochs: dict[int, pa.Table] = {}
        self._complete = -1
        self._ended = False
        self._failure: BaseException | None = None

    # -- the user's side -------------------------------------------------------------------------

    def toTable(self) -> pa.Table:
        """All rows so far, epoch by epoch."""
        epochs = self.epochs()
        if not epochs:
            return (self.schema or pa.schema([])).empty_table()
        return pa.concat_tables(epochs.values())

    def toPylist(self) -> list[dict[str, Any]]:
        """All rows so far as dicts, epoch by epoch."""
        return self.toTable().to_pylist()

    def epochs(self) -> dict[int, pa.Table]:
        """The rows of each completed epoch that has any, in the order of the epochs."""
        with self._changed:
            return {epoch: self._epochs[epoch] for epoch in sorted(self._epochs)}

    def clear(self) -> None:
        """Forget all rows."""
        with self._changed:
            self._epochs.clear()

    def awaitEpoch(self, epoch: int, timeout: float | None = None) -> bool:
        """Wait until an epoch is complete; False when the flow ended or the time is up first."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._complete >= epoch or self._ended or self._failure is not None,
                timeout,
            )
            if self._failure is not None and self._complete < epoch:
                raise self._failure
            return self._complete >= epoch

    await_epoch = awaitEpoch

    # -- the engine's side -----------------------------------------------------------------------

    def begin(self) -> None:
        with self._changed:
            if self._ended or self._failure is not None:
                self._ended, self._failure, self._complete = False, None, -1

    def resume(self, epoch: int) -> None:
        self.advance(epoch - 1)

    def publish(self, epoch: int, rows: pa.Table) -> None:
        with self._changed:
            self._epochs[epoch] = rows  # named by the epoch: published twice changes nothing

    def advance(self, epoch: int) -> None:
        with self._changed:
            self._complete = max(self._complete, epoch)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()


def _to_batches(rows: Rows, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Rows of any accepted form as batches of exactly the schema."""
    if isinstance(rows, pa.RecordBatch | pa.Table):
        names, table = list(rows.schema.names), rows
    elif isinstance(rows, Mapping):
        names, table = list(rows), None
    else:
        rows = list(rows)
        names, table = _names_of(rows), None
    _check_names(names, schema, missing_is_null=isinstance(rows, list))
    try:
        if isinstance(rows, list):
            table = pa.Table.from_pylist(rows, schema=schema)
        elif table is None:
            table = pa.table(dict(rows), schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError) as error:
        raise SchemaError(f"push: the rows do not fit [{_names(schema)}]: {error}") from error
    conform = Conform(schema, "push", SchemaError)
    batches = [table] if isinstance(table, pa.RecordBatch) else table.to_batches()
    return [conform(batch) for batch in batches]


def _names_of(rows: Sequence[Any]) -> list[str]:
    names: dict[str, None] = {}
    for row in rows:
        if not isinstance(row, Mapping):
            raise SchemaError(
                f"push: expected a batch, a table, dicts or a dict of lists, got a "
                f"{type(row).__name__}"
            )
        names.update(dict.fromkeys(row))
    return list(names)


def _check_names(names: Sequence[str], schema: pa.Schema, missing_is_null: bool) -> None:
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise SchemaError(
            f"push: no column {unknown[0]!r} in [{_names(schema)}]", column=unknown[0]
        )
    missing = [name for name in schema.names if name not in names]
    if missing and not missing_is_null:
        raise SchemaError(f"push: column {missing[0]!r} is missing", column=missing[0])


def _names(schema: pa.Schema) -> str:
    return ", ".join(schema.names)
