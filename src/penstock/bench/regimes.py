"""``penstock bench regimes``: one flow under each regime, and what each costs and saves.

The flow is the Yahoo! benchmark's, with a store.  Per regime there are two runs:

- at full speed: the throughput, nothing fails;
- at a fixed rate: the response time of windows, and how long the flow takes to recover when a host
  that counts is killed, which nodes that were not lost went back with it, and how much the store
  held at most until then.

Runs of different regimes follow each other in turn, round after round, and medians are given.  All
counts are checked in every run.  Compare Gog, Isard and Abadi (2021), Table 1 and Fig. 6.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.api.regimes import Batch, Causal, Eager, Ephemeral, GlobalCheckpoint, Lazy, Regime
from penstock.bench.ysb import LEAD_S
from penstock.demos.ysb import Ysb, percentiles
from penstock.engine.spark.session import local_session
from penstock.errors import InvariantError, TransientError
from penstock.terminal import stderr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.engine.driver.query import FlowQuery

__all__ = ["REGIMES", "bench_regimes"]

FULL_SPEED = 100_000_000
HOSTS = 4
STANDBY = 1
RUN_S_MAX = 300.0
SETTLE_S = 1.0
"""Windows that end so soon after a kill are not counted as normal ones."""
EVERY = "1 second"


def _mixed(ysb: Ysb) -> None:
    """Nothing kept before the counts, the counts lazily, and what they give durably."""
    for stage in ysb.flow.stages:
        if stage.name == "counts":
            stage.regime = Lazy(every=EVERY)
        elif stage.name == "campaigns":
            stage.regime = Ephemeral()


REGIMES: dict[str, tuple[Regime, Callable[[Ysb], None] | None]] = {
    "Causal": (Causal(), None),
    "Lazy": (Lazy(every=EVERY), None),
    "Ephemeral(logInputs)": (Ephemeral(logInputs=True), None),
    "Batch": (Batch(every=EVERY), None),
    "Eager": (Eager(), None),
    "mixture": (Causal(), _mixed),
    "GlobalCheckpoint": (GlobalCheckpoint(every=EVERY), None),
}


@dataclass
class _Measured:
    events_per_s: list[float] = field(default_factory=list)
    response_ms: list[float] = field(default_factory=list)
    recovery_s: list[float] = field(default_factory=list)
    stored_bytes: list[int] = field(default_factory=list)
    rolled_back: list[int] = field(default_factory=list)


def bench_regimes(
    events: int, rate: float, seconds: float, rounds: int, names: Sequence[str] = tuple(REGIMES)
) -> dict[str, Any]:
    """Run everything; one row per regime."""
    measured = {name: _Measured() for name in names}
    spark = local_session("penstock bench regimes", hosts=HOSTS + STANDBY)
    try:
        for number in range(rounds):
            for name, found in measured.items():
                stderr.print(f"round {number + 1} of {rounds}: {name}", highlight=False)
                found.events_per_s.append(_full_speed(spark, name, events))
                _with_a_kill(spark, name, rate, seconds, found)
    finally:
        spark.stop()
    return {
        "rows": [_row(name, found) for name, found in measured.items()],
        "rate": rate,
        "seconds": seconds,
        "events": events,
        "rounds": rounds,
    }


def _row(name: str, found: _Measured) -> dict[str, Any]:
    return {
        "regime": name,
        "events_per_s": round(statistics.median(found.events_per_s)),
        "response_ms": percentiles(tuple(found.response_ms)),
        "recovery_s": round(statistics.median(found.recovery_s), 3),
        "stored_bytes": round(statistics.median(found.stored_bytes)),
        "rolled_back_nodes": round(statistics.median(found.rolled_back)),
    }


def _started(spark: SparkSession, name: str, ysb: Ysb, store: Path, **options: Any) -> FlowQuery:
    regime, mix = REGIMES[name]
    if mix is not None:
        mix(ysb)
    return ysb.flow.start(
        spark, hosts=HOSTS, checkpointLocation=str(store), regime=regime, **options
    )


def _full_speed(spark: SparkSession, name: str, events: int) -> float:
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        ysb = Ysb(FULL_SPEED, events / FULL_SPEED, Ysb.soon(LEAD_S))
        query = _started(spark, name, ysb, Path(folder))
        _to_the_end(query, ysb, name)
    last_ns = max(arrived for arrived, _ in ysb.results)
    return events / (last_ns / 1e9 - ysb.origin_us / 1e6)


def _with_a_kill(
    spark: SparkSession, name: str, rate: float, seconds: float, found: _Measured
) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        ysb = Ysb(rate, seconds, Ysb.soon(LEAD_S))
        query = _started(spark, name, ysb, Path(folder), standby=STANDBY)

        stored = [0]

        def kill() -> None:
            kill_at_s = ysb.origin_us / 1e6 + seconds / 2 + 0.37
            while time.time() < kill_at_s:
                time.sleep(min(0.5, max(0.0, kill_at_s - time.time())))
                stored.append(_bytes_in(Path(folder)))
            query.kill("counts[0]")

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        _to_the_end(query, ysb, name)
        killer.join(5)
        history = query.recoveries
    if not history or history[-1]["recovered_us"] is None:
        raise TransientError(f"{name}: the flow ended before it had recovered; give it longer")
    entry = history[-1]
    found.recovery_s.append((entry["recovered_us"] - entry["lost_us"]) / 1e6)
    found.rolled_back.append(len(set(entry["restarted"]) - set(entry["lost"])))
    found.stored_bytes.append(max(stored))
    lost_us, settled_us = entry["lost_us"], entry["recovered_us"] + SETTLE_S * 1e6
    for arrived_ns, rows in ysb.results:
        for window in rows["window"].to_pylist():
            end_us = round(window["end"].timestamp() * 1e6)
            if not lost_us - SETTLE_S * 1e6 < end_us < settled_us:
                found.response_ms.append((arrived_ns / 1000 - end_us) / 1000)


def _bytes_in(folder: Path) -> int:
    """What a store holds now; files may go while we look."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _to_the_end(query: FlowQuery, ysb: Ysb, name: str) -> None:
    collector = threading.Thread(target=ysb.collect, daemon=True)
    collector.start()
    try:
        query.awaitTermination(RUN_S_MAX)
    finally:
        query.stop()
    collector.join(5)
    check = ysb.check()
    if check.lost or check.duplicated:
        raise InvariantError(
            f"{name}: {check.lost} views are lost and {check.duplicated} doubled of {ysb.rows}"
        )
