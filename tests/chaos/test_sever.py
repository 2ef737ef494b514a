"""Connections that break again and again: they are made again and no row is lost or doubled."""

import logging
import time

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock import Flow
from penstock.api import functions as F
from penstock.testing.processes import wait_until


def test_cut_connections_are_made_again_and_nothing_is_lost_or_doubled(
    spark: SparkSession, at_length: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    seconds = 20 if at_length else 2
    rate = 500_000
    rows = rate * seconds

    def numbers(offset: int, n: int) -> pa.RecordBatch:
        ids = np.arange(offset, offset + n)
        return pa.record_batch({"id": ids, "k": ids % 1000})

    flow = Flow("severed")
    keyed = flow.generate(numbers, shards=4, rate=rate, rows=rows).keyBy("k", shards=8)
    out = keyed.groupBy("k").agg(F.count("*").alias("n"), F.sum("id").alias("total")).memory()
    query = flow.start(spark, hosts=4)
    wait_until(out.toPylist, 60, "rows")
    cuts = 0
    while query.isActive and cuts < 8 * seconds:
        query.severConnections(1 + cuts % 4)
        cuts += 1
        time.sleep(0.1)
    assert query.awaitTermination(60)
    assert cuts >= 5
    last = {row["k"]: row for row in out.toPylist()}
    assert sum(row["n"] for row in last.values()) == rows
    assert sum(row["total"] for row in last.values()) == rows * (rows - 1) // 2
    broken = [record for record in caplog.records if "broke:" in record.getMessage()]
    assert len(broken) >= cuts / 2  # as the driver saw it; hosts log their own
