"""Nothing can be written for a while: the flow waits, says so, loses nothing and goes on by itself.

The kernel refuses every write that would make a file longer (``RLIMIT_FSIZE``), in this process
with all its threads, as a disk does that is full.
"""

import logging
import resource
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Flow
from penstock.api import functions as F
from penstock.api.vertex import Time, Vertex
from penstock.errors import TransientError
from penstock.testing.local import LocalQuery, start_local

ROWS = 12_000
RATE = 200
"""Slow: whatever happens, happens in time; ``finish`` makes the rest due at once."""
WAIT_S = 60.0
NUMBER = pa.schema({"key": pa.int64(), "number": pa.int64(), "n": pa.int64()})


def numbers(offset: int, n: int) -> pa.RecordBatch:
    offsets = range(offset, offset + n)
    return pa.record_batch(
        {
            "n": pa.array(offsets, pa.int64()),
            "key": pa.array([o % 5 for o in offsets], pa.int64()),
            "at": pa.array([o * 1000 for o in offsets], pa.timestamp("us")),
        }
    )


class Numbering(Vertex):
    """Numbers the rows of each key in the order in which they come: order matters."""

    def __init__(self) -> None:
        self.numbered = Counter[int]()

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        rows = []
        for row in batch.select(["key", "n"]).to_pylist():
            self.numbered[row["key"]] += 1
            rows.append({"key": row["key"], "number": self.numbered[row["key"]], "n": row["n"]})
        self.sendBy(0, pa.RecordBatch.from_pylist(rows, NUMBER), time)


def build(folder: Path) -> Flow:
    flow = Flow("outage")
    rows = flow.generate(numbers, rate=RATE, rows=ROWS, shards=2, name="numbers")
    spread = rows.withWatermark("at", "0 seconds", idleEpochs=1_000_000).keyBy("n", shards=2)
    counts = spread.groupBy(F.window("at", "1 second"), "key").agg(F.count("*").alias("rows"))
    counts.name("counts").parquet(str(folder / "counts"))
    (numbered,) = flow.vertex(
        Numbering, [spread], [NUMBER], partitionBy=[["key"]], shards=2, name="numbered"
    )
    numbered.parquet(str(folder / "numbers"))
    return flow


def started(folder: Path, **options: Any) -> LocalQuery:
    defaults: dict[str, Any] = {
        "hosts": 3,
        "parallelism": 2,
        "epochInterval": "50 ms",
        "checkpointInterval": "200 ms",
        "checkpointLocation": str(folder / "checkpoint"),
    }
    return start_local(build(folder), **defaults | options)


@contextmanager
def full() -> Iterator[None]:
    """No file grows."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def table(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("epoch=*/*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files]).to_pylist()


def check(folder: Path) -> None:
    counts = table(folder / "counts")
    assert len(counts) == ROWS // 1000 * 5
    assert {row["rows"] for row in counts} == {200}
    numbered = table(folder / "numbers")
    assert Counter(row["n"] for row in numbered) == Counter(range(ROWS))
    given = Counter((row["key"], row["number"]) for row in numbered)
    assert given == Counter((key, n) for key in range(5) for n in range(1, ROWS // 5 + 1))


def wait_for(condition: Any, what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def published(folder: Path) -> int:
    return len(list((folder / "numbers").glob("epoch=*")))


@pytest.mark.parametrize("killed", [None, "numbered[1]"])
def test_the_flow_waits_says_so_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, killed: str | None
) -> None:
    query = started(tmp_path)
    try:
        wait_for(lambda: published(tmp_path) >= 5, "the first epochs")
        caplog.clear()
        with full():
            wait_for(lambda: "stalled" in query.status, "the news")
            status = query.status
            assert any("File too large" in one["reason"] for one in status["stalled"])
            assert "cannot write" in status["message"]
            if killed is not None:
                query.kill(killed)
            time.sleep(0.3)
            there = published(tmp_path)
            time.sleep(0.5)
            assert published(tmp_path) == there
            assert query.isActive
        query.finish(WAIT_S)
    finally:
        query.stop()
    assert "stalled" not in query.status
    check(tmp_path)
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert sum("cannot write" in text for text in said) == 1, said
    assert sum("can be written again" in text for text in said) == 1, said


def test_after_store_timeout_the_flow_ends_and_the_next_run_goes_on(tmp_path: Path) -> None:
    query = started(tmp_path, storeTimeout="300 ms")
    try:
        wait_for(lambda: published(tmp_path) >= 5, "the first epochs")
        with full():
            with pytest.raises(TransientError, match=r"nothing could be written .* storeTimeout"):
                query.awaitTermination(WAIT_S)
            query.join()
    finally:
        query.stop()
    query = started(tmp_path)
    try:
        query.finish(WAIT_S)
    finally:
        query.stop()
    check(tmp_path)


def test_a_store_that_is_away_for_a_while_is_not_taken_for_a_fence(tmp_path: Path) -> None:
    query = started(tmp_path)
    store, away = tmp_path / "checkpoint", tmp_path / "away"
    try:
        wait_for(lambda: published(tmp_path) >= 5, "the first epochs")
        store.rename(away)
        wait_for(lambda: "stalled" in query.status, "the news")
        time.sleep(0.3)
        assert query.isActive
        assert not store.exists(), list(store.rglob("*"))
        away.rename(store)
        query.finish(WAIT_S)
    finally:
        query.stop()
    assert query.recoveries == []
    check(tmp_path)
