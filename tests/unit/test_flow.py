"""The flow API as a user sees it: names, schemas, and refusals on the line that wrote them."""

import traceback
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock import Flow
from penstock.api import functions as F
from penstock.api.flow import Stream
from penstock.api.vertex import Vertex
from penstock.errors import GraphError, PenstockError, SchemaError, SettingsError

SCHEMA = pa.schema({"n": pa.int64(), "k": pa.string(), "t": pa.timestamp("us")})


def make(offset: int, n: int) -> pa.RecordBatch:
    raise NotImplementedError


@pytest.fixture
def flow() -> Flow:
    return Flow("views")


@pytest.fixture
def events(flow: Flow) -> Stream:
    return flow.generate(make, schema=SCHEMA, name="events")


# -- schemas ---------------------------------------------------------------------------------------


def test_schemas_are_known_while_the_flow_is_written(events: Stream) -> None:
    table = pa.table({"key": ["a"], "name": ["A"]})
    steps: list[tuple[Stream, list[str]]] = [
        (events.filter("n > 1"), ["n", "k", "t"]),
        (events.where("n > 1"), ["n", "k", "t"]),
        (events.select("k", "n * 2 AS m"), ["k", "m"]),
        (events.select(["k", "n"]), ["k", "n"]),
        (events.withColumn("m", "n + 1"), ["n", "k", "t", "m"]),
        (events.withColumn("n", "CAST(n AS STRING)"), ["n", "k", "t"]),
        (events.drop("t", "k"), ["n"]),
        (events.lookup(table, on={"k": "key"}), ["n", "k", "t", "name"]),
        (events.mapInArrow(lambda batches: batches, "x LONG, y STRING"), ["x", "y"]),
        (events.keyBy("k"), ["n", "k", "t"]),
        (events.repartition(4, "k"), ["n", "k", "t"]),
        (events.groupBy("k").count(), ["k", "count"]),
        (events.groupBy("k").sum("n"), ["k", "sum(n)"]),
        (events.groupBy("k").agg(F.avg("n").alias("mean")), ["k", "mean"]),
        (events.select("n", "k").distinct(), ["n", "k"]),
        (events.dropDuplicates(["k"]), ["n", "k", "t"]),
        (events.union(events), ["n", "k", "t"]),
    ]
    for stream, names in steps:
        assert stream.columns == names
        assert stream.schema.names == names


def test_types_follow_the_expressions(events: Stream) -> None:
    stream = events.select("n + 1 AS a", "n / 2 AS b", "n > 1 AS c", "upper(k) AS d")
    kinds = [stream.schema.field(name).type for name in "abcd"]
    assert kinds == [pa.int64(), pa.float64(), pa.bool_(), pa.string()]


def test_a_windowed_aggregate_has_its_window_and_its_late_rows(events: Stream) -> None:
    grouped = events.withWatermark("t", "1 second").groupBy(F.window("t", "1 second"), "k")
    counts = grouped.agg(F.count("*"))
    assert counts.columns == ["window", "k", "count"]
    assert counts.late().schema == SCHEMA


def test_a_join_has_the_columns_of_both_sides(flow: Flow, events: Stream) -> None:
    other = flow.generate(make, schema=pa.schema({"k": pa.string(), "u": pa.timestamp("us")}))
    left, right = events.withWatermark("t", 1), other.withWatermark("u", 1)
    assert left.join(right, "k", within="1 second").columns == ["k", "n", "t", "u"]


def test_expressions_can_be_sql_arrow_or_functions(events: Stream) -> None:
    assert events.filter(pc.field("n") > 1).columns == events.columns
    assert events.filter(lambda batch: pc.greater(batch.column("n"), 1)).columns == events.columns
    made = events.withColumn("m", lambda batch: batch.column("n"), pa.int64())
    assert made.schema.field("m").type == pa.int64()


