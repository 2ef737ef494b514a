"""Input that waits for a test: generated sources keep some of their rows back until released.

A test that kills hosts needs a flow that still runs.  With a fixed number of rows the flow may end
before the kill on a busy machine, and makes the test wait for the rest on a quiet one.  Held input
has neither fault:

    hold_input(flow)             # before the start: half of the rows come at their rate
    query = start_local(flow)
    query.kill("sums[0]")
    await_recovery(query)
    query.finish()               # the other half comes at once

It works for flows that run in this process (``penstock.testing.local``).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from penstock.api.flow import Flow
from penstock.connectors.generate import Generate
from penstock.operators.base import SourceOperator

__all__ = ["hold_input", "release_input"]


def hold_input(flow: Flow, share: float = 0.5) -> None:
    """Hand out only this share of the rows of generated sources, at their rate, until released."""
    for source in _generated(flow):
        if source.rows is not None:
            source.valve = partial(min, int(source.rows * share))


def release_input(flow: Flow) -> None:
    """Make all rows that are left due at once, whatever the rate."""
    for source in _generated(flow):
        if source.rows is not None:
            source.valve = partial(max, source.rows)


def _generated(flow: Flow) -> Iterator[Generate]:
    for stage in flow.stages:
        if isinstance(stage.operator, SourceOperator) and isinstance(
            stage.operator.source, Generate
        ):
            yield stage.operator.source
