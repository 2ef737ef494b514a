"""``penstock bench overhead``: what causal recovery costs while nothing fails.

- *Throughput*: the Yahoo! flow at full speed, without recovery, with logs of references and with
  logs of copies, in turn, so that a disturbance of the machine meets all alike; the ratio is that
  of the medians.
- *Propagation*: how long a vote takes through the flow of votes (:mod:`penstock.demos.votes`)
  until the driver sees it, with recovery on and off, in turn.
- *Diffs*: how many bytes of a message's header say who sent what it was made from, for the messages
  of the sharder, with 2, 8 and 32 shards before and behind it.
- *Logs*, with ``--soak``: how large they get at 1 M events/s, and their budget.
"""

from __future__ import annotations

import statistics
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.bench.ysb import HOSTS, LEAD_S
from penstock.core.control.figures import CausalFigures
from penstock.demos.votes import Votes
from penstock.demos.ysb import Ysb
from penstock.engine.settings import RunSettings
from penstock.engine.spark.session import local_session
from penstock.errors import InvariantError
from penstock.terminal import stderr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.engine.driver.query import FlowQuery

__all__ = ["bench_overhead", "diff_bytes", "events_per_s", "propagation_ms", "soak"]

FULL_SPEED = 100_000_000
"""Events per second of event time: far more than can be made, so the sources never wait."""
KINDS: dict[str, dict[str, Any]] = {
    "none": {"recovery": "none"},
    "references": {"recovery": "causal", "logs": "references"},
    "copies": {"recovery": "causal", "logs": "copies"},
}
SHARDS = (2, 8, 32)
ARTICLES = 100_000
VOTES_PER_S = 10_000
EPOCH = "20 ms"
LOAD_S_MAX = 60.0
WARM_S = 1.0
PROBES_MIN = 30
PROBES_S_MAX = 60.0
DIFF_S = 4.0
NUMBERS_ABOVE = 300
SHARDER = "sharder[0]"
SOAK_RATE = 1_000_000
RUN_S_MAX = 300.0


