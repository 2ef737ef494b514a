"""``penstock chaos --takeover``: a replica is killed and a host that followed it takes over.

Three hosts hold the states of one keyed stage, one is in front of them, and one stands by
(``standby="active"``).  Under load one of the three is killed, again and again.  Timed is how long
its keys are not served: from the signal until the sink has the right value of a key of its own for
a row that was sent after it.

Shorter runs, with the same kills, count what is lost and doubled under each guarantee.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.bench.takeover_flow import REPLICAS, Served, TakeoverFlow
from penstock.core.delivery.guarantees import Guarantee
from penstock.engine.spark.session import local_session
from penstock.errors import TransientError
from penstock.terminal import stderr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.engine.driver.query import FlowQuery

__all__ = ["TakeoverSettings", "take_over", "takeover"]

HOSTS = REPLICAS + 1
EPOCH = "50 ms"
LINGER = "25 ms"
RATE = 5_000
PING = "50 ms"
SILENT = "500 ms"
"""A process that is killed is noticed by its connections; a busy machine is no reason to move."""
LEAD_S = 1.0
PAUSE_S = 0.5
JITTER_S = 0.3
READY_S_MAX = 60.0
SERVED_S_MAX = 30.0
FILL_S_MAX = 120.0
END_S_MAX = 60.0
NORMAL = 20
SHORT_KILLS = 5
SHORT_STATE = 0.1
"""Share of the state in shorter runs."""


@dataclass(frozen=True)
class TakeoverSettings:
    """What to do to the flow."""

    kills: int = 50
    state_mb: float = 100.0
    seed: int = 1
    rate: float = RATE
    guarantees: tuple[Guarantee, ...] = tuple(Guarantee)
    """With which shorter runs follow."""

    @property
    def state_bytes(self) -> int:
        """All states together."""
        return round(self.state_mb * 1e6)


def takeover(settings: TakeoverSettings) -> dict[str, Any]:
    """Torture flows on a session of its own; give figures."""
    spark = local_session("penstock chaos", hosts=HOSTS + 1)
    try:
        return take_over(spark, settings)
    finally:
        spark.stop()


def take_over(spark: SparkSession, settings: TakeoverSettings) -> dict[str, Any]:
    """Run the flow and kill replicas; then the same, shorter, under each guarantee."""
    flow = TakeoverFlow(settings.state_bytes, settings.rate, settings.seed)
    drill = _run(spark, flow, settings.kills, settings.seed, Guarantee.EXACTLY_ONCE)
    seconds = [one["takeover_ms"] for one in drill.done]
    by_guarantee = {}
    for guarantee in settings.guarantees:
        stderr.print(f"{guarantee.value}:", highlight=False)
        short = TakeoverFlow(
            round(settings.state_bytes * SHORT_STATE), settings.rate, settings.seed, fresh=True
        )
        kills = min(SHORT_KILLS, settings.kills)
        found = _run(spark, short, kills, settings.seed, guarantee).served
        by_guarantee[guarantee.value] = {"lost": found.lost, "duplicated": found.duplicated}
    return {
        "kills": len(drill.done),
        "takeover_ms": {
            "p50": round(float(np.median(seconds)), 1) if seconds else None,
            "max": max(seconds, default=None),
        },
        "followed": sum(one["followed"] for one in drill.done),
        "lost": drill.served.lost,
        "duplicated": drill.served.duplicated,
        "wrong": drill.served.wrong,
        "equal": drill.served.equal and _as_promised(by_guarantee),
        "by_guarantee": by_guarantee,
        "state_mb": round(drill.state_bytes / 1e6, 1),
        "rows": drill.served.rows,
        "normal_ms": drill.normal_ms,
        "seed": settings.seed,
        "each": drill.done,
    }


def _as_promised(found: dict[str, dict[str, int]]) -> bool:
    """Whether nothing was lost or doubled that a guarantee excludes."""
    for name, counts in found.items():
        promised = Guarantee(name)
        if (promised.loses_nothing and counts["lost"]) or (
            promised.doubles_nothing and counts["duplicated"]
        ):
            return False
    return True


@dataclass
class _Drill:
    """A run and what was done to it."""

    done: list[dict[str, Any]]
    served: Served
    state_bytes: int
    normal_ms: dict[str, float]


def _run(
    spark: SparkSession, flow: TakeoverFlow, kills: int, seed: int, guarantee: Guarantee
) -> _Drill:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as scratch:
        query = flow.flow.start(
            spark,
            hosts=HOSTS,
            parallelism=REPLICAS,
            epochInterval=EPOCH,
            linger=LINGER,
            standby="active",
            guarantee=guarantee.value,
            checkpointLocation=str(Path(scratch) / "checkpoint"),
            pingInterval=PING,
            pingTimeout=SILENT,
        )
        done: list[dict[str, Any]] = []
        try:
            flow.fill(FILL_S_MAX)
            flow.load()
            time.sleep(LEAD_S)
            normal = [_normal_s(flow, chance) for _ in range(NORMAL)]
            state_bytes = 0
            for _ in range(kills):
                _await_standby(query, guarantee)
                state_bytes = max(state_bytes, query.status["standby"][0]["bytes"])
                time.sleep(PAUSE_S + chance.random() * JITTER_S)
                done.append(_struck(query, flow, chance.randrange(REPLICAS), guarantee))
                _say(done)
            flow.close()
            ended = query.awaitTermination(END_S_MAX)
        finally:
            query.stop()
        flow.join(5)
    if not ended:
        raise TransientError(f"chaos: the flow did not end within {END_S_MAX:g} s")
    shown = {"p50": round(1e3 * float(np.median(normal)), 1), "max": round(1e3 * max(normal), 1)}
    return _Drill(done, flow.check(), state_bytes, shown)


def _normal_s(flow: TakeoverFlow, chance: random.Random) -> float:
    """How long it takes while no host is killed."""
    time.sleep(chance.random() * 0.05)
    return flow.served_s(chance.randrange(REPLICAS), time.perf_counter_ns(), SERVED_S_MAX)


def _await_standby(query: FlowQuery, guarantee: Guarantee) -> None:
    """Wait until a host stands by that has all states, if there are any in the store."""

    def ready() -> bool:
        hosts = query.status["standby"]
        if not guarantee.loses_nothing:  # nothing is saved
            return bool(hosts)
        return any(one["nodes"] == REPLICAS and one["behind"] <= 1 for one in hosts)

    _wait(ready, READY_S_MAX, "a host that stands by", query)


def _struck(
    query: FlowQuery, flow: TakeoverFlow, replica: int, guarantee: Guarantee
) -> dict[str, Any]:
    """Kill the process of a replica and wait until its keys are served again."""
    victim = next(one for one in query.nodes() if one["name"] == f"states[{replica}]")
    since_ns = time.perf_counter_ns()
    os.kill(victim["pid"], signal.SIGKILL)
    took_s = None
    if guarantee is Guarantee.EXACTLY_ONCE:
        took_s = flow.served_s(replica, since_ns, SERVED_S_MAX)
    _wait(lambda: _settled(query, victim), SERVED_S_MAX, "the end of the recovery", query)
    entry = _loss(query, victim) or {}
    keys = ("lost_us", "planned_us", "started_us", "opened_us", "recovered_us")
    return {
        "node": victim["name"],
        "takeover_ms": None if took_s is None else round(1e3 * took_s, 1),
        "followed": bool(entry["work"].get(victim["name"], {}).get("followed")),
        "steps_ms": [round((entry[key] - entry["lost_us"]) / 1e3, 1) for key in keys[1:]],
        "work": entry["work"],
    }


def _loss(query: FlowQuery, victim: dict[str, Any]) -> dict[str, Any] | None:
    """The recovery of a killed process."""
    return next((one for one in query.recoveries if one["host"] == victim["host"]), None)


def _settled(query: FlowQuery, victim: dict[str, Any]) -> bool:
    recent = query.recoveries
    lost = _loss(query, victim) is not None
    return lost and all(one["recovered_us"] is not None for one in recent)


def _wait(done: Callable[[], bool], within_s: float, what: str, query: FlowQuery) -> None:
    deadline = time.monotonic() + within_s
    while not done():
        error = query.exception()
        if error is not None:
            raise error
        if time.monotonic() > deadline:
            raise TransientError(f"chaos: waited {within_s:g} s for {what} in vain")
        time.sleep(0.005)


def _say(done: list[dict[str, Any]]) -> None:
    one = done[-1]
    took = "" if one["takeover_ms"] is None else f" served again after {one['takeover_ms']} ms"
    how = ", from what was followed" if one["followed"] else ", from the store"
    stderr.print(f"{len(done)}: {one['node']}{took}{how} {one['steps_ms']}", highlight=False)
