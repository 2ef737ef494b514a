"""An array of values by slot that knows what has changed since it was last kept.

What is kept is a log of (slot, value): everything once, then what changed from one time to the
next; of a slot that is there several times the last row counts.  The log starts over when a third
of it is out of date.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.library.adjacency import Growing, Integers, Values
from penstock.operators.grown import Grown, Lineage

__all__ = ["TrackedValues"]

_SLACK = 1024


class TrackedValues(Growing):
    """Values that can change.

    >>> values = TrackedValues(np.int64)
    >>> values.extend(np.array([7, 8, 9]))
    >>> values.history().rows
    3
    >>> values.put(np.array([1]), np.array([2]))
    >>> other = TrackedValues(np.int64)
    >>> other.load(values.history())
    >>> other.view.tolist(), values.history().rows
    ([7, 2, 9], 4)
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        super().__init__(dtype)
        self._lineage: object = Lineage()
        self._log: list[pa.Table] = []
        self._logged = 0
        self._changed: list[Integers] = []

    def extend(self, values: Values) -> None:
        first = len(self)
        super().extend(values)
        self._changed.append(np.arange(first, len(self)))

    def put(self, slots: Integers, values: Values) -> None:
        """Give different slots other values."""
        self.view[slots] = values
        self._changed.append(slots)

    def history(self) -> Grown:
        """The log; costs what has changed since the last time."""
        if self._changed:
            slots = np.unique(np.concatenate(self._changed))
            self._changed = []
            if self._logged + len(slots) > 1.5 * len(self) + _SLACK:
                slots, self._log, self._logged = np.arange(len(self)), [], 0
                self._lineage = Lineage()
            self._log.append(pa.table({"slot": slots, "value": self.view[slots]}))
            self._logged += len(slots)
        log = tuple(self._log)
        return Grown(self._lineage, self._logged, lambda: pa.concat_tables(log or [self._none()]))

    def _none(self) -> pa.Table:
        return pa.table({"slot": np.arange(0), "value": self.view[:0]})

    def load(self, grown: Grown) -> None:
        """Take a :meth:`history` as the whole content."""
        table = grown.table()
        slots = table.column("slot").to_numpy()
        values = np.empty(slots.max(initial=-1) + 1, self.view.dtype)
        values[slots] = table.column("value").to_numpy()
        super().extend(values)
        self._log, self._logged, self._changed = [table], table.num_rows, []
        self._lineage = grown.lineage or Lineage()
