"""keyBy, union, mapInArrow, withWatermark and users' vertices."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle

from penstock.api.vertex import Place, Time, Vertex
from penstock.core.progress.marks import EPOCH_END, WATERMARK_IDLE
from penstock.errors import FunctionError, GraphError, SchemaError, UsageError
from penstock.operators.base import Forward, Hash
from penstock.operators.key_by import KeyBy
from penstock.operators.map_in_arrow import MapInArrow
from penstock.operators.union import Union
from penstock.operators.user_vertex import UserVertex
from penstock.operators.watermark import WatermarkVertex, WithWatermark

BATCH = pa.record_batch({"k": ["a", "b", "a"], "n": [1, 2, 3]})
SCHEMA = BATCH.schema


class Context:
    """Collects what a vertex sends."""

    place = Place("stage", 0, 1)

    def __init__(self) -> None:
        self.sent: list[tuple[int, pa.RecordBatch, Time]] = []

    def send(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.sent.append((port, batch, time))

    def notify(self, time: Time) -> None:
        raise AssertionError("nobody asked for that")

    def watermark(self, time: Time) -> int | None:
        return None

    def count(self, name: str, value: int) -> None:
        raise AssertionError("nothing to count")


# -- keyBy -----------------------------------------------------------------------------------------


def test_key_by_asks_for_a_hash_exchange_and_passes_batches_on() -> None:
    operator = KeyBy(("k",))
    assert operator.output_schemas([SCHEMA]) == (SCHEMA,)
    assert operator.exchanges([SCHEMA]) == (Hash(("k",)),)
    assert operator.kernel()(BATCH) is BATCH


def test_without_columns_the_whole_row_is_the_key() -> None:
    assert KeyBy(()).exchanges([SCHEMA]) == (Hash(("k", "n")),)


@pytest.mark.parametrize(
    ("columns", "words"),
    [(("key",), "no column 'key'; did you mean 'k'"), (("tags",), "list<item: int64> cannot be")],
)
def test_bad_keys_are_refused(columns: tuple[str, ...], words: str) -> None:
    schema = SCHEMA.append(pa.field("tags", pa.list_(pa.int64())))
    with pytest.raises(SchemaError, match="keyBy: ") as caught:
        KeyBy(columns).output_schemas([schema])
    if "did you mean" not in words:
        assert words in str(caught.value)


# -- union -----------------------------------------------------------------------------------------


def test_union_passes_every_batch_on() -> None:
    operator = Union()
    assert operator.output_schemas([SCHEMA, SCHEMA]) == (SCHEMA,)
    assert operator.exchanges([SCHEMA, SCHEMA]) == (Forward(), Forward())
    assert operator.kernel()(BATCH) is BATCH


def test_union_of_nullable_and_not_is_nullable() -> None:
    strict = pa.schema([pa.field("k", pa.string()), pa.field("n", pa.int64(), nullable=False)])
    operator = Union()
    (schema,) = operator.output_schemas([strict, SCHEMA])
    assert schema.field("n").nullable
    made = operator.kernel()(pa.RecordBatch.from_arrays(BATCH.columns, schema=strict))
    assert made.schema == schema


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (pa.schema({"k": pa.string()}), "stream 1 has 2 columns [k, n], stream 2 has 1 [k]"),
        (pa.schema({"n": pa.int64(), "k": pa.string()}), "column 1 is 'k' in stream 1 and 'n'"),
        (pa.schema({"k": pa.string(), "n": pa.int32()}), "'n' is int64 in stream 1 and int32"),
    ],
)
def test_union_wants_equal_columns_in_equal_order(other: pa.Schema, words: str) -> None:
    with pytest.raises(SchemaError) as caught:
        Union().output_schemas([SCHEMA, other])
    assert words in str(caught.value)


def test_union_of_one_stream_is_refused() -> None:
    with pytest.raises(GraphError, match="at least one other"):
        Union().output_schemas([SCHEMA])


# -- mapInArrow ------------------------------------------------------------------------------------


def mapped(func: Any, schema: Any = SCHEMA, batch: pa.RecordBatch = BATCH) -> pa.RecordBatch:
    operator = MapInArrow(func, schema)
    (promised,) = operator.output_schemas([batch.schema])
    made = cloudpickle.loads(cloudpickle.dumps(operator)).kernel()(batch)
    assert made.schema == promised
    return made


def test_the_function_gets_an_iterator_and_its_batches_become_one() -> None:
    def twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, 1)
            yield batch.slice(1)

    assert mapped(twice).to_pylist() == BATCH.to_pylist()


def test_a_function_may_yield_nothing() -> None:
    assert mapped(lambda batches: iter(())).num_rows == 0
    assert mapped(lambda batches: []).num_rows == 0


def test_columns_are_matched_by_name_and_cast_where_nothing_is_lost() -> None:
    made = mapped(
        lambda batches: (batch.select(["n", "k"]) for batch in batches), "k string, n double"
    )
    assert made.to_pylist()[2] == {"k": "a", "n": 3.0}


@pytest.mark.parametrize(
    ("func", "schema", "words"),
    [
        (lambda it: (b.select(["k"]) for b in it), "k string, n int", "missing: ['n']"),
        (lambda it: it, "k string", "not declared: ['n']"),
        (lambda it: it, "k int, n int", "column 'k' as string, which cannot be cast"),
        (lambda it: None, "k string, n int", "returned None"),
        (lambda it: [1], "k string, n int", "gave a builtins.int"),
        (lambda it: (pa.table(b) for b in it), "k string, n int", "gave a pyarrow.lib.Table"),
        (
            lambda it: (b.set_column(1, "n", pa.nulls(3, pa.int64())) for b in it),
            "k string, n bigint NOT NULL",
            "3 nulls in column 'n'",
        ),
    ],
)
def test_wrong_output_is_an_error_that_names_the_column(func: Any, schema: str, words: str) -> None:
    with pytest.raises(FunctionError, match="mapInArrow: ") as caught:
        mapped(func, schema)
    assert words in str(caught.value)


def test_a_lossy_cast_is_refused() -> None:
    with pytest.raises(FunctionError, match=r"'n' as double.*int64 without loss"):
        mapped(
            lambda it: (b.set_column(1, "n", pc.divide(b["n"].cast("double"), 2.0)) for b in it),
        )


@pytest.mark.parametrize(("func", "schema"), [(5, SCHEMA), (iter, "k wibble"), (iter, 7)])
def test_a_bad_function_or_schema_is_refused(func: Any, schema: Any) -> None:
    with pytest.raises(SchemaError, match="mapInArrow: "):
        MapInArrow(func, schema)


# -- withWatermark ---------------------------------------------------------------------------------


def times(*micros: int | None, kind: pa.DataType | None = None) -> pa.RecordBatch:
    return pa.record_batch({"t": pa.array(micros, kind or pa.int64())})


def opened(kind: pa.DataType | None = None, delay_us: int = 0) -> tuple[WatermarkVertex, Context]:
    operator = WithWatermark("t", delay_us)
    operator.output_schemas([pa.schema({"t": kind or pa.int64()})])
    vertex, context = operator.vertex(), Context()
    vertex.open(context)
    return vertex, context


def test_batches_pass_and_the_largest_time_is_kept_per_epoch() -> None:
    vertex, context = opened(delay_us=10)
    assert vertex.seen_us() is None
    assert vertex.after(0) is None
    vertex.onRecv(0, times(100, 300), Time(2))
    vertex.onRecv(0, times(200, None), Time(1))
    assert vertex.seen_us() == 290
    assert vertex.after(1) == 190
    assert vertex.after(2) == 290
    assert [sent[1].num_rows for sent in context.sent] == [2, 2]


def test_the_watermark_never_goes_back_and_forgets_what_is_behind() -> None:
    vertex, _ = opened()
    vertex.onRecv(0, times(500), Time(0))
    assert vertex.after(0) == 500
    vertex.onRecv(0, times(100), Time(1))
    assert vertex.after(1) == 500
    assert vertex._open == {}


def test_the_watermark_is_a_function_of_the_epochs_not_of_arrival() -> None:
    batches = [(times(5), 0), (times(9), 1), (times(7), 0), (times(3), 2)]
    results = []
    for order in (batches, batches[::-1]):
        vertex, _ = opened()
        for batch, epoch in order:
            vertex.onRecv(0, batch, Time(epoch))
        results.append([vertex.after(epoch) for epoch in range(3)])
    assert results == [[7, 9, 9]] * 2


@pytest.mark.parametrize(
    ("unit", "value", "micros"),
    [("s", 2, 2_000_000), ("ms", 2, 2_000), ("ns", 2_999, 2), ("ns", -1, -1)],
)
def test_times_of_any_unit_are_microseconds_rounded_down(
    unit: str, value: int, micros: int
) -> None:
    vertex, _ = opened(pa.timestamp(unit, "UTC"))
    vertex.onRecv(0, times(value, kind=pa.timestamp(unit, "UTC")), Time(0))
    assert vertex.after(0) == micros


def test_rows_without_a_time_do_not_move_the_watermark() -> None:
    vertex, context = opened()
    vertex.onRecv(0, times(None), Time(0))
    vertex.onRecv(0, times(), Time(0))
    assert vertex.after(0) is None
    assert len(context.sent) == 1


def idle_after(epochs: int) -> WatermarkVertex:
    vertex = WithWatermark("t", 0, epochs).vertex()
    vertex.open(Context())
    vertex.onRecv(0, times(500), Time(0))
    assert vertex.after(0) == 500
    return vertex


def test_a_shard_is_idle_that_ended_epochs_without_rows_until_it_has_some() -> None:
    vertex = idle_after(2)
    assert [vertex.after(epoch) for epoch in (1, 2, 3)] == [500, WATERMARK_IDLE, WATERMARK_IDLE]
    vertex.onRecv(0, times(100), Time(4))
    assert [vertex.after(epoch) for epoch in (4, 5, 6)] == [500, 500, WATERMARK_IDLE]


def test_epochs_that_a_shard_never_ended_do_not_make_it_idle() -> None:
    vertex = idle_after(2)
    assert vertex.after(1000) == 500
    assert vertex.after(2000) == WATERMARK_IDLE


def test_unread_rows_keep_a_shard_from_being_idle_and_wake_one_that_is() -> None:
    vertex = idle_after(2)
    assert [vertex.after(epoch, unread=True) for epoch in (1, 2, 3)] == [500, 500, 500]
    assert [vertex.after(epoch) for epoch in (4, 5)] == [500, WATERMARK_IDLE]
    assert vertex.after(5, unread=True) == WATERMARK_IDLE
    assert vertex.after(6, unread=True) == 500


def test_neither_a_restated_epoch_nor_the_end_of_a_stream_makes_a_shard_idle() -> None:
    vertex = idle_after(2)
    assert vertex.after(1) == 500
    restored = WithWatermark("t", 0, 2).vertex()
    restored.from_plain(vertex.to_plain())
    assert [restored.after(epoch) for epoch in (1, 1, EPOCH_END)] == [500, 500, 500]


@pytest.mark.parametrize("kind", [pa.string(), pa.int32(), pa.date32(), pa.float64()])
def test_event_time_must_be_a_time(kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="event time is a timestamp"):
        WithWatermark("t", 0).output_schemas([pa.schema({"t": kind})])


def test_an_unknown_time_column_is_refused() -> None:
    with pytest.raises(SchemaError, match="withWatermark: no column 'tt'"):
        WithWatermark("tt", 0).output_schemas([pa.schema({"t": pa.int64()})])


def test_datetimes_are_understood() -> None:
    kind = pa.timestamp("us")
    vertex, _ = opened(kind)
    batch = pa.record_batch({"t": pa.array([datetime(1970, 1, 1, 0, 0, 1)], kind)})
    vertex.onRecv(0, batch, Time(0))
    assert vertex.seen_us() == 1_000_000


# -- users' vertices -------------------------------------------------------------------------------


class Echo(Vertex):
    """Sends what it gets."""

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.sendBy(0, batch, time)


def test_a_users_vertex_is_made_per_node() -> None:
    operator = UserVertex(Echo, (SCHEMA,), [["k"], None])
    assert operator.output_schemas([SCHEMA, SCHEMA]) == (SCHEMA,)
    assert operator.exchanges([SCHEMA, SCHEMA]) == (Hash(("k",)), Forward())
    assert isinstance(operator.vertex(), Echo)
    assert operator.vertex() is not operator.vertex()
    assert operator.describe() == "Echo"


def test_without_partition_by_rows_stay_where_they_are() -> None:
    assert UserVertex(Echo, (SCHEMA,)).exchanges([SCHEMA]) == (Forward(),)
    assert UserVertex(Echo, (SCHEMA,), ["k"]).exchanges([SCHEMA]) == (Hash(("k",)),)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: UserVertex(5, (SCHEMA,)), "expected a Vertex subclass"),  # type: ignore[arg-type]
        (lambda: UserVertex(Echo, ("k string",)), "a pyarrow.Schema"),
        (lambda: UserVertex(Echo, (SCHEMA,), [["x"]]).output_schemas([SCHEMA]), "no column 'x'"),
        (lambda: UserVertex(Echo, (SCHEMA,), [None, None]).output_schemas([SCHEMA]), "2 entries"),
        (lambda: UserVertex(lambda: 5, (SCHEMA,)).vertex(), "not a Vertex"),  # type: ignore
    ],
)
def test_bad_vertices_are_refused(make: Any, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert words in str(caught.value)
