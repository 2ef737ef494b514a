"""The stream of a source that the driver pushes rows into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.api.stage import Stage
from penstock.api.stream import Stream
from penstock.connectors import memory

if TYPE_CHECKING:
    from penstock.api.flow import Flow

__all__ = ["MemoryStream"]


class MemoryStream(Stream):
    """A stream that the driver pushes rows into."""

    def __init__(self, flow: Flow, stage: Stage, source: memory.MemorySource) -> None:
        super().__init__(flow, stage, 0)
        self._source = source

    def push(self, rows: memory.Rows, timeout: float | None = None) -> None:
        """Add rows: a batch, a table, a list of dicts or a dict of lists.

        Waits while the flow is behind; raises TimeoutError after ``timeout`` seconds.
        """
        self._source.push(rows, timeout)

    def closeEpoch(self) -> None:
        """End the current epoch after the rows pushed so far; needs ``manualEpochs``.

        In a flow without a checkpoint the first epoch is 0, the next one 1, and so on.
        """
        self._source.close_epoch()

    def close(self) -> None:
        """Say that no more rows will be pushed: the flow ends when it has used up what there is."""
        self._source.close()
