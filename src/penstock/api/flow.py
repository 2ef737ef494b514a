"""Flow: how a user writes a dataflow program.

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

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import ModuleType
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from penstock.api.grouped import GroupedStream
from penstock.api.loops import Loop
from penstock.api.memory_stream import MemoryStream
from penstock.api.regimes import Regime, checked_regime
from penstock.api.stage import Input, Stage, checked_name, free_name, where_is
from penstock.api.start_options import StartOptions
from penstock.api.stream import Stream
from penstock.api.vertex import Vertex
from penstock.connectors import files, generate, memory, persist
from penstock.connectors.base import Source
from penstock.connectors.kafka import source as kafka_source
from penstock.connectors.kafka import values as kafka_values
from penstock.connectors.text_lines import RecordMode
from penstock.core.delivery.guarantees import guarantee_named
from penstock.errors import GraphError, SettingsError
from penstock.expressions import parse_schema
from penstock.expressions.suggest import nearest
from penstock.operators import user_vertex
from penstock.operators.base import Operator, SourceOperator
from penstock.planning.guarantees import guarantees_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.engine.driver.query import FlowQuery

__all__ = ["Flow", "GroupedStream", "Loop", "MemoryStream", "Stream"]


class Flow:
    """A dataflow program: stages and how they are connected.

    >>> flow = Flow("example")
    >>> numbers = flow.memory(pa.schema({"n": pa.int64()}))
    >>> numbers.filter("n > 1").schema.names
    ['n']
    """

    def __init__(self, name: str = "flow") -> None:
        self.name = checked_name(name, "flow")
        self.stages: list[Stage] = []
        self.modules: list[ModuleType] = []
        """Modules of the user's that hosts may not have: what comes from them travels whole."""
        self._loops: list[Loop] = []
        self._regime: Regime | None = None
        self._part: str | None = None

    def __repr__(self) -> str:
        return f"Flow({self.name!r}, {len(self.stages)} stages)"

    # -- sources ---------------------------------------------------------------------------------

    def source(self, source: Source, name: str | None = None) -> Stream:
        """A stream of any source's rows."""
        kind = type(source).__name__.lower()
        return self._stage(SourceOperator(source), (), name=name, default=kind)

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
        return self.source(made, name)

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
        return self.source(read, name)

    def kafka(
        self,
        servers: str | None = None,
        *,
        subscribe: str | Sequence[str] | None = None,
        subscribePattern: str | None = None,
        assign: Mapping[str, Sequence[int]] | None = None,
        key: str = "binary",
        value: str = "binary",
        schema: pa.Schema | str | None = None,
        columns: Sequence[str] | None = None,
        shards: int | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Stream:
        """Messages of some topics: columns key, value, topic, partition, offset, timestamp.

        ``value="json"`` makes columns of the values, as ``schema`` says; ``mode`` and
        :meth:`Stream.onError` say what becomes of a value that does not fit.  ``columns`` chooses
        among Kafka's own.  Options, as in Spark: ``startingOffsets`` ("latest"),
        ``startingTimestamp``, ``endingOffsets``, ``endingTimestamp``, ``includeHeaders``, and those
        of the client as ``**{"kafka.security.protocol": "SSL"}``; see docs/kafka.md.
        """
        topics = kafka_source.Topics.of(subscribe, subscribePattern, assign)
        given = {name: options.pop(name) for name in RecordMode.options if name in options}
        wanted = None if schema is None else parse_schema(schema, "kafka")
        decode = kafka_values.DecodeMessages(key, value, wanted, RecordMode.of(given))
        source = kafka_source.KafkaSource(servers, topics, columns, shards, **options)
        if (key, value) == ("binary", "binary"):
            return self.source(source, name or "kafka")
        messages = self._stage(SourceOperator(source), (), default=f"{name or 'kafka'}_messages")
        return self._stage(decode, (messages,), name=name, default="kafka")

    def memory(
        self, schema: pa.Schema, name: str | None = None, *, manualEpochs: bool = False
    ) -> MemoryStream:
        """A stream that the driver pushes rows into: ``stream.push(rows)``, ``stream.close()``.

        With ``manualEpochs`` an epoch ends when ``stream.closeEpoch()`` says so, not by the clock.
        """
        source = memory.MemorySource(schema, manual_epochs=manualEpochs)
        stage = self._stage(SourceOperator(source), (), name=name, default="memory")
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

    @contextmanager
    def part(self, name: str, regime: Regime | None = None) -> Iterator[None]:
        """A part of the flow: the stages that are made in the block.

        They share a regime, if one is given, and run on hosts of their own when there are at least
        as many hosts as parts: a host that is lost touches one part only.
        """
        before = self._part, self._regime
        self._part = checked_name(name, "part")
        if regime is not None:
            self._regime = checked_regime(regime, f"part {name!r}")
        try:
            yield
        finally:
            self._part, self._regime = before

    def loop(
        self,
        name: str = "loop",
        *,
        maxIterations: int | None = None,
        parent: Loop | None = None,
    ) -> Loop:
        """A loop context: streams enter it, go round in it, and leave it; see :class:`Loop`."""
        made = Loop(self, self._free_loop_name(checked_name(name, "loop")), parent, maxIterations)
        self._loops.append(made)
        return made

    # -- guarantees ------------------------------------------------------------------------------

    def setGuarantee(self, stage: str, guarantee: str) -> None:
        """Choose what is promised of a stage's rows, or of a sink's, given by its name.

        "exactly-once", "at-least-once" or "at-most-once".  A sink has its own guarantee or that of
        ``start(guarantee=...)``; a stage has its own or just what the sinks behind it need.  What
        does not go together is refused when the flow starts, or by ``guarantees()``.
        """
        chosen = guarantee_named(guarantee)
        found = [one for one in self.stages if one.name == stage]
        if not found:
            names = [one.name for one in self.stages]
            raise SettingsError(
                f"flow {self.name!r} has no stage {stage!r}{nearest(stage, names)} the stages are "
                f"{', '.join(names)}"
            )
        # A sink of two stages, such as parquet, is one thing to its user.
        found += [one for one in self.stages if one.sink_of(found[0])]
        for one in found:
            one.guarantee = chosen

    def guarantees(self, guarantee: str = "exactly-once") -> dict[str, str]:
        """What is promised of each stage's rows, by its name, if the flow's sinks want this."""
        return {name: found.value for name, found in guarantees_of(self.stages, guarantee).items()}

    # -- running ---------------------------------------------------------------------------------

    def explain(self, picture: str | None = None) -> str:
        """The stages and nodes, loops and what they do to times, as text; also printed.

        With ``picture`` the same is drawn into that file, as SVG.
        """
        from penstock.planning.explain import draw, explain

        text = explain(self)
        print(text)
        if picture is not None:
            draw(self, picture)
        return text

    def start(self, spark: SparkSession, **options: Unpack[StartOptions]) -> FlowQuery:
        """Run the flow on a SparkSession and return its handle, which reads like a StreamingQuery.

        :class:`penstock.api.start_options.StartOptions` explains the options.
        """
        from penstock.engine.spark.start import start

        return start(self, spark, **options)

    # -- building --------------------------------------------------------------------------------

    def _stage(
        self,
        operator: Operator,
        inputs: Sequence[Stream],
        name: str | None = None,
        shards: int | None = None,
        default: str | None = None,
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
            name=self._free_name(default or operator.kind) if name is None else self._new(name),
            operator=operator,
            inputs=tuple(
                Input(stream._stage, stream._port, exchange)
                for stream, exchange in zip(inputs, exchanges, strict=True)
            ),
            outputs=outputs,
            shards=shards,
            named=name is not None,
            loop=context,
            regime=self._regime,
            part=self._part,
        )
        self.stages.append(stage)
        return Stream(self, stage, 0)

    def _persist(self, stream: Stream, name: str | None) -> Stream:
        """A stream made durable: a sink, and a source of what it keeps."""
        if stream._stage.loop is not None:
            raise GraphError(
                f"persist: the stream of stage {stream._stage.name!r} is inside loop "
                f"{stream._stage.loop.name!r}; persist it where it has left the loop"
            )
        if name is not None:
            checked_name(name, "stage")
        wanted = name or free_name("persist", [stage.name for stage in self.stages])
        write = persist.PersistWrite(self._free_name(f"{wanted}_log"))
        written = self._stage(write, (stream,), name=write.name)._stage
        source = persist.PersistSource(write, stream.schema)
        kept = self._stage(SourceOperator(source), (), name=name, default=wanted)
        kept._stage.follows = written
        return kept

    def _common_loop(self, operator: Operator, inputs: Sequence[Stream]) -> Loop | None:
        """The loop that all inputs are in."""
        loops = [stream._stage.loop for stream in inputs]
        if any(loop is not loops[0] for loop in loops):
            names = ", ".join(
                f"{stream._stage.name!r} is {where_is(stream._stage.loop)}" for stream in inputs
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

    def _new(self, name: str) -> str:
        """A name that the user chose: it must not be taken."""
        if any(stage.name == checked_name(name, "stage") for stage in self.stages):
            raise SettingsError(f"flow {self.name!r} already has a stage named {name!r}")
        return name

    def _free_name(self, wanted: str) -> str:
        return free_name(wanted, [stage.name for stage in self.stages])

    def _free_loop_name(self, wanted: str) -> str:
        return free_name(wanted, [loop.name for loop in self._loops])
