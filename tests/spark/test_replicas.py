"""Replicated stages on Spark: processes that die, and one that is frozen, replaced and wakes up."""

import time
from collections import Counter

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock import Flow, Replicated

RATE = 20_000
ROWS = 120_000
WAIT_S = 60.0


def make(offset: int, n: int) -> pa.RecordBatch:
    ids = range(offset, offset + n)
    return pa.record_batch({"n": list(ids), "k": [i % 7 for i in ids]})


def test_replicas_survive_death_and_a_long_sleep(spark: SparkSession) -> None:
    flow = Flow("replicas")
    made = flow.generate(make, rate=RATE, rows=ROWS, shards=2, name="made")
    first = made.keyBy("k").name("first").filter("n % 2 = 0")
    sink = first.keyBy("n").name("second").select("n").memory(name="rows")
    query = flow.start(spark, hosts=3, regime=Replicated(), hostTimeout="2 seconds")
    try:
        time.sleep(0.7)
        query.kill("first[1]")
        time.sleep(1.5)
        query.freeze("second[0]", seconds=3.5)
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    assert Counter(sink.toTable().column("n").to_pylist()) == Counter(range(0, ROWS, 2))
    assert len(query.recoveries) >= 1
