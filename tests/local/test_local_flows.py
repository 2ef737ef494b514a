"""Every operator, end to end over hosts and channels, against plain Python."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock import Flow
from penstock.api import functions as F
from penstock.api.flow import Stream
from penstock.api.vertex import Time, Vertex
from penstock.errors import FunctionError, PenstockError, SinkError, SourceError
from penstock.testing.local import run_local

ROWS = 2000
KEYS = 7
SECOND = 1_000_000

Row = dict[str, Any]


def row(n: int) -> Row:
    """Row ``n`` of the input: event time goes up by 1 ms per row, with some disorder."""
    return {"n": n, "k": f"k{n % KEYS}", "v": (n * 37) % 101, "t": n * 1000 - (n % 5) * 300}


def make(offset: int, n: int) -> pa.RecordBatch:
    return batch_of([row(i) for i in range(offset, offset + n)])


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


EVENT_TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema({"n": pa.int64(), "k": pa.string(), "v": pa.int64(), "t": EVENT_TIME})
INPUT = [row(n) for n in range(ROWS)]


def rows_of(sink: Any) -> list[Row]:
    return plain(sink.toPylist())


def plain(rows: list[Row]) -> list[Row]:
    """Rows with times as microseconds."""
    return [{key: _us(value) for key, value in one.items()} for one in rows]


def _us(value: Any) -> Any:
    return round(value.timestamp() * SECOND) if isinstance(value, datetime) else value


def ordered(rows: Any) -> list[Row]:
    return sorted(rows, key=lambda one: repr(sorted(one.items(), key=lambda item: item[0])))


def source(flow: Flow, rows: int = ROWS, rate: float | None = None) -> Stream:
    return flow.generate(make, rows=rows, rate=rate)


@pytest.fixture(params=[1, 2, 3])
def hosts(request: pytest.FixtureRequest) -> int:
    count: int = request.param
    return count


def check(
    build: Callable[[Stream], Stream], expected: list[Row], hosts: int, **options: Any
) -> None:
    flow = Flow("checked")
    sink = build(source(flow)).memory()
    query = run_local(flow, hosts, rowsMax=150, epochInterval="10 ms", **options)
    assert ordered(rows_of(sink)) == ordered(expected)
    assert query.join()


# -- row by row ------------------------------------------------------------------------------------


def test_select(hosts: int) -> None:
    expected = [{"k": r["k"], "double": r["v"] * 2} for r in INPUT]
    check(lambda s: s.select("k", "v * 2 AS double"), expected, hosts)


def test_with_column_and_drop(hosts: int) -> None:
    expected = [{"n": r["n"], "k": r["k"], "s": r["n"] + r["v"]} for r in INPUT]
    check(lambda s: s.withColumn("s", "n + v").drop("v", "t"), expected, hosts)


def test_filter(hosts: int) -> None:
    expected = [r for r in INPUT if r["v"] > 50 and r["k"] != "k3"]
    check(lambda s: s.filter("v > 50 AND k <> 'k3'"), expected, hosts)


def test_filter_by_a_function(hosts: int) -> None:
    expected = [r for r in INPUT if r["v"] > 50]
    check(lambda s: s.filter(lambda batch: pc.greater(batch.column("v"), 50)), expected, hosts)


def test_map_in_arrow(hosts: int) -> None:
    def twice(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.select(["n"])
            yield batch.select(["n"])

    expected = [{"n": r["n"]} for r in INPUT for _ in range(2)]
    check(lambda s: s.mapInArrow(twice, "n LONG"), expected, hosts)


def test_lookup(hosts: int) -> None:
    table = pa.table({"key": ["k1", "k2"], "name": ["one", "two"]})
    names = {"k1": "one", "k2": "two"}
    expected = [r | {"name": names[r["k"]]} for r in INPUT if r["k"] in names]
    check(lambda s: s.lookup(table, on={"k": "key"}), expected, hosts)


# -- across rows -----------------------------------------------------------------------------------


def test_key_by_brings_equal_keys_together(hosts: int) -> None:
    class Where(Vertex):
        def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
            shard = pa.array([self.place.shard] * batch.num_rows)
            self.sendBy(0, pa.record_batch({"k": batch.column("k"), "shard": shard}), time)

    flow = Flow()
    schema = pa.schema({"k": pa.string(), "shard": pa.int64()})
    sink = source(flow).keyBy("k", shards=5).process(Where, schema).memory()
    run_local(flow, hosts, rowsMax=150)
    found = Counter((r["k"], r["shard"]) for r in rows_of(sink))
    assert sum(found.values()) == ROWS
    assert len(found) == KEYS
    assert len({shard for _, shard in found}) > 1


def test_union_of_streams_of_different_sharding(hosts: int) -> None:
    flow = Flow()
    one = flow.generate(make, rows=100, shards=3, name="one")
    two = flow.generate(make, rows=50, shards=1, name="two")
    pushed = flow.memory(SCHEMA, name="pushed")
    sink = one.union(two, pushed, two.filter("n < 10")).memory()
    pushed.push(batch_of(INPUT[:5]))
    run_local(flow, hosts)
    expected = INPUT[:100] + INPUT[:50] + INPUT[:5] + INPUT[:10]
    assert ordered(rows_of(sink)) == ordered(expected)


def test_distinct(hosts: int) -> None:
    expected = [dict(pairs) for pairs in {(("k", r["k"]), ("v", r["v"])) for r in INPUT}]
    check(lambda s: s.select("k", "v").distinct(), expected, hosts)


def test_running_aggregate_ends_with_the_totals(hosts: int) -> None:
    flow = Flow()
    totals = source(flow).groupBy("k").agg(F.count("*"), F.sum("v"), F.min("v"), F.max("v"))
    sink = totals.memory()
    run_local(flow, hosts, rowsMax=150, epochInterval="5 ms")
    last: dict[str, Row] = {}
    for one in rows_of(sink):
        last[one["k"]] = one
    groups: dict[str, list[int]] = defaultdict(list)
    for r in INPUT:
        groups[r["k"]].append(r["v"])
    assert last == {
        k: {"k": k, "count": len(v), "sum(v)": sum(v), "min(v)": min(v), "max(v)": max(v)}
        for k, v in groups.items()
    }


def windows(rows: list[Row], size: int, slide: int) -> dict[tuple[int, str], list[int]]:
    held: dict[tuple[int, str], list[int]] = defaultdict(list)
    for r in rows:
        start = r["t"] // slide * slide
        while start + size > r["t"]:
            held[start, r["k"]].append(r["v"])
            start -= slide
    return held


@pytest.mark.parametrize(("size", "slide"), [(100_000, 100_000), (200_000, 50_000)])
def test_windows(hosts: int, size: int, slide: int) -> None:
    flow = Flow()
    window = F.window("t", size / SECOND, slide / SECOND)
    counted = (
        source(flow)
        .withWatermark("t", "5 ms")
        .groupBy(window, "k")
        .agg(F.count("*").alias("c"), F.sum("v").alias("s"), F.avg("v").alias("a"))
    )
    sink, late = counted.memory(), counted.late().memory(name="late")
    run_local(flow, hosts, rowsMax=150, epochInterval="5 ms")
    expected = [
        {"start": at, "k": k, "c": len(v), "s": sum(v), "a": sum(v) / len(v)}
        for (at, k), v in windows(INPUT, size, slide).items()
    ]
    found = [
        {"start": _us(r["window"]["start"]), "k": r["k"], "c": r["c"], "s": r["s"], "a": r["a"]}
        for r in rows_of(sink)
    ]
    assert rows_of(late) == []
    assert ordered(found) == ordered(expected)


def test_windows_behind_an_exchange_with_a_combiner_and_without_one_agree(hosts: int) -> None:
    flow = Flow()
    marked = source(flow).withWatermark("t", "5 ms")
    grouped = marked.groupBy(F.window("t", "100 ms"), "k").agg(F.count("*").alias("c"))
    plain = marked.groupBy(F.window("t", "100 ms"), "k").agg(F.count("*").alias("c"))
    plain.late().memory(name="late")  # late rows cannot be had from a combiner
    one, two = grouped.memory(name="one"), plain.memory(name="two")
    run_local(flow, hosts, rowsMax=150, epochInterval="5 ms")
    assert ordered(rows_of(one)) == ordered(rows_of(two))
    assert sum(r["c"] for r in rows_of(one)) == ROWS


def test_sessions(hosts: int) -> None:
    flow = Flow()
    sparse = source(flow).filter("n % 100 < 20").withWatermark("t", "5 ms")
    sink = sparse.groupBy(F.session_window("t", "30 ms"), "k").agg(F.count("*").alias("c")).memory()
    run_local(flow, hosts, rowsMax=150, epochInterval="5 ms")
    expected: Counter[tuple[str, int]] = Counter()
    for k in {r["k"] for r in INPUT}:
        last, size = None, 0
        for t in sorted(r["t"] for r in INPUT if r["k"] == k and r["n"] % 100 < 20):
            if last is not None and t - last > 30_000:
                expected[k, size] += 1
                size = 0
            last, size = t, size + 1
        expected[k, size] += 1
    assert Counter((r["k"], r["c"]) for r in rows_of(sink)) == expected


@pytest.mark.parametrize("how", ["inner", "left"])
def test_join_of_two_streams(hosts: int, how: str) -> None:
    flow = Flow()
    left = source(flow, 600).withWatermark("t", "5 ms")
    right = (
        flow.generate(make, rows=400, name="right")
        .filter("n % 3 = 0")
        .select("k", "v AS w", "t AS u")
        .withWatermark("u", "5 ms")
    )
    sink = left.join(right, "k", how, within="4 ms").memory()
    run_local(flow, hosts, rowsMax=100, epochInterval="5 ms")
    expected = []
    for a in INPUT[:600]:
        near = [
            b
            for b in INPUT[:400]
            if b["n"] % 3 == 0 and b["k"] == a["k"] and abs(a["t"] - b["t"]) <= 4000
        ]
        expected += [a | {"w": b["v"], "u": b["t"]} for b in near]
        if not near and how == "left":
            expected.append(a | {"w": None, "u": None})
    assert ordered(rows_of(sink)) == ordered(expected)


def test_a_dictionary_column_crosses_hosts(hosts: int) -> None:
    def encoded(offset: int, n: int) -> pa.RecordBatch:
        batch = make(offset, n)
        return pa.record_batch({"n": batch["n"], "k": batch["k"].dictionary_encode()})

    flow = Flow()
    sink = flow.generate(encoded, rows=500).keyBy("n").groupBy("k").count().memory()
    run_local(flow, hosts, rowsMax=50)
    last = {r["k"]: r["count"] for r in rows_of(sink)}
    assert last == Counter(r["k"] for r in INPUT[:500])


def test_a_vertex_with_two_inputs_and_two_outputs(hosts: int) -> None:
    class Split(Vertex):
        def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
            self.sendBy(port, batch, time)

    flow = Flow()
    one, two = source(flow, 300), flow.generate(make, rows=200, name="two")
    first, second = flow.vertex(
        Split, [one, two], [SCHEMA, SCHEMA], partitionBy=[["k"], ["n"]], shards=3
    )
    a, b = first.memory(name="a"), second.filter("n < 50").memory(name="b")
    run_local(flow, hosts, rowsMax=40)
    assert ordered(rows_of(a)) == ordered(INPUT[:300])
    assert ordered(rows_of(b)) == ordered(INPUT[:50])


# -- sinks -----------------------------------------------------------------------------------------


def test_every_sink_gets_every_row_once(hosts: int, tmp_path: Any) -> None:
    flow = Flow()
    stream = source(flow).keyBy("k")
    seen: list[tuple[int, int]] = []
    stream.foreachBatch(lambda table, epoch: seen.append((epoch, table.num_rows)))
    stream.parquet(str(tmp_path / "out"))
    subscription = stream.subscribe()
    kept = stream.memory()
    run_local(flow, hosts, rowsMax=150, epochInterval="5 ms")
    told = [(epoch, table.num_rows) for epoch, table in subscription]
    assert sum(rows for _, rows in seen) == ROWS
    assert [epoch for epoch, _ in seen] == sorted({epoch for epoch, _ in seen})
    assert told == seen
    assert {epoch: table.num_rows for epoch, table in kept.epochs().items()} == dict(seen)
    written = pq.read_table(tmp_path / "out").drop_columns("epoch").to_pylist()
    assert ordered(plain(written)) == ordered(INPUT)


def test_the_progress_says_what_was_done(hosts: int) -> None:
    flow = Flow()
    source(flow).keyBy("k").memory(name="kept")
    query = run_local(flow, hosts, rowsMax=150)
    progress = query.lastProgress
    assert progress is not None
    assert progress.numInputRows == ROWS
    assert {stage["name"]: stage["numInputRows"] for stage in progress.stages}["kept"] == ROWS
    assert all(stage["ended"] for stage in progress.stages)
    assert all(stage["queuedBytes"] == 0 for stage in progress.stages)


# -- errors ----------------------------------------------------------------------------------------


def failing(flow: Flow, hosts: int) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        run_local(flow, hosts, rowsMax=100, epochInterval="5 ms")
    return caught.value


def test_an_error_in_a_function_names_stage_node_and_epoch_and_has_the_traceback(
    hosts: int,
) -> None:
    def breaks(batch: pa.RecordBatch) -> pa.Array:
        if 1234 in batch.column("n").to_pylist():
            raise ValueError("bad row")
        return batch.column("v")

    flow = Flow()
    source(flow).withColumn("x", breaks, pa.int64()).name("breaker").memory()
    error = failing(flow, hosts)
    assert isinstance(error, FunctionError)
    assert "bad row" in str(error)
    assert error.parameters["stage"] == "breaker"
    assert error.parameters["node"].startswith("breaker[")
    assert error.parameters["epoch"] >= 0
    assert "breaks" in error.parameters["traceback"]


def test_an_error_in_a_function_on_the_driver_reaches_the_handle_and_the_other_sinks(
    hosts: int,
) -> None:
    def breaks(table: pa.Table, epoch: int) -> None:
        raise RuntimeError("cannot write")

    flow = Flow()
    stream = source(flow)
    stream.foreachBatch(breaks, name="writer")
    subscription = stream.subscribe()
    error = failing(flow, hosts)
    assert "cannot write" in str(error)
    assert error.parameters["stage"] == "writer"
    with pytest.raises(PenstockError, match="cannot write"):
        list(subscription)


def test_an_error_in_a_generator_names_the_source(hosts: int) -> None:
    def breaks(offset: int, n: int) -> pa.RecordBatch:
        if offset + n > 1000:
            raise RuntimeError("no more")
        return make(offset, n)

    flow = Flow()
    flow.generate(breaks, rows=ROWS, name="events").memory()
    error = failing(flow, hosts)
    assert isinstance(error, SourceError)
    assert "no more" in str(error)
    assert error.parameters["stage"] == "events"
    assert "breaks" in error.parameters["traceback"]


def test_an_error_while_a_vertex_is_made_names_the_stage(hosts: int) -> None:
    def factory() -> Vertex:
        raise RuntimeError("cannot be made")

    flow = Flow()
    source(flow).process(factory, SCHEMA).name("maker").memory()
    error = failing(flow, hosts)
    assert "cannot be made" in str(error)
    assert error.parameters["stage"] == "maker"


def test_a_flow_without_an_end_is_refused_for_available_now(hosts: int) -> None:
    flow = Flow()
    flow.generate(make, name="endless").memory()
    assert "rows=" in str(failing(flow, hosts))


def test_an_output_of_an_earlier_run_is_refused(tmp_path: Any) -> None:
    for attempt in range(2):
        flow = Flow()
        source(flow).parquet(str(tmp_path))
        if attempt == 0:
            run_local(flow)
        else:
            with pytest.raises(SinkError, match="already holds epochs"):
                run_local(flow)
