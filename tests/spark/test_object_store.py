"""A flow on Spark whose store is not a directory: hosts reach it by its address."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import fs
from pyspark.sql import SparkSession

from penstock import Flow
from penstock.api import functions as F
from penstock.testing.processes import wait_until

ROWS = 45_000
WAIT_S = 60.0


def make(offset: int, n: int) -> pa.RecordBatch:
    ids = np.arange(offset, offset + n)
    return pa.record_batch({"id": ids, "k": ids % 10})


def test_a_store_of_objects_serves_hosts_that_are_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = Flow("objects")
    numbers = flow.generate(make, rate=15_000, rows=ROWS, name="numbers")
    out = numbers.groupBy("k").agg(F.count("*").alias("n")).name("counts").memory()
    query = flow.start(
        spark,
        hosts=2,
        parallelism=2,
        checkpointLocation=fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()),
        checkpointInterval="200 ms",
    )
    try:
        saved = "checkpoint-000000000002.arrow"
        wait_until(lambda: any(tmp_path.rglob(saved)), WAIT_S, "no checkpoint")
        query.kill("counts[0]")
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    assert query.recoveries[0]["recovered_us"] is not None
    assert {row["k"]: row["n"] for row in out.toPylist()} == dict.fromkeys(range(10), ROWS // 10)
    assert not list(tmp_path.glob("lock"))
