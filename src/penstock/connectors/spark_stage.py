"""A stage whose work is a Spark job: what it does, the sink in front of it, the source behind it.

In the flow such a stage is two ends of nothing: rows of completed epochs go into files (as with
``parquet()``), the driver hands them to the user's function as a DataFrame, and the result comes
back as a source that follows a folder.  No edge joins the two, so a lost host on either side is no
matter of the other's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from penstock.connectors.base import Position, Reader, Source, SourceContext
from penstock.connectors.file_formats import SparkParquet
from penstock.connectors.parquet import ParquetCommit, ParquetWrite
from penstock.connectors.spark_folder import Range, StageFolder
from penstock.durations import Duration, duration_us
from penstock.errors import SchemaError, SettingsError, SourceError, unreachable
from penstock.expressions import describe_expression, parse_schema

__all__ = ["SparkCommit", "SparkResults", "SparkWork", "SparkWrite"]

POLL_S = 0.05


class SparkWork:
    """What a stage hands to Spark, how often, and what it expects back; stays on the driver."""

    def __init__(
        self,
        func: Callable[..., Any],
        schema: Any,
        every: Duration,
        retries: int,
        keep: str | int,
    ) -> None:
        if not callable(func):
            raise SettingsError(
                f"spark: expected a function of a DataFrame, got {type(func).__name__}"
            )
        self.func = func
        self.takes_epoch = _parameters(func) > 1
        self.schema = _schema(schema)
        self.input_schema: pa.Schema | None = None
        self.every_epochs, self.every_us = _every(every)
        self.every = f"{every} epochs" if self.every_epochs else str(every)
        if not _is_count(retries, 0):
            raise SettingsError(f"spark: retries is a whole number from 0 up, got {retries!r}")
        self.retries = retries
        if keep not in ("window", "all") and not _is_count(keep, 1):
            raise SettingsError(
                "spark: keep is 'window' (the rows since the last call), 'all' (every row so far) "
                f"or a number of epochs, got {keep!r}"
            )
        self.keep = keep
        self.path: str | None = None
        """The stage's folder, known when a run begins."""
        self.temporary: TemporaryDirectory[str] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _inert, (self.path,)

    @property
    def folder(self) -> StageFolder:
        """The stage's folder."""
        if self.path is None:
            unreachable("a stage with Spark jobs has no folder yet")
        return StageFolder(self.path)

    def since(self, epochs: Range) -> int:
        """The first epoch whose rows a call for this range is given."""
        if self.keep == "window":
            return epochs.first
        return 0 if self.keep == "all" else min(epochs.first, epochs.last - int(self.keep) + 1)

    def kept_from(self, epochs: Range) -> int:
        """The first epoch that a call after this range's may be given."""
        if self.keep == "window":
            return epochs.last + 1
        return 0 if self.keep == "all" else epochs.last + 2 - int(self.keep)

    @property
    def func_name(self) -> str:
        """The function, for people."""
        return describe_expression(self.func)

    def describe(self) -> str:
        """The function and how often it is called."""
        return f"{self.func_name} every {self.every}"


class SparkWrite(ParquetWrite):
    """Writes each shard's rows of each epoch, for a job to read."""

    kind = "spark_write"

    def __init__(self, work: SparkWork) -> None:
        self.work = work

    def output_schemas(self, inputs: Any) -> tuple[pa.Schema, ...]:
        self.work.input_schema = inputs[0]
        return super().output_schemas(inputs)

    def settle(self) -> None:
        """The run's folder is known."""
        self.path = str(self.work.folder.input)

    def describe(self) -> str:
        return ""


class SparkCommit(ParquetCommit):
    """Publishes completed epochs; from here on they are the driver's to hand over."""

    kind = "spark_input"

    def __init__(self, work: SparkWork) -> None:
        self.work = work

    def settle(self) -> None:
        """The run's folder is known."""
        self.path = str(self.work.folder.input)

    def target(self) -> None:
        return None  # it is in the flow's own store

    def prepare(self) -> None:
        super().prepare()
        self.work.folder.begin_run()

    def committed(self) -> int | None:
        known = [super().committed(), self.work.folder.done()]
        return max((epoch for epoch in known if epoch is not None and epoch >= 0), default=None)

    def describe(self) -> str:
        return self.work.describe()


class SparkResults(Source):
    """The rows that jobs gave, each at the epoch in which its job's result was there."""

    def __init__(self, work: SparkWork) -> None:
        self.work = work
        self.schema = work.schema

    def shards(self, wanted: int) -> int:
        return 1

    def open(self, context: SourceContext) -> Reader:
        return ResultsReader(self.work.folder, self.schema, context)

    def describe(self) -> str:
        return self.work.describe()


