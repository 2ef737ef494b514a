"""A table with one row per key that is updated in time proportional to the update.

Theory of operation.  Rows live in an append-only log of Arrow tables; an update appends the new row
and the old one becomes garbage.  An open-addressing hash table in NumPy arrays leads from a key's
hash to the number of its newest row in the log; keys are always compared themselves, so results do
not depend on the quality of the hash.  Neighbouring tables of the log are joined while the older is
not much larger (row numbers stay as they are), and the log is rewritten when more than half of it
is garbage.  A row is thus copied a logarithmic number of times.

All operations take and return whole columns; there is no Python per row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.ordering import bits, group_codes
from penstock.operators.grouping import array_of
from penstock.operators.grown import Grown, Lineage
from penstock.operators.key_hash import key_hashes

__all__ = ["Found", "KeyedStore"]

_FREE = -1
_SMALLEST = 1024


@dataclass(frozen=True)
class Found:
    """The outcome of a look-up: hashes, slots (-1: unknown), and which keys are known."""

    hashes: Any
    slots: Any
    known: Any


class KeyedStore:
    """Rows by key.

    >>> store = KeyedStore(["k"])
    >>> store.put(pa.table({"k": ["a", "b"], "n": [1, 2]}))
    >>> store.put(pa.table({"k": ["c", "a"], "n": [3, 4]}))
    >>> found = store.find(pa.table({"k": ["a", "x"]}))
    >>> found.known.tolist(), store.rows(found).to_pylist(), len(store)
    ([0], [{'k': 'a', 'n': 4}], 3)
    """

    def __init__(
        self, keys: Sequence[str], hashes: Callable[[Sequence[pa.Array], int], Any] = key_hashes
    ) -> None:
        self.keys = list(keys)
        self._hashes = hashes
        self._log: list[pa.Table] = []
        self._starts: list[int] = []
        self._live = 0
        self.lineage: object = Lineage()
        """Of the log: another one as soon as it is rewritten."""
        self._clear(_SMALLEST)

    def __len__(self) -> int:
        return self._live

    @property
    def rows_in_log(self) -> int:
        """Rows in memory, garbage included."""
        return self._starts[-1] + self._log[-1].num_rows if self._log else 0

    def find(self, keys: pa.Table) -> Found:
        """Look up different keys; what it returns holds until the next change."""
        self._reserve(keys.num_rows)
        hashes, slots = self._probe(keys)
        return Found(hashes, slots, np.flatnonzero(slots >= 0))

    def rows(self, found: Found) -> pa.Table | None:
        """The rows of the keys that were found, in their order; None if there is none."""
        if not len(found.known):
            return None
        return self._take(self._slots[found.slots[found.known]])

    def put(self, rows: pa.Table, found: Found | None = None) -> None:
        """Insert or replace rows with different keys, in the order in which they were looked up."""
        if not rows.num_rows:
            return
        at = self.find(rows) if found is None else found
        first = self.rows_in_log
        numbers = np.arange(first, first + rows.num_rows)
        new = at.slots < 0
        self._slots[at.slots[at.known]] = numbers[at.known]
        self._insert(at.hashes[new], numbers[new])
        self._live += rows.num_rows - len(at.known)
        self._append(rows)

    def table(self) -> pa.Table | None:
        """All rows, oldest update first; None if there never was one."""
        if not self._log:
            return None
        numbers = np.sort(self._slots[self._slots >= 0])
        if len(numbers) == self.rows_in_log and len(self._log) == 1:
            return self._log[0]
        return self._take(numbers)

    def history(self) -> Grown | None:
        """All rows with some that were replaced since, newest last, without a copy."""
        if not self._log:
            return None
        log = tuple(self._log)
        return Grown(self.lineage, self.rows_in_log, lambda: pa.concat_tables(log))

    def load(self, history: Grown) -> None:
        """Take a :meth:`history` as the whole content: the newest row of each key.

        One that has only grown since it was loaded costs what has come since then.
        """
        if history.lineage is self.lineage and history.rows >= self.rows_in_log:
            self._grow(history.table().slice(self.rows_in_log).combine_chunks())
            return
        rows = history.table().combine_chunks()
        hashes = self._hash(rows)
        newest = np.arange(rows.num_rows)
        order = np.argsort(hashes)
        twice = np.flatnonzero(np.diff(hashes[order]) == 0)
        if len(twice):
            kept = np.ones(rows.num_rows, bool)
            kept[order[twice]] = kept[order[twice + 1]] = False
            alike = np.flatnonzero(~kept)
            kept[alike] = self._newest(rows, alike)
            newest = np.flatnonzero(kept)
        self._fill(rows, hashes[newest], newest)
        # The log is what it was, garbage and all, so that what is durable of it counts.
        self.lineage = history.lineage or Lineage()

    def _grow(self, rows: pa.Table) -> None:
        """More rows of the history: later ones take the place of earlier ones."""
        if not rows.num_rows:
            return
        first = self.rows_in_log
        last = np.flatnonzero(self._newest(rows, np.arange(rows.num_rows)))
        found = self.find(rows.take(pa.array(last)))
        numbers, new = first + last, found.slots < 0
        self._slots[found.slots[found.known]] = numbers[found.known]
        self._insert(found.hashes[new], numbers[new])
        self._live += int(new.sum())
        self._extend(rows)

    def clear(self) -> None:
        """Forget everything."""
        self._log, self._starts, self._live = [], [], 0
        self.lineage = Lineage()
        self._clear(_SMALLEST)

    def _newest(self, rows: pa.Table, among: Any) -> Any:
        """Which of some rows no later one of them has the key of."""
        index = pa.array(among)
        codes, _ = group_codes([array_of(rows, key).take(index) for key in self.keys], len(among))
        order = np.argsort(codes, kind="stable")
        newest = np.zeros(len(among), bool)
        newest[order[np.append(np.flatnonzero(np.diff(codes[order])), len(among) - 1)]] = True
        return newest

    def replace(self, rows: pa.Table) -> None:
        """Take ``rows`` (with different keys) as the whole content."""
        rows = rows.combine_chunks()
        self._fill(rows, self._hash(rows), np.arange(rows.num_rows))

    def _fill(self, rows: pa.Table, hashes: Any, numbers: Any) -> None:
        self._log, self._starts, self._live = [rows], [0], len(numbers)
        self.lineage = Lineage()
        self._clear(len(numbers))
        self._insert(hashes, numbers)

    # -- the log ---------------------------------------------------------------------------------

    def _extend(self, rows: pa.Table) -> None:
        """Add to the log, as it is."""
        self._starts.append(self.rows_in_log)
        self._log.append(rows)
        while len(self._log) > 1 and self._log[-2].num_rows <= 2 * self._log[-1].num_rows:
            last = self._log.pop()
            self._starts.pop()
            self._log[-1] = pa.concat_tables([self._log[-1], last]).combine_chunks()

    def _append(self, rows: pa.Table) -> None:
        self._extend(rows)
        if self.rows_in_log > 2 * self._live + _SMALLEST:
            live = np.sort(self._slots[self._slots >= 0])
            kept = self._take(live)
            used = self._slots >= 0
            self._slots[used] = np.searchsorted(live, self._slots[used])
            self._log, self._starts, self.lineage = [kept], [0], Lineage()

    def _take(self, numbers: Any, columns: list[str] | None = None) -> pa.Table:
        """Rows of the log by number, in the order given."""
        log = self._log if columns is None else [one.select(columns) for one in self._log]
        if len(log) == 1:
            return log[0].take(pa.array(numbers))
        run = np.searchsorted(self._starts, numbers, side="right") - 1
        parts, places = [], []
        for which in np.unique(run).tolist():
            here = np.flatnonzero(run == which)
            parts.append(log[which].take(pa.array(numbers[here] - self._starts[which])))
            places.append(here)
        table = pa.concat_tables(parts).combine_chunks()
        if len(parts) == 1:
            return table
        order = np.empty(len(numbers), np.int64)
        order[np.concatenate(places)] = np.arange(len(numbers))
        return table.take(pa.array(order))

    # -- the hash table --------------------------------------------------------------------------

    def _clear(self, rows: int) -> None:
        size = max(2 * _SMALLEST, 1 << (2 * rows).bit_length())
        self._slots = np.full(size, _FREE, np.int64)
        self._slot_hashes = np.zeros(size, np.uint64)
        self._mask = np.uint64(size - 1)

    def _reserve(self, more: int) -> None:
        if 2 * (self._live + more) <= len(self._slots):
            return
        used = self._slots >= 0
        numbers, hashes = self._slots[used], self._slot_hashes[used]
        self._clear(2 * (self._live + more))
        self._insert(hashes, numbers)

    def _hash(self, rows: pa.Table) -> Any:
        return self._hashes([array_of(rows, key) for key in self.keys], rows.num_rows)

    def _probe(self, rows: pa.Table) -> tuple[Any, Any]:
        """Each key's hash and its slot; -1 if it is unknown."""
        hashes = self._hash(rows)
        found = np.full(rows.num_rows, -1, np.int64)
        open_ = np.arange(rows.num_rows)
        slot = (hashes & self._mask).astype(np.int64)
        while len(open_):
            held = self._slots[slot]
            alike = np.flatnonzero((held >= 0) & (self._slot_hashes[slot] == hashes[open_]))
            if len(alike):
                same = alike[self._equal(rows, open_[alike], held[alike])]
                found[open_[same]] = slot[same]
                held[same] = _FREE
            on = held != _FREE
            open_, slot = open_[on], (slot[on] + 1) & int(self._mask)
        return hashes, found

    def _equal(self, rows: pa.Table, mine: Any, numbers: Any) -> Any:
        """Which rows have the keys of the given rows of the log."""
        theirs = self._take(numbers, self.keys)
        equal = np.ones(len(mine), bool)
        index = None if len(mine) == rows.num_rows else pa.array(mine)
        for key in self.keys:
            one, other = bits(array_of(rows, key)), bits(array_of(theirs, key))
            one = one if index is None else one.take(index)
            both = pc.equal(one, other)
            if both.null_count:
                nulls = pc.and_(one.is_null(), other.is_null())
                both = pc.if_else(both.is_null(), nulls, both)
            equal &= both.to_numpy(zero_copy_only=False)
        return equal

    def _insert(self, hashes: Any, numbers: Any) -> None:
        """Give keys that are not in the table a slot each."""
        slot = (hashes & self._mask).astype(np.int64)
        while len(numbers):
            free = np.flatnonzero(self._slots[slot] == _FREE)
            self._slots[slot[free]] = numbers[free]
            won = self._slots[slot] == numbers
            self._slot_hashes[slot[won]] = hashes[won]
            lost = ~won
            hashes, numbers = hashes[lost], numbers[lost]
            slot = (slot[lost] + 1) & int(self._mask)
