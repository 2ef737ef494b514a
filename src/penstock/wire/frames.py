"""Frames: several messages at once, as they travel between two hosts.

A frame is a head of fixed size, its metadata, and the rows.  The metadata is msgpack: the number of
the first message, the acknowledgements for the opposite direction, the messages' headers, and the
sizes of their rows.  The rows are the encapsulated Arrow IPC bytes of each message that has some,
one after the other; they are handed over as they are, and nothing copies them but the kernel.
Nothing here is ever unpickled; a payload becomes a batch only with the schema that the receiver
knows from its plan.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack
import pyarrow as pa

from penstock.core.causal.diffs import DiffLink
from penstock.core.node.messages import DATA, Message
from penstock.core.time import Time
from penstock.errors import PeerError
from penstock.wire.control import Control

__all__ = [
    "Frame",
    "FrameReader",
    "encode_frame",
    "has_dictionary",
    "read_batch",
    "write_batch",
]

MAGIC = b"PSF1"
_HEAD = struct.Struct("<4sIQ")
"""Magic, bytes of metadata, bytes of rows."""
_CONTROL = 255
METADATA_MAX = 64 << 20
"""Metadata beyond this is refused: no frame of ours comes near it."""
ROWS_MAX = 1 << 36
BUFFER_BYTES = 64 << 10


class Frame(NamedTuple):
    """What a frame says."""

    first: int
    """The number of its first message; 0 if it has none."""
    acknowledged: int
    """The opposite direction's messages have arrived up to this number."""
    consumed: dict[int, int]
    """Bytes that nodes have consumed in all, in the opposite direction."""
    messages: Sequence[Message | Control]
    """Payloads of messages that arrived are buffers, see :func:`read_batch`."""


def encode_frame(frame: Frame) -> list[Any]:
    """A frame as buffers to be written one after the other; rows are not copied."""
    headers: list[tuple[Any, ...]] = []
    rows: list[Any] = []
    sizes: list[int] = []
    for message in frame.messages:
        if isinstance(message, bytes):
            headers.append((_CONTROL, message))
            continue
        header: tuple[Any, ...] = (*message[:9], message.size)
        if message.target_incarnation:
            header += (message.target_incarnation, message.stamp, message.diff, message.more)
        headers.append(header)
        if message.kind == DATA:
            payload = write_batch(message.payload)
            rows.append(payload)
            sizes.append(payload.size)
    metadata = msgpack.packb((frame.first, frame.acknowledged, frame.consumed, headers, sizes))
    return [_HEAD.pack(MAGIC, len(metadata), sum(sizes)) + metadata, *rows]


class FrameReader:
    """Cuts the bytes of one connection into frames.

    Whoever has bytes puts them into ``space()`` and says how many there were:

    >>> reader = FrameReader()
    >>> (data,) = encode_frame(Frame(3, 1, {}, [b"control"]))
    >>> reader.space()[: len(data)] = data
    >>> reader.filled(10), reader.filled(len(data) - 10)
    ([], [Frame(first=3, acknowledged=1, consumed={}, messages=[b'control'])])
    """

    def __init__(self) -> None:
        self._buffer = bytearray(BUFFER_BYTES)
        self._start = self._end = 0
        self._metadata = b""
        self._rows: pa.Buffer | None = None
        """The rows of a frame of which the rest is still to come."""
        self._rows_at = 0

    def space(self) -> memoryview:
        """Where the next bytes go."""
        if self._rows is not None:
            return _bytes_of(self._rows)[self._rows_at :]
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._buffer):
            self._make_room(len(self._buffer))
        return memoryview(self._buffer)[self._end :]

    def filled(self, count: int) -> list[Frame]:
        """The frames that are whole now that so many bytes have come."""
        frames: list[Frame] = []
        if self._rows is not None:
            self._rows_at += count
            if self._rows_at == self._rows.size:
                frames.append(_decode(self._metadata, self._rows))
                self._rows = None
            return frames
        self._end += count
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def _next(self) -> Frame | None:
        present = self._end - self._start
        if present < _HEAD.size:
            return None
        magic, metadata_size, rows_size = _HEAD.unpack_from(self._buffer, self._start)
        if magic != MAGIC or metadata_size > METADATA_MAX or rows_size > ROWS_MAX:
            raise PeerError("what a peer sent is no frame: the connection is of no more use")
        wanted = _HEAD.size + metadata_size
        if present < wanted:
            if self._start + wanted > len(self._buffer):
                self._make_room(wanted)
            return None
        begin = self._start + _HEAD.size
        self._start += wanted
        metadata = bytes(memoryview(self._buffer)[begin : self._start])
        if not rows_size:
            return _decode(metadata, None)
        rows = pa.allocate_buffer(rows_size)
        have = min(rows_size, self._end - self._start)
        _bytes_of(rows)[:have] = memoryview(self._buffer)[self._start : self._start + have]
        self._start += have
        if have == rows_size:
            return _decode(metadata, rows)
        self._metadata, self._rows, self._rows_at = metadata, rows, have
        return None

    def _make_room(self, wanted: int) -> None:
        """Move what is there to the front, of a larger buffer if need be."""
        there = self._buffer[self._start : self._end]
        self._buffer = bytearray(max(wanted, BUFFER_BYTES))
        self._buffer[: len(there)] = there
        self._start, self._end = 0, len(there)


