"""Streams: the rows that leave a stage, and everything that can be done with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.api.arguments import flat
from penstock.api.error_policies import chosen_policy
from penstock.api.grouped import GroupedStream, named_columns
from penstock.api.join_keys import join_keys
from penstock.api.regimes import Regime, checked_pause, checked_regime
from penstock.api.stage import SKIP, Stage, checked_name
from penstock.api.vertex import Vertex
from penstock.connectors import (
    as_of,
    console,
    database,
    foreach_batch,
    memory,
    parquet,
    spark_stage,
)
from penstock.connectors import subscribe as subscription
from penstock.connectors import table as published
from penstock.connectors.kafka import sink as kafka_sink
from penstock.core.delivery.routing import RoutingKind, routing_named
from penstock.durations import Duration, duration_us
from penstock.errors import GraphError, SchemaError, SettingsError
from penstock.expressions import Column
from penstock.expressions.column import named, parsed
from penstock.expressions.ddl import ddl_of
from penstock.operators import (
    distinct,
    duplicate,
    filter,
    gather,
    join,
    key_by,
    lookup,
    map_in_arrow,
    project,
    skipping,
    union,
    watermark,
)
from penstock.operators.base import Operator
from penstock.wire.hashing import is_hashable

if TYPE_CHECKING:
    from penstock.api.flow import Flow

__all__ = ["JoinedStream", "Stream", "WindowedStream"]


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
        checked_name(name, "stage")
        if any(stage.name == name and stage is not self._stage for stage in self._flow.stages):
            raise SettingsError(f"flow {self._flow.name!r} already has a stage named {name!r}")
        self._stage.name, self._stage.named = name, True
        return self

    # -- failures --------------------------------------------------------------------------------

    def withRegime(self, regime: Regime) -> Stream:
        """Choose how the stage that made this stream survives the loss of a host."""
        self._stage.regime = checked_regime(regime, f"stage {self._stage.name!r}")
        return self

    def withPause(self, pause: str) -> Stream:
        """Say how the stage bears a rollback: "low-latency" stages are stopped last and shortest,
        "insensitive" ones first; the others are "normal"."""
        self._stage.pause = checked_pause(pause)
        return self

    def persist(self, *, name: str | None = None) -> Stream:
        """The same rows, made durable epoch by epoch before they go on, as a persisted RDD is.

        No rollback passes this place, in either direction, and what came before it is acknowledged
        to the sources as soon as an epoch is durable here.
        """
        return self._flow._persist(self, name)

    def withGuarantee(self, guarantee: str) -> Stream:
        """Choose what is promised of this stage's rows: see :meth:`Flow.setGuarantee`."""
        self._flow.setGuarantee(self._stage.name, guarantee)
        return self

    def onError(self, policy: str) -> Stream:
        """Choose what happens when the stage that made this stream raises.

        ``"stop"`` (the default): the flow ends with the error.  ``"restart"``: the host's nodes
        start again elsewhere, as when it is lost; after ten restarts that got no further the flow
        ends.  ``"skip"``: the rows at fault leave by :meth:`errors`, the others go on; only for
        stages without state.
        """
        stage, before = self._stage, self._stage.on_error
        stage.on_error = chosen_policy(stage, policy)
        if stage.on_error == SKIP and before != SKIP:
            stage.outputs = (*stage.outputs, skipping.ERRORS)
        return self

    def errors(self) -> Stream:
        """The rows that this stage raised for, and why; needs ``onError("skip")``.

        Columns: ``stage``, ``error`` (type and text), ``epoch``, and ``row``, the row as JSON.
        """
        stage = self._stage
        if stage.on_error != SKIP:
            raise SettingsError(
                f'errors: stage {stage.name!r} passes over no rows: call onError("skip") first'
            )
        return Stream(self._flow, stage, len(stage.outputs) - 1)

    # -- row by row ------------------------------------------------------------------------------

    def select(self, *columns: Any) -> Stream:
        """Columns (``F.col("price") * 2``), their names, SQL, or ``(name, expression)`` pairs."""
        return self._then(project.Select(flat(columns)))

    def withColumn(
        self, name: str, expression: Any, returnType: pa.DataType | None = None
    ) -> Stream:
        """Add or replace a column: F.col(...), SQL, Arrow expression, or function of the batch."""
        return self._then(project.WithColumn(name, expression, returnType))

    def withColumns(self, colsMap: Mapping[str, Any]) -> Stream:
        """Add or replace several columns; all are computed from the columns that were there."""
        return self._with_columns(list(colsMap.items()))

    def withColumnRenamed(self, existing: str, new: str) -> Stream:
        """The same rows with a column under another name; nothing if there is no such column."""
        return self.withColumnsRenamed({existing: new})

    def withColumnsRenamed(self, colsMap: Mapping[str, str]) -> Stream:
        """The same for several columns."""
        return self.select(
            *[(colsMap.get(name, name), named(f"`{name}`")) for name in self.columns]
        )

    def selectExpr(self, *expr: str) -> Stream:
        """Columns as SQL text."""
        return self.select(*[parsed(one) for one in flat(expr)])

    def transform(self, func: Callable[..., Stream], *args: Any, **kwargs: Any) -> Stream:
        """What ``func(stream, ...)`` makes of it: own steps are written one after the other."""
        return func(self, *args, **kwargs)

    def printSchema(self) -> None:
        """Print the columns and their types."""
        print("root")
        for field in self.schema:
            null = str(field.nullable).lower()
            print(f" |-- {field.name}: {ddl_of(field.type)} (nullable = {null})")

    def drop(self, *cols: Any) -> Stream:
        """Leave columns out."""
        columns = [one.sql.strip("`") if isinstance(one, Column) else one for one in cols]
        missing = [column for column in columns if column not in self.columns]
        if missing:
            raise SchemaError(
                f"drop: no column {missing[0]!r} in [{', '.join(self.columns)}]", column=missing[0]
            )
        return self.select(*[column for column in self.columns if column not in columns])

    def filter(self, condition: Any) -> Stream:
        """Rows for which the condition (column, SQL, Arrow expression or function) is true."""
        return self._then(filter.Filter(condition))

    where = filter

    def mapInArrow(
        self,
        func: map_in_arrow.BatchFunction,
        schema: pa.Schema | str,
        *,
        repeatable: bool = True,
    ) -> Stream:
        """``func`` maps an iterator of record batches to one, as PySpark's ``mapInArrow``.

        A function of two arguments also gets a context: ``ctx.now()``, ``ctx.random()`` and
        ``ctx.call(function, ...)`` give the time, random numbers and answers from outside in a way
        that a replay repeats.  A function that cannot be repeated otherwise is marked
        ``repeatable=False``: then what it made is made durable before it leaves, and a replay is
        given that instead of calling it again.
        """
        return self._then(map_in_arrow.MapInArrow(func, schema, repeatable))

    def lookup(
        self,
        table: pa.Table | published.PublishedTable,
        on: str | Mapping[str, str],
        *,
        how: str = "inner",
        columns: Sequence[str] | None = None,
    ) -> Stream:
        """Join with a small table that every node holds; ``on`` maps our column to the table's.

        A table that a stream publishes (:meth:`toTable`) is looked up in the version that
        :meth:`asOf` has noted.
        """
        if isinstance(table, published.PublishedTable):
            return self._then(as_of.TableLookup(table, on, how=how, columns=columns))
        return self._then(lookup.Lookup(table, on, how=how, columns=columns))

    def asOf(self, *tables: published.PublishedTable) -> Stream:
        """Note for every row the newest version of some tables; :meth:`lookup` uses that.

        Adds a column ``NAME_version`` per table.  Rows never wait for a version; a replay is given
        the versions that were noted.
        """
        return self._then(as_of.AsOf(tables))

    def duplicate(self, copies: int = 2) -> Stream:
        """Every row ``copies`` times."""
        return self._then(duplicate.Duplicate(copies))

    # -- across rows -----------------------------------------------------------------------------

    def keyBy(self, *cols: Any, shards: int | None = None) -> Stream:
        """Bring rows with equal values in some columns together in one shard."""
        stream, names = named_columns(self, flat(cols), "keyBy")
        keyed = stream._then(key_by.KeyBy(tuple(names)), shards=shards)
        return keyed if stream is self else keyed.select(*[named(f"`{n}`") for n in self.columns])

    def repartition(self, numPartitions: int, *cols: Any) -> Stream:
        """The same with PySpark's name and argument order."""
        return self.keyBy(*cols, shards=numPartitions)

    def route(self, routing: str, replicas: int | None = None) -> Stream:
        """Choose how rows find the replicas of what follows, and how many of these there are.

        ``"hash(column)"``: rows with equal values in the column meet in one replica.  ``"random"``
        spreads rows by a hash of all their values, so that a row that is made again goes the same
        way.  ``"primary"`` sends all rows to one replica.  Replicas are placed on different hosts,
        as far as there are enough; when a host is lost, others take its replicas over.
        """
        chosen = routing_named(routing)
        if chosen.kind is RoutingKind.PRIMARY:
            if replicas not in (None, 1):
                raise SettingsError(
                    f"route: with 'primary' one replica gets all rows, so the other {replicas - 1} "
                    f"of {replicas} would get none; leave replicas out, or choose 'random' or "
                    "'hash(column)'. Any host of the flow takes the primary over when its own is "
                    "lost; for one that does so without a restore, start with standby='active'"
                )
            return self._then(gather.Gather())
        if chosen.kind is RoutingKind.HASH:
            return self.keyBy(str(chosen.column), shards=replicas)
        columns = [field.name for field in self.schema if is_hashable(field.type)]
        if not columns:
            raise SchemaError(
                "route: 'random' needs a column of numbers, strings, binary, booleans, dates or "
                f"timestamps to hash; there is none in [{', '.join(self.columns)}]"
            )
        return self.keyBy(*columns, shards=replicas)

    def withWatermark(
        self, eventTime: str, delayThreshold: Duration, *, idleEpochs: int = watermark.IDLE_EPOCHS
    ) -> Stream:
        """Take ``eventTime`` as event time; rows may come up to ``delayThreshold`` late.

        Windows wait for every shard, but no longer for one that has ended ``idleEpochs`` epochs in
        a row without rows, read or unread; its next rows may then be late.
        """
        if idleEpochs < 1:
            raise SettingsError(f"withWatermark: idleEpochs must be at least 1, got {idleEpochs}")
        delay = duration_us(delayThreshold, "delayThreshold")
        return self._then(watermark.WithWatermark(eventTime, delay, idleEpochs))

    def join(
        self,
        other: Stream,
        on: Any,
        how: str = "inner",
        *,
        within: Duration,
        time: str | tuple[str, str] | None = None,
    ) -> JoinedStream:
        """Equi-join with another stream of rows whose event times are at most ``within`` apart.

        ``on`` are columns, or their names, that both streams have, or equalities such as
        ``F.col("left_name") == F.col("right_name")``.
        ``time`` names the event-time column (a pair, if the two sides differ); without it the
        columns of the nearest ``withWatermark`` on each side are used.  Rows that come too late are
        in :meth:`JoinedStream.late`.
        """
        left, right = (time, time) if isinstance(time, str) else (time or (None, None))
        right_side, names = join_keys(other, on)
        operator = join.Join(
            names,
            how,
            duration_us(within, "within"),
            left or self._event_time("join"),
            right or other._event_time("join"),
        )
        joined = self._flow._stage(operator, (self, right_side))
        return JoinedStream(joined._flow, joined._stage, 0)

    def union(self, *others: Stream) -> Stream:
        """All rows of several streams with equal schemas."""
        return self._flow._stage(union.Union(), (self, *others))

    def distinct(self, *, within: Duration | None = None) -> WindowedStream:
        """Each different row once; with ``within`` only as far apart in event time as that."""
        return self.dropDuplicates(self.columns, within=within)

    def dropDuplicates(
        self, subset: Sequence[str] | None = None, *, within: Duration | None = None
    ) -> WindowedStream:
        """One row for each different value of the ``subset`` columns."""
        columns = list(self.columns if subset is None else subset)
        us = None if within is None else duration_us(within, "within")
        time = None if within is None else self._event_time("dropDuplicates")
        stream = self._then(distinct.Distinct(columns, us, time))
        return WindowedStream(stream._flow, stream._stage, 0)

    def unique(self, *columns: str, within: Duration | None = None) -> WindowedStream:
        """The first row of each value of ``columns`` (without any: of all of them)."""
        return self.dropDuplicates(flat(columns) or None, within=within)

    def count(self, *columns: str) -> Stream:
        """How many rows there have been, for each value of ``columns`` if there are any.

        The counts that changed are sent at the end of each epoch.
        """
        return self.groupBy(*columns).count()

    def groupBy(self, *cols: Any) -> GroupedStream:
        """Group by columns and at most one event-time window."""
        return GroupedStream(self, flat(cols))

    groupby = groupBy

    def agg(self, *exprs: Any) -> Stream:
        """Aggregates of all rows, sent at the end of each epoch that changes them."""
        return GroupedStream(self, ()).agg(*exprs)

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

    def spark(
        self,
        func: Callable[..., Any],
        *,
        schema: Any,
        every: Duration,
        retries: int = 2,
        keep: str | int = "window",
        name: str | None = None,
    ) -> Stream:
        """Hand completed epochs to ``func(df)`` as a Spark DataFrame; its result is the stream.

        ``every`` is a time ("10 seconds": all epochs that are complete by then) or a whole number
        of epochs (each call gets exactly that number).  A function of two arguments also gets the
        last epoch's number.  It runs on the driver, beside the flow, and is not called when there
        are no new rows; the result, of ``schema``, enters the flow when it is there.  With
        ``keep="all"`` a call gets every row so far, with a number those of as many epochs.  A call
        that raises is repeated ``retries`` times; after that the stage counts as failed until the
        next call, which begins with the same epochs.
        """
        if self._stage.loop is not None:
            raise GraphError("spark: Spark jobs work on whole epochs; use it outside of loops")
        flow = self._flow
        name = flow._free_name("spark") if name is None else flow._new(name)
        work = spark_stage.SparkWork(func, schema, every, retries, keep)
        results = flow.source(spark_stage.SparkResults(work), name)
        write = self._then(spark_stage.SparkWrite(work), name=flow._free_name(f"{name}_write"))
        write.to(spark_stage.SparkCommit(work), name=flow._free_name(f"{name}_input"))
        return results

    # -- sinks -----------------------------------------------------------------------------------

    def to(self, sink: Operator, name: str | None = None) -> None:
        """Send the rows to any sink."""
        self._flow._stage(sink, (self,), name=name)

    def parquet(self, path: str, *, name: str | None = None) -> None:
        """Parquet files, one directory ``epoch=N`` per epoch, each published by one rename."""
        writer = self._then(parquet.ParquetWrite(path), name=name)
        writer.to(parquet.ParquetCommit(path), name=f"{writer._stage.name}_commit")

    def toTable(
        self,
        name: str,
        *,
        newest: str | None = None,
        path: str | None = None,
        keep: int = published.KEEP,
    ) -> published.PublishedTable:
        """A table that others look up: each epoch that has rows is a version, the whole table.

        Of an epoch's rows only those with the greatest value in the column ``newest`` count, if one
        is named (a window, say).  The table is in the flow's store, or in ``path``; the newest
        ``keep`` versions stay.
        """
        table = published.PublishedTable(checked_name(name, "table"), self.schema, path)
        self.to(published.TableWrite(table, keep, newest), self._flow._free_name(f"{name}_table"))
        return table

    def database(
        self,
        url: str,
        table: str,
        *,
        key: str | Sequence[str] = (),
        add: str | Sequence[str] = (),
        writer: str | None = None,
        name: str | None = None,
    ) -> None:
        """A table of SQLite (``sqlite:////path/to/file.db``) or PostgreSQL, exactly once.

        Each epoch is one transaction that also writes the epoch's number, so one that comes again
        changes nothing.  Without ``key`` rows are added to the table; with it there is one row per
        key, the newest; columns in ``add`` are added to what the row has.  A missing table is made.
        ``writer`` names who writes, if several flows write to one table.
        """
        self.to(database.Database(url, table, key, add, writer), name)

    def kafka(
        self,
        servers: str | None = None,
        *,
        topic: str,
        key: str | None = None,
        value: str | None = None,
        guarantee: str = "exactly-once",
        writer: str | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        """Messages into a topic, each epoch in one transaction.

        ``value="json"`` makes each row a JSON object, with the column ``key`` as the message's key;
        without it rows are messages: columns value and, if wanted, key, partition, headers.
        ``guarantee="at-least-once"`` sends rows at once, without transactions.  ``writer`` names
        who writes, if several flows write to one topic.  Options of the client as
        ``**{"kafka.compression.type": "zstd"}``; see docs/kafka.md.
        """
        encode, sink = kafka_sink.written(servers, topic, key, value, guarantee, writer, options)
        (self if encode is None else self._then(encode)).to(sink, name)
        self._flow.stages[-1].guarantee = sink.guarantee

    def foreachBatch(
        self, func: Callable[[pa.Table, int], None], *, name: str | None = None
    ) -> None:
        """Call ``func(rows, epoch)`` on the driver, once per epoch that has rows.

        If the driver dies during a call, the next run makes it again with the same epoch; without a
        ``checkpointLocation`` every run begins anew.
        """
        self.to(foreach_batch.ForeachBatch(func), name)

    def memory(self, *, name: str | None = None) -> memory.MemorySink:
        """Keep the rows of completed epochs on the driver: for tests and small results."""
        sink = memory.MemorySink()
        self.to(sink, name)
        return sink

    def subscribe(self, *, name: str | None = None) -> subscription.Subscription:
        """An iterator of ``(epoch, rows)`` on the driver, told when each epoch is complete."""
        sink = subscription.Subscription()
        self.to(sink, name)
        return sink

    def console(self, *, rows: int = 20, name: str | None = None) -> None:
        """Print the rows of every epoch on the driver."""
        self.to(console.Console(rows), name)

    # -- helpers ---------------------------------------------------------------------------------

    def _then(
        self, operator: Operator, name: str | None = None, shards: int | None = None
    ) -> Stream:
        return self._flow._stage(operator, (self,), name=name, shards=shards)

    def _with_columns(self, columns: Sequence[tuple[str, Any]]) -> Stream:
        """With columns added or replaced; the same stream if there are none."""
        return self._then(project.WithColumns(columns)) if columns else self

    def _windowed(self, operator: Operator, before: Stream) -> WindowedStream:
        """The results of an operator whose late rows are to look as ``before`` does."""
        stream = self._then(operator)
        return WindowedStream(stream._flow, stream._stage, 0, before.columns)

    def _event_time(self, what: str) -> str:
        """The column of the nearest withWatermark upstream, if it is still there."""
        stage = self._stage
        while True:
            if isinstance(stage.operator, watermark.WithWatermark):
                column = stage.operator.column
                if column in self.columns:
                    return column
                break
            if stage.follows is not None:
                stage = stage.follows
                continue
            if len(stage.inputs) != 1:
                break
            stage = stage.inputs[0].stage
        raise SchemaError(
            f"{what}: which column is the event time? Say it with time=..., or call "
            f"withWatermark(column, delay) first; columns here: [{', '.join(self.columns)}]"
        )


class WindowedStream(Stream):
    """The results of a windowed aggregate, or of dropDuplicates."""

    def __init__(
        self, flow: Flow, stage: Stage, port: int, before: Sequence[str] | None = None
    ) -> None:
        super().__init__(flow, stage, port)
        self._before = before
        """The columns of late rows, without those that were added for the stage."""

    def late(self) -> Stream:
        """The rows that came too late to be counted, and those without an event time.

        They are as they were before the stage.
        """
        if len(self._stage.outputs) < 2:
            raise SettingsError(
                f"late: no row is too late for stage {self._stage.name!r}; give dropDuplicates "
                "a time (within=...) if it is to forget what it has seen"
            )
        late = Stream(self._flow, self._stage, 1)
        before = late.columns if self._before is None else list(self._before)
        return late if before == late.columns else late.select(*[named(f"`{c}`") for c in before])


class JoinedStream(Stream):
    """The results of a join."""

    def late(self, side: str = "left") -> Stream:
        """The rows of one side that came too late to be joined, or had no event time."""
        if side not in ("left", "right"):
            raise SettingsError(f"late: a join has a 'left' and a 'right' side, got {side!r}")
        return Stream(self._flow, self._stage, 1 if side == "left" else 2)
