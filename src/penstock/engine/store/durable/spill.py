"""Payloads that had to leave memory, in temporary files of this process.

A file is unlinked as it is made and closed when the last reference into it is gone: there is
nothing to clean up, and nothing is left behind by a process that is killed.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import TransientError
from penstock.wire.frames import read_batch, write_batch

__all__ = ["SpillFile", "SpillReference"]

SEGMENT_BYTES = 64 << 20


class _Segment:
    """One file."""

    def __init__(self, directory: str | None) -> None:
        descriptor, name = tempfile.mkstemp(prefix="penstock-spill-", dir=directory)
        os.unlink(name)
        self.descriptor = descriptor
        self.size = 0
        weakref.finalize(self, os.close, descriptor)


@dataclass(frozen=True, eq=False)
class SpillReference:
    """Where a payload is; the space is freed with the last reference to it."""

    segment: _Segment
    offset: int
    length: int
    schema: pa.Schema | None
    """None: the payload was bytes."""

    def read(self) -> Any:
        """The payload, from any thread."""
        data = bytearray(self.length)
        view, done = memoryview(data), 0
        while done < self.length:
            read = os.preadv(self.segment.descriptor, [view[done:]], self.offset + done)
            if not read:
                raise TransientError(
                    f"a spilled payload has {done} of {self.length} bytes: was the disk full?"
                )
            done += read
        buffer = pa.py_buffer(data)
        return buffer if self.schema is None else read_batch(buffer, self.schema)


class SpillFile:
    """Where a host puts payloads; written by one thread, read by any.

    >>> spill = SpillFile()
    >>> reference = spill.write(pa.record_batch({"n": [1, 2]}))
    >>> spill.read(reference).column("n").to_pylist()
    [1, 2]
    >>> spill.close()
    """

    def __init__(
        self, directory: str | os.PathLike[str] | None = None, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self._directory = None if directory is None else os.fspath(directory)
        self._segment_bytes = segment_bytes
        self._segment: _Segment | None = None

    def write(self, payload: Any) -> SpillReference:
        """Put a record batch or a buffer aside."""
        is_batch = isinstance(payload, pa.RecordBatch)
        data = write_batch(payload) if is_batch else pa.py_buffer(payload)
        segment = self._segment
        if segment is None or segment.size >= self._segment_bytes:
            segment = self._segment = _Segment(self._directory)
        offset, rest = segment.size, memoryview(data)
        while len(rest):
            written = os.pwrite(segment.descriptor, rest, segment.size)
            segment.size += written
            rest = rest[written:]
        schema = payload.schema if is_batch else None
        return SpillReference(segment, offset, data.size, schema)

    def read(self, reference: Any) -> Any:
        """The payload that a reference stands for."""
        return reference.read()

    def close(self) -> None:
        """Write no more; what is referred to can still be read."""
        self._segment = None
