"""``penstock bench ysb``: the highest rate held, and response times at fixed rates.

A rate is held when, over the whole time, no result came later than a second after the end of its
window (so event time was less than a second behind) and every count was right.  Short probes find
the neighbourhood, then the full time decides: upwards as long as rates are held, downwards
otherwise.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from penstock.cli.output import errors
from penstock.demos.ysb import Check, Ysb, percentiles
from penstock.engine.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["bench_ysb", "run_once"]

log = logging.getLogger(__name__)

HOSTS = 4
RESPONSE_RATES = (200_000, 1_000_000, 4_000_000)
FIRST_PROBE = 16_000_000
PROBE_S = 6.0
STEP = 1.12
BEHIND_MS_MAX = 1000.0


def bench_ysb(seconds: float) -> dict[str, Any]:
    """Run the benchmark; give its figures."""
    spark = local_session("penstock bench ysb", hosts=HOSTS)
    try:
        run_once(spark, 1_000_000, 3.0)  # warm up: the JVM, the page cache, the daemon
        response = {}
        for rate in RESPONSE_RATES:
            check = run_once(spark, rate, seconds)
            _say(rate, check)
            response[str(rate)] = percentiles(check.response_ms)
            if check.lost or check.duplicated:
                raise AssertionError(f"counts were wrong at {rate} events/s: {check}")
        held, tried = _highest_held(spark, seconds)
    finally:
        spark.stop()
    return {
        "held_events_per_s": held,
        "held_s": seconds,
        "response_ms": response,
        "hosts": HOSTS,
        "tried": tried,
    }


def _highest_held(spark: SparkSession, seconds: float) -> tuple[int, list[dict[str, Any]]]:
    rate = float(FIRST_PROBE)
    while rate > 100_000 and not holds(run_once(spark, rate, PROBE_S)):
        rate /= STEP
    while holds(run_once(spark, rate * STEP, PROBE_S)):
        rate *= STEP
    tried = []
    while rate > 100_000:
        check = run_once(spark, rate, seconds)
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


def run_once(spark: SparkSession, rate: float, seconds: float) -> Check:
    """One run at one rate, checked."""
    ysb = Ysb(rate, seconds, Ysb.soon(2.5))
    query = ysb.flow.start(spark, hosts=HOSTS)
    collector = threading.Thread(target=ysb.collect, daemon=True)
    collector.start()
    try:
        query.awaitTermination(2 * seconds + 30)
    finally:
        query.stop()
    collector.join(5)
    return ysb.check()


def _say(rate: float, check: Check) -> None:
    errors.print(
        f"{rate:,.0f} events/s: lost {check.lost}, duplicated {check.duplicated}, response "
        f"{percentiles(check.response_ms)} ms, at most {_behind(check)} ms",
        highlight=False,
    )
