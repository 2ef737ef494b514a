"""The log of a persisted stream: readers, fenced writers, torn records."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Flow
from penstock.connectors.epoch_log import EpochLogReader, EpochLogWriter, last_epoch
from penstock.errors import GraphError, SourceError


def found(rows: list[dict[str, Any]]) -> Counter[tuple[int, int, int, int]]:
    return Counter(
        (
            row["window"]["start"].minute * 60 + row["window"]["start"].second,
            row["key"],
            row["rows"],
            row["total"],
        )
        for row in rows
    )


def test_a_loop_is_persisted_where_it_is_left() -> None:
    flow = Flow()
    edges = flow.memory(pa.schema({"n": pa.int64()}))
    loop = flow.loop("loop")
    with pytest.raises(GraphError, match="inside loop 'loop'"):
        loop.enter(edges).persist()


# -- the log -----------------------------------------------------------------------------------


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def test_a_reader_follows_over_writers_and_ends_without_the_end_of_earlier_runs(
    tmp_path: Path,
) -> None:
    first = EpochLogWriter(tmp_path)
    first.append(1, [batch(1)], None)
    first.append(2, [], 5, is_end=True)
    second = EpochLogWriter(tmp_path)
    assert second.last == 1
    second.append(1, [batch(9)], None)  # there already
    second.append(3, [batch(3, 4)], 7)
    reader = EpochLogReader(tmp_path, after=-1)
    records = [reader.next(), reader.next()]
    assert [(r.epoch, r.watermark_us, r.rows) for r in records if r] == [(1, None, 1), (3, 7, 2)]
    assert [r.is_end for r in records if r] == [False, False]
    assert reader.next() is None
    assert last_epoch(tmp_path) == 3


def test_what_is_forgotten_leaves_the_last_epoch(tmp_path: Path) -> None:
    """Writers that were replaced before they wrote anything leave empty segments behind."""
    first = EpochLogWriter(tmp_path)
    first.append(4, [batch(4)], None)
    reader = EpochLogReader(tmp_path, after=-1)
    assert reader.next() is not None
    EpochLogWriter(tmp_path).close()
    third = EpochLogWriter(tmp_path)
    assert reader.next() is None
    reader.forget(4)
    assert (last_epoch(tmp_path), EpochLogWriter(tmp_path).last) == (4, 4)
    fifth = EpochLogWriter(tmp_path)
    fifth.append(5, [batch(5)], None)
    assert [record.epoch for record in [reader.next()] if record] == [5]
    reader.forget(4)
    assert last_epoch(tmp_path) == 5
    assert [record.epoch for record in [EpochLogReader(tmp_path, -1).next()] if record] == [5]
    for log in (first, third, fifth, reader):
        log.close()


def test_what_a_fenced_writer_appends_counts_for_nobody(tmp_path: Path) -> None:
    zombie = EpochLogWriter(tmp_path)
    zombie.append(1, [batch(1)], None)
    reader = EpochLogReader(tmp_path, after=-1)
    writer = EpochLogWriter(tmp_path)
    zombie.append(2, [batch(66)], None)
    writer.append(2, [batch(2)], None)
    rows = []
    while (record := reader.next()) is not None:
        rows += [b.column(0).to_pylist() for b in reader.batches(record)]
    assert rows == [[1], [2]]


def test_a_torn_record_is_left_out_and_damage_is_refused(tmp_path: Path) -> None:
    writer = EpochLogWriter(tmp_path)
    writer.append(1, [batch(1)], None)
    writer.append(2, [batch(2)], None)
    writer.close()
    segment = tmp_path / "00000001.log"
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-3])
    assert last_epoch(tmp_path) == 1
    damaged = bytearray(whole)
    damaged[60] ^= 1
    segment.write_bytes(bytes(damaged))
    with pytest.raises(SourceError, match="does not match its checksum"):
        last_epoch(tmp_path)


def test_rows_that_were_read_before_are_read_again_while_their_segment_is_sealed(
    tmp_path: Path,
) -> None:
    writer = EpochLogWriter(tmp_path)
    writer.append(3, [pa.record_batch({"n": [1, 2]})], None)
    (tmp_path / "00000001.sealing").touch()  # another writer is about to say how much counts
    reader = EpochLogReader(tmp_path, after=-1)
    assert reader.next() is None
    found = reader.next(again=True)
    assert found is not None
    assert (found.epoch, found.rows) == (3, 2)
    reader.close()
    writer.close()
