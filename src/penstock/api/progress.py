"""The progress of a flow: a dict with attributes, with Spark's names where they fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from penstock.core.control.figures import NodeFigures
from penstock.core.progress.marks import EPOCH_END, WATERMARK_END, WATERMARK_IDLE
from penstock.core.time import CONVERGED
from penstock.planning.physical import PhysicalPlan

__all__ = ["FlowProgress", "progress_of"]


class FlowProgress(dict[str, Any]):
    """A progress report; keys can be read as attributes too.

    >>> FlowProgress(batchId=3).batchId
    3
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(f"there is no {name!r} in this progress") from error

    @property
    def json(self) -> str:
        """One line of JSON."""
        return json.dumps(self)

    @property
    def prettyJson(self) -> str:
        """JSON for people."""
        return json.dumps(self, indent=2)


def progress_of(
    flow_id: str,
    run_id: str,
    name: str,
    now: datetime,
    plan: PhysicalPlan,
    figures: Mapping[int, NodeFigures],
    committed: Mapping[str, int],
    latency_us: Mapping[str, int],
    before: FlowProgress | None,
) -> FlowProgress:
    """Put a report together from the nodes' latest figures."""
    seconds = 0.0
    if before is not None:
        seconds = (now - datetime.fromisoformat(before["timestamp"])).total_seconds()
    earlier = {stage["name"]: stage for stage in before["stages"]} if before else {}
    stages = [
        _stage(chain.name, [figures[n] for n in chain.nodes if n in figures], earlier, seconds)
        for chain in plan.chains
    ]
    by_name = {stage["name"]: stage for stage in stages}
    sources = [
        {
            "name": chain.stages[0].name,
            "description": getattr(chain.stages[0].operator, "describe", str)(),
            "numInputRows": by_name[chain.name]["numInputRows"],
            "inputRowsPerSecond": by_name[chain.name]["inputRowsPerSecond"],
            "metrics": _of_stage(chain.stages[0].name, by_name[chain.name]["counters"]),
        }
        for chain in plan.chains
        if chain.is_source
    ]
    sinks = [
        {
            "name": sink,
            "epoch": _real(committed[sink]),
            "latencyMs": round(latency_us[sink] / 1000, 3) if sink in latency_us else None,
        }
        for sink, _ in plan.sinks
    ]
    return FlowProgress(
        id=flow_id,
        runId=run_id,
        name=name,
        timestamp=now.isoformat(),
        batchId=min((_real(epoch) for epoch in committed.values()), default=-1),
        numInputRows=sum(source["numInputRows"] for source in sources),
        inputRowsPerSecond=sum(source["inputRowsPerSecond"] for source in sources),
        sources=sources,
        stages=stages,
        sinks=sinks,
    )


def _of_stage(stage: str, counters: Mapping[str, int]) -> dict[str, int]:
    """A stage's own counters among those of its node."""
    start = f"{stage}."
    return {
        name.removeprefix(start): value
        for name, value in counters.items()
        if name.startswith(start)
    }


def _stage(
    name: str,
    nodes: list[NodeFigures],
    earlier: Mapping[str, Mapping[str, Any]],
    seconds: float,
) -> dict[str, Any]:
    rows = sum(node.rows_in for node in nodes)
    busy = sum(node.busy_ns for node in nodes) / 1e9
    previous = earlier.get(name)
    rate = load = 0.0
    if previous is not None and seconds > 0:
        rate = max(0.0, (rows - previous["numInputRows"]) / seconds)
        load = max(0.0, (busy - previous["busySeconds"]) / seconds)
    watermarks = [node.watermark_us for node in nodes]
    known = [w for w in watermarks if w is not None and w != WATERMARK_IDLE]
    counters: dict[str, int] = {}
    loops = [node.loop_counters for node in nodes]
    for node in nodes:
        for key, value in node.counters.items():
            counters[key] = counters.get(key, 0) + value
    return {
        "name": name,
        "nodes": len(nodes),
        "numInputRows": rows,
        "inputRowsPerSecond": rate,
        "numOutputRows": sum(node.rows_out for node in nodes),
        "frontier": _real(min((node.epoch for node in nodes), default=-1)),
        "ended": bool(nodes) and all(node.epoch >= EPOCH_END for node in nodes),
        "watermarkUs": min(known) if known and None not in watermarks else None,
        "endOfInput": bool(known) and min(known) == WATERMARK_END,
        "messages": sum(node.messages_out for node in nodes),
        "replicaBytes": sum(node.replica.replica_bytes for node in nodes if node.replica),
        "queuedBytes": sum(node.queued_bytes for node in nodes),
        "busySeconds": busy,
        "load": load,
        "counters": counters,
        "loopCounters": [
            max((count for count in each if count < CONVERGED), default=0)
            for each in zip(*loops, strict=False)
        ],
    }


def _real(epoch: int) -> int:
    """-1 stands for the end in a report: the number itself says nothing to people."""
    return -1 if epoch >= EPOCH_END else epoch
