"""Operators from source to sink on real hosts, against what Spark makes of the same rows."""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as SF

from penstock import Flow, Time, Vertex
from penstock.api import functions as F
from penstock.engine.spark.session import local_session

# The hosts cannot import this module: what the flows below refer to travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROWS = 20_000
ORIGIN_US = 1_700_000_000_000_000
STEP_US = 700
CITIES = pa.table({"city_id": [0, 1, 2, 3], "city": ["Ulm", "Riga", "Porto", "Graz"]})


def make(offset: int, n: int) -> pa.RecordBatch:
    """Rows that are a function of their offset, with nulls, repeats and pauses."""
    ids = np.arange(offset, offset + n)
    pauses = ids // 5_000 * 3_000_000  # longer than the session gap
    return pa.record_batch(
        {
            "id": pa.array(ids),
            "k": pa.array(ids % 7),
            "city_id": pa.array(ids % 5),
            "v": pa.array((ids * 37) % 1001, mask=ids % 11 == 0),
            "t": pa.array(ORIGIN_US + ids * STEP_US + pauses).cast(pa.timestamp("us", tz="UTC")),
        }
    )


def make_right(offset: int, n: int) -> pa.RecordBatch:
    ids = np.arange(offset, offset + n)
    pauses = ids * 4 // 5_000 * 3_000_000
    return pa.record_batch(
        {
            "k": pa.array(ids % 9),
            "right_id": pa.array(ids),
            "right_t": pa.array(ORIGIN_US + ids * 4 * STEP_US + pauses).cast(
                pa.timestamp("us", tz="UTC")
            ),
        }
    )


class Largest(Vertex):
    """Per key, the rows that are larger than any before; an example of state and notifications."""

    def open(self, context: Any) -> None:
        super().open(context)
        self.best: dict[int, int] = {}
        self.pending: dict[int, dict[int, int]] = {}

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        if time.epoch not in self.pending:
            self.pending[time.epoch] = {}
            self.notifyAt(time)
        rows = self.pending[time.epoch]
        for key, value in zip(batch["k"].to_pylist(), batch["id"].to_pylist(), strict=True):
            rows[key] = max(rows.get(key, -1), value)

    def onNotify(self, time: Time) -> None:
        better = {
            k: v
            for k, v in sorted(self.pending.pop(time.epoch).items())
            if v > self.best.get(k, -1)
        }
        self.best.update(better)
        self.sendBy(0, pa.record_batch({"k": list(better), "best": list(better.values())}), time)


def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"id": batch["id"], "twice": pc.multiply(batch["id"], 2)})


