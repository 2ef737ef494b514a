"""Input that waits for a test: generated sources keep some of their rows back until released.

A test that kills hosts needs a flow that still runs.  With a fixed number of rows the flow may end
before the kill on a busy machine, and makes the test wait for the rest on a quiet one.  Held input
has neither fault:

    hold_input(flow)             # before the start: half of the rows come at their rate
    query = start_local(flow)
    query.kill("sums[0]")
    await_recovery(query)
    query.finish()               # the other half comes at once

That works for flows that run in this process (``penstock.testing.local``).  Where sources run in
processes of their own, a file does the same: ``valve = release_by_file(flow, path)`` before the
start, and ``valve.release()`` in any process that sees the path.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.api.flow import Flow
from penstock.connectors.generate import Generate
from penstock.errors import SettingsError
from penstock.operators.base import SourceOperator

__all__ = ["FileValve", "hold_input", "release_by_file", "release_input"]


@dataclass(frozen=True)
class FileValve:
    """Hands out rows at their rate until a file is there, then all of them."""

    path: Path
    rows: int

    def __call__(self, due: int) -> int:
        return max(due, self.rows) if self.path.exists() else due

    def release(self) -> None:
        """Make all rows that are left due at once."""
        self.path.touch()


def release_by_file(flow: Flow, path: Path) -> FileValve:
    """Let a file release the rows of the flow's only generated source, which must have an end."""
    (source,) = _generated(flow)
    if source.rows is None:
        raise SettingsError("release_by_file: the source has no end; give generate rows=...")
    source.valve = valve = FileValve(path, source.rows)
    return valve


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
