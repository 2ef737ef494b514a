"""Which rows are late, and where they go: through restarts, with idle streams and ended ones."""

import errno
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Flow, Stream
from penstock.api import functions as F
from penstock.connectors.file_format import FileFormat
from penstock.errors import SettingsError
from penstock.testing.held_input import hold_input
from penstock.testing.local import LocalQuery, run_local, start_local

WAIT_S = 60.0
TIME = pa.timestamp("us")
SCHEMA = pa.schema({"t": TIME})
TIMED = pa.schema({"k": pa.int64(), "t": TIME})


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(0.002)


def stopped(query: LocalQuery) -> None:
    query.stop()
    assert query.awaitTermination(WAIT_S)


@pytest.fixture
def queries() -> Iterator[list[LocalQuery]]:
    """Queries to stop, whatever happens."""
    running: list[LocalQuery] = []
    yield running
    for query in running:
        query.stop()


def seconds(*values: float | None) -> pa.Array:
    return pa.array([None if v is None else int(v * 1e6) for v in values], TIME)


def counters(query: LocalQuery) -> dict[str, int]:
    assert query.lastProgress is not None
    return {k: v for stage in query.lastProgress.stages for k, v in stage["counters"].items()}


def read(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("epoch=*/*.parquet"))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


# -- idle streams ----------------------------------------------------------------------------------

ROWS = 2400
PER_EPOCH = 20
"""Rows that a stream makes in an epoch of 10 ms."""


