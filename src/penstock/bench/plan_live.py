"""``penstock bench plan-live``: what planning a running flow is worth, by killing its stages.

The flow (:mod:`penstock.bench.plan_live_flow`) runs on Spark, measures itself, and is planned
within a budget in three ways: the planner's, a log before every stage, and none but at the source.
Each plan is applied to the same running flow in turn; then what checkpoints and logs cost is
measured while nothing fails, and what a failure costs by killing one stage after another: restoring
and replaying, summed over the nodes that restart, without the start of a process.

The flow's settings follow from the model, not from results: documents are as wide as makes logging
every input cost three quarters of the budget, at the speed of the store that a pilot run measures.
There, by the model, both baselines are about as good as each other.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.bench.plan_live_flow import STAGES, PlanFlow
from penstock.core.plan import Method, OperatorTopology, Plan, solve
from penstock.core.plan.cost import recovery_times
from penstock.engine.spark.session import local_session
from penstock.errors import InvariantError, TransientError
from penstock.terminal import stderr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.engine.driver.query import FlowQuery

__all__ = ["PlanLive", "bench_plan_live", "plan_live"]

METHODS: dict[str, Method] = {"plan": "exact", "nsegments": "nsegments", "one_segment": "1segment"}
LOG_SHARE = 0.75
"""What logging every input takes of the budget: with less, logging everywhere becomes the better
baseline, with more the worse one."""
PILOT_WIDTH = 1024
WIDTH_MAX = 16_384
STANDBY = 1
EPOCH = "100 ms"
LINGER = "50 ms"
START_S_MAX = 60.0
SETTLE_S_MAX = 120.0
RECOVERY_S_MAX = 60.0
PAUSE_S = 1.0
FULL_SPEED_S_MAX = 180.0
THROUGHPUT_ROWS = 40_000
THROUGHPUT_RUNS = 2


@dataclass(frozen=True)
class PlanLive:
    """How long and how often."""

    kills: int = 20
    budget: float = 0.05
    rate: float = 1000
    seconds: float = 15
    """Of each measurement."""
    seed: int = 1
    throughput: bool = True


@dataclass
class _Run:
    """A running flow under test."""

    settings: PlanLive
    flow: PlanFlow
    query: FlowQuery
    chance: random.Random
    results: dict[str, Any] = field(default_factory=dict)


def bench_plan_live(settings: PlanLive) -> dict[str, Any]:
    """Run everything on a session of its own; give figures."""
    spark = local_session("penstock bench plan-live", hosts=len(STAGES) + 2 + STANDBY)
    try:
        return plan_live(spark, settings)
    finally:
        spark.stop()


def plan_live(spark: SparkSession, settings: PlanLive) -> dict[str, Any]:
    """Measure, plan three times, kill; give figures."""
    load = os.getloadavg()[0]
    width, storage_cost = _chosen_width(spark, settings)
    _say(f"documents of {width} bytes: the store takes {storage_cost:.2g} s for a byte")
    with tempfile.TemporaryDirectory() as scratch:
        store = Path(scratch) / "store"
        flow = PlanFlow(settings.rate, width)
        query = _started(spark, flow, store)
        run = _Run(settings, flow, query, random.Random(settings.seed))
        try:
            topology = _measured_twice(run)
            plans = {
                name: solve(topology, settings.budget, method) for name, method in METHODS.items()
            }
            for name, plan in plans.items():
                run.results[name] = _tried(run, name, plan)
            query.apply(plans["plan"])
            shutil.copy(store / "plan.json", Path(scratch) / "plan.json")
        finally:
            query.stop()
        if query.exception() is not None or (wrong := flow.wrong()):
            raise InvariantError(f"the flow's totals are wrong: {query.exception() or wrong[:3]}")
        throughput = None
        if settings.throughput:
            throughput = _throughput(spark, width, Path(scratch) / "plan.json")
    return {
        **_summary(run.results, settings),
        "exact": True,
        "throughput": throughput,
        "settings": {
            "stages": len(STAGES),
            "rows_per_s": settings.rate,
            "document_bytes": width,
            "log_share_of_budget": LOG_SHARE,
            "pilot_storage_cost": storage_cost,
            "seconds": settings.seconds,
            "seed": settings.seed,
        },
        "operators": _described(topology),
        "load_before": round(load, 1),
        "cores": os.cpu_count(),
    }


# -- settings from the model -----------------------------------------------------------------------


def _chosen_width(spark: SparkSession, settings: PlanLive) -> tuple[int, float]:
    """How wide documents are, and the measured time for a byte from which that follows."""
    with tempfile.TemporaryDirectory() as scratch:
        query = _started(spark, PlanFlow(settings.rate, PILOT_WIDTH), Path(scratch) / "store")
        try:
            time.sleep(settings.seconds)
            storage_cost = float(query.measured()["storage_cost"])
        finally:
            query.stop()
    wide = sum(stage.widens for stage in STAGES)
    width = LOG_SHARE * settings.budget / (wide * settings.rate * storage_cost)
    return max(8, min(WIDTH_MAX, round(width))), storage_cost


def _started(spark: SparkSession, flow: PlanFlow, store: Path, **options: Any) -> FlowQuery:
    return flow.flow.start(
        spark,
        hosts=flow.hosts,
        parallelism=1,
        standby=STANDBY,
        epochInterval=EPOCH,
        linger=LINGER,
        checkpointLocation=str(store),
        **options,
    )


def _measured_twice(run: _Run) -> OperatorTopology:
    """The flow as it is with a plan in force: without one its checkpoints hold all logs."""
    for _ in range(2):
        time.sleep(run.settings.seconds)
        plan = _soon(lambda: run.query.plan(run.settings.budget), START_S_MAX, "a measurement")
        if plan.feasible:
            _put_into_force(run, plan)
    time.sleep(run.settings.seconds)
    return OperatorTopology.from_mapping(run.query.measured())


def _put_into_force(run: _Run, plan: Plan) -> None:
    live = run.query._controller.live_plan
    run.query.apply(plan)
    _soon(lambda: live is not None and live.settled, SETTLE_S_MAX, "the plan to be in force")


# -- one plan --------------------------------------------------------------------------------------


def _tried(run: _Run, name: str, plan: Plan) -> dict[str, Any]:
    """Apply a plan, measure what it costs, and kill."""
    if not plan.feasible:
        _say(f"{name}: {plan.reason}; it needs more than {plan.min_overhead:.3g}")
        return {"feasible": False, "reason": plan.reason, "min_overhead": plan.min_overhead}
    configuration = plan.configuration
    assert configuration is not None
    times = dict(
        zip(plan.topology.names, recovery_times(plan.topology, configuration), strict=True)
    )
    _put_into_force(run, plan)
    overhead = _overhead(run, plan)
    each = []
    for number in range(run.settings.kills):
        stage = STAGES[number % len(STAGES)].name
        each.append({**_killed(run, stage, plan), "predicted_s": round(times[stage], 4)})
        one = each[-1]
        _say(
            f"{name} {number + 1}: {stage}: {one['work_s']:.3f} s of work "
            f"({one['predicted_s']:.3f} at most predicted), {one['restarted']} restarted"
        )
    return {
        "feasible": True,
        "anchors": list(plan.anchors),
        "interval_s": {
            one: round(1 / eta, 2) if 0 < eta < np.inf else None
            for one, eta in plan.frequency.items()
        },
        "overhead": {"measured": round(overhead, 4), "predicted": round(plan.overhead, 4)},
        "recovery_work_s": _mean(one["work_s"] for one in each),
        "predicted_s": _mean(one["predicted_s"] for one in each),
        "each": each,
    }


def _overhead(run: _Run, plan: Plan) -> float:
    """Seconds of checkpoints and logs per second, summed over nodes, while nothing fails."""
    longest = max((1 / eta for eta in plan.frequency.values() if 0 < eta < np.inf), default=0.0)

    def counted() -> list[float]:
        figures = [one.causal for one in run.query._controller.figures().values() if one.causal]
        return [
            sum(one.checkpoint_s for one in figures),
            sum(one.checkpoints for one in figures),
            sum(one.checkpoint_bytes for one in figures),
        ]

    before, began = counted(), time.monotonic()
    time.sleep(max(run.settings.seconds, 2 * longest))
    worked, writes, size = (now - then for now, then in zip(counted(), before, strict=True))
    live = run.query._controller.live_plan
    waited = 0.0 if live is None else live.meter.storage.waits_s(writes, size)
    return (worked + waited) / (time.monotonic() - began)


def _killed(run: _Run, stage: str, plan: Plan) -> dict[str, Any]:
    """Kill a stage at a random moment between two checkpoints, and see what that costs."""
    query = run.query
    eta = plan.frequency[stage]
    interval_s = 1 / eta if 0 < eta < np.inf else 1.0
    time.sleep(PAUSE_S + run.chance.random() * interval_s)
    known = len(query.recoveries)
    _soon(lambda: query.kill(f"{stage}[0]"), START_S_MAX, f"a host for {stage}")

    def work() -> float | None:
        found = query.recoveries[known:]
        return found[-1]["work_s"] if found else None

    work_s = _soon(work, RECOVERY_S_MAX, f"the recovery of {stage}")
    entry = query.recoveries[-1]
    return {
        "stage": stage,
        "work_s": round(work_s, 4),
        "restarted": len(entry["restarted"]),
        **{
            key: round(sum(one.get(key, 0.0) for one in entry["work"].values()), 4)
            for key in ("restore_s", "resend_s", "replay_s")
        },
        "held_up_s": round((entry["recovered_us"] - entry["lost_us"]) / 1e6, 3)
        if entry["recovered_us"]
        else None,
    }


# -- throughput ------------------------------------------------------------------------------------


def _throughput(spark: SparkSession, width: int, plan_json: Path) -> dict[str, Any]:
    """Rows per second at full speed, with the plan in force from the start and without recovery.

    Both run in turn, and the best of each counts: others may use the machine.
    """
    found: dict[str, list[float]] = {"without": [], "with_plan": []}
    for _ in range(THROUGHPUT_RUNS):
        for name, measured in found.items():
            plan = plan_json if name == "with_plan" else None
            measured.append(_at_full_speed(spark, width, plan))
            _say(f"{name}: {measured[-1]:.0f} rows/s at full speed")
    best = {name: max(measured) for name, measured in found.items()}
    return {
        "rows_per_s": {name: round(value) for name, value in best.items()},
        "ratio": round(best["with_plan"] / best["without"], 3),
    }


def _at_full_speed(spark: SparkSession, width: int, plan_json: Path | None) -> float:
    with tempfile.TemporaryDirectory() as scratch:
        store = Path(scratch) / "store"
        store.mkdir()
        options: dict[str, Any] = {"recovery": "none", "guarantee": "at-most-once"}
        if plan_json is not None:
            shutil.copy(plan_json, store / "plan.json")
            options = {}
        flow = PlanFlow(None, width, THROUGHPUT_ROWS)
        query = _started(spark, flow, store, availableNow=True, **options)
        began = time.monotonic()
        try:
            ended = query.awaitTermination(FULL_SPEED_S_MAX)
        finally:
            query.stop()
        took_s = time.monotonic() - began
        if not ended or flow.wrong():
            raise InvariantError(f"at full speed the totals are wrong: {flow.wrong()[:3]}")
    return THROUGHPUT_ROWS / took_s


# -- figures ---------------------------------------------------------------------------------------


def _summary(results: Mapping[str, Any], settings: PlanLive) -> dict[str, Any]:
    work = {name: one.get("recovery_work_s") for name, one in results.items()}
    baselines = [work[name] for name in ("nsegments", "one_segment") if work[name] is not None]
    mine = work["plan"]
    return {
        "budget": settings.budget,
        "overhead": results["plan"].get("overhead", {}).get("measured"),
        "recovery_work_s": work,
        "predicted_s": {name: one.get("predicted_s") for name, one in results.items()},
        "ratio": round(mine / min(baselines), 3) if mine is not None and baselines else None,
        "kills": {name: len(one.get("each", ())) for name, one in results.items()},
        "plans": dict(results),
    }


def _described(topology: OperatorTopology) -> list[dict[str, Any]]:
    return [
        {
            "name": one.name,
            "rows_per_s": round(topology.rate[i], 1),
            "busy_share": round(topology.replay_cost[i], 4),
            "checkpoint_s": round(topology.state_cost[i], 5),
            "state_bytes": round(one.state_size),
            "log_share": round(topology.log_cost[i], 5),
        }
        for i, one in enumerate(topology.operators)
    ]


def _mean(values: Any) -> float | None:
    found = list(values)
    return round(float(np.mean(found)), 4) if found else None


def _soon(found: Callable[[], Any], within_s: float, what: str) -> Any:
    """What a function gives once it gives something; its errors count as nothing yet."""
    deadline = time.monotonic() + within_s
    while True:
        with suppress(TransientError):
            if value := found():
                return value
        if time.monotonic() > deadline:
            raise TransientError(f"plan-live: waited {within_s:g} s for {what} in vain")
        time.sleep(0.02)


def _say(text: str) -> None:
    stderr.print(text, highlight=False)
