"""``penstock bench progress``: the Yahoo! flow at full speed, with tracked progress and with marks.

Runs alternate, so that a disturbance of the machine meets both kinds alike; the ratio is that of
the medians.
"""

from __future__ import annotations

import statistics
import threading
from typing import TYPE_CHECKING, Any

from penstock.api.start_options import ProgressName
from penstock.bench.ysb import HOSTS
from penstock.demos.ysb import Ysb
from penstock.engine.spark.session import local_session
from penstock.terminal import stderr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["bench_progress"]

FULL_SPEED = 100_000_000
"""Events per second of event time: far more than can be made, so the sources never wait."""


def bench_progress(events: int, pairs: int) -> dict[str, Any]:
    """Run both kinds in turn; give throughputs and their ratio."""
    spark = local_session("penstock bench progress", hosts=HOSTS)
    measured: dict[ProgressName, list[float]] = {"tracked": [], "marks": []}
    try:
        _events_per_s(spark, events // 10, "marks")
        for _ in range(pairs):
            for kind, values in measured.items():
                values.append(_events_per_s(spark, events, kind))
                stderr.print(f"{kind}: {values[-1]:,.0f} events/s", highlight=False)
    finally:
        spark.stop()
    medians = {kind: statistics.median(values) for kind, values in measured.items()}
    return {
        "throughput_ratio": round(medians["tracked"] / medians["marks"], 4),
        "events_per_s": {kind: round(value) for kind, value in medians.items()},
        "events": events,
        "runs": pairs,
    }


def _events_per_s(spark: SparkSession, events: int, kind: ProgressName) -> float:
    ysb = Ysb(FULL_SPEED, events / FULL_SPEED, Ysb.soon(2.5))
    query = ysb.flow.start(spark, hosts=HOSTS, progress=kind)
    collector = threading.Thread(target=ysb.collect, daemon=True)
    collector.start()
    try:
        query.awaitTermination(300)
    finally:
        query.stop()
    collector.join(5)
    check = ysb.check()
    if check.lost or check.duplicated:
        raise AssertionError(f"counts were wrong with progress={kind}: {check}")
    last_ns = max(arrived for arrived, _ in ysb.results)
    return events / (last_ns / 1e9 - ysb.origin_us / 1e6)
