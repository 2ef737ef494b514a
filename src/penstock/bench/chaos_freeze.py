"""``penstock chaos --freeze``: stop processes of a running flow for a while, and let them go on.

A stopped process keeps its connections and says nothing, which is harder to notice than a death.
``moved_ms`` is from the signal until its nodes are open on other hosts; what it sends and writes
when it wakes up, ten seconds later, must be refused, and it must end.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.engine.host.clock import now_us
from penstock.terminal import stderr

if TYPE_CHECKING:
    from penstock.engine.driver.query import FlowQuery

__all__ = ["FREEZE_S", "freeze_hosts", "freeze_summary"]

FREEZE_S = 10.0
MOVED_S_MAX = 60.0
WOKEN_S_MAX = 15.0
PAUSE_S = 1.5

Wait = Callable[[Callable[[], bool], float, str], None]


def freeze_hosts(
    query: FlowQuery,
    stages: list[str],
    frozen_s: float,
    seed: int,
    wait: Wait,
    is_alive: Callable[[int], bool],
    at_home: Callable[[], bool],
    time_left: Callable[[], bool],
) -> list[dict[str, Any]]:
    """Freeze a host with a node of each stage, one after another; what became of each."""
    chance = random.Random(seed)
    done: list[dict[str, Any]] = []
    for stage in stages:
        wait(at_home, MOVED_S_MAX, "all nodes to be back on their own hosts")
        if not (time_left() and query.isActive):
            break
        victim = chance.choice([node for node in query.nodes() if node["stage"] == stage])
        known = len(query.recoveries)
        began_us = now_us()
        query.freeze(victim["name"], frozen_s)
        wait(lambda known=known: _is_over(query, known), MOVED_S_MAX, "the recovery")  # type: ignore[misc]
        wait(
            lambda pid=victim["pid"]: not is_alive(pid),  # type: ignore[misc]
            frozen_s + WOKEN_S_MAX,
            "the end of the process that woke up",
        )
        time.sleep(PAUSE_S)  # others tell of refusals with their next message
        recent = query.recoveries[known:]
        entry = next(one for one in recent if one["host"] == victim["host"])
        done.append(
            {
                "node": victim["name"],
                "kind": "loop" if victim["loop"] else victim["kind"],
                "reason": entry["reason"],
                "noticed_ms": (entry["lost_us"] - began_us) // 1000,
                "moved_ms": (entry["opened_us"] - began_us) // 1000,
                "restarted_nodes": entry["restarted"],
                "other_lost": [one["reason"] for one in recent if one is not entry],
                "refused": entry["refused"],
            }
        )
        _say(done)
    return done


def freeze_summary(done: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures over all freezes.

    >>> each = {"noticed_ms": 200, "moved_ms": 300, "other_lost": [], "refused": {"messages": 2}}
    >>> freeze_summary([each])["moved_ms"], freeze_summary([each])["refused"]
    ({'p50': 300, 'max': 300}, {'messages': 2})
    """
    refused: dict[str, int] = {}
    for one in done:
        for key, count in one["refused"].items():
            refused[key] = refused.get(key, 0) + count
    return {
        "freezes": len(done),
        "moved_ms": _spread([one["moved_ms"] for one in done]),
        "noticed_ms": _spread([one["noticed_ms"] for one in done]),
        "false_alarms": sum(len(one["other_lost"]) for one in done),
        "refused": refused,
        "each": done,
    }


def _spread(values: list[int]) -> dict[str, int | None]:
    if not values:
        return {"p50": None, "max": None}
    return {"p50": round(float(np.median(values))), "max": max(values)}


def _is_over(query: FlowQuery, known: int) -> bool:
    recent = query.recoveries[known:]
    return bool(recent) and all(one["recovered_us"] is not None for one in recent)


def _say(done: list[dict[str, Any]]) -> None:
    one = done[-1]
    stderr.print(
        f"{len(done)}: {one['node']} ({one['kind']}): noticed after {one['noticed_ms']} ms, open "
        f"elsewhere after {one['moved_ms']} ms; refused {one['refused']}",
        highlight=False,
    )
