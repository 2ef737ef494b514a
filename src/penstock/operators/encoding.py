"""Numbering groups: each row's group as a small integer, fast.

Grouping is the hot path of a combiner: tens of millions of rows a second with a few hundred
different keys.  An :class:`Encoder` remembers the keys of earlier batches.  For strings of one
width it learns two 32-bit words in which the known keys differ, finds each row's key by these words
alone, and then compares all rows with the keys they were taken for in one sweep: 6 ns a row for
UUIDs, against 16 ns for a hash of each string.  An unknown key shows as a difference; the batch is
then hashed and the encoder learns.

What is remembered never shows in the result: up to ``SORTED`` different values are numbered in
their sorted order, more by first appearance, both functions of the batch alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.ordering import bits

__all__ = ["Encoder", "number_groups"]

SORTED = 4096
_PATIENCE = 16  # batches with unknown keys after which remembering is given up
_PRIME = np.uint32(0x9E3779B1)


def number_groups(
    columns: Mapping[str, pa.Array], rows: int, encoders: dict[str, Encoder]
) -> tuple[Any, int, list[pa.Array]]:
    """Each row's group, the number of groups, and the key columns of the groups."""
    if not columns:
        return np.zeros(rows, np.int64), min(rows, 1), []
    parts = []
    for name, values in columns.items():
        if name not in encoders:
            encoders[name] = Encoder()
        parts.append(encoders[name].encode(values))
    codes, first = parts[0]
    groups, index = len(first), [np.arange(len(first))]
    for more, distinct in parts[1:]:
        # The number of a pair fits: so far there are at most as many groups as rows.
        size = len(distinct)
        if size == 1:  # tells nothing apart
            index.append(np.zeros(groups, np.int64))
            continue
        codes, made = _dense(codes * size + more, groups * size, rows)
        groups, index = len(made), [at[made // size] for at in index] + [made % size]
    if len(parts) == 1:
        return codes, groups, [first]
    heads = [values.take(pa.array(at)) for (_, values), at in zip(parts, index, strict=True)]
    return codes, groups, heads


def _dense(codes: Any, space: int, rows: int) -> tuple[Any, Any]:
    """Numbers below ``space`` as numbers without holes, in the same order; and what they were."""
    if space <= max(4 * rows, 1 << 16):
        held = np.bincount(codes, minlength=space) > 0
        return (np.cumsum(held) - 1)[codes], np.flatnonzero(held)
    distinct, inverse = np.unique(codes, return_inverse=True)
    return inverse, distinct


class Encoder:
    """Encodes the values of one column, batch after batch.

    >>> codes, values = Encoder().encode(pa.array(["b", None, "a", "b"]))
    >>> codes.tolist(), values.to_pylist()
    ([1, 2, 0, 1], ['a', 'b', None])
    """

    def __init__(self) -> None:
        self._known: _Words | None = None
        self._misses = 0

    def encode(self, values: pa.Array) -> tuple[Any, pa.Array]:
        """Each row's number, and the different values in the order of their numbers."""
        found = _near_numbers(values)
        if found is not None:
            return found
        words = _words(values) if self._misses < _PATIENCE else None
        if words is not None and self._known is not None:
            codes = self._known.find(words)
            if codes is not None:
                return _present(codes, self._known.values)
        encoded = bits(values).dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        distinct = encoded.dictionary
        if len(distinct) <= SORTED:
            order = pc.array_sort_indices(_sortable(distinct, values.type)).to_numpy()
            rank = np.empty(len(order), np.int64)
            rank[order] = np.arange(len(order))
            codes, distinct = rank[codes], distinct.take(pa.array(order))
            if words is not None:
                self._learn(distinct)
        return codes.astype(np.int64, copy=False), distinct.view(values.type)

    def _learn(self, distinct: pa.Array) -> None:
        self._misses += 1
        if self._known is not None and self._known.values.type == distinct.type:
            both = pa.concat_arrays([self._known.values, distinct])
            distinct = both.unique().sort()
        self._known = None
        if len(distinct) <= SORTED and _words(distinct) is not None:
            self._known = _Words.learned(distinct)
        if self._known is None:
            self._misses = _PATIENCE


def _near_numbers(values: pa.Array) -> tuple[Any, pa.Array] | None:
    """Encode integers and times that lie close together by their distance from the least."""
    kind = values.type
    if values.null_count or not len(values):
        return None
    if not (pa.types.is_int64(kind) or pa.types.is_timestamp(kind)):
        return None
    numbers = values.view(pa.int64()).to_numpy()
    low, high = int(numbers.min()), int(numbers.max())
    if low == high:
        return np.zeros(len(values), np.int64), values.slice(0, 1)
    if high - low >= SORTED:
        return None
    codes, distinct = _present(numbers - low, pa.array(np.arange(low, high + 1)))
    return codes, distinct.view(kind)


def _sortable(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return values if not pa.types.is_floating(kind) else values.view(kind)


def _present(codes: Any, values: pa.Array) -> tuple[Any, pa.Array]:
    """Leave out the values that no row has."""
    held = np.bincount(codes, minlength=len(values)) > 0
    if held.all():
        return codes, values
    return (np.cumsum(held) - 1)[codes], values.filter(pa.array(held))


def _words(values: pa.Array) -> Any:
    """Strings of one width without nulls as a matrix of 32-bit words; None if they are not so."""
    kind = values.type
    if not (pa.types.is_string(kind) or pa.types.is_binary(kind)) or not len(values):
        return None
    if values.null_count:
        return None
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    width, start = int(bounds[1] - bounds[0]), int(bounds[0])
    if width == 0 or width % 4 or start % 4 or int(bounds[-1]) - start != width * len(values):
        return None
    if not (np.diff(bounds) == width).all():
        return None
    words = np.frombuffer(data, np.uint32, len(values) * (width // 4), start)
    return words.reshape(len(values), width // 4)


class _Words:
    """Known values of one width, told apart by two of their words."""

    def __init__(self, values: pa.Array, rows: Any, pair: tuple[int, int], shift: int) -> None:
        self.values = values
        self._pair = pair
        self._shift = np.uint32(shift)
        self._rows = rows.view(f"V{4 * rows.shape[1]}").ravel()
        self._width = rows.shape[1]
        self._table = np.zeros(1 << (32 - shift), np.int64)
        self._table[self._place(rows)] = np.arange(len(rows))

    @classmethod
    def learned(cls, values: pa.Array) -> _Words | None:
        """Look for two words (or one) that give each value a place of its own."""
        rows = np.array(_words(values))
        width = rows.shape[1]
        spread = [len(np.unique(rows[:, at])) for at in range(width)]
        best = sorted(range(width), key=lambda at: -spread[at])[:4]
        for size in (3, 5):  # places: 8 and then 32 times the values
            shift = 32 - min(18, max(8, len(rows).bit_length() + size))
            for one in best:
                for other in best:
                    made = cls(values, rows, (one, other), shift)
                    if len(np.unique(made._place(rows))) == len(rows):
                        return made
        return None

    def _place(self, words: Any) -> Any:
        one, other = self._pair
        place = words[:, one] * _PRIME
        if one != other:
            place ^= words[:, other]
            place *= _PRIME
        place >>= self._shift
        return place

    def find(self, words: Any) -> Any:
        """Each row's number, or None if a row is none of the known values."""
        if words.shape[1] != self._width:
            return None
        codes = self._table[self._place(words)]
        taken = np.take(self._rows, codes)
        return codes if pa.py_buffer(taken).equals(pa.py_buffer(words)) else None