class Results:
    """The rows that one flow with many sinks gave, and the same input as Spark DataFrames."""

    def __init__(self, spark: SparkSession) -> None:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        self.flow = Flow("operators")
        self.sinks: dict[str, Any] = {}
        self._build()
        self.query = self.flow.start(spark, hosts=4, parallelism=2, epochInterval="50 ms")
        assert self.query.awaitTermination(60)
        self.left = spark.createDataFrame(pa.Table.from_batches([make(0, ROWS)]))
        self.right = spark.createDataFrame(pa.Table.from_batches([make_right(0, ROWS // 4)]))

    def _build(self) -> None:
        rows = self.flow.generate(make, rows=ROWS, shards=2, name="left")
        timed = rows.withWatermark("t", "0 seconds")
        keep = self._keep
        keep("sql", rows.filter("v % 2 = 0 AND id > 10").select("id", "v * 2 + k AS w"))
        keep("arrow", rows.filter((pc.field("k") == 3) & (pc.field("id") < 1000)).select("id"))
        keep("function", rows.filter(lambda batch: pc.less(batch["id"], 25)).select("id", "k"))
        keep("column", rows.withColumn("v", "coalesce(v, -1)").drop("city_id", "t"))
        keep("inner_lookup", rows.lookup(CITIES, "city_id").select("id", "city"))
        keep("left_lookup", rows.lookup(CITIES, "city_id", how="left").select("id", "city"))
        few, many = rows.filter("id < 100").select("id"), rows.filter("id >= 50").select("id")
        keep("union", few.union(many))
        keep("distinct", rows.select("k", "city_id").distinct())
        keep("mapped", rows.mapInArrow(doubled, "id BIGINT, twice BIGINT"))
        keep(
            "largest",
            rows.process(
                Largest, pa.schema({"k": pa.int64(), "best": pa.int64()}), partitionBy=["k"]
            ),
        )
        keep("running", rows.groupBy("k").agg(*aggregates(F)))
        keep("total", rows.groupBy().agg(F.count("*").alias("n")))
        window = F.window("t", "1 second")
        keep("tumbling", timed.groupBy(window, "k").agg(*aggregates(F)))
        keep("sliding", timed.groupBy(F.window("t", "2 seconds", "500 ms")).agg(*aggregates(F)))
        keep("session", timed.groupBy(F.session_window("t", "1 second"), "k").agg(*aggregates(F)))
        other = self.flow.generate(make_right, rows=ROWS // 4, shards=1, name="right")
        right = other.withWatermark("right_t", "0 seconds")
        left = timed.filter("id % 3 = 0").select("id", "k", "t")
        time = ("t", "right_t")
        keep("inner_join", left.join(right, "k", within="3 ms", time=time))
        keep("left_join", left.join(right, "k", "left", within="3 ms", time=time))

    def _keep(self, name: str, stream: Any) -> None:
        self.sinks[name] = stream.memory(name=f"{name}_rows")

    def rows(self, name: str) -> list[dict[str, Any]]:
        return self.sinks[name].toPylist()


def aggregates(functions: Any) -> list[Any]:
    """The same aggregates for Penstock and for Spark."""
    return [
        functions.count("*").alias("n"),
        functions.count("v").alias("known"),
        functions.sum("v").alias("total"),
        functions.min("v").alias("least"),
        functions.max("v").alias("most"),
        functions.avg("v").alias("mean"),
    ]


def as_counts(rows: list[dict[str, Any]]) -> Counter[Any]:
    """Rows as a multiset, whatever their order."""
    return Counter(repr(sorted(row.items())) for row in rows)


def same(name: str, results: Results, frame: DataFrame) -> None:
    expected = frame.toArrow().cast(results.sinks[name].schema).to_pylist()
    assert len(expected) > 0
    assert as_counts(results.rows(name)) == as_counts(expected)


@pytest.fixture(scope="module")
def results(session_slot: Any) -> Results:
    return Results(
        session_slot.use("local", lambda: local_session("penstock-tests", master="local[6]"))
    )


def test_filter_and_select_in_sql_give_sparks_rows(results: Results) -> None:
    same("sql", results, results.left.filter("v % 2 = 0 AND id > 10").selectExpr("id", "v*2+k w"))


def test_filter_takes_arrow_expressions_and_functions(results: Results) -> None:
    same("arrow", results, results.left.filter("k = 3 AND id < 1000").select("id"))
    same("function", results, results.left.filter("id < 25").select("id", "k"))


def test_with_column_replaces_a_column_and_drop_leaves_columns_out(results: Results) -> None:
    frame = results.left.withColumn("v", SF.expr("coalesce(v, -1)")).drop("city_id", "t")
    same("column", results, frame)


def test_lookup_is_sparks_join_with_a_small_table(results: Results, spark: SparkSession) -> None:
    cities = spark.createDataFrame(CITIES)
    for how in ("inner", "left"):
        frame = results.left.join(cities, "city_id", how).select("id", "city")
        same(f"{how}_lookup", results, frame)


def test_union_keeps_doubles_and_distinct_drops_them(results: Results) -> None:
    few, many = results.left.filter("id < 100"), results.left.filter("id >= 50")
    same("union", results, few.select("id").union(many.select("id")))
    same("distinct", results, results.left.select("k", "city_id").distinct())


def test_map_in_arrow_runs_the_users_function_on_every_row(results: Results) -> None:
    same("mapped", results, results.left.selectExpr("id", "id * 2 AS twice"))


def test_a_vertex_of_the_users_keeps_state_over_epochs(results: Results) -> None:
    rows = results.rows("largest")
    assert {k: max(r["best"] for r in rows if r["k"] == k) for k in range(7)} == {
        k: max(i for i in range(ROWS) if i % 7 == k) for k in range(7)
    }
    for k in range(7):
        bests = [row["best"] for row in rows if row["k"] == k]
        assert bests == sorted(set(bests))


def test_the_last_running_aggregates_are_sparks(results: Results) -> None:
    last = {row["k"]: row for row in results.rows("running")}
    frame = results.left.groupBy("k").agg(*aggregates(SF))
    expected = frame.toArrow().cast(results.sinks["running"].schema).to_pylist()
    assert last == {row["k"]: row for row in expected}
    assert results.rows("total")[-1] == {"n": ROWS}


def test_tumbling_windows_are_sparks(results: Results) -> None:
    frame = results.left.groupBy(SF.window("t", "1 second"), "k").agg(*aggregates(SF))
    same("tumbling", results, frame)


def test_sliding_windows_are_sparks(results: Results) -> None:
    window = SF.window("t", "2 seconds", "500 milliseconds")
    same("sliding", results, results.left.groupBy(window).agg(*aggregates(SF)))


def test_session_windows_are_sparks(results: Results) -> None:
    window = SF.session_window("t", "1 second")
    same("session", results, results.left.groupBy(window, "k").agg(*aggregates(SF)))


def test_joins_of_two_streams_are_sparks(results: Results) -> None:
    left = results.left.filter("id % 3 = 0").select("id", "k", "t")
    apart = SF.abs(SF.unix_micros("t") - SF.unix_micros("right_t")) <= 3000
    for how in ("inner", "left"):
        right = results.right.withColumnRenamed("k", "right_k")
        frame = left.join(right, apart & (SF.col("k") == SF.col("right_k")), how)
        same(f"{how}_join", results, frame.select("k", "id", "t", "right_id", "right_t"))


def test_rows_pushed_from_the_driver_reach_every_kind_of_driver_sink(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    flow = Flow("pushed")
    numbers = flow.memory(pa.schema({"n": pa.int64()}), name="numbers")
    batches: list[tuple[int, list[int]]] = []
    even = numbers.filter("n % 2 = 0")
    even.foreachBatch(lambda rows, epoch: batches.append((epoch, rows["n"].to_pylist())))
    sums = numbers.groupBy().agg(F.sum("n").alias("total")).subscribe()
    kept = numbers.keyBy("n").memory()
    numbers.select("n + 1000 AS shifted").console(rows=2)
    query = flow.start(spark, hosts=2, epochInterval="20 ms")
    try:
        numbers.push([{"n": 1}, {"n": 2}])
        query.processAllAvailable(20)
        assert sorted(row["n"] for row in kept.toPylist()) == [1, 2]
        assert [rows for _, rows in batches] == [[2]]
        item = sums.get(5)
        assert item is not None
        first, rows = item
        assert rows.to_pylist() == [{"total": 3}]
        assert kept.awaitEpoch(first, 5)
        numbers.push({"n": [4, 5, 7]})
        query.processAllAvailable(20)
        assert [rows for _, rows in batches] == [[2], [4]]
        item = sums.get(5)
        assert item is not None
        assert item[0] > first
        assert item[1].to_pylist() == [{"total": 19}]
        numbers.push(pa.record_batch({"n": [6]}))
        numbers.close()
        assert query.awaitTermination(20)
        assert [rows.to_pylist() for _, rows in sums] == [[{"total": 25}]]
        assert sorted(row["n"] for row in kept.toPylist()) == [1, 2, 4, 5, 6, 7]
        assert batches == sorted(batches)
    finally:
        query.stop()
    printed = capfd.readouterr().out
    assert "3 rows, the first 2" in printed
    assert "1001" in printed
    assert "1007" not in printed


def test_late_rows_leave_by_the_side_and_lateness_that_is_allowed_counts(
    spark: SparkSession,
) -> None:
    flow = Flow("late")
    schema = pa.schema({"t": pa.timestamp("us", tz="UTC"), "n": pa.int64()})
    source = flow.memory(schema, name="rows")
    counts = (
        source.withWatermark("t", "1 second")
        .groupBy(F.window("t", "1 second"))
        .agg(F.sum("n").alias("total"), allowedLateness="2 seconds")
    )
    out, late = counts.memory(name="out"), counts.late().memory(name="late")

    def at(second: float) -> datetime:
        return datetime.fromtimestamp(ORIGIN_US / 1e6 + second, UTC)

    def push(*rows: tuple[float, int]) -> None:
        source.push([{"t": at(second), "n": n} for second, n in rows])
        query.processAllAvailable(20)

    query = flow.start(spark, hosts=2, parallelism=2, epochInterval="20 ms")
    try:
        push((0.5, 1), (0.6, 2), (1.5, 4))
        assert out.toPylist() == []  # the watermark is at 0.5
        push((2.5, 8))
        assert [row["total"] for row in out.toPylist()] == [3]
        push((0.7, 16))  # within the allowed lateness: the result is sent once more
        assert [row["total"] for row in out.toPylist()] == [3, 19]
        push((10.0, 32))
        push((0.8, 64), (9.5, 128))
        assert [row["n"] for row in late.toPylist()] == [64]
        source.close()
        assert query.awaitTermination(20)
    finally:
        query.stop()
    totals = {row["window"]["start"]: row["total"] for row in out.toPylist()}
    assert totals == {at(0): 19, at(1): 4, at(2): 8, at(9): 128, at(10): 32}


@pytest.mark.parametrize("format", ["parquet", "csv", "json"])
def test_files_become_parquet_that_spark_reads(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for number in range(4):
        table = pa.table({"id": range(number * 500, number * 500 + 500), "word": ["a b"] * 500})
        path = source / f"part-{number}.{format}"
        if format == "parquet":
            pq.write_table(table, path)
        elif format == "csv":
            pa.csv.write_csv(table, path)
        else:
            path.write_text("".join(f'{{"id": {i}, "word": "a b"}}\n' for i in table["id"]))
    flow = Flow("files")
    rows = flow.files(str(source), schema=pa.schema({"id": pa.int64(), "word": pa.string()}))
    rows.filter("id % 2 = 1").withColumn("twice", "id * 2").parquet(str(out))
    query = flow.start(spark, hosts=2, availableNow=True)
    assert query.awaitTermination(30)
    frame = spark.read.parquet(str(out))
    assert sorted(frame.columns) == ["epoch", "id", "twice", "word"]
    expected = [(i, "a b", 2 * i) for i in range(1, 2000, 2)]
    assert sorted(map(tuple, frame.select("id", "word", "twice").collect())) == expected


def test_a_directory_that_grows_is_followed(spark: SparkSession, tmp_path: Path) -> None:
    flow = Flow("growing")
    schema = pa.schema({"id": pa.int64()})
    out = flow.files(
        str(tmp_path), format="parquet", schema=schema, pollInterval="50 ms", shards=2
    ).memory()
    query = flow.start(spark, hosts=2)
    try:
        for number in range(3):
            table = pa.table({"id": pa.array([number], pa.int64())})
            pq.write_table(table, tmp_path / ".hidden")
            (tmp_path / ".hidden").rename(tmp_path / f"{number}.parquet")
            deadline = time.monotonic() + 10
            while len(out.toPylist()) <= number and time.monotonic() < deadline:
                time.sleep(0.02)
            assert sorted(row["id"] for row in out.toPylist()) == list(range(number + 1))
    finally:
        query.stop()
