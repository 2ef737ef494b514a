"""The handle of a running flow reads like a StreamingQuery, and stop() leaves nothing behind."""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock import Flow
from penstock.api import functions as F
from penstock.engine.driver.listeners import FlowListener
from penstock.engine.driver.query import FlowQuery
from penstock.errors import FunctionError, PenstockError, SettingsError
from penstock.testing.kills import await_epochs
from penstock.testing.processes import DriverScript, alive, hosts_of, wait_gone, wait_until

WAIT_S = 60.0
STOP_S = 3.0
"""Three seconds, and a little for a busy machine to get back to us."""


def counting(name: str, rate: float = 50_000, rows: int | None = None) -> tuple[Flow, Any]:
    """A flow with an exchange: numbers, counted per remainder."""

    def make(offset: int, n: int) -> pa.RecordBatch:
        ids = np.arange(offset, offset + n)
        return pa.record_batch({"id": ids, "k": ids % 10})

    flow = Flow(name)
    numbers = flow.generate(make, rate=rate, rows=rows, shards=2, name="numbers")
    out = numbers.groupBy("k").agg(F.count("*").alias("n")).name("counts").memory(name="out")
    return flow, out


def total(out: Any) -> int:
    return sum({row["k"]: row["n"] for row in out.toPylist()}.values())


def flows(query: FlowQuery) -> bool:
    """Whether the last progress tells of rows on their way, and every node has been heard."""
    last = query.lastProgress
    if last is None or last.inputRowsPerSecond <= 0 or last.batchId < 0:
        return False
    ended = [stage["frontier"] for stage in last.stages]
    return sum(stage["nodes"] for stage in last.stages) == 6 and min(ended) >= 0


class Recorder(FlowListener):
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.error: PenstockError | None = None

    def onQueryStarted(self, query: FlowQuery) -> None:
        self.calls.append("started")

    def onQueryProgress(self, progress: Any) -> None:
        self.calls.append("progress")

    def onQueryTerminated(self, query: FlowQuery, error: PenstockError | None) -> None:
        self.error = error
        self.calls.append("terminated")


class Broken(FlowListener):
    def onQueryStarted(self, query: FlowQuery) -> None:
        raise RuntimeError("a listener's own trouble")

    def onQueryTerminated(self, query: FlowQuery, error: PenstockError | None) -> None:
        raise RuntimeError("a listener's own trouble")


def test_a_running_flow_tells_what_a_streaming_query_tells(spark: SparkSession) -> None:
    flow, out = counting("told")
    query = flow.start(spark, hosts=3, progressInterval="500 ms")
    try:
        recorder = Recorder()
        query.addListener(Broken())  # disturbs neither the flow nor other listeners
        query.addListener(recorder)
        assert query.isActive
        assert query.name == "told"
        assert query.id != query.runId
        assert query.status == {
            "message": "running",
            "isDataAvailable": True,
            "isTriggerActive": True,
        }
        assert query.exception() is None
        assert query.awaitTermination(0.2) is False
        wait_until(lambda: total(out) > 0 and flows(query), 60, "progress")
        progress = query.lastProgress
        assert progress is not None
        assert (progress.id, progress.runId, progress.name) == (query.id, query.runId, "told")
        assert progress.numInputRows > 0
        assert progress.inputRowsPerSecond > 0
        assert progress.batchId >= 0
        assert [source["name"] for source in progress.sources] == ["numbers"]
        assert [sink["name"] for sink in progress.sinks] == ["out"]
        assert progress.sinks[0]["latencyMs"] > 0
        stages = {stage["name"]: stage for stage in progress.stages}
        assert stages["counts"]["nodes"] == 3
        assert stages["counts"]["frontier"] >= 0
        assert json.loads(progress.json) == json.loads(progress.prettyJson) == dict(progress)
        batches = [earlier.batchId for earlier in query.recentProgress]
        assert batches == sorted(batches)
        nodes = [node for host in query.hosts for node in host["nodes"]]
        assert sorted(nodes) == [f"counts[{i}]" for i in range(3)] + [
            f"numbers[{i}]" for i in range(2)
        ]
        assert "counts" in query.explain()
    finally:
        query.stop()
    assert recorder.calls[0] == "started"
    wait_until(lambda: recorder.calls[-1] == "terminated", 60, "the end")
    assert recorder.calls.count("terminated") == 1
    assert recorder.calls.count("progress") > 1
    assert recorder.error is None


