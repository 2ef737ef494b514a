"""A run of the ad-serving application: kills on the way, and what queries saw of them."""

from __future__ import annotations

import random
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.connectors.database import COMMITS
from penstock.connectors.database_dialects import dialect_of, said
from penstock.demos.adserving import BALANCES, PARTS, AdServing
from penstock.engine.driver.query import FlowQuery

__all__ = ["Drill", "LiveFigures", "figures", "recovered"]

TARGETS = (
    ("components", "components"),
    ("billing", "charges"),
    ("recommendations", "recommend"),
    ("hashtags", "hashtags"),
    ("serving", "serving"),
    ("tweets", "tweets"),
    ("recommendations", "ratings"),
    ("billing", "statistics"),
    ("hashtags", "tagged"),
    ("serving", "noted"),
)
"""Who is killed, in turn: the part of the application and the stage."""
WARM_S = 4.0
"""Seconds at the start in which nothing is killed or measured."""
COOL_S = 3.0
"""Seconds at the end in which nothing is killed."""
SETTLE_S = 1.0
"""Time after a recovery during which queries do not count as normal."""
RECOVERY_S_MAX = 60.0
MID_LOOP_S_MAX = 1.5
_POLL_S = 0.005

Floats = npt.NDArray[np.float64]


@dataclass
class Drill:
    """Kills nodes of a running flow in turn; run it in a thread of its own."""

    query: FlowQuery
    kills: int
    first_s: float
    """When the first one dies, by the wall clock."""
    every_s: float
    seed: int = 1
    done: list[dict[str, Any]] = field(default_factory=list)

    def run(self) -> None:
        """Kill one after another, each when the one before has recovered."""
        chance = random.Random(self.seed)
        for number in range(self.kills):
            time.sleep(max(0.0, self.first_s + number * self.every_s - time.time()))
            part, stage = TARGETS[number % len(TARGETS)]
            if not self.query.isActive:
                return
            self._kill(part, f"{stage}[{chance.randrange(self._shards(stage))}]")

    def _shards(self, stage: str) -> int:
        chains = self.query._controller.plan.chains
        return next(c.shards for c in chains if any(each.name == stage for each in c.stages))

    def _kill(self, part: str, name: str) -> None:
        """Kill and wait for the recovery."""
        known = len(self.query.recoveries)
        mid_loop = part == "components" and self._wait_for_iterations()
        at_us = time.time_ns() // 1000
        self.query.kill(name)
        entry = {"part": part, "node": name, "at_us": at_us, "recovered_us": None}
        if part == "components":
            entry["mid_loop"] = mid_loop
        self.done.append(entry)
        deadline = time.monotonic() + RECOVERY_S_MAX
        while self.query.isActive and time.monotonic() < deadline:
            recent = self.query.recoveries[known:]
            if recent and all(one["recovered_us"] is not None for one in recent):
                entry["recovered_us"] = max(one["recovered_us"] for one in recent)
                entry["restarted"] = sorted({n for one in recent for n in one["restarted"]})
                return
            time.sleep(_POLL_S)
        entry["ended"] = not self.query.isActive  # and so did the work of all nodes

    def _wait_for_iterations(self) -> bool:
        """Wait until rows have gone round in the loop at least once; say whether they have."""
        controller = self.query._controller
        deadline = time.monotonic() + MID_LOOP_S_MAX
        while time.monotonic() < deadline and self.query.isActive:
            found = controller.frontiers().values()
            if any(len(at) > 1 and at[1] > 0 for times in found for at in times):
                return True
            time.sleep(0.0005)
        return False


class LiveFigures:
    """What the display shows while the flow runs; told of answers, asks the database."""

    def __init__(self, run: AdServing, before: Any) -> None:
        self._run = run
        self._before = int(before[:, 1].sum()), int(before[:, 0].sum())
        self._lock = threading.Lock()
        self._recent: list[tuple[int, Floats]] = []
        self._served: dict[int, tuple[int, int]] = {}
        """Ads and cents of all answers up to an epoch."""
        self.answers = 0
        self.cents = 0

    def add(self, epoch: int, arrived_ns: int, rows: pa.Table) -> None:
        """Answers came."""
        latencies = _latencies_ms(arrived_ns, rows)
        with self._lock:
            self.answers += len(latencies)
            self.cents += int(rows["price"].to_numpy().sum())
            self._served[epoch] = self.answers, self.cents
            self._recent.append((arrived_ns, latencies))
            while self._recent[0][0] < arrived_ns - 1_000_000_000:
                self._recent.pop(0)

    def queries(self) -> str:
        """What the queries of the last second saw."""
        with self._lock:
            recent = [latencies for _, latencies in self._recent]
        if not recent:
            return "no answers yet"
        values = np.concatenate(recent)
        p50, p99 = np.percentile(values, [50, 99])
        return f"{len(values):,} queries/s, answered after {p50:.0f} ms (p50), {p99:.0f} ms (p99)"

    def billing(self) -> str:
        """Whether what was billed up to an epoch is what was served up to it."""
        asked = (
            f"SELECT (SELECT epoch FROM {COMMITS} WHERE writer = '{self._run.writer}'), "
            f"SUM(ads), SUM(cents) FROM {BALANCES}"
        )
        dialect = dialect_of(self._run.database)
        try:
            with closing(dialect.connect()) as connection:
                cursor = connection.cursor()
                cursor.execute(asked)
                epoch, ads, cents = cursor.fetchone()
        except dialect.errors() as error:
            return f"billing: {said(error)}"
        if epoch is None:
            return "nothing billed yet"
        with self._lock:
            served = self._served.get(epoch)
        billed = int(ads) - self._before[0], int(cents) - self._before[1]
        if served is None:  # billed before the answers were delivered here
            return f"{billed[0]:,} ads billed"
        exact = "exactly as served" if billed == served else f"but {served[0]:,} were served"
        return f"{billed[0]:,} ads billed, {billed[1] / 100:,.2f} in all, {exact}"


