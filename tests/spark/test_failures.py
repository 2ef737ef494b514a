"""Functions that do not survive a row, in real processes: the row is named, or passed over."""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock import Flow
from penstock.api.vertex import Time, Vertex, VertexContext
from penstock.core.control import giving_up
from penstock.core.control.giving_up import Losses
from penstock.errors import HostLostError

WAIT_S = 90.0
BAD = 300
LIMIT = 3


def numbers(offset: int, n: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(offset, offset + n), pa.int64())})


def failing(way: str) -> Any:
    """A function that ends its process when it sees a row; it travels to the hosts."""

    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import ctypes
        import os

        for batch in batches:
            if BAD in batch.column(0).to_pylist():
                if way == "exit":
                    os._exit(3)
                ctypes.string_at(0)
            yield batch

    return function


@pytest.mark.parametrize(
    ("way", "how"),
    [("exit", "exit status 3"), ("crash", "crashed: Segmentation fault")],
)
def test_a_row_that_ends_its_process_ends_the_flow_and_is_named(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, way: str, how: str
) -> None:
    monkeypatch.setattr(giving_up, "Losses", partial(Losses, limit=LIMIT))
    flow = Flow("poisoned")
    stream = flow.generate(numbers, rate=1_000, rows=20_000, shards=1, name="numbers")
    stream.mapInArrow(failing(way), "n bigint").name("fragile").memory()
    query = flow.start(spark, hosts=2)
    with pytest.raises(HostLostError) as caught:
        assert query.awaitTermination(WAIT_S), query.status
    assert not query.isActive
    assert query.exception() is caught.value
    query.stop()
    where = caught.value.parameters
    assert (where["stage"], where["node"]) == ("fragile", "fragile[0]")
    first, last = (int(word) for word in where["rows"].split() if word.isdigit())
    assert first <= BAD <= last
    assert f"lost {LIMIT + 1} times" in caught.value.message
    assert how in caught.value.message


@pytest.mark.parametrize(
    ("way", "how"),
    [("exit", "exit status 3"), ("crash", "crashed: Segmentation fault")],
)
def test_a_row_that_ends_its_process_is_passed_over_where_rows_may_be_skipped(
    spark: SparkSession, way: str, how: str
) -> None:
    flow = Flow("poisoned")
    stream = flow.generate(numbers, rate=1_000, rows=2_000, shards=1, name="numbers")
    checked = stream.mapInArrow(failing(way), "n bigint").name("fragile").onError("skip")
    kept, failed = checked.memory(name="kept"), checked.errors().memory(name="failed")
    query = flow.start(spark, hosts=2)
    assert query.awaitTermination(WAIT_S), query.status
    assert sorted(row["n"] for row in kept.toPylist()) == [n for n in range(2_000) if n != BAD]
    (letter,) = failed.toPylist()
    assert (letter["stage"], json.loads(letter["row"])) == ("fragile", {"n": BAD})
    assert letter["error"].startswith("HostLostError: ")
    assert how in letter["error"]


def once(marker: str) -> Any:
    """A function that says, in a host, whether it is the first one to ask; it travels there."""
    driver = os.getpid()

    def first() -> bool:
        import os

        if os.getpid() == driver:
            return False
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    return first


def killed_when(moment: str, marker: str) -> Any:
    """A vertex whose host is killed while it gets the flow's code, or opens its nodes."""
    first = once(marker)

    def kill() -> None:
        import os
        import signal

        if first():
            os.kill(os.getpid(), signal.SIGKILL)

    class Arriving:
        def __reduce__(self) -> Any:
            return kill, ()

    arriving = Arriving() if moment == "shipped" else None

    class Passes(Vertex):
        stateless = True
        shipped = arriving

        def open(self, context: VertexContext) -> None:
            super().open(context)
            if moment == "opened":
                kill()

        def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
            self.sendBy(0, batch, time)

    return Passes


@pytest.mark.parametrize("moment", ["shipped", "opened"])
def test_a_host_killed_while_the_flow_starts_is_started_again(
    spark: SparkSession, tmp_path: Path, moment: str
) -> None:
    marker = tmp_path / "killed"
    flow = Flow("starting")
    stream = flow.generate(numbers, rate=2_000, rows=2_000, shards=2, name="numbers")
    passed = stream.process(killed_when(moment, str(marker)), stream.schema)
    out = passed.memory()
    query = flow.start(spark, hosts=2)
    assert query.awaitTermination(WAIT_S), query.status
    assert marker.exists()
    assert sorted(row["n"] for row in out.toPylist()) == list(range(2_000))


def test_a_stage_that_restarts_survives_what_does_not_last(
    spark: SparkSession, tmp_path: Path
) -> None:
    first = once(str(tmp_path / "raised"))

    def unlucky(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if BAD in batch.column(0).to_pylist() and first():
                raise OSError("try again")
            yield batch

    flow = Flow("unlucky")
    stream = flow.generate(numbers, rate=1_000, rows=2_000, shards=1, name="numbers")
    out = stream.mapInArrow(unlucky, "n bigint").name("unlucky").onError("restart").memory()
    query = flow.start(spark, hosts=2)
    assert query.awaitTermination(WAIT_S), query.status
    assert sorted(row["n"] for row in out.toPylist()) == list(range(2_000))
    (recovery,) = query.recoveries
    assert "try again" in recovery["reason"]
