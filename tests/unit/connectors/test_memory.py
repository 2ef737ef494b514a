"""Rows pushed from the driver, and rows kept there."""

from __future__ import annotations

import pickle
import threading
import time
from typing import Any

import pyarrow as pa
import pytest

from penstock.connectors.base import SourceContext
from penstock.connectors.memory import MemorySink, MemorySource
from penstock.errors import SchemaError, SourceError
from penstock.testing.harness import Harness

SCHEMA = pa.schema([pa.field("x", pa.int64(), nullable=False), pa.field("s", pa.string())])


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"x": list(values), "s": [None] * len(values)}, schema=SCHEMA)


@pytest.mark.parametrize(
    "rows",
    [
        [{"x": 1, "s": "a"}, {"x": 2}],
        {"x": [1, 2], "s": ["a", None]},
        pa.table({"s": ["a", None], "x": [1, 2]}),
        pa.record_batch({"x": [1, 2], "s": ["a", None]}),
    ],
)
def test_every_form_of_rows_is_taken(rows: Any) -> None:
    source = MemorySource(SCHEMA)
    source.push(rows)
    reader = source.open(SourceContext(0, 1))
    read = reader.read(10, 0)
    assert read.schema.equals(SCHEMA)
    assert read.to_pylist() == [{"x": 1, "s": "a"}, {"x": 2, "s": None}]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"x": 1, "y": 2}], "no column 'y'"),
        ([{"s": "a"}], "1 nulls in column 'x'"),
        ([{"x": "one"}], "do not fit"),
        ({"x": [1]}, "column 's' is missing"),
        (pa.table({"x": [1.5], "s": ["a"]}), "column 'x' as double.*int64 without loss"),
        ([1, 2], "got a int"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: Any, words: str) -> None:
    source = MemorySource(SCHEMA)
    with pytest.raises(SchemaError, match=words):
        source.push(rows)
    source.close()
    assert source.open(SourceContext(0, 1)).exhausted()


def test_push_and_close_wake_the_reader() -> None:
    source, woken = MemorySource(SCHEMA), []
    source.on_push = lambda: woken.append(1)
    source.push(batch(1))
    source.close()
    assert len(woken) == 2
    with pytest.raises(SourceError, match="closed"):
        source.push(batch(2))


def test_push_waits_for_a_slow_reader() -> None:
    source = MemorySource(SCHEMA, rows_max=2)
    reader = source.open(SourceContext(0, 1))
    source.push(batch(1, 2))
    with pytest.raises(TimeoutError):
        source.push(batch(3), timeout=0.05)
    pusher = threading.Thread(target=source.push, args=(batch(3),))
    pusher.start()
    time.sleep(0.05)
    assert pusher.is_alive()
    assert reader.read(2, 0).num_rows == 2
    pusher.join(5)
    assert not pusher.is_alive()
    assert reader.read(2, 0).column(0).to_pylist() == [3]


def test_push_does_not_hang_without_a_reader_or_after_a_failure() -> None:
    source = MemorySource(SCHEMA, rows_max=1)
    source.push(batch(1))
    with pytest.raises(SourceError, match="no flow reads them"):
        source.push(batch(2))
    source.open(SourceContext(0, 1))
    raised: list[BaseException] = []

    def push() -> None:
        try:
            source.push(batch(2))
        except SourceError as error:
            raised.append(error)

    pusher = threading.Thread(target=push)
    pusher.start()
    time.sleep(0.05)
    source.fail(ValueError("broken"))
    pusher.join(5)
    assert "broken" in str(raised[0])


def test_truncated_rows_are_gone_and_said_to_be() -> None:
    source = MemorySource(SCHEMA)
    for value in range(5):
        source.push(batch(value))
    reader = source.open(SourceContext(0, 1))
    while reader.read(1, 0) is not None:
        pass
    source.truncate(3)
    again = source.open(SourceContext(0, 1, position=3))
    assert again.read(10, 0).column(0).to_pylist() == [3, 4]
    with pytest.raises(SourceError, match="rows from 1 on are wanted, but only 3 to 5"):
        source.open(SourceContext(0, 1, position=1))


def test_new_process_goes_on_but_cannot_replay_what_is_gone() -> None:
    source = MemorySource(SCHEMA)
    source.push(batch(7))
    reader = source.open(SourceContext(0, 1, position=100))
    assert reader.read(10, 0).column(0).to_pylist() == [7]
    assert reader.position() == 101
    fresh = MemorySource(SCHEMA).open(SourceContext(0, 1, position=100))
    with pytest.raises(SourceError, match="pushed in an earlier process are gone"):
        fresh.read(10, 0, 120)


def test_available_now_ends_with_what_was_pushed() -> None:
    source = MemorySource(SCHEMA)
    source.push(batch(1))
    reader = source.open(SourceContext(0, 1, available_now=True))
    source.push(batch(2))
    assert reader.read(10, 0).num_rows == 1
    assert reader.exhausted()


def test_connectors_of_the_driver_travel_without_their_contents() -> None:
    source, sink = MemorySource(SCHEMA), MemorySink()
    source.push(batch(1))
    assert pickle.loads(pickle.dumps(source)).schema == SCHEMA
    assert pickle.loads(pickle.dumps(sink)).epochs() == {}


def test_sink_keeps_completed_epochs_only() -> None:
    sink = MemorySink()
    sink.output_schemas([SCHEMA])
    assert sink.toTable().schema == SCHEMA
    harness = Harness(sink)
    harness.recv(batch(1), 0)
    harness.recv(batch(2), 1)
    harness.recv(batch(3), 0)
    assert sink.toPylist() == []
    harness.complete(0)
    assert [row["x"] for row in sink.toPylist()] == [1, 3]
    harness.complete(1)
    assert {epoch: rows.num_rows for epoch, rows in sink.epochs().items()} == {0: 2, 1: 1}
    sink.publish(1, sink.epochs()[1])
    assert sink.toTable().num_rows == 3
    sink.clear()
    assert sink.epochs() == {}


def test_awaiting_an_epoch() -> None:
    sink = MemorySink()
    assert not sink.awaitEpoch(0, 0.01)
    threading.Timer(0.05, sink.advance, (3,)).start()
    assert sink.awaitEpoch(2, 5)
    threading.Timer(0.05, sink.end).start()
    assert not sink.awaitEpoch(9, 5)
    sink.begin()
    threading.Timer(0.05, sink.fail, (ValueError("broken"),)).start()
    with pytest.raises(ValueError, match="broken"):
        sink.awaitEpoch(9, 5)