# -- refusals --------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[type[PenstockError], str, Callable[[Stream], Any]]] = {
    "unknown column in SQL": (SchemaError, "nope", lambda s: s.filter("nope > 1")),
    "unknown column in select": (SchemaError, "nope", lambda s: s.select("nope")),
    "unknown column in drop": (SchemaError, "nope", lambda s: s.drop("nope")),
    "unknown column in keyBy": (SchemaError, "nope", lambda s: s.keyBy("nope")),
    "unknown column in groupBy": (SchemaError, "nope", lambda s: s.groupBy("nope").count()),
    "unknown column in an aggregate": (SchemaError, "nope", lambda s: s.groupBy("k").sum("nope")),
    "unknown column in withWatermark": (SchemaError, "nope", lambda s: s.withWatermark("nope", 1)),
    "unknown column in lookup": (
        SchemaError,
        "nope",
        lambda s: s.lookup(pa.table({"a": [1]}), on={"nope": "a"}),
    ),
    "unknown column of a table": (
        SchemaError,
        "nope",
        lambda s: s.lookup(pa.table({"a": ["x"]}), on={"k": "nope"}),
    ),
    "unknown column in dropDuplicates": (SchemaError, "nope", lambda s: s.dropDuplicates(["nope"])),
    "unknown column in partitionBy": (
        SchemaError,
        "nope",
        lambda s: s.process(Vertex, SCHEMA, partitionBy=["nope"]),
    ),
    "a condition that is no condition": (SchemaError, "bool", lambda s: s.filter("n + 1")),
    "a sum of text": (SchemaError, "k", lambda s: s.groupBy("n").sum("k")),
    "text as event time": (SchemaError, "event time", lambda s: s.withWatermark("k", 1)),
    "SQL that does not parse": (SchemaError, "n >> > 1", lambda s: s.filter("n >> > 1")),
    "SQL with an unknown function": (
        SchemaError,
        "frobnicate",
        lambda s: s.filter("frobnicate(n)"),
    ),
    "no aggregates": (SchemaError, "at least one aggregate", lambda s: s.groupBy("k").agg()),
    "two windows": (
        SchemaError,
        "at most one window",
        lambda s: s.groupBy(F.window("t", 1), F.window("t", 2)),
    ),
    "lateness without a window": (
        SettingsError,
        "allowedLateness",
        lambda s: s.groupBy("k").agg(F.count("*"), allowedLateness=1),
    ),
    "a slide longer than the window": (
        SettingsError,
        "slideDuration",
        lambda s: s.groupBy(F.window("t", "1 second", "2 seconds")),
    ),
    "a union of different columns": (SchemaError, "union", lambda s: s.union(s.select("n"))),
    "a union with nothing": (GraphError, "union", lambda s: s.union()),
    "a join without event time": (
        SchemaError,
        "event time",
        lambda s: s.join(s.select("k"), "k", within=1),
    ),
    "a join of an unknown kind": (
        SettingsError,
        "outer",
        lambda s: s.join(s.select("k", "t AS u"), "k", "outer", within=1, time=("t", "u")),
    ),
    "distinct within, without event time": (
        SchemaError,
        "event time",
        lambda s: s.distinct(within="1 second"),
    ),
    "a duration that is none": (SettingsError, "soon", lambda s: s.withWatermark("t", "soon")),
    "a vertex that is none": (GraphError, "Vertex", lambda s: s.process(7, SCHEMA)),
    "an output that is no schema": (
        SchemaError,
        "pyarrow.Schema",
        lambda s: s.process(Vertex, "n LONG"),
    ),
    "foreachBatch without a function": (SettingsError, "function", lambda s: s.foreachBatch(7)),
    "a name with a space": (SettingsError, "letters", lambda s: s.name("two words")),
    "an empty name": (SettingsError, "letters", lambda s: s.name("")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_work_is_refused_on_the_line_that_wrote_it(what: str, events: Stream) -> None:
    kind, text, write = REFUSED[what]
    stages = len(events._flow.stages)
    with pytest.raises(kind, match=text) as caught:
        write(events)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert any(frame.name == "<lambda>" and frame.filename == __file__ for frame in frames)
    bad = [stage.name for stage in events._flow.stages[stages:]]
    assert all(name == "select" for name in bad), "a refused stage stays out of the flow"


def test_an_unknown_column_is_answered_with_those_there_are(events: Stream) -> None:
    with pytest.raises(SchemaError, match="n.*k.*t"):
        events.filter("nn > 1")


def test_streams_of_two_flows_do_not_mix(events: Stream) -> None:
    other = Flow("other").generate(make, schema=SCHEMA)
    with pytest.raises(GraphError, match="belongs to flow 'other', not to 'views'"):
        events.union(other)


def test_a_source_that_makes_no_sense_is_refused(flow: Flow) -> None:
    with pytest.raises(SettingsError, match="rate"):
        flow.generate(make, schema=SCHEMA, rate=0)
    with pytest.raises(SettingsError, match="function"):
        flow.generate(7)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="schema"):
        flow.memory({"n": "int"})
    assert flow.stages == []


# -- names -----------------------------------------------------------------------------------------


def test_stages_without_a_name_are_numbered(events: Stream) -> None:
    events.filter("n > 1").filter("n > 2").filter("n > 3")
    assert [stage.name for stage in events._flow.stages] == [
        "events",
        "filter",
        "filter_2",
        "filter_3",
    ]


def test_a_name_is_kept_and_used_once(events: Stream) -> None:
    stream = events.filter("n > 1").name("large")
    assert stream.name("large") is stream
    assert stream._stage.named
    with pytest.raises(SettingsError, match="already has a stage named 'events'"):
        stream.name("events")


@pytest.mark.parametrize("name", ["1st", "a-b", "a b", "ä", "", "a/b", None])
def test_a_flow_needs_a_plain_name(name: Any) -> None:
    with pytest.raises(SettingsError, match="letters, digits and underscores"):
        Flow(name)


def test_objects_say_what_they_are(flow: Flow, events: Stream) -> None:
    assert repr(flow) == "Flow('views', 1 stages)"
    assert repr(events) == "Stream('events', [n, k, t])"


def test_a_flow_is_inert(flow: Flow, events: Stream) -> None:
    """Nothing runs and nothing is opened: the generator above would raise."""
    events.filter("n > 1").keyBy("k").memory()
    assert len(flow.stages) == 4


def test_outputs_of_a_vertex_are_streams_of_their_own(flow: Flow, events: Stream) -> None:
    other = pa.schema({"x": pa.int64()})
    one, two = flow.vertex(Vertex, [events, events], [SCHEMA, other], partitionBy=[["k"], None])
    assert (one.schema, two.schema) == (SCHEMA, other)
    with pytest.raises(GraphError, match="partitionBy has 1 entries for 2 inputs"):
        flow.vertex(Vertex, [events, events], [SCHEMA], partitionBy=[["k"]])
