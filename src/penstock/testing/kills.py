"""Hosts killed under a flow that runs in threads: what a test of a flow's recovery needs.

    query = run_killing(flow, ["counts[0]", "numbers[1]"], regime=Lazy(every=5))

runs the flow to its end, kills the hosts of these nodes on the way, and waits after each until the
flow has recovered.  The flow must have an end, and enough input that it is not reached before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from penstock.engine.spark.query import FlowQuery
from penstock.errors import TransientError
from penstock.flow import Flow
from penstock.testing.local import LocalQuery, start_local

__all__ = ["await_recovery", "run_killing"]

WAIT_S = 30.0


class _OverError(TransientError):
    """The flow came to its end first."""


def run_killing(
    flow: Flow,
    victims: Sequence[str],
    *,
    hosts: int = 3,
    pause: float = 0.3,
    timeout: float = WAIT_S,
    **options: Any,
) -> LocalQuery:
    """Run a flow to its end, killing the hosts of some nodes, ``pause`` seconds apart."""
    query = start_local(flow, hosts, **{"checkpointInterval": "200 ms", **options})
    try:
        for number, victim in enumerate(victims, 1):
            time.sleep(pause)
            if number > 1 and not query.isActive:
                break  # this machine is busy: the input was used up before
            query.kill(victim)
            with suppress(_OverError):
                await_recovery(query, number, timeout)
        if not query.awaitTermination(timeout):
            raise TransientError(f"flow {flow.name!r} did not end within {timeout:g} s")
    finally:
        query.stop()
    error = query.exception()
    if error is not None:
        raise error
    return query


def await_recovery(query: FlowQuery, number: int = 1, timeout: float = WAIT_S) -> dict[str, Any]:
    """Wait until so many recoveries have begun and the last is over; its entry."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found = query.recoveries
        if len(found) >= number and found[-1]["recovered_us"] is not None:
            return found[-1]
        if not query.isActive:
            raise _OverError(f"the flow ended before it had recovered: {query.exception()}")
        time.sleep(0.01)
    raise TransientError(
        f"no recovery within {timeout:g} s: {query.recoveries}, {query.exception()}"
    )
