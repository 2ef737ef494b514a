"""Texts and binaries as one array of bytes, for what Arrow has no kernel for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.expressions.types import is_string

__all__ = ["characters_before", "from_bytes", "spread"]


def spread(values: pa.Array) -> tuple[Any, Any, Any]:
    """All bytes one after the other, the length of each value, and the row of each byte.

    >>> data, lengths, rows = spread(pa.array(["ab", None, "c"]))
    >>> bytes(data), lengths.tolist(), rows.tolist()
    (b'abc', [2, 0, 1], [0, 0, 2])
    """
    if values.null_count:
        values = pc.fill_null(values, "" if is_string(values.type) else b"")
    large = values.cast(pa.large_binary())
    if large.offset:
        large = pa.concat_arrays([large, large.slice(0, 0)])
    _, offsets, data = large.buffers()
    bounds = np.frombuffer(offsets, np.int64)[: len(large) + 1] if len(large) else np.zeros(1, int)
    start, stop = int(bounds[0]), int(bounds[-1])
    whole = np.frombuffer(data, np.uint8)[start:stop] if data is not None else np.zeros(0, np.uint8)
    lengths = np.diff(bounds)
    return whole, lengths, np.repeat(np.arange(len(lengths)), lengths)


def from_bytes(data: Any, lengths: Any, like: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values of the given lengths; null where ``like`` is."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    large = pa.large_string() if is_string(kind) else pa.large_binary()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data, np.uint8))]
    made = pa.Array.from_buffers(large, len(lengths), buffers).cast(kind)
    if like.null_count:
        made = pc.if_else(like.is_valid(), made, pa.scalar(None, kind))
    return made


def characters_before(values: pa.Array, places: pa.Array) -> pa.Array:
    """How many characters of each text come before a place in its bytes; -1 stays -1."""
    if pc.all(pc.string_is_ascii(values), min_count=0).as_py() is not False:
        return places
    data, lengths, _ = spread(values)
    starts = np.cumsum(lengths) - lengths
    heads = np.zeros(len(data) + 1, np.int64)
    np.cumsum((data & 0xC0) != 0x80, out=heads[1:])
    at = np.asarray(pc.fill_null(places, 0)).astype(np.int64)
    made = heads[starts + np.maximum(at, 0)] - heads[starts]
    return pa.array(np.where(at < 0, at, made), pa.int32(), mask=np.asarray(places.is_null()))
