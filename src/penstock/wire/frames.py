"""Frames: several messages at once, as they travel between two hosts.

A frame's metadata is msgpack: the number of its first message, the acknowledgements for the
opposite direction, and the messages' headers.  Rows travel beside it, as one record batch with the
encapsulated Arrow IPC bytes of each message that has rows; a frame without any is metadata alone,
which costs a fraction.  Nothing here is ever unpickled; a payload becomes a batch only with the
schema that the receiver knows from its plan.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgpack
import pyarrow as pa

from penstock.core.causal.diffs import DiffLink
from penstock.core.node.messages import DATA, Message
from penstock.core.time import Time
from penstock.wire.control import Control

__all__ = [
    "FRAME_SCHEMA",
    "Frame",
    "decode_frame",
    "encode_frame",
    "has_dictionary",
    "read_batch",
    "write_batch",
]

FRAME_SCHEMA = pa.schema({"payload": pa.large_binary()})
_CONTROL = 255


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


def encode_frame(frame: Frame) -> tuple[bytes, pa.RecordBatch | None]:
    """Pack a frame: its metadata, and its rows if there are any.  One payload is not copied."""
    headers: list[tuple[Any, ...]] = []
    payloads = []
    for message in frame.messages:
        if isinstance(message, bytes):
            headers.append((_CONTROL, message))
            continue
        header: tuple[Any, ...] = (*message[:9], message.size)
        if message.target_incarnation:
            header += (message.target_incarnation, message.stamp, message.diff, message.more)
        headers.append(header)
        if message.kind == DATA:
            payloads.append(write_batch(message.payload))
    metadata = msgpack.packb((frame.first, frame.acknowledged, frame.consumed, headers))
    if not payloads:
        return metadata, None
    ends = [0]
    for payload in payloads:
        ends.append(ends[-1] + payload.size)
    data = payloads[0] if len(payloads) == 1 else pa.py_buffer(b"".join(payloads))
    offsets = pa.py_buffer(struct.pack(f"<{len(ends)}q", *ends))
    column = pa.Array.from_buffers(pa.large_binary(), len(payloads), [None, offsets, data])
    return metadata, pa.RecordBatch.from_arrays([column], schema=FRAME_SCHEMA)


def decode_frame(metadata: Any, rows: pa.RecordBatch | None) -> Frame:
    """Unpack a frame."""
    first, acknowledged, consumed, headers = msgpack.unpackb(
        metadata, use_list=False, strict_map_key=False
    )
    payloads = iter(() if rows is None else _payloads(rows))
    messages: list[Message | Control] = []
    for header in headers:
        if header[0] == _CONTROL:
            messages.append(header[1])
        else:
            payload = next(payloads) if header[0] == DATA else None
            messages.append(_message(header, payload))
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


def _payloads(rows: pa.RecordBatch) -> list[pa.Buffer]:
    column = rows.column(0)
    _, offsets, data = column.buffers()
    ends = struct.unpack_from(f"<{rows.num_rows + 1}q", offsets, 8 * column.offset)
    return [data.slice(start, end - start) for start, end in pairwise(ends)]


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
