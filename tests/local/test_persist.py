"""Persisted streams: rollbacks stop there, nothing is lost or doubled, and old epochs go."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Flow
from penstock.api import functions as F
from penstock.testing.held_input import hold_input
from penstock.testing.kills import run_killing
from penstock.testing.local import run_local, start_local
from penstock.testing.processes import wait_until

ROWS = 40_000
RATE = 15_000
WAIT_S = 60.0


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
    shard = tmp_path / "persist" / "kept_log" / "shard-00000"

    def first() -> int:
        return min((int(path.stem) for path in shard.glob("*.log")), default=1)

    flow = Flow()
    out = counted(flow).memory()
    hold_input(flow)
    query = start_local(flow, checkpointInterval="100 ms", checkpointLocation=str(tmp_path))
    try:
        # A segment is 20 kB, and the 20,000 rows that come before the rest are 250 kB.
        wait_until(lambda: first() > 1, WAIT_S, "the end of the first segment")
        query.finish(WAIT_S)
    finally:
        query.stop()
    assert query.exception() is None
    assert found(out.toPylist()) == expected()
