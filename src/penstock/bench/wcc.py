"""``penstock bench wcc``: connected components of a growing random graph, against a DataFrame loop.

The stream: 500,000 vertices, 999,000 edges in 99 epochs, then a late one of 1,000 edges.  Penstock
keeps the graph in a loop over four shards in separate hosts, and only changes circulate.  The
comparison is what a PySpark user writes: alternating large-star and small-star steps (Kiveris et
al., "Connected components in MapReduce and beyond", 2014) over the whole graph, with the edges
cached and lineage cut at every step, in the same session once the flow has ended, so that all
task slots are its own.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.flow import Flow, MemoryStream
from penstock.connectors.subscribe import Subscription
from penstock.engine.spark.session import local_session
from penstock.library.graphs import connected_components
from penstock.terminal import stderr

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["bench_wcc", "spark_components"]

HOSTS = 4
EPOCHS = 99
COMPARED = (50, EPOCHS, EPOCHS + 1)
EDGES = pa.schema({"src": pa.int64(), "dst": pa.int64()})
CONF = {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "4"}
EPOCH_S_MAX = 300.0

Integers = npt.NDArray[np.int64]


def bench_wcc(vertices: int, edges: int, late: int) -> dict[str, Any]:
    """Run both; give their times and whether they found the same components."""
    generator = np.random.default_rng(7)
    ends = generator.integers(0, vertices, (edges + late, 2))
    batches = [*np.array_split(ends[:edges], EPOCHS), ends[edges:]]
    spark = local_session("penstock bench wcc", hosts=HOSTS, conf=CONF)
    try:
        penstock, late_s, total_s = _stream(spark, vertices, batches)
        stderr.print(f"penstock: late epoch {late_s:.4f} s, all {total_s:.1f} s", highlight=False)
        spark_s: dict[int, float] = {}
        equal = {}
        for epoch in COMPARED:
            found, spark_s[epoch], steps = _dataframes(spark, vertices, batches[:epoch])
            equal[epoch] = bool(np.array_equal(found, penstock[epoch]))
            stderr.print(
                f"spark, epoch {epoch}: {spark_s[epoch]:.1f} s in {steps} steps, "
                f"{'equal' if equal[epoch] else 'NOT EQUAL'}",
                highlight=False,
            )
    finally:
        spark.stop()
    late_spark_s = spark_s[COMPARED[-1]]
    return {
        "equal": all(equal.values()),
        "late_epoch_s": {"penstock": round(late_s, 4), "spark": round(late_spark_s, 3)},
        "speedup": round(late_spark_s / late_s, 1),
        "total_s": round(total_s, 2),
        "spark_s": {str(epoch): round(seconds, 2) for epoch, seconds in spark_s.items()},
        "vertices": vertices,
        "edges": edges + late,
        "epochs": EPOCHS + 1,
        "hosts": HOSTS,
        "components": len(np.unique(penstock[COMPARED[-1]])),
    }


def _stream(
    spark: SparkSession, vertices: int, batches: list[Integers]
) -> tuple[dict[int, Integers], float, float]:
    """Components after the compared epochs, seconds of the late epoch and of all."""
    flow = Flow("components")
    edges = flow.memory(EDGES, "edges", manualEpochs=True)
    results = connected_components(edges, shards=HOSTS).subscribe()
    query = flow.start(spark, hosts=HOSTS)
    try:
        kept: dict[int, Integers] = {}
        components = np.arange(vertices)
        started = time.perf_counter()
        for batch in batches[:-1]:
            _push(edges, batch)
        for epoch in range(1, len(batches)):
            _apply(components, results, epoch)
            if epoch in COMPARED:
                kept[epoch] = components.copy()
        late_started = time.perf_counter()
        _push(edges, batches[-1])
        _apply(components, results, len(batches))
        ended = time.perf_counter()
        kept[len(batches)] = components
    finally:
        query.stop()
    return kept, ended - late_started, ended - started


def _push(edges: MemoryStream, batch: Integers) -> None:
    columns = [pa.array(np.ascontiguousarray(batch[:, column])) for column in (0, 1)]
    edges.push(pa.record_batch(columns, schema=EDGES))
    edges.closeEpoch()


def _apply(components: Integers, results: Subscription, epoch: int) -> None:
    """Take the changes of one epoch in; every epoch of this graph has some."""
    item = results.get(EPOCH_S_MAX)
    if item is None or item[0] != epoch - 1:
        raise AssertionError(f"the changes of epoch {epoch - 1} were due, not {item}")
    changes = item[1]
    components[changes["vertex"].to_numpy()] = changes["component"].to_numpy()


# -- the same as a DataFrame loop ------------------------------------------------------------------


def _dataframes(
    spark: SparkSession, vertices: int, batches: list[Integers]
) -> tuple[Integers, float, int]:
    """Components by Spark, seconds of the loop, and its steps; edges are cached beforehand."""
    ends = np.concatenate(batches)
    columns = [pa.array(np.ascontiguousarray(ends[:, column])) for column in (0, 1)]
    edges = spark.createDataFrame(pa.table(columns, schema=EDGES)).cache()
    edges.count()
    started = time.perf_counter()
    found, steps = spark_components(edges)
    table = found.toArrow()
    seconds = time.perf_counter() - started
    edges.unpersist()
    components = np.arange(vertices)
    components[table["vertex"].to_numpy()] = table["component"].to_numpy()
    return components, seconds, steps


def spark_components(edges: DataFrame) -> tuple[DataFrame, int]:
    """Connected components of (src, dst): stars are formed until nothing changes any more.

    ``a > b`` holds for every edge kept; at the end ``b`` is the least vertex of ``a``'s component.
    """
    stars = (
        edges.where("src <> dst")
        .selectExpr("greatest(src, dst) AS a", "least(src, dst) AS b")
        .distinct()
        .localCheckpoint()
    )
    before, steps = None, 0
    while True:
        stars = _small_star(_large_star(stars)).localCheckpoint()
        now = stars.selectExpr("count(*)", "sum(b)", "sum(a * 31 + b)").first()
        steps += 1
        if now == before:
            break
        before = now
    return stars.selectExpr("a AS vertex", "b AS component"), steps


def _large_star(edges: DataFrame) -> DataFrame:
    """Every greater neighbour of a vertex is tied to the least of its neighbours and itself."""
    both = edges.union(edges.selectExpr("b", "a"))
    least = both.groupBy("a").agg({"b": "min"}).selectExpr("a", "least(a, `min(b)`) AS m")
    return both.where("b > a").join(least, "a").selectExpr("b AS a", "m AS b").distinct()


def _small_star(edges: DataFrame) -> DataFrame:
    """Every lesser neighbour of a vertex, and itself, is tied to the least of them."""
    least = edges.groupBy("a").agg({"b": "min"}).selectExpr("a", "`min(b)` AS m")
    neighbours = edges.join(least, "a").where("b <> m").selectExpr("b AS a", "m AS b")
    return neighbours.union(least.selectExpr("a", "m AS b")).distinct()
