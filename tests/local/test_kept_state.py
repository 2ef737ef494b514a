"""A flow that promises exactly-once keeps its state, or is refused when it starts."""

import logging
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from penstock import Flow
from penstock.api import functions as F
from penstock.api.flow import Stream
from penstock.api.vertex import Time, Vertex
from penstock.errors import SettingsError
from penstock.storage import storage_of
from penstock.testing.local import LocalQuery, run_local, start_local

ROWS = 4_000
WAIT_S = 60.0


def numbers(offset: int, n: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(offset, offset + n), pa.int64())})


def source(flow: Flow, rows: int = ROWS) -> Stream:
    return flow.generate(numbers, rate=4_000, rows=rows, shards=2, name="numbers")


class Dice(Vertex):
    """Keeps what it was given, and says that it cannot do so twice."""

    repeatable = False

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.sendBy(0, batch, time)


def totals(flow: Flow, rows: int = ROWS) -> Stream:
    return source(flow, rows).groupBy().agg(F.count("*").alias("rows")).name("totals")


def thrown(flow: Flow, rows: int = ROWS) -> Stream:
    return source(flow, rows).process(Dice, numbers(0, 0).schema).name("dice")


UNKEPT = [
    pytest.param(totals, {"recovery": "none"}, r"recovery=\"none\"", id="none"),
    pytest.param(totals, {"progress": "tracked"}, r"progress=\"tracked\"", id="tracked"),
    pytest.param(thrown, {}, "'dice' cannot be repeated", id="unrepeatable"),
]


@pytest.mark.parametrize(("build", "options", "why"), UNKEPT)
def test_state_that_nobody_would_keep_is_refused_at_the_start(
    build: Any, options: dict[str, str], why: str, tmp_path: Path
) -> None:
    flow = Flow("unkept")
    build(flow).parquet(str(tmp_path / "out"))
    with pytest.raises(SettingsError, match=why) as refused:
        start_local(flow, checkpointLocation=str(tmp_path / "store"), **options)
    text = str(refused.value)
    assert "exactly-once cannot be promised" in text
    assert 'guarantee="at-most-once"' in text
    assert not (tmp_path / "store" / "metadata.json").exists()


@pytest.mark.parametrize(("build", "options", "why"), UNKEPT)
def test_a_run_that_nobody_goes_on_with_needs_no_recovery(
    build: Any, options: dict[str, str], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    flow = Flow("unkept")
    kept = build(flow, 100).memory()
    with caplog.at_level(logging.WARNING):
        run_local(flow, **options)
    assert kept.toPylist()
    assert ("cannot recover from a lost host" in caplog.text) == ("recovery" not in options)


def started(tmp_path: Path, stream: Any, **options: Any) -> LocalQuery:
    flow = Flow("again")
    stream(flow).parquet(str(tmp_path / "out"), name="out")
    return start_local(flow, checkpointLocation=str(tmp_path / "store"), **options)


def await_files(query: LocalQuery, tmp_path: Path, files: int) -> None:
    deadline = time.monotonic() + WAIT_S
    try:
        while len(list(tmp_path.glob("out/epoch=*/*.parquet"))) < files and query.isActive:
            assert time.monotonic() < deadline, query.status
            time.sleep(0.02)
    finally:
        query.stop()


@pytest.mark.parametrize("options", [{"recovery": "none"}, {"progress": "tracked"}], ids=str)
def test_without_state_a_flow_goes_on_exactly_though_it_has_no_recovery(
    options: dict[str, str], tmp_path: Path
) -> None:
    def build(flow: Flow) -> Stream:
        return source(flow).filter("n % 2 = 0").keyBy("n")

    for files in (2, 5):
        await_files(started(tmp_path, build, **options), tmp_path, files)
    started(tmp_path, build, **options).finish(WAIT_S)
    found = [
        row["n"]
        for file in tmp_path.glob("out/epoch=*/*.parquet")
        for row in pq.read_table(file).to_pylist()
    ]
    assert sorted(found) == list(range(0, ROWS, 2))


def test_state_of_an_earlier_run_is_not_left_aside(tmp_path: Path) -> None:
    await_files(started(tmp_path, totals), tmp_path, 2)
    for guarantee in ("exactly-once", "at-most-once"):
        with pytest.raises(SettingsError, match="holds state of an earlier run"):
            started(tmp_path, totals, recovery="none", guarantee=guarantee)


def test_state_that_was_not_kept_is_missed_with_recovery(tmp_path: Path) -> None:
    lossy = {"recovery": "none", "guarantee": "at-most-once"}
    await_files(started(tmp_path, totals, **lossy), tmp_path, 2)
    with pytest.raises(SettingsError, match=r"nothing was kept of the state of stage 'totals'"):
        started(tmp_path, totals)
    started(tmp_path, totals, **lossy).finish(WAIT_S)


@pytest.mark.parametrize("text", ["{", "[]", '{"pid": 1}'])
def test_a_damaged_owner_of_a_store_is_named_with_what_to_do(text: str, tmp_path: Path) -> None:
    place = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    storage_of(place).write("owner.json", text.encode())
    flow = Flow("owned")
    kept = source(flow, 10).memory()
    with pytest.raises(SettingsError, match=r"owner\.json is damaged .*delete owner\.json"):
        start_local(flow, checkpointLocation=place)
    shutil.rmtree(tmp_path / "owner.json")
    run_local(flow, checkpointLocation=place)
    assert len(kept.toPylist()) == 10
