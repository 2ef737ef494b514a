"""A drill with real processes: frozen, woken up, killed while frozen."""

from pathlib import Path

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

from penstock import Flow
from penstock.cli.drill import DrillSession
from penstock.engine.driver.command_channel import find_driver
from penstock.testing.held_input import release_by_file
from penstock.testing.processes import hosts_of, wait_gone, wait_until


def test_hosts_are_frozen_woken_and_killed_and_nothing_is_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    def numbers(offset: int, n: int) -> pa.RecordBatch:
        return pa.record_batch({"n": list(range(offset, offset + n))})

    flow = Flow("drilled")
    made = flow.generate(numbers, rate=2_000, rows=10_000, shards=1, name="made")
    valve = release_by_file(flow, tmp_path / "release")
    out = made.keyBy("n", shards=2).name("keyed").memory(name="out")
    # Nobody watches: who is frozen keeps its nodes.
    query = flow.start(
        spark, hosts=3, checkpointLocation=str(tmp_path / "store"), pingInterval=0, reinstate=False
    )
    wait_until(out.toPylist, 60, "rows")
    drill = DrillSession(find_driver(str(tmp_path / "store")), quiet=True)
    try:
        [frozen] = drill.run("freeze keyed[0] 2")
        process = hosts_of(query)[frozen["host"]]
        assert process.pid == frozen["pid"]
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED, 60, "the freeze")
        assert drill.run("status")["frozen"] == [frozen]
        wait_until(lambda: process.status() != psutil.STATUS_STOPPED, 60, "its end after a while")
        assert drill.run("status")["frozen"] == []
        drill.run("freeze keyed[1]")
        [killed] = drill.run("crash keyed[1]")
        wait_gone([psutil.Process(killed["pid"])], 60)
        drill.run("wait recovered 30")
        drill.run("freeze keyed[0]")
        assert drill.run("unfreeze keyed[0]")[0]["pid"] == process.pid
        valve.release()
        assert query.awaitTermination(60)
    finally:
        query.stop()
    assert sorted(row["n"] for row in out.toPylist()) == list(range(10_000))


def test_whoever_was_frozen_is_woken_up_by_the_name_of_what_runs_elsewhere_now(
    spark: SparkSession,
) -> None:
    def numbers(offset: int, n: int) -> pa.RecordBatch:
        return pa.record_batch({"n": list(range(offset, offset + n))})

    flow = Flow("woken")
    flow.generate(numbers, rate=1_000, shards=1).keyBy("n", shards=1).name("keyed").memory()
    query = flow.start(spark, hosts=2)
    try:
        [frozen] = query.freeze("keyed[0]")
        process = psutil.Process(frozen["pid"])
        wait_until(lambda: query.recoveries, 60, "the loss")
        assert query.unfreeze("keyed[0]") == [frozen]
        wait_gone([process], 60)
    finally:
        query.stop()


def test_what_is_frozen_does_not_keep_a_flow_from_stopping(spark: SparkSession) -> None:
    def numbers(offset: int, n: int) -> pa.RecordBatch:
        return pa.record_batch({"n": list(range(offset, offset + n))})

    flow = Flow("stopped")
    flow.generate(numbers, rate=1_000, shards=1).keyBy("n", shards=1).name("keyed").memory()
    query = flow.start(spark, hosts=2)
    processes = hosts_of(query)
    query.freeze("keyed[0]")
    query.stop()
    assert query.awaitTermination(20)
    wait_gone(processes.values(), 60)
