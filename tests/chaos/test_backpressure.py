"""A sink that cannot keep up slows the source down; no process grows."""

import time

import numpy as np
import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

from penstock import Flow
from penstock.testing.processes import hosts_of, rss_mb, wait_until

GROWTH_MB = 200
FILL_S = 3.0
"""Until every queue that may fill has filled."""

UNDER_WAY_ROWS = 4_000_000
"""What fits into all the queues between sources and sink, and more."""


def test_behind_a_sleeping_sink_every_process_keeps_its_size(
    spark: SparkSession, at_length: bool
) -> None:
    watched_s = 60.0 if at_length else 2.5

    def numbers(offset: int, n: int) -> pa.RecordBatch:
        ids = np.arange(offset, offset + n)
        return pa.record_batch({"id": ids, "k": ids % 1000, "pad": pa.repeat("x" * 50, n)})

    taken: list[int] = []

    def slow(rows: pa.Table, epoch: int) -> None:
        taken.append(rows.num_rows)
        time.sleep(1)

    flow = Flow("slow")
    flow.generate(numbers, shards=4).keyBy("k", shards=16).name("spread").foreachBatch(slow)
    query = flow.start(spark, hosts=4)
    try:
        processes = hosts_of(query)
        assert sorted(len(info["nodes"]) for info in query.hosts) == [5, 5, 5, 5]
        processes[0] = psutil.Process()
        wait_until(lambda: taken, 60, "the first epoch")
        time.sleep(FILL_S)
        before = rss_mb(processes)
        assert query.lastProgress is not None
        read_before, taken_before = query.lastProgress.numInputRows, sum(taken)
        peaks = dict(before)
        end = time.monotonic() + watched_s
        while time.monotonic() < end:
            time.sleep(0.2)
            peaks = {host: max(peaks[host], now) for host, now in rss_mb(processes).items()}
        growth = {host: round(peaks[host] - before[host]) for host in processes}
        print(f"memory grew by {growth} MB from { {h: round(m) for h, m in before.items()} } MB")
        assert query.isActive
        assert max(growth.values()) < GROWTH_MB
        read = query.lastProgress.numInputRows - read_before
        assert read < sum(taken) - taken_before + UNDER_WAY_ROWS
    finally:
        began = time.monotonic()
        query.stop()
        took = time.monotonic() - began
    assert took < 3.0 or not at_length
    assert query.exception() is None
