"""A 64-bit hash of key columns for tables in memory: stable, vectorised, never trusted alone.

Its users compare the keys themselves as well, so a collision costs time and nothing else.
(Which shard a row goes to is another matter: see :mod:`penstock.wire.hashing`.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["key_hashes"]

_A = np.uint64(0x9E3779B97F4A7C15)
_B = np.uint64(0xBF58476D1CE4E5B9)
_C = np.uint64(0x94D049BB133111EB)
_FULL = np.uint64(0xFFFFFFFFFFFFFFFF)


def key_hashes(columns: Sequence[pa.Array], rows: int) -> Any:
    """One hash per row of canonical key columns, as an array of uint64.

    >>> one, two, three = key_hashes([pa.array(["a", "b", "a"])], 3)
    >>> bool(one == three), bool(one == two)
    (True, False)
    """
    total = np.full(rows, _A)
    with np.errstate(over="ignore"):
        for column in columns:
            words = _words(column)
            if column.null_count:
                words[column.is_null().to_numpy(zero_copy_only=False)] = _B
            total = _mixed(total * _C + words)
    return total


def _mixed(values: Any) -> Any:
    """The finaliser of splitmix64: every bit of the input reaches every bit of the output."""
    values = (values ^ (values >> np.uint64(30))) * _B
    values = (values ^ (values >> np.uint64(27))) * _C
    return values ^ (values >> np.uint64(31))


def _words(column: pa.Array) -> Any:
    kind, types = column.type, pa.types
    if types.is_boolean(kind):
        column = column.cast(pa.uint8())
        kind = column.type
    if types.is_string(kind) or types.is_binary(kind):
        return _of_bytes(column, np.int32)
    if types.is_large_string(kind) or types.is_large_binary(kind):
        return _of_bytes(column, np.int64)
    width = kind.bit_width // 8
    if width in (1, 2, 4, 8) and not types.is_fixed_size_binary(kind):
        plain = column.view({1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32(), 8: pa.uint64()}[width])
        return pc.fill_null(plain, 0).to_numpy(zero_copy_only=False).astype(np.uint64)
    data = column.buffers()[1]
    octets = np.frombuffer(data, np.uint8)[column.offset * width :][: len(column) * width]
    starts = np.arange(len(column), dtype=np.int64) * width
    return _of_octets(octets, starts, np.full(len(column), width, np.int64))


def _of_bytes(column: pa.Array, offset_type: Any) -> Any:
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, offset_type)[column.offset :][: len(column) + 1]
    bounds = bounds.astype(np.int64)
    octets = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return _of_octets(octets, bounds[:-1], np.diff(bounds))


def _of_octets(octets: Any, starts: Any, lengths: Any) -> Any:
    """Hash byte strings eight bytes at a time, all strings at once."""
    if not len(starts):
        return np.zeros(0, np.uint64)
    base = int(starts[0])
    padded = np.zeros(int(starts[-1] + lengths[-1]) - base + 8, np.uint8)
    padded[:-8] = octets[base : base + len(padded) - 8]
    # Every position read as the eight bytes from it on.
    view = np.ndarray((len(padded) - 7,), "<u8", padded.data, strides=(1,))
    total = lengths.astype(np.uint64) * _A
    at = starts - base
    for done in range(0, int(lengths.max()), 8):
        left = lengths - done
        if left.min() >= 8:
            total = _mixed(total * _C + view[at + done])
            continue
        more = np.flatnonzero(left > 0)
        spare = np.maximum(8 - left[more], 0).astype(np.uint64) * np.uint64(8)
        word = view[at[more] + done] & (_FULL >> spare)
        total[more] = _mixed(total[more] * _C + word)
    return total
