"""Flows that change between two runs: state that still fits is restored, the rest is refused."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Flow
from penstock.api import functions as F
from penstock.api.flow import Stream
from penstock.errors import SettingsError
from penstock.testing.local import LocalQuery, start_local

ROWS = 40_000
RATE = 12_000
WAIT_S = 60.0
Change = Callable[[Stream], Stream]


def numbers(offset: int, n: int) -> pa.RecordBatch:
    offsets = range(offset, offset + n)
    return pa.record_batch(
        {"n": pa.array(offsets, pa.int64()), "key": pa.array([o % 7 for o in offsets], pa.int64())}
    )


def start(
    folder: Path,
    before: Change = lambda stream: stream,
    after: Change = lambda stream: stream,
    name: str = "totals",
    count: str = "*",
    shards: int = 2,
    **options: Any,
) -> LocalQuery:
    flow = Flow("changing")
    stream = flow.generate(numbers, rate=RATE, rows=ROWS, shards=2, name="numbers")
    counted = before(stream).groupBy("key").agg(F.count(count).alias("rows")).name(name)
    after(counted).parquet(str(folder / "out"), name="published")
    return start_local(
        flow,
        hosts=2,
        parallelism=shards,
        checkpointLocation=str(folder / "store"),
        checkpointInterval="1 hour",
        **options,
    )


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """A flow has run for a while, was saved, and has gone on a little."""
    query = start(tmp_path)
    time.sleep(0.5)
    query.checkpoint()
    time.sleep(0.3)
    query.stop()
    query.finish(WAIT_S)
    return tmp_path


def finished(folder: Path, query: LocalQuery) -> dict[int, int]:
    try:
        query.finish(WAIT_S)
    finally:
        query.stop()
    found: dict[int, int] = {}
    for file in (folder / "out").glob("epoch=*/*.parquet"):
        for row in pq.read_table(file).to_pylist():
            found[row["key"]] = max(found.get(row["key"], 0), row["rows"])
    return found


RIGHT = {key: len(range(key, ROWS, 7)) for key in range(7)}


def filtered(stream: Stream) -> Stream:
    return stream.filter("n >= 0").name("looked_at")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda stream: filtered(stream).keyBy("n").name("spread"), lambda stream: stream),
        (filtered, lambda stream: filtered_after(stream)),
    ],
    ids=["exchanged", "fused"],
)
def test_a_stage_without_state_is_added_and_the_state_stays(
    ran: Path, before: Change, after: Change
) -> None:
    query = start(ran, before, after)
    time.sleep(0.3)
    query.kill("numbers[0]" if before is filtered else "spread[0]")
    assert finished(ran, query) == RIGHT
    # And it goes again.
    assert finished(ran, start(ran)) == RIGHT


def filtered_after(stream: Stream) -> Stream:
    return stream.filter("rows > 0").name("checked")


def test_state_without_a_home_is_named_with_its_size_and_can_be_dropped(ran: Path) -> None:
    with pytest.raises(SettingsError, match=r"stage 'totals' is gone \(2 shards, epochs \d+") as no:
        start(ran, name="other")
    assert "bytes)" in str(no.value)
    assert "dropState" in str(no.value)
    with pytest.raises(SettingsError, match=r"had 2 shards, now 3"):
        start(ran, shards=3)
    with pytest.raises(SettingsError, match="is defined otherwise"):
        start(ran, count="n")
    with pytest.raises(SettingsError, match="there is no stage 'nothing'"):
        start(ran, dropState=["nothing"])
    query = start(ran, name="other", dropState=["totals"])
    found = finished(ran, query)
    assert found.keys() == RIGHT.keys()
    assert not list((ran / "store" / "state").glob("totals"))
