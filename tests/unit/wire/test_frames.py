"""Frames: what is packed comes out again, whatever the batch looks like."""

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.core.control.host_orders import MeetHosts
from penstock.core.node.messages import DATA, MARK, Message
from penstock.core.progress.marks import EPOCH_END, WATERMARK_END
from penstock.core.time import Time
from penstock.wire.control import decode_to_host, encode
from penstock.wire.frames import (
    FRAME_SCHEMA,
    Frame,
    decode_frame,
    encode_frame,
    read_batch,
)


def message(payload: Any = None, **fields: Any) -> Message:
    kind = MARK if payload is None else DATA
    return Message(kind, 1, 2, 3, 4, 5, Time.root(6), payload=payload)._replace(**fields)


def travel(frame: pa.RecordBatch) -> pa.RecordBatch:
    """Through bytes, as over a network."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, frame.schema) as writer:
        writer.write_batch(frame)
    with pa.ipc.open_stream(sink.getvalue()) as reader:
        return reader.read_next_batch()


def through(messages: list[Any]) -> list[Any]:
    metadata, rows = encode_frame(Frame(1, 0, {}, messages))
    if rows is not None:
        rows = travel(rows)
        assert rows.schema.equals(FRAME_SCHEMA)
    return list(decode_frame(metadata, rows).messages)


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
    _, rows = encode_frame(Frame(1, 0, {}, [message(large.slice(500_000, 3))]))
    assert rows is not None
    assert rows.nbytes < 1000


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


def test_a_frame_of_marks_only_is_metadata_alone() -> None:
    _, rows = encode_frame(Frame(1, 0, {}, [message(), message()]))
    assert rows is None
    assert [one.payload for one in through([message(), message()])] == [None, None]


def test_a_sliced_frame_is_read_from_its_own_first_row() -> None:
    batch = BATCHES["numbers"]
    _, rows = encode_frame(Frame(1, 0, {}, [message(BATCHES["strings"]), message(batch)]))
    assert rows is not None
    metadata, _ = encode_frame(Frame(2, 0, {}, [message(batch)]))
    (out,) = decode_frame(metadata, rows.slice(1)).messages
    assert isinstance(out, Message)
    assert read_batch(out.payload, batch.schema).equals(batch)


def test_control_messages_travel_among_the_others() -> None:
    mark, control = through([message(), encode(MeetHosts({1: "a", 2: "ü"}))])
    assert mark.kind == MARK
    assert decode_to_host(control, 0) == MeetHosts({1: "a", 2: "ü"})


def test_numbers_and_acknowledgements_survive() -> None:
    sent = Frame(1 << 40, 7, {3: 1 << 50, 4: 0}, [])
    metadata, rows = encode_frame(sent)
    assert decode_frame(metadata, rows) == sent
