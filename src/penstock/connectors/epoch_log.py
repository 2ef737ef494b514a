"""A durable log of whole epochs: what one shard of a persisted stream consists of.

    <folder>/00000003.log       a segment: records, one after the other
    <folder>/00000003.synced    how much of it its writer has made durable
    <folder>/00000003.sealing   a process is about to say how much of it counts
    <folder>/00000003.seal      how much of it counts, said once and for all

A record is an epoch: its rows as an Arrow IPC stream, the watermark after it, a checksum over all.
It is appended and made durable, with rows or without, before any reader hears of it: readers look
at ``synced`` first.  What a crash left of the last record does not check, and does not count.

One writer appends; every new writer begins a segment of its own.  Before that it *seals* the one
before: it says that it will, makes durable what is there, looks how long that is, and says so.  A
reader that finds a segment being sealed waits for the length.  The first length that is said
stands.  So what a frozen process appends when it wakes up is either before the length was looked
at, and counts for all readers, or after it, and counts for none.

A segment that could not be made durable is sealed where it last was, and the epoch is written again
into a new one: another sync of the same file would report success and prove nothing.
"""

from __future__ import annotations

import json
import os
import struct
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.errors import PeerError, SourceError
from penstock.storage.syncs import settle, sync_descriptor, sync_directory, write_durably

__all__ = ["EpochLogReader", "EpochLogWriter", "EpochRecord", "last_epoch"]

SEGMENT_BYTES = 64 << 20
"""A segment that is longer is followed by a new one."""

_HEADER = struct.Struct("<IIQqqQB")
"""Checksums of the rest and of the rows; the rows' length, epoch, watermark, number, flags."""
_HAS_WATERMARK, _IS_END = 1, 2
_PROBE = 4096
_LENGTH = struct.Struct("<Q")
_EVERYTHING = 1 << 63


@dataclass(frozen=True)
class EpochRecord:
    """One epoch."""

    epoch: int
    watermark_us: int | None
    rows: int
    is_end: bool
    """Whether the stream ended with it, in the run that wrote it."""
    segment: int
    start: int
    """Where its rows are in the segment."""
    end: int


