"""``penstock bench ysb``: the highest rate held, and response times at fixed rates.

A rate is held when, over the whole time, no result came later than a second after the end of its
window (so event time was less than a second behind) and every count was right.  Short probes find
the neighbourhood, then the full time decides: upwards as long as rates are held, downwards
otherwise.

With the guarantee ``exactly-once`` the flow recovers from failures (causal recovery is on, all that
it needs is made durable) and publishes epochs to Parquet; response is then until the epoch is
visible to readers.  Without a guarantee there is no fault tolerance at all, and results go to the
driver: the ceiling.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.bench.published import Published
from penstock.demos.ysb import Check, Ysb, percentiles
from penstock.engine.spark.session import local_session
from penstock.errors import InvariantError
from penstock.terminal import stderr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["bench_ysb", "run_once"]

HOSTS = 4
RESPONSE_RATES = (200_000, 1_000_000, 4_000_000)
FIRST_PROBE = 16_000_000
PROBE_S = 6.0
STEP = 1.12
BEHIND_MS_MAX = 1000.0
LEAD_S = 4.0


def bench_ysb(seconds: float, exactly_once: bool = False) -> dict[str, Any]:
    """Run the benchmark; give its figures."""
    spark = local_session("penstock bench ysb", hosts=HOSTS)
    try:
        run_once(
            spark, 1_000_000, 3.0, exactly_once
        )  # warm up: the JVM, the page cache, the daemon
        response = {}
        for rate in RESPONSE_RATES:
            check = run_once(spark, rate, seconds, exactly_once)
            _say(rate, check)
            response[str(rate)] = percentiles(check.response_ms)
            if check.lost or check.duplicated:
                raise InvariantError(
                    f"counts were wrong at {rate} events/s: {check.lost} lost, "
                    f"{check.duplicated} duplicated"
                )
        held, tried = _highest_held(spark, seconds, exactly_once)
    finally:
        spark.stop()
    return {
        "held_events_per_s": held,
        "held_s": seconds,
        "response_ms": response,
        "guarantee": "exactly-once" if exactly_once else "none",
        "hosts": HOSTS,
        "tried": tried,
    }


def _highest_held(
    spark: SparkSession, seconds: float, exactly_once: bool
) -> tuple[int, list[dict[str, Any]]]:
    rate = float(FIRST_PROBE)
    while rate > 100_000 and not holds(run_once(spark, rate, PROBE_S, exactly_once)):
        rate /= STEP
    while holds(run_once(spark, rate * STEP, PROBE_S, exactly_once)):
        rate *= STEP
    tried = []
    while rate > 100_000:
        check = run_once(spark, rate, seconds, exactly_once)
        _say(rate, check)
        tried.append(
            {"events_per_s": round(rate), "held": holds(check), "behind_ms_max": _behind(check)}
        )
        if holds(check):
            return round(rate), tried
        rate /= STEP**0.5
    return 0, tried


def holds(check: Check) -> bool:
    """Whether every count was right and event time never a second behind."""
    return not check.lost and not check.duplicated and _behind(check) < BEHIND_MS_MAX


def _behind(check: Check) -> float:
    return round(max(check.response_ms, default=float("inf")), 1)


def run_once(spark: SparkSession, rate: float, seconds: float, exactly_once: bool = False) -> Check:
    """One run at one rate, checked."""
    if not exactly_once:
        ysb = Ysb(rate, seconds, Ysb.soon(LEAD_S))
        collector = threading.Thread(target=ysb.collect, daemon=True)
        _run(spark, ysb, seconds, collector.start, recovery="none")
        collector.join(5)
        return ysb.check()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "counts"
        with Published(folder) as published:
            ysb = Ysb(rate, seconds, Ysb.soon(LEAD_S), publish=folder)
            store = str(Path(scratch) / "checkpoint")
            _run(spark, ysb, seconds, lambda: None, recovery="causal", checkpointLocation=store)
        ysb.results = published.tables()
    return ysb.check()


def _run(
    spark: SparkSession, ysb: Ysb, seconds: float, started: Callable[[], None], **options: Any
) -> None:
    query = ysb.flow.start(spark, hosts=HOSTS, **options)
    started()
    try:
        query.awaitTermination(2 * seconds + 30)
    finally:
        query.stop()


def _say(rate: float, check: Check) -> None:
    stderr.print(
        f"{rate:,.0f} events/s: lost {check.lost}, duplicated {check.duplicated}, response "
        f"{percentiles(check.response_ms)} ms, at most {_behind(check)} ms",
        highlight=False,
    )
