"""A vertex that propagates least values over a growing graph, exactly, epoch by epoch.

Every vertex of the graph has a value; an edge offers its target the value of its source (plus a
weight).  In a loop the offers go round until none is an improvement.  Edges may be added at any
epoch, and only what changes circulates: an epoch of a few edges costs a few small iterations,
however large the graph is.

Theory of operation
-------------------
The state belongs to all epochs, so they take turns: what epoch 4 adds must not show through in the
results of epoch 3.  The edges of an epoch wait until the loop has converged for the one before.
That is a notification whose guarantee is ``Time(e - 1).converged()`` and whose capability is
``(e, 0)``: until it comes, all stages downstream know that epoch e is still to come.

All work is done at notifications: one vectorised step for each shard and iteration.  At
``time.converged()`` the results of the epoch leave the loop, each vertex once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.api.vertex import Time, Vertex
from penstock.library.adjacency import Adjacency, Integers, Slots, Values, least_per_key
from penstock.library.tracked_values import TrackedValues

__all__ = ["LeastValues", "column", "offers"]


def offers(dtype: pa.DataType) -> pa.Schema:
    """The schema of what circulates: a vertex, and a value offered to it."""
    return pa.schema({"vertex": pa.int64(), "value": dtype})


def column(batch: pa.RecordBatch, index: int) -> Values:
    """A column as an array, without a copy where it has no nulls."""
    return batch.column(index).to_numpy(zero_copy_only=False)


class LeastValues(Vertex):
    """One shard of the graph.

    Input 0 brings offers, the others edges; output 0 gives offers, output 1 the vertices whose
    value changed in an epoch.  Subclasses say what edges look like and which values vertices start
    with.
    """

    orderSensitive = False
    dtype: npt.DTypeLike = np.int64

    def __init__(self) -> None:
        self._slots = Slots()
        self._values = TrackedValues(self.dtype)
        self._edges = Adjacency()
        self._changed: dict[int, list[Integers]] = {}
        """The slots that each open epoch has changed."""
        self._done = -1
        self._arrived: dict[Time, list[tuple[int, pa.RecordBatch]]] = {}
        self._held: dict[int, Time] = {}
        self._outputs = (offers(pa.from_numpy_dtype(self.dtype)), self.results())

    # -- what subclasses decide ------------------------------------------------------------------

    def start(self, ids: Integers) -> Values:
        """The values of vertices before anything was offered to them."""
        raise NotImplementedError

    def edges(self, port: int, batch: pa.RecordBatch) -> tuple[Integers, Integers, Values | None]:
        """Sources (ours), targets and weights of the edges in a batch."""
        raise NotImplementedError

    def worth(self, targets: Integers, values: Values) -> npt.NDArray[np.bool_] | None:
        """Which offers could be an improvement at all; None: any of them."""
        return None

    @staticmethod
    def results() -> pa.Schema:
        """The schema of output 1: a vertex and its value."""
        raise NotImplementedError

    def shown(self, changed: pa.RecordBatch) -> pa.RecordBatch:
        """The results of an epoch as they leave the loop."""
        return changed

    # -- Vertex ----------------------------------------------------------------------------------

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        waiting = self._arrived.get(time)
        if waiting is None:
            waiting = self._arrived[time] = []
            if time.counters[-1] or time.epoch <= self._done + 1:
                self._begin(time)
            else:
                before = Time(time.epoch - 1, time.counters).converged()
                self._held[before.epoch] = time
                self.notifyAt(before, capability=time)
        waiting.append((port, batch))

    def _begin(self, time: Time) -> None:
        """The epoch's turn has come: handle what arrived, once all of it has."""
        self.notifyAt(time)
        if time.epoch not in self._changed:
            self._changed[time.epoch] = []
            self.notifyAt(time.converged())

    def onNotify(self, time: Time) -> None:
        if not time.is_converged:
            self._step(time, self._arrived.pop(time))
        elif time.epoch in self._changed:
            self._settle(time)
        else:
            self._begin(self._held.pop(time.epoch))

    # -- checkpoints -----------------------------------------------------------------------------

    def snapshot(self) -> Mapping[str, Any]:
        """Its attributes; the graph as rows that need not be copied or written twice."""
        graph = {
            "_slots": self._slots.grown(),
            "_values": self._values.history(),
            "_edges": self._edges.grown(),
        }
        return {**super().snapshot(), **graph}

    def restore(self, state: Mapping[str, Any], time: Time) -> None:
        rest = dict(state)
        slots, values, edges = (rest.pop(name) for name in ("_slots", "_values", "_edges"))
        super().restore(rest, time)
        self._slots.load(slots)
        self._values.load(values)
        self._edges.load(edges)

    # -- steps -----------------------------------------------------------------------------------

    def _step(self, time: Time, arrived: list[tuple[int, pa.RecordBatch]]) -> None:
        for sources, targets, weights in _joined(
            [self.edges(port, batch) for port, batch in arrived if port]
        ):
            slots = self._slots_of(sources, time)
            self._edges.add(slots, targets, weights)
            self._offer(time, targets, self._values.view[slots], weights)
        for vertices, values in _joined(
            [(column(batch, 0), column(batch, 1)) for port, batch in arrived if not port]
        ):
            slots = self._slots_of(vertices, time)
            better = values < self._values.view[slots]
            slots, values = least_per_key(slots[better], values[better])
            if len(slots):
                self._values.put(slots, values)
                self._changed[time.epoch].append(slots)
                which, targets, weights = self._edges.of(slots)
                self._offer(time, targets, values[which], weights)

    def _offer(self, time: Time, targets: Integers, values: Values, weights: Values | None) -> None:
        if weights is not None:
            values = values + weights
        worth = self.worth(targets, values)
        if worth is not None:
            targets, values = targets[worth], values[worth]
        if len(targets):
            self.sendBy(0, _batch(self._outputs[0], targets, values), time)

    def _settle(self, time: Time) -> None:
        """The epoch has converged, and so has every one before it."""
        self._done = time.epoch
        changed = self._changed.pop(time.epoch)
        if changed:
            slots = np.unique(np.concatenate(changed))
            rows = _batch(self._outputs[1], self._slots.ids[slots], self._values.view[slots])
            self.sendBy(1, self.shown(rows), time)

    def _slots_of(self, ids: Integers, time: Time) -> Integers:
        slots, new = self._slots.add(ids)
        if new:
            first = len(self._values)
            self._values.extend(self.start(self._slots.ids[first:]))
            self._changed[time.epoch].append(np.arange(first, first + new))
        return slots


def _joined(parts: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Several tuples of arrays as one, none as none."""
    if len(parts) < 2:
        return parts
    columns = zip(*parts, strict=True)
    return [tuple(None if one[0] is None else np.concatenate(one) for one in columns)]


def _batch(schema: pa.Schema, *columns: Values) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values) for values in columns], schema=schema)
