"""The session that Penstock makes for itself."""

import importlib.util
import os
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock import Flow, Replicated
from penstock.engine.spark.session import local_session, settings
from penstock.errors import SessionError


def test_python_workers_come_from_the_warmed_up_daemon(spark: SparkSession) -> None:
    def look(_: int) -> tuple[str, bool, list[str]]:
        parent = Path(f"/proc/{os.getppid()}/cmdline").read_text().replace("\0", " ")
        zips = [entry for entry in sys.path if entry.endswith(".zip") and "pyspark" in entry]
        return parent, "penstock.engine" in sys.modules, zips

    [(daemon, preloaded, zips)] = spark.sparkContext.parallelize([0], 1).map(look).collect()
    assert daemon.split()[0] == sys.executable
    assert "penstock.engine.spark.daemon" in daemon
    assert preloaded
    assert zips == []


def test_hosts_of_replicas_keep_freed_memory_unless_the_user_has_said_otherwise(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(batch: pa.RecordBatch) -> pa.Array:
        found = f"{pa.default_memory_pool().backend_name} {os.environ['MALLOC_ARENA_MAX']}"
        return pa.array([found] * batch.num_rows)

    monkeypatch.setitem(spark.sparkContext.environment, "MALLOC_ARENA_MAX", "2")
    before = dict(spark.sparkContext.environment)
    flow = Flow("memory")
    source = flow.generate(lambda offset, n: pa.record_batch({"n": [0] * n}), rows=10)
    out = source.withColumn("found", look, pa.string()).keyBy("n").memory()
    assert flow.start(spark, hosts=2, regime=Replicated()).awaitTermination(60)
    assert {row["found"] for row in out.toPylist()} == {"system 2"}
    assert spark.sparkContext.environment == before


def test_a_worker_ends_with_its_task(spark: SparkSession) -> None:
    pids = spark.sparkContext.parallelize(range(2), 2).map(lambda _: os.getpid()).collect()
    more = spark.sparkContext.parallelize(range(2), 2).map(lambda _: os.getpid()).collect()
    assert not set(pids) & set(more)


def test_arrow_tables_go_both_ways_without_pandas(spark: SparkSession) -> None:
    table = spark.range(100).toArrow()
    assert table.column("id").to_pylist() == list(range(100))
    assert spark.createDataFrame(table).count() == 100
    assert importlib.util.find_spec("pandas") is None or "pandas" not in sys.modules


def test_jobs_are_scheduled_fairly_and_on_loopback(spark: SparkSession) -> None:
    conf = dict(spark.sparkContext.getConf().getAll())
    assert conf["spark.scheduler.mode"] == "FAIR"
    assert conf["spark.speculation"] == "false"
    assert conf["spark.driver.host"] == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


def test_a_second_session_in_one_process_is_refused(spark: SparkSession) -> None:
    with pytest.raises(SessionError, match=r"has a Spark session already.*local\[6\]"):
        local_session()


def test_what_the_user_passes_wins() -> None:
    chosen = settings("app", None, None, {"spark.ui.enabled": "true"})
    assert chosen["spark.ui.enabled"] == "true"


def test_a_distant_master_gets_no_loopback_address_and_no_daemon_of_ours() -> None:
    chosen = settings("app", 4, "spark://head:7077", None)
    assert "spark.driver.host" not in chosen
    assert "spark.python.daemon.module" not in chosen
