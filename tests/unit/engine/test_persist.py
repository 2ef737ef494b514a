"""Persisted streams: rollbacks stop there, nothing is lost or doubled, and old epochs go."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Flow
from penstock import functions as F
from penstock.connectors.epoch_log import EpochLogReader, EpochLogWriter, last_epoch
from penstock.errors import GraphError, SourceError
from penstock.testing.kills import run_killing
from penstock.testing.local import run_local, start_local

ROWS = 40_000
RATE = 15_000
WAIT_S = 30.0


def numbers(offset: int, n: int) -> pa.RecordBatch:
    offsets = range(offset, offset + n)
    return pa.record_batch(
        {
            "n": pa.array(offsets, pa.int64()),
            "key": pa.array([o % 7 for o in offsets], pa.int64()),
            "at": pa.array([o * 1000 for o in offsets], pa.timestamp("us")),
        }
    )


def counted(flow: Flow, rows: int = ROWS) -> Any:
    """Windows over a persisted stream, whose watermark comes through the log."""
    return (
        flow.generate(numbers, rate=RATE, rows=rows, shards=2, name="numbers")
        .withWatermark("at", "0 seconds")
        .keyBy("key")
        .select("n", "key", "at")
        .name("keyed")
        .persist(name="kept")
        .groupBy(F.window("at", "1 second"), "key")
        .agg(F.count("*").alias("rows"), F.sum("n").alias("total"))
        .name("counts")
    )


def expected(rows: int = ROWS) -> Counter[tuple[int, int, int, int]]:
    groups: dict[tuple[int, int], list[int]] = {}
    for n in range(rows):
        groups.setdefault((n // 1000, n % 7), []).append(n)
    return Counter((w, k, len(ns), sum(ns)) for (w, k), ns in groups.items())


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


def test_every_side_of_a_persisted_stream_can_be_lost() -> None:
    flow = Flow()
    out = counted(flow).memory()
    run_killing(flow, ["keyed[0]", "counts[1]", "kept[0]", "numbers[1]"], hosts=4)
    assert found(out.toPylist()) == expected()


def test_a_driver_that_comes_back_goes_on_from_the_log(tmp_path: Path) -> None:
    published: list[dict[str, Any]] = []
    for _ in range(3):
        flow = Flow()
        counted(flow).parquet(str(tmp_path / "out"), name="published")
        query = start_local(
            flow, hosts=2, checkpointInterval="200 ms", checkpointLocation=str(tmp_path / "store")
        )
        time.sleep(0.9)
        query.stop()
        assert query.exception() is None
    flow = Flow()
    counted(flow).parquet(str(tmp_path / "out"), name="published")
    query = run_local(flow, timeout=WAIT_S, checkpointLocation=str(tmp_path / "store"))

    for file in sorted((tmp_path / "out").glob("epoch=*/*.parquet")):
        published += pq.read_table(file, partitioning=None).to_pylist()
    assert found(published) == expected()


def test_epochs_that_nobody_needs_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.connectors.epoch_log.SEGMENT_BYTES", 20_000)
    first = 1
    for attempt in range(3):  # on a busy machine all may be over before the first checkpoint
        flow = Flow()
        out = counted(flow).memory()
        store = tmp_path / f"store-{attempt}"
        query = run_local(
            flow, timeout=WAIT_S, checkpointInterval="100 ms", checkpointLocation=str(store)
        )
        assert query.exception() is None
        assert found(out.toPylist()) == expected()
        shard = store / "persist" / "kept_log" / "shard-00000"
        first = min(int(path.stem) for path in shard.glob("*.log"))
        if first > 1:
            break
    assert first > 1  # a segment is 20 kB, and 40,000 rows are 500 kB


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