def bench_overhead(events: int, rounds: int, seconds: float, soak_s: float) -> dict[str, Any]:
    """Measure everything; ``soak_s`` of 0 leaves the soak out."""
    spark = local_session("penstock bench overhead", hosts=3 + 2 * SHARDS[0])
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    took: dict[str, list[float]] = {"on": [], "off": []}
    try:
        events_per_s(spark, events // 10, "references")
        for _ in range(rounds):
            for kind, values in rates.items():
                values.append(events_per_s(spark, events, kind))
                stderr.print(f"{kind}: {values[-1]:,.0f} events/s", highlight=False)
        for _ in range(rounds):
            for state, kind in (("off", "none"), ("on", "references")):
                took[state] += propagation_ms(spark, kind, seconds)
        diffs = {}
        for shards in SHARDS:
            diffs[str(shards)] = diff_bytes(spark, shards)
            stderr.print(f"{shards} shards: {diffs[str(shards)]} bytes a diff", highlight=False)
        soaked = soak(spark, soak_s) if soak_s else {}
    finally:
        spark.stop()
    medians = {kind: statistics.median(values) for kind, values in rates.items()}
    return {
        "throughput_ratio": round(medians["references"] / medians["none"], 4),
        "copies_ratio": round(medians["copies"] / medians["none"], 4),
        "events_per_s": {kind: round(value) for kind, value in medians.items()},
        "propagation_ms": {state: _percentile(values, 50) for state, values in took.items()},
        "propagation_p99_ms": {state: _percentile(values, 99) for state, values in took.items()},
        "diff_bytes": diffs,
        **soaked,
        "events": events,
        "rounds": rounds,
    }


def events_per_s(spark: SparkSession, events: int, kind: str) -> float:
    """Throughput of one run at full speed; every count is checked."""
    ysb = Ysb(FULL_SPEED, events / FULL_SPEED, Ysb.soon(LEAD_S))
    query = ysb.flow.start(spark, hosts=HOSTS, **KINDS[kind])
    collector = threading.Thread(target=ysb.collect, daemon=True)
    collector.start()
    try:
        query.awaitTermination(RUN_S_MAX)
    finally:
        query.stop()
    collector.join(5)
    _refuse_wrong(ysb, kind)
    last_ns = max(arrived for arrived, _ in ysb.results)
    return events / (last_ns / 1e9 - ysb.origin_us / 1e6)


def propagation_ms(spark: SparkSession, kind: str, seconds: float) -> list[float]:
    """How long each probe took: those of some seconds, and at least ``PROBES_MIN``."""
    votes = Votes(ARTICLES, VOTES_PER_S)
    query = votes.flow.start(spark, hosts=HOSTS, epochInterval=EPOCH, **KINDS[kind])
    try:
        votes.probe.start()
        votes.load(LOAD_S_MAX)
        votes.probe.normal_ms(WARM_S)
        found = votes.probe.normal_ms(seconds, PROBES_S_MAX, PROBES_MIN)
        votes.close()
    finally:
        query.stop()
    return found


def diff_bytes(spark: SparkSession, shards: int) -> float:
    """Mean bytes of the diffs that leave the sharder, once stamps and epochs are past 255.

    Numbers are packed as small as they are; before that a diff's size says how long the flow has
    been running, afterwards (for the next 65,000 steps) nothing changes any more.
    """
    votes = Votes(ARTICLES, VOTES_PER_S, shards)
    query = votes.flow.start(spark, hosts=HOSTS, epochInterval=EPOCH, **KINDS["references"])
    try:
        votes.probe.start()
        votes.load(LOAD_S_MAX)
        while (query.lastProgress or {"batchId": 0})["batchId"] <= NUMBERS_ABOVE:
            votes.probe.check()
            time.sleep(0.1)
        before = nodes_of(query)[SHARDER]
        time.sleep(DIFF_S)
        after = nodes_of(query)[SHARDER]
        votes.close()
    finally:
        query.stop()
    measured = [one.diff_bytes * one.diffs_measured for one in (before, after)]
    diffs = after.diffs_measured - before.diffs_measured
    return round(float(measured[1] - measured[0]) / diffs, 2)


def soak(spark: SparkSession, seconds: float) -> dict[str, Any]:
    """The largest logs of any node over a long run, and what each may have in memory."""
    ysb = Ysb(SOAK_RATE, seconds, Ysb.soon(LEAD_S))
    query = ysb.flow.start(spark, hosts=HOSTS, **KINDS["references"])
    collector = threading.Thread(target=ysb.collect, daemon=True)
    collector.start()
    largest = largest_in_memory = 0
    try:
        while not query.awaitTermination(1.0):
            for node in nodes_of(query).values():
                largest = max(largest, node.log_bytes)
                largest_in_memory = max(largest_in_memory, node.log_memory_bytes)
    finally:
        query.stop()
    collector.join(5)
    _refuse_wrong(ysb, "soak")
    return {
        "log_bytes_max": largest,
        "log_memory_bytes_max": largest_in_memory,
        "log_budget_bytes": RunSettings().logBytes,
        "soak_s": seconds,
    }


def nodes_of(query: FlowQuery) -> dict[str, CausalFigures]:
    """The newest figures of each node that keeps logs, by its name."""
    controller = query._controller
    return {
        controller.plan.node_name(node): figures.causal
        for node, figures in controller.figures().items()
        if figures.causal is not None
    }


def _refuse_wrong(ysb: Ysb, what: str) -> None:
    check = ysb.check()
    if check.lost or check.duplicated:
        raise InvariantError(
            f"{what}: counts were wrong, {check.lost} lost, {check.duplicated} duplicated"
        )


def _percentile(values: list[float], percent: float) -> float:
    return round(float(np.percentile(values, percent)), 2)
