"""Frames: several messages in one Arrow batch, as they travel between two hosts.

A frame is a record batch with one row per message: a packed header, and the message's own record
batch as encapsulated Arrow IPC bytes (empty for messages without rows).  The frame's metadata
carries the number of the first message and the acknowledgements for the opposite direction.
Nothing here is ever unpickled; a payload becomes a batch only with the schema that the receiver
knows from its plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa

from penstock.core.machine.messages import Message
from penstock.core.time import Time

__all__ = [
    "CONTROL",
    "FRAME_SCHEMA",
    "decode_control",
    "decode_message",
    "decode_metadata",
    "decode_rows",
    "encode_control",
    "encode_frame",
    "encode_message",
    "encode_metadata",
    "read_batch",
]

FRAME_SCHEMA = pa.schema({"header": pa.large_binary(), "payload": pa.large_binary()})
CONTROL = 255
"""The kind of messages to and from the controller: a packed dict instead of a batch."""

Row = tuple[bytes, Any]
"""A packed header and a buffer or None."""


def encode_message(message: Message) -> Row:
    """Pack a message between nodes; the batch is serialised, not copied twice."""
    header = msgpack.packb(
        (
            message.kind,
            message.link,
            message.sender,
            message.target,
            message.incarnation,
            message.sequence,
            message.time,
            message.watermark_us,
            message.cut_us,
            message.size,
        )
    )
    return header, None if message.payload is None else _write_batch(message.payload)


def encode_control(body: dict[str, Any]) -> Row:
    """Pack a message to or from the controller."""
    return msgpack.packb((CONTROL, body)), None


def header_of(data: Any) -> Any:
    """Unpack a header: a list that starts with the kind of message."""
    return msgpack.unpackb(data, use_list=False, strict_map_key=False)


def decode_control(header: Any) -> dict[str, Any]:
    """The dict that :func:`encode_control` packed."""
    body: dict[str, Any] = header[1]
    return body


def decode_message(header: Any, payload: Any) -> Message:
    """The message of a header; its payload stays a buffer until :func:`read_batch`."""
    kind, link, sender, target, incarnation, sequence, time, watermark_us, cut_us, size = header
    return Message(
        kind,
        link,
        sender,
        target,
        incarnation,
        sequence,
        Time.from_wire(time),
        watermark_us,
        cut_us,
        payload,
        size,
    )


def read_batch(payload: Any, schema: pa.Schema) -> pa.RecordBatch:
    """The record batch in a payload, without copying its columns."""
    if _has_dictionary(schema):
        with pa.ipc.open_stream(payload) as stream:
            return stream.read_next_batch()
    return pa.ipc.read_record_batch(payload, schema)


def _write_batch(batch: Any) -> pa.Buffer:
    """A batch alone, or, where columns refer to dictionaries, a stream that has these as well."""
    if not _has_dictionary(batch.schema):
        return batch.serialize()
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batch.schema) as stream:
        stream.write_batch(batch)
    return out.getvalue()


def _has_dictionary(columns: Any) -> bool:
    """Whether a schema, or the children of a type, have dictionaries anywhere inside."""
    for column in columns:
        kind = column.type
        if isinstance(kind, pa.DictionaryType):
            return True
        if kind.num_fields and _has_dictionary([kind.field(i) for i in range(kind.num_fields)]):
            return True
    return False


def encode_frame(rows: Sequence[Row]) -> pa.RecordBatch:
    """One batch of several messages; a single payload is not copied."""
    headers = pa.array([header for header, _ in rows], pa.large_binary())
    payloads = [payload for _, payload in rows if payload is not None]
    ends = np.cumsum([0] + [0 if payload is None else payload.size for _, payload in rows])
    data = payloads[0] if len(payloads) == 1 else pa.py_buffer(b"".join(payloads))
    offsets = pa.py_buffer(ends.astype(np.int64))
    column = pa.Array.from_buffers(pa.large_binary(), len(rows), [None, offsets, data])
    return pa.RecordBatch.from_arrays([headers, column], schema=FRAME_SCHEMA)


def decode_rows(frame: pa.RecordBatch) -> Iterator[tuple[Any, Any]]:
    """The (unpacked header, payload buffer or None) of each message in a frame."""
    headers = frame.column(0)
    column = frame.column(1)
    _, offsets_buffer, data = column.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64)[column.offset :]
    for row in range(frame.num_rows):
        start, end = int(offsets[row]), int(offsets[row + 1])
        payload = data.slice(start, end - start) if end > start else None
        yield header_of(headers[row].as_buffer()), payload


def encode_metadata(first: int, acknowledged: int, consumed: dict[int, int]) -> bytes:
    """Pack a frame's metadata."""
    packed: bytes = msgpack.packb((first, acknowledged, consumed))
    return packed


def decode_metadata(data: Any) -> tuple[int, int, dict[int, int]]:
    """Unpack a frame's metadata: first number, acknowledged number, consumed bytes per node."""
    first, acknowledged, consumed = msgpack.unpackb(data, use_list=False, strict_map_key=False)
    return first, acknowledged, consumed
