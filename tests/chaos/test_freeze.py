"""A host that is frozen and wakes up again: the others wait without growing, nothing is lost."""

import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

from penstock import Flow
from penstock.api import functions as F
from penstock.connectors.memory import MemorySink
from penstock.testing.held_input import release_by_file
from penstock.testing.processes import alive, hosts_of, rss_mb, wait_until

GROWTH_MB = 200


def stands_still(out: MemorySink) -> bool:
    """Whether no epoch comes for half a second."""
    before = max(out.epochs())
    time.sleep(0.5)
    return max(out.epochs()) == before


def test_a_frozen_host_holds_the_others_up_with_flat_memory_and_exact_results(
    spark: SparkSession, at_length: bool
) -> None:
    frozen_s = 10.0 if at_length else 1.5
    rate = 1_000_000 if at_length else 400_000
    rows = int(rate * (frozen_s + 2))

    def numbers(offset: int, n: int) -> pa.RecordBatch:
        ids = np.arange(offset, offset + n)
        return pa.record_batch({"id": ids, "k": ids % 1000, "pad": pa.repeat("x" * 50, n)})

    flow = Flow("frozen")
    keyed = flow.generate(numbers, shards=4, rate=rate, rows=rows).keyBy("k", shards=8)
    out = keyed.groupBy("k").agg(F.count("*").alias("n"), F.sum("id").alias("total")).memory()
    query = flow.start(spark, hosts=4, pingInterval=0)
    hosts = hosts_of(query)
    wait_until(out.toPylist, 60, "rows")
    victim = hosts[2]
    others = {host: process for host, process in hosts.items() if host != 2}
    others[0] = psutil.Process()
    before = rss_mb(others)
    peaks = dict(before)
    victim.suspend()
    try:
        end = time.monotonic() + frozen_s
        while time.monotonic() < end:
            time.sleep(0.2)
            peaks = {host: max(peaks[host], now) for host, now in rss_mb(others).items()}
        assert query.isActive
        assert victim.status() == psutil.STATUS_STOPPED
        # What was under way arrives; then no epoch is complete without the frozen host.
        wait_until(lambda: stands_still(out), 60, "the last epoch")
        stuck = max(out.epochs())
    finally:
        victim.resume()
    growth = {host: round(peaks[host] - before[host]) for host in others}
    print(f"memory grew by {growth} MB")
    assert max(growth.values()) < GROWTH_MB
    assert query.awaitTermination(120)
    last = {row["k"]: row for row in out.toPylist()}
    assert sum(row["n"] for row in last.values()) == rows
    assert sum(row["total"] for row in last.values()) == rows * (rows - 1) // 2
    assert max(out.epochs()) > stuck


def test_a_host_that_stays_silent_is_replaced_and_not_heard_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    def numbers(offset: int, n: int) -> pa.RecordBatch:
        return pa.record_batch({"id": np.arange(offset, offset + n)})

    flow = Flow("silent")
    made = flow.generate(numbers, shards=2, rate=5_000, rows=50_000, name="numbers")
    out = made.keyBy("id").select("id", "id * 2 AS twice").name("doubled").memory()
    valve = release_by_file(flow, tmp_path / "release")
    query = flow.start(spark, hosts=3, hostTimeout="1500 ms", pingInterval=0)
    wait_until(out.toPylist, 60, "rows")
    host = next(node["host"] for node in query.nodes() if node["name"] == "doubled[0]")
    victim = hosts_of(query)[host]
    victim.suspend()
    try:
        wait_until(lambda: query.recoveries, 60, "the loss of the host")
        wait_until(lambda: query.recoveries[-1]["recovered_us"], 60, "the recovery")
        assert "doubled[0]" in query.recoveries[0]["lost"]
        assert "not heard" in query.recoveries[0]["reason"]
    finally:
        victim.resume()
    valve.release()
    assert query.awaitTermination(60)
    assert sorted(row["id"] for row in out.toPylist()) == list(range(50_000))
    wait_until(lambda: not victim.is_running(), 60, "the end of the process that woke up")


def test_a_frozen_host_with_state_is_noticed_at_once_and_changes_nothing_when_it_wakes_up(
    spark: SparkSession, tmp_path: Path, at_length: bool
) -> None:
    rows, keys = 400_000, 100

    def numbers(offset: int, n: int) -> pa.RecordBatch:
        ids = np.arange(offset, offset + n)
        return pa.record_batch({"id": ids, "k": ids % keys})

    flow = Flow("zombie")
    made = flow.generate(numbers, shards=2, rate=20_000, rows=rows, name="numbers")
    sums = made.groupBy("k").agg(F.count("*").alias("n"), F.sum("id").alias("total"))
    out = sums.name("sums").memory()
    valve = release_by_file(flow, tmp_path / "release")
    query = flow.start(spark, hosts=3, checkpointInterval="200 ms")
    wait_until(out.toPylist, 60, "rows")
    wait_until(
        lambda: query._controller.recovery.requests.checkpoints()["sums"] > 0, 20, "a checkpoint"
    )  # type: ignore[union-attr]
    host = next(node["host"] for node in query.nodes() if node["name"] == "sums[0]")
    victim = hosts_of(query)[host]
    query.freeze("sums[0]")
    wait_until(lambda: query.recoveries and query.recoveries[0]["opened_us"], 60, "the take-over")
    assert victim.status() == psutil.STATUS_STOPPED
    assert query.recoveries[0]["host"] == host
    assert "silent for" in query.recoveries[0]["reason"]
    assert "sums[0]" in query.recoveries[0]["lost"]
    assert host not in {node["host"] for node in query.nodes()}
    if at_length:
        time.sleep(10)
    query.unfreeze()
    wait_until(lambda: not alive([victim]), 60, "the end of the one that woke up")
    valve.release()
    assert query.awaitTermination(60)
    # What it tries before it learns that it was given up is refused and counted; Spark may also
    # kill the cancelled task's process before it tries anything.
    refused = query.recoveries[0]["refused"]
    print(f"refused: {refused}, moves: {[move['reason'] for move in query.moves]}")
    assert set(refused) <= {"messages", "connections", "writes"}
    assert len(query.recoveries) == 1
    last = {row["k"]: row for row in out.toPylist()}
    assert sum(row["n"] for row in last.values()) == rows
    assert sum(row["total"] for row in last.values()) == rows * (rows - 1) // 2