def _bytes_of(buffer: pa.Buffer) -> memoryview:
    return memoryview(buffer).cast("B")


def _decode(metadata: bytes, rows: pa.Buffer | None) -> Frame:
    """Unpack a frame."""
    try:
        first, acknowledged, consumed, headers, sizes = msgpack.unpackb(
            metadata, use_list=False, strict_map_key=False
        )
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise PeerError(f"the metadata of a frame cannot be read: {error}") from error
    payloads: list[pa.Buffer] = []
    at = 0
    for size in sizes:
        if rows is None or at + size > rows.size:
            raise PeerError("a frame has fewer rows than its metadata says")
        payloads.append(rows.slice(at, size))
        at += size
    next_rows = iter(payloads)
    messages: list[Message | Control] = []
    for header in headers:
        if header[0] == _CONTROL:
            messages.append(header[1])
        else:
            messages.append(_message(header, next(next_rows) if header[0] == DATA else None))
    return Frame(first, acknowledged, consumed, messages)


def _message(header: tuple[Any, ...], payload: object) -> Message:
    """A message from its header; one with a stamp has a diff as well."""
    kind, link, sender, target, incarnation, sequence, time, watermark_us, cut_us, size = (
        header[:10]
    )  # fmt: skip
    at = Time.from_wire(time)
    message = Message(
        kind, link, sender, target, incarnation, sequence, at, watermark_us, cut_us, payload, size
    )
    if len(header) == 10:
        return message
    target_incarnation, stamp, diff, more = header[10:]
    return message._replace(
        target_incarnation=target_incarnation,
        stamp=stamp,
        diff=tuple(DiffLink(*one) for one in diff),
        more=more,
    )


def read_batch(payload: Any, schema: pa.Schema) -> pa.RecordBatch:
    """The record batch in a payload, without copying its columns."""
    if has_dictionary(schema):
        with pa.ipc.open_stream(payload) as stream:
            return stream.read_next_batch()
    return pa.ipc.read_record_batch(payload, schema)


def write_batch(batch: Any) -> pa.Buffer:
    """A batch alone, or, where columns refer to dictionaries, a stream that has these as well."""
    if not has_dictionary(batch.schema):
        return batch.serialize()
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as stream:
        stream.write_batch(batch)
    return out.getvalue()


def has_dictionary(columns: Any) -> bool:
    """Whether a schema, or the children of a type, have dictionaries anywhere inside."""
    for column in columns:
        kind = column.type
        if isinstance(kind, pa.DictionaryType):
            return True
        if kind.num_fields and has_dictionary([kind.field(i) for i in range(kind.num_fields)]):
            return True
    return False