def test_stop_drains_leaves_no_process_and_can_be_repeated(
    spark: SparkSession,
) -> None:
    flow, out = counting("stopped")
    query = flow.start(spark, hosts=4)
    hosts = hosts_of(query)
    assert len(alive(hosts.values())) == 4
    wait_until(lambda: total(out) > 0, 60, "rows")
    query.stop()
    wait_gone(hosts.values(), WAIT_S)
    assert not query.isActive
    assert query.status["message"] == "ended"
    assert query.exception() is None
    assert query.awaitTermination(0) is True
    assert query.lastProgress is not None
    assert total(out) == query.lastProgress.numInputRows  # what was read has arrived
    query.stop()
    query.stop()
    assert spark.sparkContext.statusTracker().getActiveJobsIds() == []


def test_a_source_that_is_used_up_ends_the_flow(spark: SparkSession) -> None:
    flow, out = counting("used_up", rate=1_000_000, rows=100_000)
    query = flow.start(spark, hosts=2)
    hosts = hosts_of(query) if query.isActive else {}
    assert query.awaitTermination(30) is True
    assert total(out) == 100_000
    wait_gone(hosts.values(), 1)


def test_what_made_a_flow_fail_is_raised_kept_and_told(spark: SparkSession) -> None:
    flow = Flow("failing")
    source = flow.memory(pa.schema({"n": pa.int64()}))

    def fragile(batch: pa.RecordBatch) -> pa.Array:
        if 13 in batch["n"].to_pylist():
            raise ValueError("thirteen")
        return batch["n"]

    source.keyBy("n").withColumn("m", fragile, pa.int64()).name("fragile").memory()
    query = flow.start(spark, hosts=2)
    recorder = Recorder()
    query.addListener(recorder)
    hosts = hosts_of(query)
    source.push([{"n": 1}])
    query.processAllAvailable(20)
    source.push([{"n": 13}])
    with pytest.raises(FunctionError, match="thirteen"):
        query.awaitTermination(10)
    assert isinstance(query.exception(), FunctionError)
    assert not query.isActive
    wait_until(lambda: recorder.calls[-1] == "terminated", 60, "the listener's last call")
    assert recorder.error is query.exception()
    with pytest.raises(FunctionError):
        query.processAllAvailable(5)
    with pytest.raises(PenstockError, match="thirteen"):
        source.push([{"n": 2}])
    query.stop()
    wait_gone(hosts.values(), 3)


def test_dataframe_jobs_and_a_second_flow_run_beside_a_flow(spark: SparkSession) -> None:
    first, out = counting("first")
    second, other = counting("second", rate=1_000_000, rows=50_000)
    query = first.start(spark, hosts=2)
    try:
        done: list[int] = []
        job = threading.Thread(
            target=lambda: done.append(spark.range(1000).selectExpr("sum(id)").collect()[0][0])
        )
        job.start()
        beside = second.start(spark, hosts=2)
        assert beside.awaitTermination(30)
        assert total(other) == 50_000
        job.join(30)
        assert done == [499_500]
        assert query.isActive
        before = total(out)
        wait_until(lambda: total(out) > before, 60, "the first flow to go on")
    finally:
        query.stop()
    assert query.exception() is None


def test_a_flow_can_be_run_again_and_its_state_starts_afresh(spark: SparkSession) -> None:
    flow, out = counting("again", rate=1_000_000, rows=20_000)
    for _ in range(2):
        out.clear()
        query = flow.start(spark, hosts=2)
        assert query.awaitTermination(30)
        assert total(out) == 20_000


def test_a_checkpoint_in_use_is_refused_and_the_id_survives_a_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = {"hosts": 2, "checkpointLocation": str(tmp_path / "checkpoint")}
    flow, _ = counting("kept")
    query = flow.start(spark, **options)
    try:
        with pytest.raises(SettingsError, match="in use by pid"):
            counting("kept")[0].start(spark, **options)
    finally:
        query.stop()
    again = counting("kept")[0].start(spark, **options)
    again.stop()
    assert again.id == query.id
    assert again.runId != query.runId


