"""A flow on Spark that is planned while it runs, and loses a stage under its plan."""

import json
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from penstock import Flow
from penstock.api import functions as F
from penstock.core.plan import Plan
from penstock.errors import TransientError

RATE = 4000
ROWS = 5 * RATE
WAIT_S = 30.0


def numbers(offset: int, n: int) -> pa.RecordBatch:
    ids = np.arange(offset, offset + n)
    return pa.record_batch({"n": ids, "key": ids % 40})


def test_a_plan_made_from_the_running_flow_survives_a_kill(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Flow("planned")
    source = flow.generate(numbers, rate=RATE, rows=ROWS, shards=1, name="numbers")
    sums = source.groupBy("key").agg(F.sum("n").alias("total"), F.count("*").alias("rows"))
    most = sums.name("sums").groupBy("key").agg(F.max("total").alias("total"), F.max("rows"))
    out = most.name("most").memory()
    query = flow.start(
        spark,
        hosts=3,
        parallelism=1,
        standby=1,
        checkpointInterval="300 ms",
        checkpointLocation=str(tmp_path),
    )
    try:
        deadline = time.monotonic() + WAIT_S
        plan: Plan | None = None
        while plan is None and time.monotonic() < deadline:
            try:
                plan = query.plan(maxOverhead=0.2)
            except TransientError:
                time.sleep(0.1)
        assert plan is not None
        query.apply(plan)
        query.kill("sums[0]")
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    record = json.loads((tmp_path / "plan.json").read_text())
    assert record["anchors"] == list(plan.anchors)
    assert ["sums[0]"] in [entry["lost"] for entry in query.recoveries]
    assert query.recoveries[0]["work_s"] > 0
    last = {row["key"]: row["total"] for row in out.toPylist()}
    assert last == {key: sum(range(key, ROWS, 40)) for key in range(40)}
