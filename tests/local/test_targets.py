"""A target has one writer, and a flow goes on only with the targets it has used."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Flow
from penstock.api.stream import Stream
from penstock.errors import PenstockError, SettingsError, SinkError
from penstock.testing.local import LocalQuery, run_local, start_local

WAIT_S = 60.0
SCHEMA = pa.schema({"n": pa.int64()})


def numbers(offset: int, n: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(offset, offset + n), pa.int64())})


def to_parquet(stream: Stream, path: str) -> None:
    stream.parquet(path)


def to_database(stream: Stream, path: str) -> None:
    stream.database(f"sqlite:///{path}.db", "numbers")


def to_table(stream: Stream, path: str) -> None:
    stream.toTable("numbers", path=path)


SINKS = pytest.mark.parametrize("sink", [to_parquet, to_database, to_table])
Sinking = Callable[[Stream, str], None]


@SINKS
def test_two_sinks_of_one_flow_with_one_target_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: Sinking
) -> None:
    monkeypatch.chdir(tmp_path)
    flow = Flow("twice")
    stream = flow.generate(numbers, rows=1000, name="numbers")
    sink(stream, str(tmp_path / "out"))
    sink(stream, "./out")
    with pytest.raises(SinkError, match=r"sinks '\w+' and '\w+' both write to .*out"):
        run_local(flow)


def test_two_writers_may_share_a_table_of_a_database(tmp_path: Path) -> None:
    flow = Flow("twice")
    stream = flow.generate(numbers, rows=100, name="numbers")
    url = f"sqlite:///{tmp_path}/out.db"
    stream.database(url, "numbers", writer="one")
    stream.database(url, "numbers", writer="two")
    run_local(flow)
    with sqlite3.connect(tmp_path / "out.db") as database:
        assert database.execute("SELECT count(*) FROM numbers").fetchone() == (200,)


def endless(name: str, sink: Sinking, path: Path, store: Path | None = None) -> LocalQuery:
    flow = Flow(name)
    sink(flow.generate(numbers, rate=1000, name="numbers"), str(path))
    options: dict[str, Any] = {} if store is None else {"checkpointLocation": str(store)}
    return start_local(flow, hosts=1, epochInterval="10 ms", **options)


@pytest.mark.parametrize("sink", [to_parquet, to_table])
def test_a_second_flow_is_told_who_writes_to_a_folder(tmp_path: Path, sink: Sinking) -> None:
    first = endless("first", sink, tmp_path / "out", tmp_path / "store-1")
    try:
        with pytest.raises(SinkError, match=rf"another run: flow 'first' \(process {os.getpid()} "):
            endless("second", sink, tmp_path / "out", tmp_path / "store-2")
    finally:
        first.stop()
    assert first.exception() is None


def test_a_flow_is_told_who_took_its_table_of_a_database(tmp_path: Path) -> None:
    flow = Flow("first")
    pushed = flow.memory(SCHEMA, name="pushed")
    to_database(pushed, str(tmp_path / "out"))
    first = start_local(flow, hosts=1, epochInterval="10 ms")
    second = endless("second", to_database, tmp_path / "out", tmp_path / "store")
    try:
        pushed.push([{"n": 1}])
        with pytest.raises(PenstockError, match=r"another run: flow 'second' \(process"):
            first.awaitTermination(WAIT_S)
    finally:
        first.stop()
        second.stop()
    assert second.exception() is None


def write(path: Path, *values: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"n": n}) + "\n" for n in values))


def copying(tmp_path: Path, source: str, target: str, **options: Any) -> list[int]:
    flow = Flow("copying")
    read = flow.files(str(tmp_path / source), format="json", schema=SCHEMA, name="in")
    read.parquet(str(tmp_path / target), name="out")
    run_local(flow, hosts=1, checkpointLocation=str(tmp_path / "store"), **options)
    parts = sorted((tmp_path / target).glob("epoch=*/*.parquet"))
    return [n for part in parts for n in pq.read_table(part, partitioning=None)["n"].to_pylist()]


def test_a_changed_source_is_refused_unless_it_was_moved(tmp_path: Path) -> None:
    write(tmp_path / "a" / "1.json", 1)
    write(tmp_path / "b" / "1.json", 2)
    assert copying(tmp_path, "a", "out") == [1]
    with pytest.raises(SettingsError, match=r"'in' was at .*/a, now at .*/b\..*acceptTargets"):
        copying(tmp_path, "b", "out")
    shutil.rmtree(tmp_path / "b")
    (tmp_path / "a").rename(tmp_path / "b")
    write(tmp_path / "b" / "2.json", 3)
    assert copying(tmp_path, "b", "out", acceptTargets=["in"]) == [1, 3]
    write(tmp_path / "b" / "3.json", 4)
    assert copying(tmp_path, "b/", "out") == [1, 3, 4]


def test_a_changed_sink_is_refused_unless_it_was_moved(tmp_path: Path) -> None:
    write(tmp_path / "in" / "1.json", 1)
    assert copying(tmp_path, "in", "out") == [1]
    with pytest.raises(SettingsError, match=r"was at .*/out, now at .*/other"):
        copying(tmp_path, "in", "other")
    (tmp_path / "out").rename(tmp_path / "moved")
    write(tmp_path / "in" / "2.json", 2)
    assert copying(tmp_path, "in", "moved", acceptTargets=["out"]) == [1, 2]
    with pytest.raises(SettingsError, match="there is no stage 'nobody'"):
        copying(tmp_path, "in", "moved", acceptTargets=["nobody"])


def test_a_deleted_output_folder_is_noticed_at_the_next_start(tmp_path: Path) -> None:
    write(tmp_path / "in" / "1.json", 1)
    copying(tmp_path, "in", "out")
    shutil.rmtree(tmp_path / "out")
    write(tmp_path / "in" / "2.json", 2)
    for _ in range(2):  # a start that is refused changes nothing
        with pytest.raises(SinkError, match=r"/out was deleted, emptied or replaced.*epochs up to"):
            copying(tmp_path, "in", "out")
    assert copying(tmp_path, "in", "out", acceptTargets=["out"]) == [2]


def test_a_folder_that_another_flow_has_used_since_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "in" / "1.json", 1)
    copying(tmp_path, "in", "out")
    shutil.rmtree(tmp_path / "out")
    flow = Flow("other")
    flow.generate(numbers, rows=10, name="numbers").parquet(str(tmp_path / "out"))
    run_local(flow, hosts=1)
    with pytest.raises(SinkError, match="holds epochs of another flow by now: flow 'other'"):
        copying(tmp_path, "in", "out", acceptTargets=["out"])


def test_an_output_folder_that_is_replaced_meanwhile_ends_the_flow(tmp_path: Path) -> None:
    out = tmp_path / "out"
    query = endless("writing", to_parquet, out)
    try:
        deadline = time.monotonic() + WAIT_S
        while not list(out.glob("epoch=*")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        out.rename(tmp_path / "away")
        out.mkdir()
        with pytest.raises(PenstockError, match=r"/out was deleted or replaced while the flow"):
            query.awaitTermination(WAIT_S)
    finally:
        query.stop()