class ResultsReader(Reader):
    """Reads results in the order of their ranges; each is complete when it appears.

    A position is ``{"after": last epoch of the results that were read, "file": files read of the
    next one, "row": rows read of its next file}``.
    """

    def __init__(self, folder: StageFolder, schema: pa.Schema, context: SourceContext) -> None:
        self._folder = folder
        self._schema = schema
        position = context.position or {"after": -1, "file": 0, "row": 0}
        self._after: int = position["after"]
        self._file: int = position["file"]
        self._row: int = position["row"]
        self._range: Range | None = None
        self._parts: list[Path] = []
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._batch: pa.RecordBatch | None = None
        self._results = 0

    @property
    def counters(self) -> Mapping[str, int]:
        return {"results_read": self._results}

    def read(self, rows_max: int, now_us: int, until: Position = None) -> pa.RecordBatch | None:
        end = None if until is None else _key(until)
        taken: list[pa.RecordBatch] = []
        room = rows_max
        while room and (end is None or _key(self.position()) < end):
            if self._batch is None:
                if not self._advance(end) or (taken and self._range is None):
                    break  # a batch never has rows of two results
                continue
            n = min(room, self._batch.num_rows)
            if end is not None and end[:2] == (self._after, self._file):
                n = min(n, end[2] - self._row)
            taken.append(self._batch.slice(0, n))
            self._batch = self._batch.slice(n) if n < self._batch.num_rows else None
            self._row += n
            room -= n
        return pa.concat_batches(taken) if taken else None

    def epoch_ended(self) -> bool | None:
        return None if self._range is None else False  # a result stays together

    def position(self) -> Position:
        return {"after": self._after, "file": self._file, "row": self._row}

    def exhausted(self) -> bool:
        if self._range is not None:
            return False
        last = self._folder.ended()
        return last is not None and self._after >= last

    def pending(self) -> bool:
        return self._folder.has_after(self._after)  # with or without a result so far

    def wait_s(self, now_us: int) -> float:
        return POLL_S

    def release(self, position: Position) -> None:
        self._folder.release(position["after"])

    def close(self) -> None:
        self._leave()

    # -- one result ------------------------------------------------------------------------------

    def _advance(self, end: tuple[int, int, int] | None) -> bool:
        """Get the next rows, or move to the next file or result; False: there is none yet."""
        if self._range is None and not self._next_result():
            if end is not None:
                raise SourceError(
                    f"spark: the result after epoch {self._after} must be read again, but is not "
                    f"in {self._folder.path} any more; put it back, or start with a new "
                    "checkpointLocation",
                    path=str(self._folder.path),
                )
            return False
        if self._file >= len(self._parts):
            self._after = self._range.last if self._range is not None else self._after
            self._range, self._file, self._row = None, 0, 0
            self._results += 1
            return True
        if self._batches is None:
            path = str(self._parts[self._file])
            self._batches = SparkParquet({}).batches(path, self._schema, False, self._row)
        batch = next(self._batches, None)
        if batch is None:
            self._leave()
            self._file, self._row = self._file + 1, 0
        elif batch.num_rows:
            self._batch = batch
        return True

    def _next_result(self) -> bool:
        self._range = next((r for r in self._folder.results() if r.last > self._after), None)
        self._parts = [] if self._range is None else self._folder.parts(self._range)
        return self._range is not None

    def _leave(self) -> None:
        batches, self._batches, self._batch = self._batches, None, None
        if batches is not None and hasattr(batches, "close"):
            batches.close()


def _key(position: Mapping[str, int]) -> tuple[int, int, int]:
    return position["after"], position["file"], position["row"]


def _inert(path: str | None) -> SparkWork:
    """What of a stage's work the hosts get: where its files are."""
    work = SparkWork(_left_on_the_driver, pa.schema([]), 1, 0, "window")
    work.path = path
    return work


def _left_on_the_driver(frame: Any) -> Any:
    unreachable("a stage's Spark function ran outside the driver")


def _parameters(func: Callable[..., Any]) -> int:
    try:
        return len(inspect.signature(func).parameters)
    except (TypeError, ValueError):
        return 1


def _schema(schema: Any) -> pa.Schema:
    """A schema as Arrow, DDL or PySpark's StructType."""
    fields = getattr(schema, "fields", None)
    if fields is not None and not isinstance(schema, pa.Schema | str):
        columns = []
        for field in fields:
            null = "" if field.nullable else " NOT NULL"
            columns.append(f"`{field.name}` {field.dataType.simpleString()}{null}")
        schema = ", ".join(columns)
    if schema is None:
        raise SchemaError(
            "spark: say what the function returns with schema=..., such as 'id bigint, score "
            "double'"
        )
    return parse_schema(schema, what="spark")


def _every(every: Duration) -> tuple[int | None, int | None]:
    """A number of epochs, or a time in microseconds."""
    if isinstance(every, int) and not isinstance(every, bool):
        if every < 1:
            raise SettingsError(f"spark: every must be at least 1 epoch, got {every}")
        return every, None
    us = duration_us(every, "every")
    if not us:
        raise SettingsError(f"spark: every must be longer than nothing, got {every!r}")
    return None, us


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