PLAIN_SESSION = """
import os, sys, time
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
import numpy as np, psutil, pyarrow as pa
from pyspark.sql import SparkSession
from penstock import Flow, functions as F

spark = (
    SparkSession.builder.master("local[5]")
    .config("spark.ui.enabled", "false")
    .config("spark.python.worker.reuse", "true")
    .getOrCreate()
)

def make(offset, n):
    ids = np.arange(offset, offset + n)
    return pa.record_batch({"id": ids, "k": ids % 10})

def python_sum():
    return spark.sparkContext.parallelize(range(100), 2).map(lambda n: n).sum()

print("SUM", python_sum(), flush=True)  # leaves a worker that Spark keeps for reuse
for _ in range(2):
    flow = Flow("plain")
    out = flow.generate(make, rate=100_000, shards=2).groupBy("k").agg(F.count("*").alias("n"))
    kept = out.memory()
    query = flow.start(spark, hosts=3)
    pids = [host["pid"] for host in query.hosts]
    deadline = time.monotonic() + 20
    while not kept.toPylist() and time.monotonic() < deadline:
        time.sleep(0.02)
    print("SUM", python_sum(), flush=True)
    hosts = [psutil.Process(pid) for pid in pids]
    query.stop()
    left = [p.pid for p in hosts if p.is_running() and p.status() != "zombie"]
    total = sum({row["k"]: row["n"] for row in kept.toPylist()}.values())
    print("ROWS", total == query.lastProgress.numInputRows > 0, query.exception(), flush=True)
    print("LEFT", left, flush=True)
print("SUM", python_sum(), flush=True)
spark.stop()
print("DONE", flush=True)
"""


def test_in_a_users_own_plain_session_with_worker_reuse_stop_leaves_no_host(
    tmp_path: Path,
) -> None:
    with DriverScript(PLAIN_SESSION, tmp_path, env={"PYSPARK_PYTHON": sys.executable}) as script:
        assert script.line("SUM ", 120) == "4950"
        for _ in range(2):
            assert script.line("SUM ", 120) == "4950"
            assert script.line("ROWS ", 90) == "True None"
            assert script.line("LEFT ", 90) == "[]"
        assert script.line("SUM ", 90) == "4950"
        script.descendants()
        script.line("DONE", 90)
        assert script.process.wait(30) == 0
        assert isinstance(script.descendants()[0], psutil.Process)
        wait_gone(script.descendants(), 60)


def test_a_rollback_on_spark_changes_no_result(spark: SparkSession, tmp_path: Path) -> None:
    flow, out = counting("back", rate=20_000, rows=60_000)
    query = flow.start(
        spark, hosts=2, checkpointLocation=str(tmp_path / "store"), rollbackWindow="1 minute"
    )
    try:
        wait_until(lambda: total(out) > 0, 60, "the first results")
        epoch = query.checkpoint()["counts"]
        rows = {row["stage"]: row for row in query.rollback(to=epoch)}
        assert rows["counts"]["to"] == epoch
        assert query.awaitTermination(60)
    finally:
        query.stop()
    assert query.recoveries[-1]["reason"] == f"rolled back to epoch {epoch}"
    assert total(out) == 60_000


def test_hosts_outlive_a_slow_listener_and_a_driver_that_waits_for_its_store(
    spark: SparkSession,
) -> None:
    """Neither is a reason for hosts to believe that their driver is gone."""
    lease_s = 1.0
    slept, called = threading.Event(), threading.Event()

    class Slow(FlowListener):
        def onQueryProgress(self, progress: Any) -> None:
            called.set()
            slept.wait(3 * lease_s)

    flow, out = counting("patient", rate=1000)
    query = flow.start(spark, hosts=1, lease=lease_s, progressInterval="100 ms")
    try:
        hosts = hosts_of(query)
        query.addListener(Slow())
        assert called.wait(WAIT_S)
        query._controller.events.later(lambda: time.sleep(3 * lease_s))
        await_epochs(query, 1)  # the thread is there again
        assert hosts_of(query) == hosts
        assert query.recoveries == []
        before = total(out)
        wait_until(lambda: total(out) > before, WAIT_S, "more rows")
    finally:
        slept.set()
        query.stop()
