"""``penstock bench beside``: a DataFrame job of 64 tasks and a flow in one session.

The same job is timed without a flow and beside one, in turn; so a disturbance of the machine meets
both.  Then it runs again, and a host of the flow is killed in the middle of it: with a host
standing by, no node waits for a task slot.  Without one Spark starts a new host as soon as one of
the job's tasks is over: a host has a FAIR pool of its own, which goes first while it has no task.

A flow is back when probes take at most twice as long again as the slowest of a hundred while the
job runs and no host is killed.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.bench.chaos_flow import ChaosFlow
from penstock.engine.spark.session import local_session
from penstock.errors import TransientError
from penstock.terminal import stderr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.engine.driver.query import FlowQuery

__all__ = ["bench_beside", "beside"]

TASKS = 64
HOSTS = 3
SPARE_SLOTS = 4
RATE = 1_000
ROWS = 200_000_000
"""Of the DataFrame job: some seconds on one core."""
VICTIMS = ("sharder", "counts", "pairs", "numbered")
BACK_S_MAX = 60.0
JOB_S_MAX = 600.0


def bench_beside(rounds: int, rows: int = ROWS, standby: int = 1) -> dict[str, Any]:
    """Measure on a session of its own."""
    slots = HOSTS + standby + SPARE_SLOTS
    spark = local_session("penstock bench", master=f"local[{slots}]")
    try:
        return beside(spark, rounds, rows, standby)
    finally:
        spark.stop()


def beside(spark: SparkSession, rounds: int, rows: int = ROWS, standby: int = 1) -> dict[str, Any]:
    """Time the job alone and beside a flow, in turn, then kill hosts while it runs."""
    _job(spark, rows)  # the first one compiles
    alone, together, back, normal = [], [], [], []
    chance = random.Random(1)
    for number in range(rounds):
        alone.append(_job(spark, rows))
        with tempfile.TemporaryDirectory() as scratch:
            flow = ChaosFlow(RATE, JOB_S_MAX, Path(scratch))
            query = flow.flow.start(
                spark,
                hosts=HOSTS,
                parallelism=2,
                standby=standby,
                epochInterval="100 ms",
                checkpointLocation=str(Path(scratch) / "checkpoint"),
            )
            try:
                flow.probe.start()
                flow.probe.normal_ms(1.0)  # warm
                job = _InThread(lambda: _job(spark, rows))
                p99 = float(np.percentile(flow.probe.normal_ms(1.0), 99))
                together.append(job.result())
                normal.append(p99)
                back.append(_kill(spark, flow, query, rows, 2 * p99, chance))
            finally:
                flow.probe.stop()
                query.stop()
        stderr.print(
            f"round {number + 1}: alone {alone[-1]:.2f} s, beside {together[-1]:.2f} s, "
            f"back {back[-1]:.2f} s after a kill",
            highlight=False,
        )
    return {
        "tasks": TASKS,
        "rounds": rounds,
        "job_alone_s": round(float(np.median(alone)), 3),
        "job_beside_s": round(float(np.median(together)), 3),
        "ratio": round(float(np.median(together) / np.median(alone)), 3),
        "recovery_s": {"p50": round(float(np.median(back)), 3), "max": round(max(back), 3)},
        "probe_p99_ms": round(float(np.median(normal)), 1),
        "standby": standby,
        "hosts": HOSTS,
    }


def _kill(
    spark: SparkSession,
    flow: ChaosFlow,
    query: FlowQuery,
    rows: int,
    limit_ms: float,
    chance: random.Random,
) -> float:
    """Kill a host while the job runs; how long until the flow is as quick as before."""
    job = _InThread(lambda: _job(spark, rows))
    time.sleep(0.5)  # now its tasks have every slot that is left
    stage = chance.choice(VICTIMS)
    victim = chance.choice([node for node in query.nodes() if node["stage"] == stage])
    since_ns = time.perf_counter_ns()
    query.kill(victim["name"])
    took = flow.probe.recovered_s(since_ns, limit_ms, BACK_S_MAX)
    job.result()
    if took is None:
        raise TransientError(f"the flow was not back {BACK_S_MAX:g} s after {victim['name']} died")
    return took


def _job(spark: SparkSession, rows: int) -> float:
    """Seconds that a job of 64 tasks takes."""
    began = time.perf_counter()
    numbers = spark.range(0, rows, 1, TASKS)
    numbers.selectExpr("sum(hash(id, id % 7) % 1000) AS total").collect()
    return time.perf_counter() - began


class _InThread:
    """Something that runs beside."""

    def __init__(self, work: Callable[[], float]) -> None:
        self._found: list[float] = []
        self._failed: list[Exception] = []
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], float]) -> None:
        try:
            self._found.append(work())
        except Exception as error:
            self._failed.append(error)

    def result(self) -> float:
        """Wait for it."""
        self._thread.join(JOB_S_MAX)
        if self._failed:
            raise self._failed[0]
        if not self._found:
            raise TransientError(f"the DataFrame job did not end within {JOB_S_MAX:g} s")
        return self._found[0]