class EpochLogWriter:
    """Appends epochs to a shard's log.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> log = EpochLogWriter(folder)
    >>> log.append(4, [pa.record_batch({"n": [1, 2]})], None)
    >>> log.close()
    >>> reader = EpochLogReader(folder, after=-1)
    >>> [(record.epoch, reader.batches(record)[0].num_rows) for record in [reader.next()] if record]
    [(4, 2)]
    """

    def __init__(self, folder: Path, sync: bool = True) -> None:
        self._folder = folder
        self._sync = sync
        folder.mkdir(parents=True, exist_ok=True)
        numbers = _segments(folder)
        self.last = -1
        """The last epoch in it."""
        for number in numbers:
            self._seal(number)
        for number in reversed(numbers):
            epochs = [record.epoch for record in _records(folder, number)]
            if epochs:
                self.last = epochs[-1]
                break
        self._number = numbers[-1] + 1 if numbers else 1
        self._descriptor, self._synced = self._begin(self._number)
        self._size = 0
        self._is_torn = False
        self._is_suspect = False
        """Whether the segment has bytes that could not be made durable."""

    def append(
        self,
        epoch: int,
        batches: Sequence[pa.RecordBatch],
        watermark_us: int | None,
        is_end: bool = False,
    ) -> None:
        """Add an epoch; returns when it is durable.  One that is there already is left alone."""
        if epoch <= self.last:
            return
        if self._size >= SEGMENT_BYTES or self._is_suspect:
            self._roll()
        if self._is_torn:
            os.ftruncate(self._descriptor, self._size)
            self._is_torn = False
        data = _packed(batches)
        rows = sum(batch.num_rows for batch in batches)
        record = _header(data, epoch, watermark_us, rows, is_end)
        self._is_torn = True  # until all of it is there; else the next append cuts it off
        self._write(record, data)
        size = self._size + len(record) + len(data)
        if self._sync:
            self._is_suspect = True
            sync_descriptor(self._descriptor)
            self._is_suspect = False
            os.pwrite(self._synced, _LENGTH.pack(size), 0)
        self._is_torn = False
        self._size = size
        self.last = epoch

    def close(self) -> None:
        """Close the segment; it counts as far as it goes."""
        os.close(self._descriptor)
        os.close(self._synced)

    def _write(self, *parts: bytes | pa.Buffer) -> None:
        written = os.writev(self._descriptor, parts)
        missing = sum(len(part) for part in parts) - written
        if missing:
            whole = b"".join(bytes(part) for part in parts)
            while missing:
                missing -= os.write(self._descriptor, whole[len(whole) - missing :])

    def _begin(self, number: int) -> tuple[int, int]:
        """Make a segment; the descriptors of its records and of how much is durable."""
        path = _segment(self._folder, number)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        if not self._sync:
            return os.open(path, flags, 0o644), os.open(os.devnull, os.O_WRONLY)
        synced = os.open(_synced(self._folder, number), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not path.exists():
                os.pwrite(synced, _LENGTH.pack(0), 0)
            descriptor = os.open(path, flags, 0o644)
            try:
                sync_directory(self._folder)
            except OSError:
                os.close(descriptor)
                path.unlink()
                raise
        except OSError as error:
            os.close(synced)
            if isinstance(error, FileExistsError):
                raise self._replaced(number) from error
            raise
        return descriptor, synced

    def _replaced(self, number: int) -> PeerError:
        return PeerError(
            f"segment {number} of {self._folder} belongs to another writer: this one was replaced "
            "and must stop"
        )

    def _roll(self) -> None:
        if self._seal(self._number, self._size) != self._size:
            raise self._replaced(self._number)
        descriptor, synced = self._begin(self._number + 1)
        self.close()
        self._number += 1
        self._descriptor, self._synced = descriptor, synced
        self._size = 0
        self._is_torn = self._is_suspect = False

    def _seal(self, number: int, length: int | None = None) -> int:
        """Say how much of a segment counts, unless that was said; returns how much that is."""
        seal = _seal(self._folder, number)
        said = _sealed(seal)
        if said is not None:
            return said
        _sealing(self._folder, number).touch()
        if length is None:
            length = _whole(self._folder, number, self._sync)
        mine = seal.with_name(f"{seal.name}.{uuid.uuid4().hex}.tmp")
        write_durably(mine, json.dumps({"length": length}).encode(), self._sync)
        try:
            if seal.exists():  # without a length: of an earlier version
                os.replace(mine, seal)
            else:
                os.link(mine, seal)
        except FileExistsError:
            return self._seal(number)
        finally:
            mine.unlink(missing_ok=True)
        if self._sync:
            sync_directory(self._folder)
        return length


class EpochLogReader:
    """Reads the epochs of a shard's log in order, as they come."""

    def __init__(self, folder: Path, after: int) -> None:
        self._folder = folder
        self._epoch = after
        self._number: int | None = None
        self._offset = 0
        self._descriptor: int | None = None

    def next(self, again: bool = False) -> EpochRecord | None:
        """The next epoch, None: it is not there yet.

        One that was read before (``again``) counts, so its segment may be in the act of sealing:
        there is no writer to wait for.
        """
        while True:
            if self._descriptor is None and not self._open():
                return None
            record = self._read(again)
            if record is None:
                if not self._advance():
                    return None
            elif record.epoch > self._epoch:
                self._epoch = record.epoch
                return record

    def batches(self, record: EpochRecord) -> list[pa.RecordBatch]:
        """The rows of an epoch."""
        if not record.rows:
            return []
        path = _segment(self._folder, record.segment)
        with open(path, "rb") as file:
            data = os.pread(file.fileno(), record.end - record.start, record.start)
        with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
            return list(stream)

    def forget(self, epoch: int) -> None:
        """Delete the segments that have nothing of later epochs, and a successor that has some.

        The last record stays, however old it is: it says how far the log goes.
        """
        numbers = _segments(self._folder)
        for place, number in enumerate(numbers):
            length = _sealed(_seal(self._folder, number))
            if length is None or number == self._number:
                return
            if any(record.epoch > epoch for record in _records(self._folder, number)):
                return
            if not any(_has_epochs(self._folder, later) for later in numbers[place + 1 :]):
                return
            for part in (_segment, _synced, _sealing, _seal):  # without the first, no one asks
                part(self._folder, number).unlink(missing_ok=True)

    def close(self) -> None:
        """Close what is open."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> bool:
        numbers = [n for n in _segments(self._folder) if self._number is None or n > self._number]
        if not numbers:
            return False
        self._number, self._offset = numbers[0], 0
        self._descriptor = os.open(_segment(self._folder, numbers[0]), os.O_RDONLY)
        return True

    def _read(self, again: bool) -> EpochRecord | None:
        """The record at the present place, if it is whole and counts."""
        descriptor, number = self._descriptor, self._number
        if descriptor is None or number is None:
            return None
        # Looked at before the seal: what was appended after the seal was announced may not count.
        record = _record(descriptor, number, self._offset)
        if record is None:
            return None
        seal = _seal(self._folder, number)
        being_sealed = seal.exists() or _sealing(self._folder, number).exists()
        length = _sealed(seal) if being_sealed else self._made_durable(number)
        if length is None and again:
            length = self._made_durable(number)
        if length is None or record.end > length:
            return None
        self._offset = record.end
        return record

    def _made_durable(self, number: int) -> int:
        """How much of a segment its writer has made durable; all, if it does not say."""
        try:
            data = _synced(self._folder, number).read_bytes()
        except FileNotFoundError:
            return _EVERYTHING
        return int(_LENGTH.unpack(data)[0]) if len(data) == _LENGTH.size else 0

    def _advance(self) -> bool:
        """Go to the next segment if this one has no more."""
        if self._number is None:
            return False
        length = _sealed(_seal(self._folder, self._number))
        if length is None or self._offset < length:
            return False
        self.close()
        return self._open()


def last_epoch(folder: Path, sync: bool = False) -> int | None:
    """The last epoch of a shard's log, None: there is none; ``sync``: it is durable, too."""
    for number in reversed(_segments(folder)):
        if sync and _sealed(_seal(folder, number)) is None:
            _whole(folder, number, sync)
        epochs = [record.epoch for record in _records(folder, number) if not record.is_end]
        if epochs:
            return epochs[-1]
    return None


def _segments(folder: Path) -> list[int]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(int(name[:-4]) for name in names if name.endswith(".log"))


def _segment(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.log"


def _seal(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.seal"


def _synced(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.synced"


def _sealing(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.sealing"


def _whole(folder: Path, number: int, sync: bool) -> int:
    """The length of a segment's whole records but for the end of its stream, made durable."""
    if sync:
        settle(_segment(folder, number))
    return max((r.end for r in _records(folder, number) if not r.is_end), default=0)


def _sealed(path: Path) -> int | None:
    """The length that a seal gives, None: there is no seal, or it does not say yet."""
    try:
        return int(json.loads(path.read_bytes())["length"])
    except (FileNotFoundError, ValueError):
        return None


def _records(folder: Path, number: int) -> Iterator[EpochRecord]:
    """The records of a segment that count now."""
    limit = _sealed(_seal(folder, number))
    with open(_segment(folder, number), "rb") as file:
        offset = 0
        while (record := _record(file.fileno(), number, offset)) is not None:
            if limit is not None and record.end > limit:
                return
            yield record
            offset = record.end


def _has_epochs(folder: Path, number: int) -> bool:
    """Whether a segment says how far its log goes."""
    return any(not record.is_end for record in _records(folder, number))


def _record(descriptor: int, number: int, offset: int) -> EpochRecord | None:
    """The record at an offset; None: there is none, or a crash left only a part of it."""
    header = os.pread(descriptor, _HEADER.size, offset)
    if len(header) < _HEADER.size:
        return None
    own, checksum, length, epoch, watermark_us, rows, flags = _HEADER.unpack(header)
    if zlib.crc32(header[4:]) != own:
        if any(os.pread(descriptor, _PROBE, offset)):
            raise _damaged(number, offset)
        return None  # a hole: the crash came before the first byte was on the disk
    start = offset + _HEADER.size
    end, size = start + length, os.fstat(descriptor).st_size
    if size < end:
        return None
    if zlib.crc32(os.pread(descriptor, length, start)) != checksum:
        if size > end:
            raise _damaged(number, offset)
        return None
    known = watermark_us if flags & _HAS_WATERMARK else None
    return EpochRecord(epoch, known, rows, bool(flags & _IS_END), number, start, end)


def _damaged(number: int, offset: int) -> SourceError:
    return SourceError(
        f"a persisted stream is damaged: segment {number} does not match its checksum at byte "
        f"{offset}. Restore the file from a copy, or start with a new checkpointLocation",
        segment=number,
    )


def _header(
    data: pa.Buffer, epoch: int, watermark_us: int | None, rows: int, is_end: bool
) -> bytes:
    flags = (_HAS_WATERMARK if watermark_us is not None else 0) | (_IS_END if is_end else 0)
    plain = _HEADER.pack(0, zlib.crc32(data), len(data), epoch, watermark_us or 0, rows, flags)
    return struct.pack("<I", zlib.crc32(plain[4:])) + plain[4:]


def _packed(batches: Iterable[pa.RecordBatch]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    writer = None
    for batch in batches:
        if writer is None:
            writer = pa.ipc.new_stream(sink, batch.schema)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()
    return sink.getvalue()
