"""Loops on Spark: hosts in processes of their own, rows crossing between them every iteration."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock import Flow, Stream, Time, Vertex
from penstock.bench.wcc import spark_components
from penstock.errors import FunctionError
from penstock.library.graphs import connected_components
from penstock.testing.processes import wait_until

NUMBERS = pa.schema({"n": pa.int64()})
EDGES = pa.schema({"src": pa.int64(), "dst": pa.int64()})


def make(offset: int, n: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(np.arange(offset, offset + n) + 1)})


def halve(stream: Stream) -> Stream:
    halved = stream.keyBy("n").filter("n > 1")
    return halved.withColumn("n", "cast(floor(n / 2) as bigint)")


def wanted(start: Iterable[int]) -> Counter[int]:
    left: Counter[int] = Counter()
    for n in start:
        while n > 1:
            n //= 2
            left[n] += 1
    return left


@pytest.mark.parametrize("progress", ["marks", "tracked"])
def test_iterate_converges_over_hosts_and_epochs(spark: SparkSession, progress: str) -> None:
    flow = Flow("halving")
    rows = flow.generate(make, rate=2_000, shards=2)
    entered, out = rows.memory(), rows.iterate(halve).memory()
    query = flow.start(spark, hosts=3, progress=progress, drainTimeout="60 seconds")
    wait_until(lambda: len(out.epochs()) > 2, 120, "three epochs from the loop")
    query.stop()
    assert query.awaitTermination(60)
    start = entered.toTable()["n"].to_pylist()
    assert len(start) == len(set(start))
    assert Counter(out.toTable()["n"].to_pylist()) == wanted(start)


def test_components_of_a_growing_graph_as_spark_finds_them(spark: SparkSession) -> None:
    generator = np.random.default_rng(11)
    ends = generator.integers(0, 300, (240, 2))
    flow = Flow("components")
    edges = flow.memory(EDGES, manualEpochs=True)
    changes = connected_components(edges, shards=4).memory()
    query = flow.start(spark, hosts=4)
    for part in np.array_split(ends, 6):
        columns = [pa.array(np.ascontiguousarray(part[:, column])) for column in (0, 1)]
        edges.push(pa.record_batch(columns, schema=EDGES))
        edges.closeEpoch()
    assert changes.awaitEpoch(5, 60)
    text = query.explain()
    assert "feedback of loop components: (e, i) -> (e, i+1)" in text
    assert "frontier (6, 0)" in text
    query.stop()
    components = np.arange(300)
    for rows in changes.epochs().values():
        components[rows["vertex"].to_numpy()] = rows["component"].to_numpy()
    frame = spark.createDataFrame(ends.tolist(), "src long, dst long")
    found = {row["vertex"]: row["component"] for row in spark_components(frame)[0].collect()}
    assert {v: int(components[v]) for v in found} == found
    others = [v for v in range(300) if v not in found]
    assert (components[others] == others).all()


class Endless(Vertex):
    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.sendBy(0, batch, time)


def test_an_endless_loop_reports_its_counter_and_stops(spark: SparkSession) -> None:
    flow = Flow("endless")
    rows = flow.generate(make, rows=10, shards=1)
    rows.iterate(lambda s: s.process(Endless, NUMBERS, partitionBy=["n"])).memory()
    query = flow.start(spark, hosts=2, progressInterval="200 ms", drainTimeout="500 ms")
    deadline = time.monotonic() + 30
    reached = 0
    while reached < 100 and time.monotonic() < deadline:
        time.sleep(0.1)
        progress = query.lastProgress
        stages = progress.stages if progress else []
        reached = max((count for s in stages for count in s["loopCounters"]), default=0)
    assert reached >= 100
    query.stop()
    assert not query.isActive
    assert query.exception() is None


class IntoThePast(Vertex):
    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.sendBy(0, batch, Time(time.epoch, (0,)))


def test_a_vertex_that_sends_into_the_past_stops_the_flow(spark: SparkSession) -> None:
    flow = Flow("bad")
    rows = flow.generate(make, rows=10, shards=1)
    rows.iterate(lambda s: s.process(IntoThePast, NUMBERS, partitionBy=["n"]).name("past")).memory()
    with pytest.raises(FunctionError, match="'past'"):
        flow.start(spark, hosts=2).awaitTermination(60)
