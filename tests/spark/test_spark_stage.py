"""stream.spark(fn): completed epochs become a DataFrame, its result a stream, exactly once."""

import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as SF
from pyspark.sql.types import StructType

from penstock import Flow
from penstock.connectors.spark_stage import SparkWork
from penstock.engine.spark.frames import conformed
from penstock.errors import FunctionError, SchemaError, SlotsError
from penstock.testing.local import start_local
from penstock.testing.processes import DriverScript, wait_until

ROWS = 40_000


def make(offset: int, n: int) -> pa.RecordBatch:
    ids = np.arange(offset, offset + n)
    return pa.record_batch({"id": ids, "k": ids % 10})


def sums(df: DataFrame) -> DataFrame:
    return df.groupBy("k").agg(SF.sum("id").alias("total"), SF.count("*").alias("n"))


SUMS = "k bigint, total bigint, n bigint"


def added(rows: list[dict[str, Any]]) -> dict[int, tuple[int, int]]:
    """Totals and counts per key over all calls."""
    found: dict[int, tuple[int, int]] = {}
    for row in rows:
        total, n = found.get(row["k"], (0, 0))
        found[row["k"]] = (total + row["total"], n + row["n"])
    return found


def expected(rows: int = ROWS) -> dict[int, tuple[int, int]]:
    ids = np.arange(rows)
    return {k: (int(ids[ids % 10 == k].sum()), rows // 10) for k in range(10)}


def test_the_results_of_jobs_are_exact_though_hosts_are_killed_while_they_run(
    spark: SparkSession,
) -> None:
    pools = set()

    def slowly(df: DataFrame) -> DataFrame:
        pools.add(spark.sparkContext.getLocalProperty("spark.scheduler.pool"))
        time.sleep(0.3)
        return sums(df)

    flow = Flow("killed")
    numbers = flow.generate(make, rate=20_000, rows=ROWS, shards=2, name="numbers")
    out = numbers.spark(slowly, schema=SUMS, every="500 ms", name="sums").memory(name="out")
    query = flow.start(spark, hosts=2, standby=1)
    for number, node in enumerate(("sums_write[0]", "sums[0]"), 1):
        wait_until(lambda: state(query) == "running", 60, "a job")
        query.kill(node)
        wait_until(lambda n=number: recovered(query) == n, 60, "recovery")  # type: ignore[misc]
    assert query.awaitTermination(60)
    assert added(out.toPylist()) == expected()
    assert pools == {"penstock-killed-sums"}
    last = query.lastProgress
    assert last is not None
    [stage] = last.sparkStages
    assert stage["jobs"] > 1
    assert (stage["waitingEpochs"], stage["behindEpochs"], stage["reason"]) == (0, 0, None)
    assert stage["doneEpoch"] > 0


def state(query: Any) -> str:
    return str(query._controller.frames.figures()[0]["state"])


def recovered(query: Any) -> int:
    return sum(entry["recovered_us"] is not None for entry in query.recoveries)


DRIVER = """
import sys, time
from penstock.engine.spark.session import local_session

exec(open(sys.argv[1]).read())
query = start(local_session(master="local[4]"), sys.argv[2], stuck_after=1)
query.awaitTermination(100)
"""

FLOW = """
import time
from pathlib import Path
import numpy as np, pyarrow as pa
from penstock import Flow

def make(offset, n):
    ids = np.arange(offset, offset + n)
    return pa.record_batch({"id": ids, "k": ids % 10})

def start(spark, folder, stuck_after=None):
    log = Path(folder) / "calls.txt"

    def sums(df, epoch):
        with log.open("a") as file:
            file.write(f"{epoch}" + chr(10))
        if stuck_after is not None and len(log.read_text().splitlines()) > stuck_after:
            print("STUCK", flush=True)
            time.sleep(100)
        return df.selectExpr("k", "id AS total", "1L AS n")

    flow = Flow("restarted")
    numbers = flow.generate(make, rate=20_000, rows=30_000, shards=1, name="numbers")
    made = numbers.spark(
        sums, schema="k bigint, total bigint, n bigint", every=5, name="sums"
    )
    made.parquet(f"{folder}/out")
    return flow.start(spark, hosts=1, checkpointLocation=f"{folder}/checkpoint")
"""


@pytest.mark.timeout(400)
def test_a_driver_killed_in_the_middle_of_a_job_runs_that_range_again_and_no_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = tmp_path / "flow.py"
    flow.write_text(FLOW)
    with DriverScript(DRIVER, tmp_path, str(flow), str(tmp_path)) as script:
        script.line("STUCK", 240)
        script.process.kill()
        script.process.wait(10)
    scope: dict[str, Any] = {}
    exec(FLOW, scope)
    query = scope["start"](spark, str(tmp_path))
    assert query.awaitTermination(60)
    out = ds.dataset(tmp_path / "out", partitioning="hive").to_table()
    assert added(out.select(["k", "total", "n"]).to_pylist()) == expected(30_000)
    calls = [int(line) for line in (tmp_path / "calls.txt").read_text().splitlines()]
    assert calls[1] == calls[2]
    assert len(set(calls)) == len(calls) - 1
    assert all((epoch + 1) % 5 == 0 for epoch in calls[:-1])
    assert not list((tmp_path / "checkpoint" / "spark" / "sums" / "input").glob("epoch=*"))


def test_a_job_that_fails_is_tried_again_and_one_that_always_fails_stops_nobody_else(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[int] = []

    def flaky(df: DataFrame, epoch: int) -> DataFrame:
        tries.append(epoch)
        if len(tries) < 3:
            raise ValueError("not yet")
        return sums(df)

    def broken(df: DataFrame) -> DataFrame:
        raise ValueError("never")

    flow = Flow("failing")
    rows = flow.memory(pa.schema({"id": pa.int64(), "k": pa.int64()}), name="rows")
    kept = rows.memory(name="kept")
    good = rows.spark(flaky, schema=SUMS, every="200 ms", name="flaky").memory(name="good")
    bad = rows.spark(broken, schema=SUMS, every="200 ms", retries=0, name="broken")
    none = bad.memory(name="none")
    query = start_local(flow, hosts=1, progressInterval="200 ms")
    rows.push(make(0, 1000))
    wait_until(lambda: good.toPylist(), 60, "the job that fails twice")
    assert len(set(tries)) == 1
    assert len(tries) == 3
    wait_until(lambda: "failedStages" in query.status, 60, "the failure")
    assert "never" in query.status["failedStages"]["broken"]
    assert "'broken' has failed" in query.status["message"]
    before = len(kept.toPylist())
    rows.push(make(1000, 1000))
    wait_until(lambda: len(kept.toPylist()) == before + 1000, 60, "the other branch")
    wait_until(lambda: failed_in_progress(query), 60, "progress")
    rows.close()
    with pytest.raises(FunctionError, match="never"):
        query.awaitTermination(60)
    assert added(good.toPylist()) == expected(2000)
    assert none.toPylist() == []
    assert "stage 'broken', epochs 0 to" in caplog.text


def failed_in_progress(query: Any) -> bool:
    stages = {stage["name"]: stage for stage in query.lastProgress.get("sparkStages", ())}
    broken = stages.get("broken", {"state": ""})
    return broken["state"] == "failed" and broken["waitingEpochs"] > 0


def test_a_flow_that_leaves_no_slot_for_its_jobs_is_refused(spark: SparkSession) -> None:
    flow = Flow("crowded")
    numbers = flow.generate(make, rate=100, shards=1)
    numbers.spark(sums, schema=SUMS, every=1, name="sums").memory()
    with pytest.raises(SlotsError, match="'sums' runs Spark jobs.*flow takes 6 of the session's 6"):
        flow.start(spark, hosts=6)


def test_rows_of_many_types_come_through_a_job_unchanged(spark: SparkSession) -> None:
    schema = pa.schema(
        {
            "n": pa.uint32(),  # a type that Spark has not: it becomes the next larger one
            "at": pa.timestamp("us", "UTC"),
            "local": pa.timestamp("us"),
            "day": pa.date32(),
            "words": pa.list_(pa.string()),
            "price": pa.decimal128(10, 2),
        }
    )
    row = {
        "n": 4_000_000_000,
        "at": datetime(2024, 2, 29, 12, 0, 0, 123_456, UTC),
        "local": datetime(1969, 12, 31, 23, 59, 59, 999_999),
        "day": date(2024, 2, 29),
        "words": ["a", None],
        "price": Decimal("12.34"),
    }
    back = StructType.fromDDL(
        "price decimal(10,2), n bigint, at timestamp, local timestamp_ntz, day date, "
        "words array<string>"
    )
    flow = Flow("types")
    rows = flow.memory(schema)
    out = rows.spark(lambda df: df, schema=back, every=1).memory()
    rows.push([row, dict.fromkeys(row)])
    rows.close()
    assert start_local(flow, hosts=1).awaitTermination(60)
    assert sorted(out.toPylist(), key=lambda row: row["n"] is None) == [
        {name: row[name] for name in back.names},
        dict.fromkeys(back.names),
    ]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("SELECT 1L AS k", "returned no column 'total'; it returned \\[k\\]"),
        ("SELECT 1L AS k, 2 AS total", "column 'total' as int, expected bigint; cast it"),
        ("SELECT 1L AS k, 2L AS total, 3 AS more", "column 'more' that schema=... does not name"),
        (None, "returned NoneType; it must return a DataFrame"),
    ],
)
def test_a_result_that_does_not_fit_the_schema_names_the_column(
    spark: SparkSession, made: str | None, words: str
) -> None:
    work = SparkWork(sums, "k bigint, total bigint", 1, 0, "window")
    with pytest.raises(SchemaError, match=f"stage 'fit': .*sums.* {words}"):
        conformed(None if made is None else spark.sql(made), work, "fit")