class Made:
    """A function of rows, a second of event time each, that can be held up before new ones."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.rows = 0

    def __call__(self, offset: int, n: int) -> pa.RecordBatch:
        if offset + n > self.rows:
            self.go.wait(WAIT_S)
        self.rows = max(self.rows, offset + n)
        return pa.record_batch({"t": seconds(*range(offset, offset + n))})


def test_a_shard_that_restarts_left_behind_is_not_idle(
    tmp_path: Path, queries: list[LocalQuery]
) -> None:
    fast, slow = Made(), Made()

    def run(drain: str = "20 seconds", share: float = 1.0) -> LocalQuery:
        flow = Flow("behind")
        streams = [
            flow.generate(
                make, rate=100 * PER_EPOCH, rows=ROWS, shards=1, schema=SCHEMA, name=name
            ).withWatermark("t", "10 seconds")
            for name, make in (("fast", fast), ("slow", slow))
        ]
        counted = streams[0].union(streams[1]).groupBy(F.window("t", "100 seconds")).count()
        counted.parquet(str(tmp_path / "windows"), name="windows")
        counted.late().parquet(str(tmp_path / "late"), name="late_out")
        hold_input(flow, share)
        query = start_local(
            flow,
            hosts=3,
            epochInterval="10 ms",
            drainTimeout=drain,
            checkpointLocation=str(tmp_path / "store"),
        )
        queries.append(query)
        return query

    first = run(share=0.1)
    wait_for(lambda: min(fast.rows, slow.rows) > 2 * PER_EPOCH, "rows of both")
    stopped(first)
    slow.go.clear()
    # More epochs than a shard may be without rows before it is idle.
    far = fast.rows + 70 * PER_EPOCH
    second = run(drain="100 ms")
    wait_for(lambda: fast.rows > far, "rows of the fast one alone")
    stopped(second)
    slow.go.set()
    assert run().awaitTermination(WAIT_S)
    assert read(tmp_path / "late") == []
    assert [row["count"] for row in read(tmp_path / "windows")] == [200] * (ROWS // 100)


def counted_beside(flow: Flow, slow: Stream, folder: Path) -> None:
    """Windows over a slow stream and a fast one whose event times are far ahead of it."""
    fast = flow.generate(Made(), rate=2000, shards=1, schema=SCHEMA, name="fast")
    marked = [stream.withWatermark("t", "10 seconds") for stream in (slow, fast)]
    counted = marked[0].union(marked[1]).groupBy(F.window("t", "100 seconds")).count()
    counted.parquet(str(folder / "windows"), name="windows")
    counted.late().parquet(str(folder / "late"), name="late_out")


def test_a_file_that_is_tried_again_does_not_make_its_shard_idle(
    tmp_path: Path, queries: list[LocalQuery], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, failures, read_at = FileFormat.batches, [], []

    def fails(self: FileFormat, *arguments: Any) -> Any:
        if len(failures) < 4:
            failures.append(True)
            raise OSError(errno.EIO, "I/O error")
        read_at.append(time.monotonic())
        return plain(self, *arguments)

    monkeypatch.setattr(FileFormat, "batches", fails)  # 1.5 s, or 75 epochs
    rows = pa.table({"t": seconds(*range(500))})
    (tmp_path / "in").mkdir()
    lines = (f'{{"t": "{t:%Y-%m-%dT%H:%M:%S}"}}\n' for t in rows["t"].to_pylist())
    (tmp_path / "in" / "a.json").write_text("".join(lines))
    flow = Flow("retried")
    slow = flow.files(str(tmp_path / "in"), format="json", schema=SCHEMA, shards=1, name="slow")
    counted_beside(flow, slow, tmp_path)
    query = start_local(
        flow,
        epochInterval="20 ms",
        drainTimeout="20 seconds",
        checkpointLocation=str(tmp_path / "store"),
    )
    queries.append(query)
    wait_for(lambda: bool(read_at) and time.monotonic() > read_at[0] + 0.3, "the file's rows")
    stopped(query)
    assert read(tmp_path / "late") == []


def test_a_generator_between_two_rows_is_not_idle(
    tmp_path: Path, queries: list[LocalQuery]
) -> None:
    slow = Made()

    def run() -> LocalQuery:
        flow = Flow("slow")
        made = flow.generate(slow, rate=2, shards=1, schema=SCHEMA, name="slow")
        counted_beside(flow, made, tmp_path)
        query = start_local(
            flow,
            epochInterval="5 ms",
            drainTimeout="20 seconds",
            checkpointLocation=str(tmp_path / "store"),
        )
        queries.append(query)
        return query

    for rows in (3, 5):  # a restart decides the same
        query = run()
        wait_for(lambda rows=rows: slow.rows >= rows, "rows of the slow one")  # type: ignore[misc]
        stopped(query)
    assert read(tmp_path / "late") == []


def test_a_shard_that_has_looked_and_found_nothing_is_idle(queries: list[LocalQuery]) -> None:
    flow = Flow()
    empty = flow.memory(SCHEMA, name="empty")
    windows, _ = union_of(empty, flow.generate(Made(), rate=2000, shards=1, schema=SCHEMA))
    queries.append(start_local(flow, epochInterval="10 ms"))
    wait_for(lambda: bool(windows.toPylist()), "windows that do not wait")


def union_of(*streams: Stream) -> tuple[Any, Any]:
    """Windows of several marked streams, and their late rows."""
    marked = [stream.withWatermark("t", 0, idleEpochs=2) for stream in streams]
    counted = marked[0].union(*marked[1:]).groupBy(F.window("t", "1 second")).count()
    return counted.memory(name="windows"), counted.late().memory(name="late_out")


def has_ended(query: LocalQuery, source: str) -> bool:
    stages = [] if query.lastProgress is None else query.lastProgress.stages
    return any(stage["ended"] for stage in stages if stage["name"] == source)


def test_the_end_of_one_stream_does_not_make_an_idle_one_late(queries: list[LocalQuery]) -> None:
    flow = Flow()
    idle = flow.memory(SCHEMA, name="idle")
    ending = flow.generate(Made(), rows=3, shards=1, name="ending")
    windows, late = union_of(idle, ending)
    query = start_local(flow, epochInterval="10 ms")
    queries.append(query)
    wait_for(lambda: has_ended(query, "ending"), "the end of the other one")
    idle.push({"t": seconds(50.1, 50.2)})
    query.processAllAvailable(WAIT_S)
    idle.push({"t": seconds(60)})
    wait_for(lambda: len(windows.toPylist()) == 4, "all windows but the last")
    assert sorted(row["count"] for row in windows.toPylist()) == [1, 1, 1, 2]
    assert late.toPylist() == []


def test_a_stop_while_another_stream_has_ended_sends_no_open_windows(
    queries: list[LocalQuery],
) -> None:
    flow = Flow()
    pushed = flow.memory(SCHEMA, name="pushed")
    ending = flow.generate(Made(), rows=3, shards=1, name="ending")
    windows, _ = union_of(pushed, ending)
    query = start_local(flow, epochInterval="10 ms", drainTimeout="20 seconds")
    queries.append(query)
    pushed.push({"t": seconds(0.5, 1.5)})
    wait_for(lambda: len(windows.toPylist()) == 1, "the first window")
    stopped(query)
    assert [row["count"] for row in windows.toPylist()] == [2]


# -- where late rows go ----------------------------------------------------------------------------


def pushed_in_turn(flow: Flow, *steps: tuple[Any, dict[str, Any]]) -> LocalQuery:
    """Push rows, each step in an epoch of its own, and stop."""
    query = start_local(flow, epochInterval="10 ms", drainTimeout="20 seconds")
    try:
        for stream, rows in steps:
            stream.push(rows)
            query.processAllAvailable(WAIT_S)
        stopped(query)
    finally:
        query.stop()
    return query


@pytest.mark.parametrize(
    "window", [F.window("t", "1 second"), F.session_window("t", "1 second")], ids=["pane", "gap"]
)
def test_rows_without_an_event_time_are_counted_and_go_to_late(window: Any) -> None:
    flow = Flow()
    rows = flow.memory(TIMED)
    counted = rows.withWatermark("t", 0).groupBy(window, "k").count().name("counted")
    windows, late = counted.memory(name="windows"), counted.late().memory(name="late_out")
    rows.push({"k": [1, 2, 3], "t": seconds(0.5, None, None)})
    query = run_local(flow)
    assert [(row["k"], row["count"]) for row in windows.toPylist()] == [(1, 1)]
    assert sorted((row["k"], row["t"]) for row in late.toPylist()) == [(2, None), (3, None)]
    assert counters(query) == {"counted.rows_without_time": 2}


def test_late_rows_of_a_join_are_counted_and_go_to_late() -> None:
    flow = Flow()
    left, right = (flow.memory(TIMED, name=name) for name in ("left", "right"))
    sides = left.withWatermark("t", 0), right.withWatermark("t", 0).select("k", "t AS u")
    joined = sides[0].join(sides[1], "k", within="2 seconds", time=("t", "u")).name("joined")
    pairs = joined.memory(name="pairs")
    late = [joined.late(side).memory(name=f"late_{side}") for side in ("left", "right")]
    query = pushed_in_turn(
        flow,
        (left, {"k": [1, 2], "t": seconds(10, None)}),
        (right, {"k": [1], "t": seconds(10)}),
        (left, {"k": [1, 1, 1], "t": seconds(7, 9, 11)}),
        (right, {"k": [1], "t": seconds(1)}),
    )
    assert sorted((row["t"].second, row["u"].second) for row in pairs.toPylist()) == [
        (9, 10),
        (10, 10),
        (11, 10),
    ]
    assert [(row["k"], row["t"] and row["t"].second) for row in late[0].toPylist()] == [
        (2, None),
        (1, 7),
    ]
    assert [(row["k"], row["u"].second) for row in late[1].toPylist()] == [(1, 1)]
    counted = counters(query)
    assert counted["joined.rows_late"] == 2
    assert counted["joined.rows_without_time"] == 1
    assert counted["joined.rows_behind"] == 1


def test_late_rows_of_drop_duplicates_are_counted_and_go_to_late() -> None:
    flow = Flow()
    rows = flow.memory(TIMED)
    once = rows.withWatermark("t", 0).dropDuplicates(["k"], within="2 seconds").name("once")
    kept, late = once.memory(name="kept"), once.late().memory(name="late_out")
    query = pushed_in_turn(
        flow,
        (rows, {"k": [1, 2], "t": seconds(10, None)}),
        (rows, {"k": [3, 4], "t": seconds(9, 10)}),
    )
    assert sorted(row["k"] for row in kept.toPylist()) == [1, 4]
    assert sorted(row["k"] for row in late.toPylist()) == [2, 3]
    assert counters(query) == {"once.rows_late": 1, "once.rows_without_time": 1}


def test_late_is_refused_where_no_row_can_be() -> None:
    rows = Flow().memory(TIMED)
    with pytest.raises(SettingsError, match="no row is too late for stage"):
        rows.dropDuplicates(["k"]).late()
    marked = rows.withWatermark("t", 0)
    joined = marked.join(marked.select("k", "t AS u"), "k", within="1 s", time=("t", "u"))
    with pytest.raises(SettingsError, match="a 'left' and a 'right' side, got 'both'"):
        joined.late("both")
