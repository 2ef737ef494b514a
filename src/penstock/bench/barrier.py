"""``penstock bench barrier``: how long a round of global coordination takes.

Every node of a loop, each in a process of its own, asks for a notification in every iteration and
does nothing else.  An iteration ends only when all nodes' counts have met at the controller and the
new frontier has come back to all of them: the barrier of the Naiad paper, Section 5.2.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.api.flow import Flow
from penstock.api.vertex import Vertex
from penstock.core.time import Time
from penstock.engine.host.tuning import Tuning
from penstock.engine.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["bench_barrier"]

HOSTS = 4
WARM_UP = 200
WITHOUT = {
    "writing in passing": Tuning(passing_bytes=0),
    "quick thread switches": Tuning(switch_interval_s=0.005),
    "rare collections": Tuning(gc_threshold=700, gc_freeze=False),
}
"""Each remedy of :class:`Tuning`, and the settings without it."""
_ROUNDS = pa.schema({"shard": pa.int64(), "round_ns": pa.int64()})


class Barrier(Vertex):
    """Asks for a notification in each iteration; at the end sends how long each took."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._at_ns: list[int] = []

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.notifyAt(time)

    def onNotify(self, time_: Time) -> None:
        self._at_ns.append(time.perf_counter_ns())
        if time_.counters[-1] < self._rounds:
            self.notifyAt(time_.advanced())
            return
        took = np.diff(np.array(self._at_ns))[WARM_UP:]
        shards = np.full(len(took), self.place.shard)
        self.sendBy(1, pa.record_batch({"shard": shards, "round_ns": took}), time_)


def _key(offset: int, n: int) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array(np.arange(offset, offset + n))})


def bench_barrier(rounds: int = 3000, stalls: bool = False) -> dict[str, Any]:
    """Run the rounds; with ``stalls`` also without each remedy of :class:`Tuning`."""
    spark = local_session("penstock bench barrier", hosts=HOSTS)
    try:
        _run(spark, WARM_UP, Tuning())
        result = _run(spark, rounds, Tuning())
        if stalls:
            result["without_ms"] = {
                name: _run(spark, rounds, tuning)["round_ms"] for name, tuning in WITHOUT.items()
            }
    finally:
        spark.stop()
    return result


def _run(spark: SparkSession, rounds: int, tuning: Tuning) -> dict[str, Any]:
    flow = Flow("barrier")
    keys = flow.generate(_key, rows=64, shards=1)
    loop = flow.loop("rounds")
    again = loop.variable(keys.schema)
    back, took = flow.vertex(
        lambda: Barrier(rounds + WARM_UP),
        [loop.enter(keys).union(again)],
        [keys.schema, _ROUNDS],
        partitionBy=[["key"]],
        shards=HOSTS,
        name="barrier",
    )
    again.feed(back)
    results = loop.leave(took).memory()
    query = flow.start(spark, hosts=HOSTS, tuning=tuning)
    processes = {host["pid"] for host in query.hosts if "barrier" in str(host["nodes"])}
    query.awaitTermination(300)
    query.stop()
    table = results.toTable()
    per_round = table["round_ns"].to_numpy() / 1e6
    return {
        "round_ms": {f"p{p}": round(float(np.percentile(per_round, p)), 3) for p in (50, 95, 99)},
        "rounds": rounds,
        "nodes": len(set(table["shard"].to_pylist())),
        "processes": len(processes),
    }
