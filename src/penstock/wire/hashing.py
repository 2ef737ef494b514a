"""Which shard a row belongs to: a stable hash of its key columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

__all__ = ["is_hashable", "shard_of", "split_by_shard"]


def is_hashable(kind: pa.DataType) -> bool:
    """Whether a column of this type can be a key."""
    if pa.types.is_struct(kind):
        return all(is_hashable(kind.field(i).type) for i in range(kind.num_fields))
    return not pa.types.is_nested(kind)


def shard_of(batch: pa.RecordBatch, columns: tuple[str, ...], shards: int) -> np.ndarray:
    total = np.zeros(batch.num_rows, np.uint64)
    for name in columns:
        encoded = batch.column(name).cast(pa.string()).dictionary_encode(null_encoding="encode")
        hashes = []
        for value in encoded.dictionary.to_pylist():
            h = 14695981039346656037
            for byte in str(value).encode():
                h = ((h ^ byte) * 1099511628211) & (2**64 - 1)
            hashes.append(h)
        total = total * np.uint64(31) + np.array(hashes, np.uint64)[encoded.indices.to_numpy()]
    return ((total >> np.uint64(32)) * np.uint64(shards) >> np.uint64(32)).astype(np.int64)


def split_by_shard(
    batch: pa.RecordBatch, columns: tuple[str, ...], shards: int
) -> list[pa.RecordBatch | None]:
    if shards == 1:
        return [batch]
    of = shard_of(batch, columns, shards)
    order = np.argsort(of, kind="stable")
    taken = batch.take(pa.array(order))
    ends = np.cumsum(np.bincount(of, minlength=shards))
    starts = [0, *ends[:-1].tolist()]
    return [
        taken.slice(s, e - s) if e > s else None for s, e in zip(starts, ends.tolist(), strict=True)
    ]
