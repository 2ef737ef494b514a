"""The part of an aggregate before its exchange: rows gather and are combined into partial rows.

Partial rows are of no use before their epoch is complete, so small batches wait for each other:
what was gathered is combined when it is worth it, and at the end of the epoch.  Combining has a
price per batch, and so has every message; the result is the same however the rows were gathered.
A vertex that does not gather keeps nothing between batches, so nothing is lost with its process.
"""

from __future__ import annotations

from abc import abstractmethod

import pyarrow as pa

from penstock.api.vertex import Time, Vertex
from penstock.operators.base import Kernel, Operator

__all__ = ["CombineOperator", "CombineVertex"]

ROWS = 1_024
"""Rows that are worth combining at once."""


class CombineOperator(Operator):
    """The part of an aggregate before its exchange."""

    @abstractmethod
    def kernel(self) -> Kernel:
        """A function of rows to partial rows."""

    def vertex(self) -> Vertex:
        return CombineVertex(self.kernel())


class CombineVertex(Vertex):
    """Gathers rows per time and sends them as partial rows."""

    gathers = True
    """Whether rows wait for each other; without, each batch is sent on at once."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._gathered: dict[Time, list[pa.RecordBatch]] = {}
        self._rows: dict[Time, int] = {}

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        # In a loop the end of a time costs a round through all nodes.
        if time.counters or not self.gathers:
            self.sendBy(0, self._kernel(batch), time)
            return
        if time not in self._gathered:
            self._gathered[time] = []
            self._rows[time] = 0
            self.notifyAt(time)
        self._gathered[time].append(batch)
        self._rows[time] += batch.num_rows
        if self._rows[time] >= ROWS:
            self._send(time)

    def onNotify(self, time: Time) -> None:
        self._send(time)
        del self._gathered[time], self._rows[time]

    def _send(self, time: Time) -> None:
        batches = self._gathered[time]
        if batches:
            rows = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
            self._gathered[time], self._rows[time] = [], 0
            self.sendBy(0, self._kernel(rows), time)
