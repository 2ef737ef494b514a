"""Flow and Stream: how a user writes a dataflow program.

A flow is inert data: stages, the connections between them, and their schemas.  Schemas are
propagated while the flow is built, so an unknown column or a wrong type is refused on the line
that wrote it.  Nothing runs before :meth:`Flow.start`.

    flow = Flow("views")
    events = flow.generate(make_events, rate=10_000)
    views = events.filter("event_type = 'view'").withWatermark("event_time", "1 second")
    counts = views.groupBy(F.window("event_time", "1 second"), "page").agg(F.count("*"))
    counts.parquet("/data/views")
    run = flow.start(spark, checkpointLocation="/data/checkpoint")
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

from penstock.connectors import console, files, foreach_batch, generate, memory, parquet
from penstock.connectors import subscribe as subscription
from penstock.connectors.base import Source
from penstock.durations import Duration, duration_us
from penstock.errors import GraphError, SchemaError, SettingsError
from penstock.functions import Aggregate, Window, avg, count, max, min, sum
from penstock.operators import (
    aggregate,
    distinct,
    filter,
    join,
    key_by,
    lookup,
    loop,
    map_in_arrow,
    project,
    union,
    user_vertex,
    watermark,
)
from penstock.operators import window as window_operator
from penstock.operators.base import Exchange, Forward, Operator, SourceOperator
from penstock.vertex import Vertex

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.engine.spark.query import FlowQuery

__all__ = ["Flow", "GroupedStream", "Loop", "MemoryStream", "Stream"]

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(eq=False)
class Input:
    """One input of a stage: an output port of another, and how rows find their shard."""

    stage: Stage
    port: int
    exchange: Exchange


@dataclass(eq=False)
class Stage:
    """A logical operator in its place in the flow."""

    index: int
    name: str
    operator: Operator
    inputs: tuple[Input, ...]
    outputs: tuple[pa.Schema, ...]
    shards: int | None = None
    named: bool = field(default=False)
    """Whether the user gave the name."""
    loop: Loop | None = None
    """The loop whose times its outputs carry."""


class Flow:
    """A dataflow program: stages and how they are connected.

    >>> flow = Flow("example")
    >>> numbers = flow.memory(pa.schema({"n": pa.int64()}))
    >>> numbers.filter("n > 1").schema.names
    ['n']
    """

    def __init__(self, name: str = "flow") -> None:
        self.name = _checked_name(name, "flow")
        self.stages: list[Stage] = []
        self._loops: list[Loop] = []

    def __repr__(self) -> str:
        return f"Flow({self.name!r}, {len(self.stages)} stages)"

    # -- sources ---------------------------------------------------------------------------------

    def source(self, source: Source, name: str | None = None) -> Stream:
        """A stream of any source's rows."""
        return self._stage(SourceOperator(source), (), name=name)

    def generate(
        self,
        function: Callable[[int, int], pa.RecordBatch],
        *,
        rate: float | None = None,
        rows: int | None = None,
        shards: int | None = None,
        schema: pa.Schema | None = None,
        startTime: datetime | None = None,
        name: str | None = None,
    ) -> Stream:
        """Rows made by ``function(offset, n)``: rows ``offset`` to ``offset + n - 1``.

        The function must give the same rows for the same offsets whenever it is asked.  ``rate``
        limits the rows per second over all shards, counted from ``startTime`` (by default when the
        flow starts); ``rows`` ends the stream.
        """
        start_us = None if startTime is None else round(startTime.timestamp() * 1_000_000)
        made = generate.Generate(
            function, rate=rate, rows=rows, shards=shards, schema=schema, start_us=start_us
        )
        return self.source(made, name or "generate")

    def files(
        self,
        path: str,
        *,
        format: str | None = None,
        schema: pa.Schema | None = None,
        shards: int | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Stream:
        """Rows of the Parquet, CSV or JSON-lines files in a directory, new ones included."""
        read = files.Files(path, format=format, schema=schema, shards=shards, **options)
        return self.source(read, name or "files")

    def memory(
        self, schema: pa.Schema, name: str | None = None, *, manualEpochs: bool = False
    ) -> MemoryStream:
        """A stream that the driver pushes rows into: ``stream.push(rows)``, ``stream.close()``.

        With ``manualEpochs`` an epoch ends when ``stream.closeEpoch()`` says so, not by the clock.
        """
        source = memory.MemorySource(schema, manual_epochs=manualEpochs)
        stage = self._stage(SourceOperator(source), (), name=name or "memory")
        return MemoryStream(self, stage._stage, source)

    # -- several streams -------------------------------------------------------------------------

    def vertex(
        self,
        factory: Callable[[], Vertex],
        inputs: Sequence[Stream],
        outputs: Sequence[pa.Schema],
        *,
        partitionBy: Sequence[Sequence[str] | None] | None = None,
        shards: int | None = None,
        name: str | None = None,
    ) -> tuple[Stream, ...]:
        """A stage of the user's own :class:`Vertex`, one stream per output.

        ``partitionBy`` names, per input, the columns whose equal values meet in one shard; None
        leaves rows where they are.
        """
        operator = user_vertex.UserVertex(factory, tuple(outputs), partitionBy)
        stream = self._stage(operator, inputs, name=name, shards=shards)
        return tuple(Stream(self, stream._stage, port) for port in range(len(outputs)))

    def loop(
        self,
        name: str = "loop",
        *,
        maxIterations: int | None = None,
        parent: Loop | None = None,
    ) -> Loop:
        """A loop context: streams enter it, go round in it, and leave it; see :class:`Loop`."""
        made = Loop(self, self._free_loop_name(_checked_name(name, "loop")), parent, maxIterations)
        self._loops.append(made)
        return made

    # -- running ---------------------------------------------------------------------------------

    def explain(self) -> str:
        """The stages, one per line, with schemas and exchanges; also printed."""
        from penstock.explain import explain

        text = explain(self)
        print(text)
        return text

    def start(self, spark: SparkSession, **options: Any) -> FlowQuery:
        """Run the flow on a SparkSession; see :func:`penstock.engine.spark.start.start`."""
        from penstock.engine.spark.start import start

        return start(self, spark, **options)

    # -- building --------------------------------------------------------------------------------

    def _stage(
        self,
        operator: Operator,
        inputs: Sequence[Stream],
        name: str | None = None,
        shards: int | None = None,
    ) -> Stream:
        for stream in inputs:
            if stream._flow is not self:
                raise GraphError(
                    f"{operator.kind}: the stream of stage {stream._stage.name!r} belongs to flow "
                    f"{stream._flow.name!r}, not to {self.name!r}; build one flow for both"
                )
        context = self._common_loop(operator, inputs)
        schemas = [stream.schema for stream in inputs]
        outputs = operator.output_schemas(schemas)
        exchanges = operator.exchanges(schemas)
        stage = Stage(
            index=len(self.stages),
            name=self._free_name(operator.kind if name is None else _checked_name(name, "stage")),
            operator=operator,
            inputs=tuple(
                Input(stream._stage, stream._port, exchange)
                for stream, exchange in zip(inputs, exchanges, strict=True)
            ),
            outputs=outputs,
            shards=shards,
            named=name is not None,
            loop=context,
        )
        self.stages.append(stage)
        return Stream(self, stage, 0)

    def _common_loop(self, operator: Operator, inputs: Sequence[Stream]) -> Loop | None:
        """The loop that all inputs are in."""
        loops = [stream._stage.loop for stream in inputs]
        if any(loop is not loops[0] for loop in loops):
            names = ", ".join(
                f"{stream._stage.name!r} is {_where(stream._stage.loop)}" for stream in inputs
            )
            raise GraphError(
                f"{operator.kind}: its inputs are not in the same loop ({names}); bring a stream "
                "into a loop with loop.enter(stream), and out of it with loop.leave(stream)"
            )
        if loops and loops[0] is not None and getattr(operator, "needs_watermark", False):
            raise GraphError(
                f"{operator.kind}: event-time windows and joins work on epochs; use them before "
                "or after a loop, not inside one"
            )
        return loops[0] if loops else None

    def _free_name(self, wanted: str) -> str:
        return _free(wanted, [stage.name for stage in self.stages])

    def _free_loop_name(self, wanted: str) -> str:
        return _free(wanted, [loop.name for loop in self._loops])


class Stream:
    """The rows that leave an output port of a stage."""

    def __init__(self, flow: Flow, stage: Stage, port: int) -> None:
        self._flow = flow
        self._stage = stage
        self._port = port

    def __repr__(self) -> str:
        return f"Stream({self._stage.name!r}, [{', '.join(self.columns)}])"

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return self._stage.outputs[self._port]

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    def name(self, name: str) -> Stream:
        """Name the stage: errors, metrics and stored state use this name."""
        _checked_name(name, "stage")
        if any(stage.name == name and stage is not self._stage for stage in self._flow.stages):
            raise SettingsError(f"flow {self._flow.name!r} already has a stage named {name!r}")
        self._stage.name, self._stage.named = name, True
        return self

    # -- row by row ------------------------------------------------------------------------------

    def select(self, *columns: Any) -> Stream:
        """Columns by name, SQL (``"price * 2 AS double"``), or ``(name, expression)`` pairs."""
        return self._then(project.Select(_flat(columns)))

    def withColumn(
        self, name: str, expression: Any, returnType: pa.DataType | None = None
    ) -> Stream:
        """Add or replace a column: SQL, an Arrow expression, or a function of the batch."""
        return self._then(project.WithColumn(name, expression, returnType))

    def drop(self, *columns: str) -> Stream:
        """Leave columns out."""
        missing = [column for column in columns if column not in self.columns]
        if missing:
            raise SchemaError(
                f"drop: no column {missing[0]!r} in [{', '.join(self.columns)}]", column=missing[0]
            )
        return self.select(*[column for column in self.columns if column not in columns])

    def filter(self, condition: Any) -> Stream:
        """Rows for which the condition (SQL, Arrow expression or function) is true."""
        return self._then(filter.Filter(condition))

    where = filter

    def mapInArrow(self, func: BatchFunction, schema: pa.Schema | str) -> Stream:
        """``func`` maps an iterator of record batches to one, as PySpark's ``mapInArrow``."""
        return self._then(map_in_arrow.MapInArrow(func, schema))

    def lookup(
        self,
        table: pa.Table,
        on: str | Mapping[str, str],
        *,
        how: str = "inner",
        columns: Sequence[str] | None = None,
    ) -> Stream:
        """Join with a small table that every node holds; ``on`` maps our column to the table's."""
        return self._then(lookup.Lookup(table, on, how=how, columns=columns))

    # -- across rows -----------------------------------------------------------------------------

    def keyBy(self, *columns: str, shards: int | None = None) -> Stream:
        """Bring rows with equal values in ``columns`` together in one shard."""
        return self._then(key_by.KeyBy(tuple(_flat(columns))), shards=shards)

    def repartition(self, numPartitions: int, *columns: str) -> Stream:
        """The same with PySpark's name and argument order."""
        return self.keyBy(*columns, shards=numPartitions)

    def withWatermark(self, eventTime: str, delayThreshold: Duration) -> Stream:
        """Take ``eventTime`` as event time; rows may come up to ``delayThreshold`` late."""
        delay = duration_us(delayThreshold, "delayThreshold")
        return self._then(watermark.WithWatermark(eventTime, delay))

    def join(
        self,
        other: Stream,
        on: str | Sequence[str],
        how: str = "inner",
        *,
        within: Duration,
        time: str | tuple[str, str] | None = None,
    ) -> Stream:
        """Equi-join with another stream of rows whose event times are at most ``within`` apart.

        ``time`` names the event-time column (a pair, if the two sides differ); without it the
        columns of the nearest ``withWatermark`` on each side are used.
        """
        left, right = (time, time) if isinstance(time, str) else (time or (None, None))
        operator = join.Join(
            [on] if isinstance(on, str) else list(on),
            how,
            duration_us(within, "within"),
            left or self._event_time("join"),
            right or other._event_time("join"),
        )
        return self._flow._stage(operator, (self, other))

    def union(self, *others: Stream) -> Stream:
        """All rows of several streams with equal schemas."""
        return self._flow._stage(union.Union(), (self, *others))

    def distinct(self, *, within: Duration | None = None) -> Stream:
        """Each different row once; with ``within`` only as far apart in event time as that."""
        return self.dropDuplicates(self.columns, within=within)

    def dropDuplicates(
        self, subset: Sequence[str] | None = None, *, within: Duration | None = None
    ) -> Stream:
        """One row for each different value of the ``subset`` columns."""
        columns = list(self.columns if subset is None else subset)
        us = None if within is None else duration_us(within, "within")
        time = None if within is None else self._event_time("dropDuplicates")
        return self._then(distinct.Distinct(columns, us, time))

    def groupBy(self, *keys: str | Window) -> GroupedStream:
        """Group by columns and at most one event-time window."""
        return GroupedStream(self, _flat(keys))

    def process(
        self,
        factory: Callable[[], Vertex],
        schema: pa.Schema,
        *,
        partitionBy: Sequence[str] | None = None,
        shards: int | None = None,
    ) -> Stream:
        """A stage of the user's own :class:`Vertex` with one input and one output."""
        return self._flow.vertex(
            factory, [self], [schema], partitionBy=[partitionBy], shards=shards
        )[0]

    def iterate(
        self,
        body: Callable[..., Stream | tuple[Stream, Stream]],
        *,
        maxIterations: int | None = None,
        name: str | None = None,
    ) -> Stream:
        """Run ``body`` again and again on what it makes, until nothing circulates any more.

        ``body(stream)`` gets the rows of this stream in iteration 0 and its own feedback in the
        later ones.  It returns the stream to feed back, which also leaves the loop; or a pair
        (feed back, leave).  A body with two parameters gets the :class:`Loop` as well, to bring
        other streams in with ``loop.enter``.  Different epochs and iterations run concurrently;
        ``maxIterations`` ends what would not converge.
        """
        loop = self._flow.loop(
            name or "iterate", maxIterations=maxIterations, parent=self._stage.loop
        )
        variable = loop.variable(self.schema)
        start = loop.enter(self).union(variable)
        many = len(inspect.signature(body).parameters) > 1
        result = body(start, loop) if many else body(start)
        back, out = result if isinstance(result, tuple) else (result, result)
        variable.feed(back)
        return loop.leave(out)

    # -- sinks -----------------------------------------------------------------------------------

    def to(self, sink: Operator, name: str | None = None) -> None:
        """Send the rows to any sink."""
        self._flow._stage(sink, (self,), name=name)

    def parquet(self, path: str, *, name: str | None = None) -> None:
        """Parquet files, one directory ``epoch=N`` per epoch, each published by one rename."""
        writer = self._then(parquet.ParquetWrite(path), name=name or "parquet")
        writer.to(parquet.ParquetCommit(path), name=f"{writer._stage.name}_commit")

    def foreachBatch(
        self, func: Callable[[pa.Table, int], None], *, name: str | None = None
    ) -> None:
        """Call ``func(rows, epoch)`` on the driver, once per epoch that has rows."""
        self.to(foreach_batch.ForeachBatch(func), name)

    def memory(self, *, name: str | None = None) -> memory.MemorySink:
        """Keep the rows of completed epochs on the driver: for tests and small results."""
        sink = memory.MemorySink()
        self.to(sink, name or "memory_sink")
        return sink

    def subscribe(self, *, name: str | None = None) -> subscription.Subscription:
        """An iterator of ``(epoch, rows)`` on the driver, told when each epoch is complete."""
        sink = subscription.Subscription()
        self.to(sink, name or "subscribe")
        return sink

    def console(self, *, rows: int = 20, name: str | None = None) -> None:
        """Print the rows of every epoch on the driver."""
        self.to(console.Console(rows), name or "console")

    # -- helpers ---------------------------------------------------------------------------------

    def _then(
        self, operator: Operator, name: str | None = None, shards: int | None = None
    ) -> Stream:
        return self._flow._stage(operator, (self,), name=name, shards=shards)

    def _event_time(self, what: str) -> str:
        """The column of the nearest withWatermark upstream, if it is still there."""
        stage = self._stage
        while True:
            if isinstance(stage.operator, watermark.WithWatermark):
                column = stage.operator.column
                if column in self.columns:
                    return column
                break
            if len(stage.inputs) != 1:
                break
            stage = stage.inputs[0].stage
        raise SchemaError(
            f"{what}: which column is the event time? Say it with time=..., or call "
            f"withWatermark(column, delay) first; columns here: [{', '.join(self.columns)}]"
        )


class MemoryStream(Stream):
    """A stream that the driver pushes rows into."""

    def __init__(self, flow: Flow, stage: Stage, source: memory.MemorySource) -> None:
        super().__init__(flow, stage, 0)
        self._source = source

    def push(self, rows: memory.Rows, timeout: float | None = None) -> None:
        """Add rows: a batch, a table, a list of dicts or a dict of lists.

        Waits while the flow is behind; raises TimeoutError after ``timeout`` seconds.
        """
        self._source.push(rows, timeout)

    def closeEpoch(self) -> None:
        """End the current epoch after the rows pushed so far; needs ``manualEpochs``.

        In a flow without a checkpoint the first epoch is 0, the next one 1, and so on.
        """
        self._source.close_epoch()

    def close(self) -> None:
        """Say that no more rows will be pushed: the flow ends when it has used up what there is."""
        self._source.close()


class Loop:
    """A loop context: times inside it carry a counter of iterations.

        loop = flow.loop("reach")
        edges = loop.enter(edge_stream)
        labels = loop.variable(schema)             # what comes round
        better = labels.union(loop.enter(start)) ...
        labels.feed(better)                        # goes round
        result = loop.leave(better)

    Loops nest: ``flow.loop("inner", parent=loop)``.
    """

    def __init__(
        self, flow: Flow, name: str, parent: Loop | None, maxIterations: int | None
    ) -> None:
        if maxIterations is not None and maxIterations < 1:
            raise SettingsError(f"loop {name!r}: maxIterations must be at least 1")
        self.name = name
        self.parent = parent
        self.maxIterations = maxIterations
        self._flow = flow

    def __repr__(self) -> str:
        return f"Loop({self.name!r})"

    def enter(self, stream: Stream) -> Stream:
        """The stream's rows as rows of iteration 0."""
        if stream._stage.loop is not self.parent:
            raise GraphError(
                f"loop {self.name!r}: {stream._stage.name!r} is {_where(stream._stage.loop)}; only "
                f"streams {_where(self.parent)} can enter"
            )
        entered = self._flow._stage(loop.Enter(), (stream,), name=None)
        entered._stage.loop = self
        return entered

    def variable(self, schema: pa.Schema) -> Variable:
        """The stream of what comes round; say later with ``feed`` what that is."""
        stage = self._flow._stage(loop.Again(schema, self.maxIterations), ())._stage
        stage.loop = self
        return Variable(self._flow, stage, 0)

    def leave(self, stream: Stream) -> Stream:
        """The stream's rows of all iterations as rows of the epoch (or the outer iteration)."""
        if stream._stage.loop is not self:
            raise GraphError(
                f"loop {self.name!r}: {stream._stage.name!r} is {_where(stream._stage.loop)}; only "
                "streams of this loop can leave it"
            )
        left = self._flow._stage(loop.Leave(), (stream,))
        left._stage.loop = self.parent
        return left


class Variable(Stream):
    """What comes round in a loop."""

    def feed(self, stream: Stream) -> None:
        """Say which stream comes round."""
        if self._stage.inputs:
            raise GraphError(f"{self._stage.name!r} is fed already; union the streams first")
        if stream._stage.loop is not self._stage.loop:
            raise GraphError(
                f"{self._stage.name!r} is {_where(self._stage.loop)}, but "
                f"{stream._stage.name!r} is {_where(stream._stage.loop)}"
            )
        if not stream.schema.equals(self.schema):
            raise SchemaError(
                f"{self._stage.name!r}: what goes round has the columns "
                f"[{_columns(stream.schema)}], but [{_columns(self.schema)}] was announced"
            )
        self._stage.inputs = (Input(stream._stage, stream._port, Forward()),)


class GroupedStream:
    """A stream with its grouping; ``agg`` makes a stream of it again."""

    def __init__(self, stream: Stream, keys: Sequence[str | Window]) -> None:
        windows = [key for key in keys if isinstance(key, Window)]
        if len(windows) > 1:
            raise SchemaError(f"groupBy: at most one window, got {len(windows)}")
        self._stream = stream
        self._window = windows[0] if windows else None
        self._keys = [key for key in keys if isinstance(key, str)]

    def agg(self, *aggregates: Aggregate, allowedLateness: Duration = 0) -> Stream:
        """Aggregates per group.

        With a window: one row per key when the watermark passes the window's end, again for each
        later epoch that adds rows within ``allowedLateness``; rows later than that go to
        :meth:`WindowedStream.late`.  Without: at the end of each epoch the groups that changed.
        """
        if not aggregates:
            raise SchemaError("agg: name at least one aggregate, such as F.count('*')")
        lateness = duration_us(allowedLateness, "allowedLateness")
        if self._window is None:
            if lateness:
                raise SettingsError("agg: allowedLateness needs a window in groupBy")
            return self._stream._then(aggregate.RunningAggregate(self._keys, list(aggregates)))
        operator = window_operator.WindowAggregate(
            self._window, self._keys, list(aggregates), lateness
        )
        stream = self._stream._then(operator)
        return WindowedStream(stream._flow, stream._stage, 0)

    def count(self) -> Stream:
        """Rows per group."""
        return self.agg(count("*"))

    def sum(self, *columns: str) -> Stream:
        """Sums per group."""
        return self.agg(*[sum(column) for column in columns])

    def min(self, *columns: str) -> Stream:
        """Least values per group."""
        return self.agg(*[min(column) for column in columns])

    def max(self, *columns: str) -> Stream:
        """Greatest values per group."""
        return self.agg(*[max(column) for column in columns])

    def avg(self, *columns: str) -> Stream:
        """Means per group."""
        return self.agg(*[avg(column) for column in columns])


class WindowedStream(Stream):
    """The results of a windowed aggregate."""

    def late(self) -> Stream:
        """The rows that came too late to be counted, as they were before the aggregate."""
        return Stream(self._flow, self._stage, 1)


def _free(wanted: str, taken: Sequence[str]) -> str:
    """A name that nobody has yet."""
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    return name


def _where(loop: Loop | None) -> str:
    return "outside every loop" if loop is None else f"in loop {loop.name!r}"


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


@overload
def _flat(values: tuple[str, ...]) -> list[str]: ...
@overload
def _flat(values: Sequence[Any]) -> list[Any]: ...
def _flat(values: Sequence[Any]) -> list[Any]:
    """Arguments given one by one or as one list, as PySpark takes them."""
    return list(values[0]) if len(values) == 1 and isinstance(values[0], list) else list(values)


def _checked_name(name: str, what: str) -> str:
    if not isinstance(name, str) or not _NAME.match(name):
        raise SettingsError(
            f"{what} name {name!r}: use ASCII letters, digits and underscores, not starting with "
            "a digit"
        )
    return name
