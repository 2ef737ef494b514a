"""Growing graphs as NumPy arrays: vertices numbered in the order of arrival, edges in sorted runs.

Nothing here knows of streams or times.  All operations take and give whole arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.grown import Grown, Lineage

__all__ = ["Adjacency", "Growing", "Slots", "least_per_key", "ranges", "scattered"]

Integers = npt.NDArray[np.int64]
Values = npt.NDArray[Any]

_NO_INTEGERS: Integers = np.empty(0, np.int64)
_RUN_RATIO = 4
"""A run of edges is merged into the one before it unless that is this many times longer."""


def ranges(starts: Integers, ends: Integers) -> Integers:
    """The integers of all the ranges, one range after another.

    >>> ranges(np.array([5, 2, 9]), np.array([7, 2, 10])).tolist()
    [5, 6, 9]
    """
    counts = ends - starts
    before = np.cumsum(counts) - counts
    return np.arange(int(counts.sum())) + np.repeat(starts - before, counts)


def least_per_key(keys: Integers, values: Values) -> tuple[Integers, Values]:
    """Each different key once, in order, with the least of its values.

    >>> keys, values = least_per_key(np.array([3, 1, 3]), np.array([9, 4, 2]))
    >>> keys.tolist(), values.tolist()
    ([1, 3], [4, 2])
    """
    if len(keys) < 2:
        return keys, values
    order = np.lexsort((values, keys))
    keys, values = keys[order], values[order]
    first = np.empty(len(keys), bool)
    first[0] = True
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    return keys[first], values[first]


def scattered(offset: int, n: int) -> Integers:
    """Numbers ``offset`` to ``offset + n - 1`` of an endless random-looking sequence.

    The same whenever it is asked, as the function of a source must be.

    >>> scattered(0, 3).tolist() == scattered(0, 1).tolist() + scattered(1, 2).tolist()
    True
    """
    mixed = np.arange(offset + 1, offset + n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for _ in range(2):
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return (mixed >> np.uint64(16)).astype(np.int64)


class Growing:
    """An array with room at its end.

    >>> grown = Growing(np.int64)
    >>> grown.extend(np.arange(3)); grown.extend(np.arange(2)); grown.view.tolist()
    [0, 1, 2, 0, 1]
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._room: Values = np.empty(16, dtype)
        self._length = 0
        self._grown: object = Lineage()

    def __len__(self) -> int:
        return self._length

    @property
    def view(self) -> Values:
        """What is there, without a copy."""
        return self._room[: self._length]

    def extend(self, values: Values) -> None:
        """Add values at the end; costs their number, on average."""
        end = self._length + len(values)
        if end > len(self._room):
            room = np.empty(max(end, 2 * len(self._room)), self._room.dtype)
            room[: self._length] = self.view
            self._room = room
        self._room[self._length : end] = values
        self._length = end

    def grown(self) -> Grown:
        """What is there, for a checkpoint, without a copy: values must not change afterwards."""
        values = self.view
        return Grown(self._grown, len(values), lambda: pa.table({"": pa.array(values)}))

    def load(self, grown: Grown) -> None:
        """Take a :meth:`grown` as the whole content."""
        self.extend(grown.table().column(0).to_numpy())
        self._grown = grown.lineage or Lineage()


class Slots:
    """Numbers for 64-bit ids, in the order in which they were first seen.

    >>> slots = Slots()
    >>> slots.add(np.array([70, 30, 70]))[0].tolist(), slots.ids.tolist()
    ([1, 0, 1], [30, 70])
    >>> slots.add(np.array([50, 30]))[0].tolist(), len(slots)
    ([2, 0], 3)
    """

    def __init__(self) -> None:
        self._ids = Growing(np.int64)
        self._sorted = _NO_INTEGERS
        self._slots = _NO_INTEGERS

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> Integers:
        """The ids by slot."""
        return self._ids.view

    def find(self, ids: Integers) -> Integers:
        """The slots of ids, -1 for those never seen."""
        if not len(self._sorted):
            return np.full(len(ids), -1, np.int64)
        places = np.searchsorted(self._sorted, ids)
        np.minimum(places, len(self._sorted) - 1, out=places)
        return np.where(self._sorted[places] == ids, self._slots[places], -1)

    def add(self, ids: Integers) -> tuple[Integers, int]:
        """The slots of ids, giving new ones to those never seen, and how many are new."""
        slots = self.find(ids)
        unknown = slots < 0
        if not unknown.any():
            return slots, 0
        new = np.unique(ids[unknown])
        first = len(self._ids)
        self._ids.extend(new)
        merged = np.concatenate([self._sorted, new])
        order = np.argsort(merged, kind="stable")  # two sorted runs: one merge
        self._sorted = merged[order]
        self._slots = np.concatenate([self._slots, np.arange(first, first + len(new))])[order]
        slots[unknown] = first + np.searchsorted(new, ids[unknown])
        return slots, len(new)

    def grown(self) -> Grown:
        """The ids, for a checkpoint."""
        return self._ids.grown()

    def load(self, grown: Grown) -> None:
        """Take a :meth:`grown` as the whole content."""
        self._ids.load(grown)
        self._slots = np.argsort(self.ids, kind="stable")
        self._sorted = self.ids[self._slots]