def figures(run: AdServing, drill: Drill | None, from_us: float) -> dict[str, Any]:
    """What queries from a moment on saw: response times, also while others recovered, and gaps."""
    due_us, latency_ms, arrived_us = _answers(run)
    warm = due_us >= from_us
    kills = [] if drill is None else drill.done
    normal, elsewhere = warm.copy(), np.zeros(len(due_us), dtype=bool)
    gaps: list[float] = []
    recovery_s: dict[str, list[float]] = {}
    for kill in kills:
        end_us = kill["recovered_us"] or np.inf
        # Every query that was asked or open while a node recovered.
        during = (due_us <= end_us) & (arrived_us >= kill["at_us"])
        after = (due_us <= end_us + SETTLE_S * 1e6) & (arrived_us >= kill["at_us"])
        normal &= ~after
        if kill["part"] == "serving":
            gaps += _gap_ms(arrived_us[after], kill["at_us"])
        else:
            elsewhere |= during
        if kill["recovered_us"] is not None:
            took_s = (kill["recovered_us"] - kill["at_us"]) / 1e6
            recovery_s.setdefault(kill["part"], []).append(round(took_s, 3))
    return {
        "queries_per_s": _rate(arrived_us),
        "query_ms": {
            "normal_p50": _percentile(latency_ms[normal], 50),
            "normal_p99": _percentile(latency_ms[normal], 99),
            "recovery_p99": _percentile(latency_ms[elsewhere], 99),
            "recovery_queries": int(elsewhere.sum()),
        },
        "query_gap_ms": max(gaps, default=None),
        "recovery_s": {part: recovery_s[part] for part in PARTS if part in recovery_s},
        "kills": len(kills),
        "each": [
            {
                **{key: value for key, value in kill.items() if not key.endswith("_us")},
                "recovered": kill["recovered_us"] is not None,
            }
            for kill in kills
        ],
    }


def recovered(drill: Drill | None) -> bool:
    """Whether every node that was killed came back, or the flow ended first."""
    kills = [] if drill is None else drill.done
    return all(kill["recovered_us"] is not None or kill.get("ended") for kill in kills)


def _answers(run: AdServing) -> tuple[Floats, Floats, Floats]:
    """Per answer: when it was asked (µs), how long it took (ms), when it came (µs)."""
    due, latency, arrived = [np.empty(0)], [np.empty(0)], [np.empty(0)]
    for arrived_ns, rows in run.delivered:
        due.append(rows["time"].cast(pa.int64()).to_numpy().astype(np.float64))
        latency.append(_latencies_ms(arrived_ns, rows))
        arrived.append(np.full(rows.num_rows, arrived_ns / 1000))
    return np.concatenate(due), np.concatenate(latency), np.concatenate(arrived)


def _latencies_ms(arrived_ns: int, rows: pa.Table) -> Floats:
    asked_us = rows["time"].cast(pa.int64()).to_numpy()
    return np.asarray((arrived_ns / 1000 - asked_us) / 1000)


def _gap_ms(arrived_us: Floats, since_us: float) -> list[float]:
    """The longest time without an answer, if any came."""
    times = np.concatenate([[since_us], np.unique(arrived_us[arrived_us >= since_us])])
    return [round(float(np.diff(times).max() / 1000), 1)] if len(times) > 1 else []


def _percentile(values: Floats, percent: float) -> float | None:
    return round(float(np.percentile(values, percent)), 1) if len(values) else None


def _rate(arrived_us: Floats) -> float | None:
    """Answers per second, if they took longer than one."""
    seconds = (arrived_us.max() - arrived_us.min()) / 1e6 if len(arrived_us) else 0.0
    return round(len(arrived_us) / seconds, 1) if seconds > 1 else None
