"""Hosts killed under a flow that runs in threads: what a test of a flow's recovery needs.

    query = run_killing(flow, ["counts[0]", "numbers[1]"], regime=Lazy(every=5))

runs the flow to its end, kills the hosts of these nodes on the way, and waits after each kill until
the flow has recovered.  Generated input is held back until the last recovery, so that the flow
cannot end before; a flow that ends before the last kill is an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from penstock.api.flow import Flow
from penstock.api.start_options import RunOptions
from penstock.engine.driver.query import FlowQuery
from penstock.errors import TransientError
from penstock.testing.held_input import hold_input
from penstock.testing.local import LocalQuery, start_local

__all__ = ["await_epochs", "await_recovery", "run_killing"]

WAIT_S = 60.0
POLL_S = 0.01


def run_killing(
    flow: Flow,
    victims: Sequence[str],
    *,
    hosts: int = 3,
    epochs: int = 2,
    timeout: float = WAIT_S,
    **options: Unpack[RunOptions],
) -> LocalQuery:
    """Run a flow to its end, killing the hosts of some nodes, with ``epochs`` between two kills."""
    options.setdefault("checkpointInterval", "200 ms")
    hold_input(flow)
    query = start_local(flow, hosts, **options)
    try:
        for number, victim in enumerate(victims, 1):
            await_epochs(query, epochs, timeout)
            query.kill(victim)
            await_recovery(query, number, timeout)
        query.finish(timeout)
    finally:
        query.stop()
    return query


def await_epochs(query: FlowQuery, epochs: int, timeout: float = WAIT_S) -> None:
    """Wait until every sink has committed this many more epochs."""
    committed = query._controller.machine.committed
    last = {sink: epoch + epochs for sink, epoch in committed.items()}
    _await(
        query,
        lambda: all(committed[sink] >= epoch for sink, epoch in last.items()),
        timeout,
        f"{epochs} more epochs",
    )


def await_recovery(query: FlowQuery, number: int = 1, timeout: float = WAIT_S) -> dict[str, Any]:
    """Wait until this many recoveries have begun and the last is over; return its entry."""

    def recovered() -> bool:
        found = query.recoveries
        return len(found) >= number and found[-1]["recovered_us"] is not None

    _await(query, recovered, timeout, f"recovery {number}")
    return query.recoveries[-1]


def _await(query: FlowQuery, done: Callable[[], bool], timeout: float, what: str) -> None:
    deadline = time.monotonic() + timeout
    while not done():
        if not query.isActive and not done():
            raise query.exception() or TransientError(f"the flow ended before {what}")
        if time.monotonic() > deadline:
            raise TransientError(f"{what}: not within {timeout:g} s: {query.recoveries}")
        time.sleep(POLL_S)
