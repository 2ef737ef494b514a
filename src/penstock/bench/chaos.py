"""``penstock chaos``: kill real processes of a running flow, one after another, and check.

After each kill three things are asked.  Does every other node go on (same process, same
incarnation)?  How long was the flow held up: from the signal until probes that are sent every 10 ms
take at most twice their normal p99 again?  And at the end: do the published tables hold exactly
what the events say (:mod:`penstock.bench.chaos_flow`)?
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.bench.chaos_flow import ChaosFlow
from penstock.bench.chaos_freeze import FREEZE_S, freeze_hosts, freeze_summary
from penstock.engine.spark.session import local_session
from penstock.errors import TransientError
from penstock.terminal import stderr
from penstock.testing.cluster import StandaloneCluster, descendants

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.engine.driver.query import FlowQuery

__all__ = ["Chaos", "chaos", "torture"]

HOSTS = 4
STANDBY = 1
RATE = 5_000
EPOCH = "200 ms"
LINGER = "100 ms"
CHECKPOINT = "400 ms"
LEAD_S = 3.0
NORMAL_S = 4.0
KILL_S = 3.5
"""Average time for a kill and its recovery, from which the length of a run follows by default."""
CLUSTER_KILL_S = 8.0
CUT_S = 0.5
PAUSE_S = 1.5
RECOVERY_S_MAX = 30.0
DEAD_S_MAX = 5.0
END_S_MAX = 60.0
TARGETS = ("events", "sharder", "counts", "pairs", "numbered", "halved", "numbers_files_commit")
"""A stage of each kind: killed in turn."""


@dataclass(frozen=True)
class Chaos:
    """What to do to the flow."""

    kills: int = 20
    seconds: float | None = None
    seed: int = 1
    rate: float = RATE
    cluster: bool = False
    connections: bool = False
    hosts: int = HOSTS
    standby: int = STANDBY
    freezes: int = 0
    frozen_s: float = FREEZE_S

    @property
    def load_s(self) -> float:
        """How long events are made."""
        if self.seconds is not None:
            return self.seconds
        if self.freezes:
            return LEAD_S + NORMAL_S + self.freezes * (self.frozen_s + KILL_S + 2)
        each = CUT_S if self.connections else CLUSTER_KILL_S if self.cluster else KILL_S
        return LEAD_S + NORMAL_S + self.kills * each + 2


@dataclass
class _Drill:
    """A running flow and what was done to it so far."""

    flow: ChaosFlow
    query: FlowQuery
    limit_ms: float
    deadline: float
    done: list[dict[str, Any]] = field(default_factory=list)

    @property
    def time_left(self) -> bool:
        """Whether events will still come for a while: without load a kill shows nothing."""
        return time.monotonic() < self.deadline


def chaos(settings: Chaos) -> dict[str, Any]:
    """Torture a flow on a session of its own; give figures."""
    with _session(settings) as (spark, cluster):
        return torture(spark, settings, cluster)


def torture(
    spark: SparkSession, settings: Chaos, cluster: StandaloneCluster | None = None
) -> dict[str, Any]:
    """Run the flow, torture it, check its tables; give figures."""
    with tempfile.TemporaryDirectory() as scratch:
        flow = ChaosFlow(settings.rate, settings.load_s, Path(scratch))
        query = flow.flow.start(
            spark,
            hosts=settings.hosts,
            parallelism=2,
            epochInterval=EPOCH,
            linger=LINGER,
            checkpointInterval=CHECKPOINT,
            standby=settings.standby,
            pingInterval="50 ms",
            checkpointLocation=str(Path(scratch) / "checkpoint"),
        )
        try:
            deadline = time.monotonic() + settings.load_s - 1
            flow.probe.start()
            time.sleep(LEAD_S)
            normal = flow.probe.normal_ms(NORMAL_S)
            p50, p99 = np.percentile(normal, [50, 99])
            drill = _Drill(flow, query, 2 * float(p99), deadline)
            if settings.freezes:
                _freeze_nodes(drill, settings)
            elif settings.connections:
                _cut(drill, settings)
            elif cluster is not None:
                _kill_executors(drill, settings, cluster)
            else:
                _kill_nodes(drill, settings)
            flow.close()
            ended = query.awaitTermination(settings.load_s + END_S_MAX)
            recoveries = query.recoveries
        finally:
            query.stop()
        flow.probe.join(5)
        outcome = flow.check()
    return {
        **(freeze_summary(drill.done) if settings.freezes else _summary(drill.done, settings)),
        "lost": outcome.lost,
        "duplicated": outcome.duplicated,
        "disordered": outcome.disordered,
        "equal": bool(ended and outcome.equal and not flow.probe.missing),
        "rows": outcome.rows,
        "events": flow.rows,
        "recoveries": len(recoveries),
        "normal_ms": {"p50": round(float(p50), 1), "p99": round(float(p99), 1)},
        "standby": settings.standby,
        "seed": settings.seed,
    }


@contextmanager
def _session(settings: Chaos) -> Iterator[tuple[SparkSession, StandaloneCluster | None]]:
    if not settings.cluster:
        # A frozen process keeps its slot, and another one comes in its place.
        slots = settings.hosts + settings.standby + (1 if settings.freezes else 0)
        spark = local_session("penstock chaos", hosts=slots)
        try:
            yield spark, None
        finally:
            spark.stop()
        return
    # Either executor must have room for all hosts, and both must be there before hosts are placed.
    cores = settings.hosts + settings.standby + 1
    with StandaloneCluster(workers=2, cores=cores) as cluster:
        conf = {
            "spark.executor.memory": "512m",
            "spark.cores.max": str(2 * cores),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        }
        spark = local_session("penstock chaos", master=cluster.url, conf=conf)
        try:
            yield spark, cluster
        finally:
            spark.stop()


# -- kills ---------------------------------------------------------------------------------------


def _kill_nodes(drill: _Drill, settings: Chaos) -> None:
    """Kill a node of each kind in turn, with ``kill -9`` to its process."""
    chance = random.Random(settings.seed)
    for number in range(settings.kills):
        stage = TARGETS[number % len(TARGETS)]
        victim = chance.choice([n for n in drill.query.nodes() if n["stage"] == stage])

        def kill(name: str = victim["name"]) -> list[int]:
            return [drill.query.kill(name)["pid"]]

        kind = "loop" if victim["loop"] else victim["kind"]
        if not _struck(drill, kill, {"node": victim["name"], "kind": kind}):
            return


def _kill_executors(drill: _Drill, settings: Chaos, cluster: StandaloneCluster) -> None:
    """Kill the JVM of an executor, and with it all hosts under it."""
    chance = random.Random(settings.seed)
    for _ in range(settings.kills):
        hosts = {node["pid"] for node in drill.query.nodes()} - {os.getpid()}
        victims = [pid for pids in cluster.executor_pids().values() for pid in pids]
        below = {pid: hosts & set(descendants([pid])) for pid in victims}
        pid = chance.choice(sorted(pid for pid in victims if below[pid]))

        def kill(pid: int = pid, under: frozenset[int] = frozenset(below[pid])) -> list[int]:
            os.kill(pid, signal.SIGKILL)
            return sorted(under)

        if not _struck(drill, kill, {"node": f"executor {pid}", "kind": "executor"}):
            return


def _struck(drill: _Drill, kill: Callable[[], list[int]], victim: dict[str, Any]) -> bool:
    """Kill, wait for the recovery, note what happened; False: there is no point in going on."""
    if not drill.time_left:
        return False
    _wait(lambda: _at_home(drill.query), RECOVERY_S_MAX, "all nodes to be back on their own hosts")
    before = {node["name"]: node for node in drill.query.nodes()}
    known = len(drill.query.recoveries)
    since_ns = time.perf_counter_ns()
    pids = kill()
    _wait(lambda: not any(map(_is_alive, pids)), DEAD_S_MAX, f"the death of {pids}")
    took = drill.flow.probe.recovered_s(since_ns, drill.limit_ms, RECOVERY_S_MAX)
    if took is not None:
        _wait(lambda: _settled(drill.query, known), RECOVERY_S_MAX, "the end of the recovery")
    lost = sorted(name for name, node in before.items() if node["pid"] in pids)
    after = {node["name"]: node for node in drill.query.nodes()}
    changed = sorted(
        name
        for name, node in after.items()
        if (node["pid"], node["incarnation"]) != (before[name]["pid"], before[name]["incarnation"])
    )
    drill.done.append(
        {
            **victim,
            "restarted_nodes": [name for name in changed if name in lost],
            "other_restarted": [name for name in changed if name not in lost],
            "unchanged_lost": [name for name in lost if name not in changed],
            "recovery_s": None if took is None else round(took, 3),
        }
    )
    _say(drill.done)
    time.sleep(PAUSE_S)
    return took is not None and drill.query.isActive


def _settled(query: FlowQuery, known: int) -> bool:
    recent = query.recoveries
    return len(recent) > known and all(one["recovered_us"] is not None for one in recent)


def _at_home(query: FlowQuery) -> bool:
    """Whether every node is on its own host and none is about to move."""
    moved = all(one["recovered_us"] is not None for one in query.moves)
    return moved and all(node["host"] == node["home"] for node in query.nodes())


def _freeze_nodes(drill: _Drill, settings: Chaos) -> None:
    """Stop the process of a node of each kind in turn."""
    drill.done += freeze_hosts(
        drill.query,
        [TARGETS[number % len(TARGETS)] for number in range(settings.freezes)],
        settings.frozen_s,
        settings.seed,
        _wait,
        _is_alive,
        lambda: _at_home(drill.query),
        lambda: drill.time_left,
    )


# -- cut connections -----------------------------------------------------------------------------


def _cut(drill: _Drill, settings: Chaos) -> None:
    """Break the live connections of one host after another; no process is killed."""
    chance = random.Random(settings.seed)
    before = {node["name"]: (node["pid"], node["incarnation"]) for node in drill.query.nodes()}
    for _ in range(settings.kills):
        if not (drill.time_left and drill.query.isActive):
            break
        hosts = sorted({node["host"] for node in drill.query.nodes() if node["pid"] != os.getpid()})
        host = chance.choice(hosts)
        since_ns = time.perf_counter_ns()
        drill.query.severConnections(host)
        took = drill.flow.probe.recovered_s(since_ns, drill.limit_ms, RECOVERY_S_MAX)
        after = {node["name"]: (node["pid"], node["incarnation"]) for node in drill.query.nodes()}
        drill.done.append(
            {
                "node": f"host {host}",
                "kind": "connections",
                "restarted_nodes": sorted(name for name in after if after[name] != before[name]),
                "other_restarted": [],
                "recovery_s": None if took is None else round(took, 3),
            }
        )
        _say(drill.done)


# -- figures -------------------------------------------------------------------------------------


def _summary(done: list[dict[str, Any]], settings: Chaos) -> dict[str, Any]:
    seconds = [one["recovery_s"] for one in done if one["recovery_s"] is not None]
    summary: dict[str, Any] = {
        "cuts" if settings.connections else "kills": len(done),
        "recovery_s": {
            "p50": round(float(np.median(seconds)), 3) if seconds else None,
            "max": max(seconds) if len(seconds) == len(done) and seconds else None,
        },
        "other_restarted": sum(len(one["other_restarted"]) for one in done),
    }
    if settings.connections:
        summary["restarted"] = sum(len(one["restarted_nodes"]) for one in done)
    return {**summary, "each": done}


def _wait(done: Callable[[], bool], within_s: float, what: str) -> None:
    deadline = time.monotonic() + within_s
    while not done():
        if time.monotonic() > deadline:
            raise TransientError(f"chaos: waited {within_s:g} s for {what} in vain")
        time.sleep(0.005)


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (ProcessLookupError, FileNotFoundError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def _say(done: list[dict[str, Any]]) -> None:
    one = done[-1]
    took = "not" if one["recovery_s"] is None else f"after {one['recovery_s']} s"
    others = f", and {', '.join(one['other_restarted'])}" if one["other_restarted"] else ""
    stderr.print(
        f"{len(done)}: {one['node']} ({one['kind']}): recovered {took}; restarted "
        f"{', '.join(one['restarted_nodes']) or 'no node'}{others}",
        highlight=False,
    )