class _Run:
    """Edges sorted by the slot that they start from."""

    def __init__(self, slots: Integers, targets: Integers, weights: Values | None) -> None:
        order = np.argsort(slots, kind="stable")
        self.slots = slots[order]
        self.targets = targets[order]
        self.weights = None if weights is None else weights[order]
        self.lineage: object = Lineage()
        self._starts: Integers | None = None
        last = int(self.slots[-1]) if len(slots) else -1
        if len(slots) * 8 > last:  # dense enough for a table of where each slot's edges begin
            counts = np.bincount(self.slots, minlength=last + 1)
            self._starts = np.concatenate([_ZERO, np.cumsum(counts)])

    def __len__(self) -> int:
        return len(self.slots)

    def table(self) -> pa.Table:
        """The edges."""
        columns = {"slot": self.slots, "target": self.targets}
        return pa.table(columns if self.weights is None else {**columns, "weight": self.weights})

    def of(self, slots: Integers) -> tuple[Integers, Integers]:
        """Where the edges of each slot begin and end."""
        if self._starts is None:
            return np.searchsorted(self.slots, slots), np.searchsorted(self.slots, slots, "right")
        end = len(self._starts) - 1
        return self._starts[np.minimum(slots, end)], self._starts[np.minimum(slots + 1, end)]


_ZERO: Integers = np.zeros(1, np.int64)


class Adjacency:
    """Edges by the slot they start from: a few sorted runs, each much longer than the next.

    Adding n edges in any number of parts costs O(n log n) altogether; looking up costs the number
    of edges found, plus the number of slots asked for times the (logarithmic) number of runs.

    >>> edges = Adjacency()
    >>> edges.add(np.array([1, 0]), np.array([70, 80])); edges.add(np.array([1]), np.array([90]))
    >>> which, targets, _ = edges.of(np.array([2, 1]))
    >>> which.tolist(), targets.tolist()
    ([1, 1], [70, 90])
    """

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, slots: Integers, targets: Integers, weights: Values | None = None) -> None:
        """Add edges."""
        if len(slots):
            self._push(_Run(slots, targets, weights))

    def take(self, other: Adjacency) -> None:
        """Add all the edges of another graph with the same slots."""
        for run in other._runs:
            self._push(run)

    def _push(self, run: _Run) -> None:
        while self._runs and len(self._runs[-1]) < _RUN_RATIO * len(run):
            run = _merged(self._runs.pop(), run)
        self._runs.append(run)

    def grown(self) -> list[Grown]:
        """The runs, for a checkpoint, without a copy: they never change."""
        return [Grown(run.lineage, len(run), run.table) for run in self._runs]

    def load(self, runs: Sequence[Grown]) -> None:
        """Take a :meth:`grown` as the whole content."""
        for grown in runs:
            columns = [column.to_numpy() for column in grown.table().columns]
            run = _Run(columns[0], columns[1], columns[2] if len(columns) > 2 else None)
            run.lineage = grown.lineage or Lineage()
            self._runs.append(run)

    def of(self, slots: Integers) -> tuple[Integers, Integers, Values | None]:
        """The edges from some slots: positions in ``slots``, targets, weights if there are any."""
        which: list[Integers] = []
        targets: list[Integers] = []
        weights: list[Values] = []
        numbers = np.arange(len(slots))
        for run in self._runs:
            starts, ends = run.of(slots)
            edges = ranges(starts, ends)
            which.append(np.repeat(numbers, ends - starts))
            targets.append(run.targets[edges])
            if run.weights is not None:
                weights.append(run.weights[edges])
        if not which:
            return _NO_INTEGERS, _NO_INTEGERS, None
        found = np.concatenate(weights) if weights else None
        return np.concatenate(which), np.concatenate(targets), found


def _merged(one: _Run, other: _Run) -> _Run:
    weights = None
    if one.weights is not None and other.weights is not None:
        weights = np.concatenate([one.weights, other.weights])
    return _Run(
        np.concatenate([one.slots, other.slots]),
        np.concatenate([one.targets, other.targets]),
        weights,
    )
