"""Keeps a stage from the rows that its process does not survive, and helps to find them.

Rows are known by a digest of their values.  Those that are to be passed over do not reach the
stage.  While it may be lost again, the stage is called with suspects in pieces and with the others
as they come, and each call is announced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.control.deadly_rows import SkippedRow, Suspects
from penstock.wire.hashing import combine_hashes, hash_column, is_hashable

__all__ = ["RowGuard", "Watch", "digests_of"]

Hashes = npt.NDArray[np.uint64]


class Watch(Protocol):
    """Hears of calls that may be the last ones."""

    def is_on(self) -> bool:
        """Whether the next call may be the last one."""

    def calling(self, digests: Sequence[int]) -> None:
        """The stage is about to be called with these rows."""

    def survived(self) -> None:
        """It has come back from the last call."""


class RowGuard:
    """What one stage in one node knows of rows that end processes."""

    def __init__(
        self, skipped: Sequence[SkippedRow], suspects: Suspects | None, watch: Watch | None
    ) -> None:
        self._skipped = {row.digest: row for row in skipped}
        self._deadly = np.array(sorted(self._skipped), np.uint64)
        self._suspects = np.array([] if suspects is None else suspects.digests, np.uint64)
        self._piece = 1 if suspects is None else suspects.piece
        self._watch = watch

    def parts(
        self, port: int, batch: pa.RecordBatch, epoch: int, failed: list[tuple[pa.RecordBatch, str]]
    ) -> Iterator[pa.RecordBatch]:
        """What to call the stage with; what it is not called with is added to ``failed``."""
        watch = self._watch if self._watch is not None and self._watch.is_on() else None
        if not batch.num_rows or (watch is None and not len(self._deadly)):
            yield batch
            return
        hashes = _hashes(port, batch)
        deadly = np.isin(hashes, self._deadly)
        for place in np.flatnonzero(deadly).tolist():
            row = self._skipped[int(hashes[place])]
            deadly[place] = row.since <= epoch
            if deadly[place]:
                failed.append((batch.slice(place, 1), f"HostLostError: {row.error}"))
        if deadly.any():
            batch, hashes = batch.filter(pa.array(~deadly)), hashes[~deadly]
        if watch is None:
            if batch.num_rows:
                yield batch
            return
        for start, end in _pieces(np.isin(hashes, self._suspects), self._piece):
            watch.calling(_distinct(hashes[start:end]))
            yield batch.slice(start, end - start)
        watch.survived()


def digests_of(port: int, batch: pa.RecordBatch) -> tuple[int, ...]:
    """The digests of the rows of a batch, each once, in order."""
    return _distinct(_hashes(port, batch))


def _distinct(hashes: Hashes) -> tuple[int, ...]:
    return tuple(np.unique(hashes).tolist())


def _pieces(suspected: npt.NDArray[np.bool_], piece: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows: runs of suspects in pieces, runs of others whole."""
    ends = [*(np.flatnonzero(np.diff(suspected)) + 1).tolist(), len(suspected)]
    start = 0
    for end in ends:
        step = piece if start < end and suspected[start] else len(suspected)
        while start < end:
            yield start, min(start + step, end)
            start = min(start + step, end)


def _hashes(port: int, batch: pa.RecordBatch) -> Hashes:
    hashes = np.full(batch.num_rows, np.uint64(port))
    for column in batch.columns:
        hashes = combine_hashes(hashes, _column_hashes(column))
    return hashes


def _column_hashes(column: pa.Array) -> Hashes:
    if is_hashable(column.type):
        return hash_column(column)
    texts = (json.dumps(value, default=str) for value in column.to_pylist())
    numbers = [int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) for text in texts]
    return np.array(numbers, np.uint64)
