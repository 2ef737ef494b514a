"""``penstock bench cost``: how many cores a flow uses, at rest and at given rates.

The whole system counts: the driver, Spark's JVM and all hosts.  Every flow ends in sums over
windows of a second, and each sum is compared with what the generated rows must give.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.api import functions as F
from penstock.api.flow import Flow
from penstock.api.stream import Stream
from penstock.bench.processor import Used, measured
from penstock.engine.spark.session import local_session
from penstock.errors import TransientError
from penstock.terminal import stderr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.engine.driver.query import FlowQuery

__all__ = ["FLOWS", "bench_cost", "cost"]

KEYS = 100
WARM_S = 5.0
ROUNDS = 3
"""How often a row of the loop goes round."""

Rows = Callable[[int], Stream]
"""Makes a source of so many rows a second."""


def bench_cost(
    flows: Iterable[str], rates: Iterable[int], hosts: Iterable[int], seconds: float
) -> list[dict[str, Any]]:
    """Measure each flow at each rate on each number of hosts."""
    rates, found = list(rates), []
    for count in hosts:
        spark = local_session("penstock bench", hosts=count)
        try:
            for name in flows:
                for rate in rates:
                    found.append(cost(_starter(spark, count), name, rate, count, seconds))
                    cores = found[-1]["cores"]
                    stderr.print(
                        f"{name} at {rate:,} rows/s on {count} hosts: {cores:.3f} cores",
                        highlight=False,
                    )
        finally:
            spark.stop()
    return found


def _starter(spark: SparkSession, hosts: int) -> Callable[[Flow], FlowQuery]:
    return lambda flow: flow.start(spark, hosts=hosts)


def cost(
    start: Callable[[Flow], FlowQuery], name: str, rate: int, hosts: int, seconds: float
) -> dict[str, Any]:
    """Measure one flow at one rate."""
    flow = Flow(f"cost_{name}")
    keep = FLOWS[name](lambda share: _rows(flow, share, rate)).memory()
    query = start(flow)
    try:
        time.sleep(WARM_S)
        with measured() as used:
            time.sleep(seconds)
    finally:
        query.stop()
    checked = _check(name, keep.toTable(), rate)
    if rate and checked < seconds // 2:
        raise TransientError(
            f"{name} at {rate} rows/s on {hosts} hosts: only {checked} windows came within "
            f"{seconds:g} s, so the rate was not held: try a lower one"
        )
    return _figures(name, rate, hosts, used) | {"windows_checked": checked}


def _figures(name: str, rate: int, hosts: int, used: Used) -> dict[str, Any]:
    return {
        "flow": name,
        "rate": rate,
        "hosts": hosts,
        "cores": round(used.total, 3),
        **{f"cores_{kind}": round(cores, 3) for kind, cores in used.cores.items()},
        "us_per_row": round(used.total / rate * 1e6, 2) if rate else None,
        "switches_per_s": round(used.switches),
        "load": round(os.getloadavg()[0], 2),
    }


# -- the flows -----------------------------------------------------------------------------------


def _rows(flow: Flow, share: int, rate: int) -> Stream:
    """One of ``share`` sources that make ``rate`` rows a second together; 0: one that waits."""
    each = rate // share
    period_us = 1_000_000 // each if each else 0

    def make(offset: int, count: int) -> pa.RecordBatch:
        number = np.arange(offset, offset + count)
        at = pa.array(number * period_us, pa.timestamp("us", "UTC"))
        return pa.record_batch({"id": number, "k": number % KEYS, "v": number, "at": at})

    if not each:
        return flow.memory(make(0, 0).schema).withWatermark("at", "0 seconds")
    return flow.generate(make, rate=each, shards=1).withWatermark("at", "0 seconds")


def _summed(rows: Stream) -> Stream:
    return rows.groupBy(F.window("at", "1 second"), "k").agg(F.sum("v").alias("total"))


def _sum(rows: Rows) -> Stream:
    return _summed(rows(1))


def _join(rows: Rows) -> Stream:
    other = rows(2).select("id", "at AS other_at").withWatermark("other_at", "0 seconds")
    return _summed(rows(2).join(other, "id", within="1 second"))


def _chain(rows: Rows) -> Stream:
    stream = rows(1)
    for column in ("id", "k", "v", "id"):
        stream = stream.keyBy(column)
    return _summed(stream)


def _loop(rows: Rows) -> Stream:
    def body(stream: Stream) -> tuple[Stream, Stream]:
        moved = stream.keyBy("id").withColumn("round", "round + 1")
        return moved.filter(f"round < {ROUNDS}"), moved.filter(f"round = {ROUNDS}")

    left = rows(1).withColumn("round", "0").iterate(body)
    return _summed(left.withWatermark("at", "1 second"))


FLOWS: dict[str, Callable[[Rows], Stream]] = {
    "sum": _sum,
    "join": _join,
    "chain": _chain,
    "loop": _loop,
}
"""A windowed sum alone, behind a join, behind four more exchanges, and behind a loop."""


def _check(name: str, sums: pa.Table, rate: int) -> int:
    """Compare each whole window with what it must be; say how many there were."""
    whole = 0
    each = rate // 2 if name == "join" else rate
    for window, got in _by_window(sums):
        numbers = np.arange(window * each, (window + 1) * each)
        wanted = np.bincount(numbers % KEYS, weights=numbers, minlength=KEYS).astype(np.int64)
        present = np.unique(numbers % KEYS)
        if len(got) < len(present):
            continue  # the last one, which the stop has cut
        if any(got[key] != wanted[key] for key in present):
            raise AssertionError(f"{name} at {rate} rows/s: the sums of window {window} are wrong")
        whole += 1
    return whole


def _by_window(sums: pa.Table) -> Iterator[tuple[int, dict[int, int]]]:
    windows: dict[int, dict[int, int]] = {}
    for row in sums.to_pylist():
        second = int(row["window"]["start"].timestamp())
        windows.setdefault(second, {})[row["k"]] = row["total"]
    yield from sorted(windows.items())
