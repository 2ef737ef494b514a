"""Runs that are stopped, restarted, cut off and held up, without Spark."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Flow
from penstock.api import functions as F
from penstock.api.vertex import Time, Vertex
from penstock.errors import PenstockError
from penstock.testing.kills import await_epochs, await_recovery
from penstock.testing.local import LocalQuery, run_local, start_local

WAIT_S = 60.0
SCHEMA = pa.schema({"n": pa.int64()})


def make(offset: int, n: int) -> pa.RecordBatch:
    return pa.record_batch({"n": list(range(offset, offset + n))}, schema=SCHEMA)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(0.002)


def stopped(query: LocalQuery) -> None:
    query.stop()
    query.finish(WAIT_S)
    assert query.join()


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["n"] for row in rows)


def rows_in(progress: Any) -> dict[str, int]:
    return {stage["name"]: stage["numInputRows"] for stage in progress.stages}


def test_stop_in_the_middle_drains_what_was_read_and_nothing_else() -> None:
    flow = Flow()
    kept = flow.generate(make, rate=20_000, shards=2).keyBy("n", shards=4).memory(name="kept")
    query = start_local(flow, hosts=3, epochInterval="10 ms", drainTimeout="20 seconds")
    wait_for(lambda: len(kept.epochs()) >= 5, "some epochs")
    stopped(query)
    got = numbers(kept.toPylist())
    assert got
    assert len(got) == len(set(got))
    assert query.lastProgress is not None
    assert len(got) == query.lastProgress.numInputRows
    # Each shard's rows are a prefix of its own: blocks of 20 rows, dealt out in turn.
    for shard in (0, 1):
        own = [n for n in got if n // 20 % 2 == shard]
        assert own == [n for n in range(own[-1] + 1) if n // 20 % 2 == shard]


def test_open_windows_are_not_sent_when_a_flow_is_stopped() -> None:
    flow = Flow()
    pushed = flow.memory(pa.schema({"t": pa.timestamp("us")}))
    counted = pushed.withWatermark("t", 0).groupBy(F.window("t", "1 second")).count()
    sink, seen = counted.memory(name="windows"), pushed.memory(name="seen")
    query = start_local(flow, epochInterval="10 ms", drainTimeout="20 seconds")
    pushed.push({"t": pa.array([100_000, 200_000, 1_500_000], pa.timestamp("us"))})
    wait_for(lambda: len(seen.toPylist()) == 3, "the rows")
    wait_for(lambda: bool(sink.toPylist()), "the first window")
    stopped(query)
    assert [row["count"] for row in sink.toPylist()] == [2]


def test_rows_pushed_while_the_flow_runs_come_out() -> None:
    flow = Flow()
    pushed = flow.memory(SCHEMA)
    sink = pushed.keyBy("n").memory(name="out")
    query = start_local(flow, hosts=2, epochInterval="10 ms")
    for n in range(50):
        pushed.push({"n": [n]})
    query.processAllAvailable(WAIT_S)
    assert numbers(sink.toPylist()) == list(range(50))
    pushed.push({"n": [50]})
    pushed.close()
    query.finish(WAIT_S)
    assert numbers(sink.toPylist()) == list(range(51))
    assert query.join()


def test_nothing_is_lost_or_doubled_when_connections_break_again_and_again() -> None:
    rows = 20_000
    flow = Flow()
    kept = flow.generate(make, rate=20_000, rows=rows, shards=2).keyBy("n", shards=4).memory()
    query = start_local(flow, hosts=3, epochInterval="10 ms")
    cuts = 0
    while query.isActive and cuts < 2000:
        query.severConnections(1 + cuts % 3)
        cuts += 1
        time.sleep(0.02)
    query.finish(WAIT_S)
    assert cuts > 5
    assert numbers(kept.toPylist()) == list(range(rows))
    assert query.join()


def test_a_slow_sink_holds_up_the_source() -> None:
    gate = threading.Event()
    flow = Flow()
    flow.generate(make, shards=2).keyBy("n", shards=4).foreachBatch(
        lambda table, epoch: gate.wait(WAIT_S) and None, name="slow"
    )
    query = start_local(
        flow, hosts=2, epochInterval="10 ms", windowBytes=20_000, rowsMax=500, progressInterval=0.02
    )

    def read() -> int:
        return query.lastProgress.numInputRows if query.lastProgress else 0

    before = -1
    deadline = time.monotonic() + WAIT_S
    while read() == 0 or read() != before:
        before = read()
        assert time.monotonic() < deadline, "the source never stopped reading"
        time.sleep(0.7)  # longer than a heartbeat
    progress = query.lastProgress
    assert progress is not None
    assert all(stage["queuedBytes"] < 10 * 20_000 for stage in progress.stages)
    gate.set()
    wait_for(lambda: read() > before, "more rows")
    stopped(query)


def test_a_failure_wakes_those_who_read_and_push_on_the_driver() -> None:
    flow = Flow()
    pushed = flow.memory(SCHEMA)
    subscription = pushed.filter("n >= 0").subscribe()

    def breaks(table: pa.Table, epoch: int) -> None:
        raise RuntimeError("cannot write")

    pushed.foreachBatch(breaks, name="writer")
    outcome: list[BaseException | int] = []

    def consume() -> None:
        try:
            outcome.append(len(list(subscription)))
        except PenstockError as error:
            outcome.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    query = start_local(flow, epochInterval="10 ms")
    pushed.push({"n": [1]})
    with pytest.raises(PenstockError, match="cannot write"):
        query.awaitTermination(WAIT_S)
    consumer.join(WAIT_S)
    assert isinstance(outcome[0], PenstockError), "the end looked like an orderly one"
    with pytest.raises(PenstockError, match="cannot write"):
        pushed.push({"n": [2]})
    assert query.join()


def test_a_stop_before_any_row_ends_at_once() -> None:
    flow = Flow()
    pushed = flow.memory(SCHEMA)
    sink = pushed.keyBy("n").memory()
    query = start_local(flow, hosts=2)
    stopped(query)
    assert sink.toPylist() == []
    assert query.exception() is None


def test_a_function_that_never_returns_does_not_keep_the_flow_from_ending() -> None:
    gate = threading.Event()

    class Stuck(Vertex):
        def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
            gate.wait(WAIT_S)

    flow = Flow()
    flow.generate(make, rows=10).process(Stuck, SCHEMA).memory()
    query = start_local(flow, hosts=1, drainTimeout="100 ms")
    query.stop()
    assert not query.isActive
    gate.set()
    assert query.join()


# -- restarts --------------------------------------------------------------------------------------


def stopping_flow(path: Path, fail_at: int | None = None) -> Flow:
    """Rows 0 to 2999 through a hash exchange into Parquet; fails at a row if asked to."""

    def checked(batch: pa.RecordBatch) -> pa.Array:
        if fail_at is not None and fail_at in batch.column("n").to_pylist():
            raise RuntimeError("it broke")
        return batch.column("n")

    flow = Flow("restarted")
    stream = flow.generate(make, rows=3000, rate=6000, shards=2)
    stream.keyBy("n", shards=2).withColumn("m", checked, pa.int64()).parquet(str(path / "out"))
    return flow


def written(path: Path) -> dict[int, list[int]]:
    """The rows of each published epoch."""
    return {
        int(folder.name.partition("=")[2]): sorted(pq.read_table(folder)["n"].to_pylist())
        for folder in (path / "out").glob("epoch=*")
    }


def test_a_flow_that_is_stopped_and_started_again_and_again_equals_one_run(tmp_path: Path) -> None:
    before: dict[int, list[int]] = {}
    for attempt in range(6):
        query = start_local(
            stopping_flow(tmp_path),
            hosts=2,
            checkpointLocation=str(tmp_path / "store"),
            epochInterval="10 ms",
            drainTimeout="20 seconds" if attempt % 2 else "1 ms",
        )
        if attempt < 5:
            known = len(before)
            wait_for(lambda: len(written(tmp_path)) >= known + 2 or not query.isActive, "epochs")  # noqa: B023
            stopped(query)
        else:
            query.finish(WAIT_S)
            assert query.join()
        now = written(tmp_path)
        assert {epoch: now[epoch] for epoch in before} == before
        before = now
    assert sorted(n for rows in before.values() for n in rows) == list(range(3000))


def test_a_flow_that_fails_and_is_mended_goes_on_where_it_was(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "checkpointLocation": str(tmp_path / "store"),
        "epochInterval": "10 ms",
    }
    with pytest.raises(PenstockError, match="it broke"):
        run_local(stopping_flow(tmp_path, fail_at=1500), **options)
    published = written(tmp_path)
    assert 1500 not in [n for rows in published.values() for n in rows]
    run_local(stopping_flow(tmp_path), **options)
    after = written(tmp_path)
    assert {epoch: after[epoch] for epoch in published} == published
    assert sorted(n for rows in after.values() for n in rows) == list(range(3000))


def test_a_run_that_is_complete_has_nothing_left_to_do(tmp_path: Path) -> None:
    options: dict[str, Any] = {"checkpointLocation": str(tmp_path / "store")}
    run_local(stopping_flow(tmp_path), **options)
    first = written(tmp_path)
    run_local(stopping_flow(tmp_path), **options)
    assert written(tmp_path) == first


def test_a_shard_that_gets_no_rows_does_not_hold_up_windows() -> None:
    flow = Flow()
    pushed = flow.memory(pa.schema({"k": pa.string(), "t": pa.timestamp("us")}))
    marked = pushed.keyBy("k", shards=4).withWatermark("t", 0, idleEpochs=1)
    sink = marked.groupBy(F.window("t", "1 second")).count().memory(name="windows")
    query = start_local(flow, hosts=2, epochInterval="10 ms")
    try:
        times = pa.array([100_000, 200_000, 5_000_000], pa.timestamp("us"))
        pushed.push({"k": ["a"] * 3, "t": times})
        query.processAllAvailable(WAIT_S)
        assert [row["count"] for row in sink.toPylist()] == [2]
    finally:
        stopped(query)


def test_hosts_give_back_their_files_when_nodes_leave_and_when_they_end() -> None:
    def open_logs() -> list[str]:
        found = []
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                found.append(os.readlink(f"/proc/self/fd/{name}"))
        return [path for path in found if "/files_given_back/" in path]

    flow = Flow("files")
    flow.generate(make, rate=1000, name="files_given_back").keyBy("n").memory()
    query = start_local(flow, hosts=2)
    await_epochs(query, 2)
    assert open_logs()
    victim = next(node for node in query.nodes() if node["stage"] == "files_given_back")
    query.kill(victim["name"])
    await_recovery(query, 1, WAIT_S)
    await_epochs(query, 2)
    stopped(query)
    assert open_logs() == []
