"""Flows with several loops are recovered like flows with one: each loop restarts by itself."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Flow
from penstock.api import functions as F
from penstock.api.flow import Stream
from penstock.library.graphs import connected_components
from penstock.testing.kills import run_killing
from penstock.testing.local import LocalQuery, start_local

ROWS = 6_000
WAIT_S = 60.0


def tree(offset: int, n: int) -> pa.RecordBatch:
    """Edges that hang every number below its tenth: all are in the component of 0."""
    children = pa.array(range(offset, offset + n), pa.int64())
    parents = pa.array([child // 10 for child in range(offset, offset + n)], pa.int64())
    return pa.record_batch({"a": children, "b": parents})


def edges(flow: Flow) -> Stream:
    return flow.generate(tree, rate=3_000, rows=ROWS, shards=2, name="edges")


def side_by_side(flow: Flow, publish: Callable[[Stream, str], object]) -> None:
    rows = edges(flow)
    publish(connected_components(rows, name="one"), "first")
    publish(connected_components(rows, name="two"), "second")


def one_after_the_other(flow: Flow, publish: Callable[[Stream, str], object]) -> None:
    found = connected_components(edges(flow), name="one")
    publish(found, "first")
    moved = found.keyBy("component").filter("vertex >= 0").name("between")
    publish(connected_components(moved, name="two"), "second")


def directly_and_by_a_detour(flow: Flow, publish: Callable[[Stream, str], object]) -> None:
    found = connected_components(edges(flow), name="one")
    publish(found, "first")
    odd = found.keyBy("component").filter("vertex % 2 = 1").name("between")
    even = found.filter("vertex % 2 = 0")
    publish(connected_components(odd.union(even, found), name="two"), "second")


SHAPES = [side_by_side, one_after_the_other, directly_and_by_a_detour]
by_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)


def components(rows: Iterable[dict[str, int]]) -> dict[int, int]:
    """The last component of each vertex: it only ever goes down."""
    least: dict[int, int] = {}
    for row in rows:
        found = least.get(row["vertex"], row["component"])
        least[row["vertex"]] = min(found, row["component"])
    return least


def published(folder: Path) -> list[Path]:
    return sorted(folder.glob("epoch=*/*.parquet"))


def await_files(query: LocalQuery, folder: Path, files: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(published(folder)) < files and query.isActive:
        assert time.monotonic() < deadline, query.status
        time.sleep(0.02)


@by_shape
def test_a_driver_started_again_has_the_state_of_every_loop(
    shape: Callable[..., None], tmp_path: Path
) -> None:
    def start() -> LocalQuery:
        flow = Flow("loops")
        shape(flow, lambda rows, name: rows.parquet(str(tmp_path / name), name=name))
        store = str(tmp_path / "store")
        return start_local(flow, checkpointLocation=store, checkpointInterval="200 ms")

    for files in (4, 10):
        query = start()
        try:
            await_files(query, tmp_path / "second", files)
        finally:
            query.stop()
        assert query.exception() is None
    query = start()
    query.finish(WAIT_S)
    for sink in ("first", "second"):
        rows = [r for file in published(tmp_path / sink) for r in pq.read_table(file).to_pylist()]
        assert components(rows) == dict.fromkeys(range(ROWS), 0)


@by_shape
def test_a_lost_host_takes_no_state_of_a_loop_with_it(shape: Callable[..., None]) -> None:
    flow = Flow("loops")
    sinks = []
    shape(flow, lambda rows, name: sinks.append(rows.memory(name=name)))
    run_killing(flow, ["two[0]", "one[1]", "two[2]"], timeout=WAIT_S, reinstate=False)
    for sink in sinks:
        assert components(sink.toPylist()) == dict.fromkeys(range(ROWS), 0)


def test_running_counts_in_a_loop_survive_the_loss_of_their_hosts() -> None:
    def body(stream: Stream) -> tuple[Stream, Stream]:
        up = stream.filter("b > 0").select("b AS a", "cast(floor(b / 10) as bigint) AS b")
        return up.keyBy("a"), up.groupBy("a").agg(F.count("*").alias("rows")).name("counts")

    flow = Flow("counted")
    out = edges(flow).iterate(body).memory()
    run_killing(flow, ["counts[0]", "counts[1]"], timeout=WAIT_S, reinstate=False)
    wanted: Counter[int] = Counter()
    for n in range(ROWS):
        while n := n // 10:
            wanted[n] += 1
    found: Counter[int] = Counter()
    for row in out.toPylist():
        found[row["a"]] = max(found[row["a"]], row["rows"])
    assert found == wanted
