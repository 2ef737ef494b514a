"""Frames: what is packed comes out again, whatever the batch looks like."""

import struct
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.control.host_orders import MeetHosts
from penstock.core.node.messages import DATA, MARK, Message
from penstock.core.progress.marks import EPOCH_END, WATERMARK_END
from penstock.core.time import Time
from penstock.errors import PeerError
from penstock.wire.control import decode_to_host, encode
from penstock.wire.frames import Frame, FrameReader, encode_frame, read_batch


def message(payload: Any = None, **fields: Any) -> Message:
    kind = MARK if payload is None else DATA
    return Message(kind, 1, 2, 3, 4, 5, Time.root(6), payload=payload)._replace(**fields)


def bytes_of(frame: Frame) -> bytes:
    """As they travel over a network."""
    return b"".join(bytes(memoryview(part)) for part in encode_frame(frame))


def read(data: bytes, pieces: Sequence[int] = ()) -> list[Frame]:
    """What comes out of bytes that come in pieces of these sizes, and then all the rest."""
    reader, frames, at = FrameReader(), list[Frame](), 0
    sizes = iter(pieces)
    while at < len(data):
        space = reader.space()
        count = min(next(sizes, len(space)), len(space), len(data) - at)
        space[:count] = data[at : at + count]
        frames += reader.filled(count)
        at += count
    return frames


def through(messages: list[Any]) -> list[Any]:
    (frame,) = read(bytes_of(Frame(1, 0, {}, messages)))
    return list(frame.messages)


def batch_through(batch: pa.RecordBatch) -> pa.RecordBatch:
    (out,) = through([message(batch, size=batch.nbytes)])
    assert out.size == batch.nbytes
    return read_batch(out.payload, batch.schema)


BATCHES = {
    "numbers": pa.record_batch({"a": [1, 2, 3], "b": [0.5, None, float("inf")]}),
    "strings": pa.record_batch({"s": ["", "ä", None], "b": [b"", b"\0\xff", None]}),
    "times": pa.record_batch(
        {"t": pa.array([datetime(2024, 1, 1), None], pa.timestamp("us", "UTC"))}
    ),
    "nested": pa.record_batch({"l": [[1], [], None], "s": [{"x": 1}, {"x": None}, None]}),
    "empty": pa.record_batch({"a": pa.array([], pa.int64()), "s": pa.array([], pa.string())}),
    "nulls": pa.record_batch({"n": pa.nulls(4)}),
    "booleans": pa.record_batch({"b": [True, None, False]}),
    "no columns": pa.record_batch([], schema=pa.schema([])),
    "decimals": pa.record_batch({"d": pa.array([1, None], pa.decimal128(20, 0))}),
    "dictionary": pa.record_batch({"d": pa.array(["x", "y", "x", None]).dictionary_encode()}),
    "nested dictionary": pa.record_batch(
        {
            "s": pa.StructArray.from_arrays(
                [pa.array(["x", "y", "x"]).dictionary_encode()], names=["d"]
            )
        }
    ),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_comes_out_as_it_went_in(name: str) -> None:
    batch = BATCHES[name]
    assert batch_through(batch).equals(batch)


@pytest.mark.parametrize("name", BATCHES)
def test_a_slice_comes_out_as_a_slice(name: str) -> None:
    batch = BATCHES[name].slice(1, 1)
    out = batch_through(batch)
    assert out.num_rows == batch.num_rows
    assert out.to_pylist() == batch.to_pylist()


def test_a_small_slice_of_a_large_batch_is_small_on_the_wire() -> None:
    large = pa.record_batch({"a": np.arange(1_000_000)})
    assert len(bytes_of(Frame(1, 0, {}, [message(large.slice(500_000, 3))]))) < 1000


def test_a_large_batch_comes_out_as_it_went_in() -> None:
    batch = pa.record_batch(
        {"a": np.arange(300_000), "s": pa.array(["x" * (i % 7) for i in range(300_000)])}
    )
    assert batch_through(batch).equals(batch)


def test_every_field_of_the_header_survives() -> None:
    sent = Message(
        MARK, 7, 8, 9, 10, 1 << 40, Time(EPOCH_END, (3, 2)), WATERMARK_END, 1 << 52, None, 0
    )
    assert through([sent]) == [sent]
    assert through([sent._replace(watermark_us=None)])[0].watermark_us is None
    assert through([sent._replace(watermark_us=-5)])[0].watermark_us == -5


def test_many_messages_keep_their_order_and_their_payloads() -> None:
    schema = pa.schema({"a": pa.int64(), "s": pa.string()})
    sent = []
    for number in range(100):
        rows = number % 4
        batch = pa.record_batch({"a": list(range(rows)), "s": [str(number)] * rows}, schema=schema)
        sent.append(message(None if number % 3 == 0 else batch, sequence=number))
    got = through(sent)
    assert [one.sequence for one in got] == list(range(100))
    for before, after in zip(sent, got, strict=True):
        if before.payload is None:
            assert after.payload is None
        else:
            assert read_batch(after.payload, schema).equals(before.payload)


def test_control_messages_travel_among_the_others() -> None:
    mark, control = through([message(), encode(MeetHosts({1: "a", 2: "ü"}))])
    assert mark.kind == MARK
    assert decode_to_host(control, 0) == MeetHosts({1: "a", 2: "ü"})


def test_numbers_and_acknowledgements_survive() -> None:
    sent = Frame(1 << 40, 7, {3: 1 << 50, 4: 0}, [])
    assert read(bytes_of(sent)) == [sent]


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=5),
    st.lists(st.integers(1, 400), max_size=60),
)
def test_frames_come_out_however_their_bytes_are_cut(
    frames: list[list[int]], pieces: list[int]
) -> None:
    sent = [
        Frame(n, n, {}, [message(BATCHES["numbers"].slice(0, rows)) for rows in batches])
        for n, batches in enumerate(frames)
    ]
    got = read(b"".join(map(bytes_of, sent)), pieces)
    assert [frame.first for frame in got] == [frame.first for frame in sent]
    for before, after in zip(sent, got, strict=True):
        for one, other in zip(before.messages, after.messages, strict=True):
            assert isinstance(one, Message)
            assert isinstance(other, Message)
            assert read_batch(other.payload, one.payload.schema).equals(one.payload)


def test_metadata_larger_than_the_buffer_come_out_whole() -> None:
    control = encode(MeetHosts(dict.fromkeys(range(5000), "x" * 100)))
    frame = Frame(1, 0, {}, [control, message(BATCHES["numbers"])])
    first, second = read(bytes_of(frame) + bytes_of(frame._replace(first=3)), [7, 70_000])
    assert first.messages[0] == second.messages[0] == control
    assert (first.first, second.first) == (1, 3)


HEAD = struct.Struct("<4sIQ")
NO_FRAMES = {
    "another magic": HEAD.pack(b"GET ", 10, 0),
    "endless metadata": HEAD.pack(b"PSF1", 1 << 31, 0),
    "endless rows": HEAD.pack(b"PSF1", 1, 1 << 62) + b"x",
    "metadata that are none": HEAD.pack(b"PSF1", 3, 0) + b"\xc1\xc1\xc1",
    "metadata that say something else": HEAD.pack(b"PSF1", 1, 0) + b"\x07",
    "rows that are not there": HEAD.pack(b"PSF1", 6, 0) + msgpack.packb((1, 0, {}, (), (8,))),
}


@pytest.mark.parametrize("name", NO_FRAMES)
def test_bytes_that_are_no_frame_are_refused(name: str) -> None:
    with pytest.raises(PeerError):
        read(NO_FRAMES[name])
