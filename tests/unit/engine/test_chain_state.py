"""States of chains: what is taken, what is refused, and the watermarks that go with them."""

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Flow
from penstock.api import functions as F
from penstock.api.vertex import Vertex
from penstock.connectors.parquet import ParquetCommit
from penstock.core.progress.marks import WATERMARK_END
from penstock.core.time import Time
from penstock.engine.host.chain import ChainRunner
from penstock.engine.host.chain_state import HISTORY, ChainState, Watermarks
from penstock.errors import FunctionError
from penstock.operators.combine import CombineVertex
from penstock.operators.grown import table_of
from penstock.planning.physical import physical_plan

SCHEMA = pa.schema({"n": pa.int64()})


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": list(numbers)}, schema=SCHEMA)


class Bench:
    """One chain of a flow, by position; the sink's is the last."""

    def __init__(self, build: Any, position: int = -2) -> None:
        flow = Flow()
        build(flow.generate(lambda offset, n: rows(*range(n)), rows=1)).memory()
        self.plan = physical_plan(flow, 1)
        self.chain = self.plan.chains[position]
        self.sent: list[tuple[int, list[int]]] = []
        self.runner = self.new()

    def new(self) -> ChainRunner:
        runner = ChainRunner(self.plan, self.chain, self.chain.first_node, self._produce)
        runner.keep_pending = runner.repeatable = True
        return runner

    def _produce(self, link: int, parts: Any, time: Time) -> None:
        self.sent += [(time.epoch, batch.column(0).to_pylist()) for _, batch, _ in parts]

    def deliver(self, epoch: int, *numbers: int) -> None:
        self.runner.deliver(0, rows(*numbers), Time.root(epoch))

    def restart(self, completed: int) -> ChainState:
        state = self.runner.snapshot()
        self.runner = self.new()
        self.runner.restore(state, completed)
        return state


def test_batches_of_open_epochs_are_kept_until_they_are_complete() -> None:
    bench = Bench(lambda s: s.dropDuplicates(["n"]))
    bench.runner.open()
    bench.deliver(0, 1)
    bench.deliver(2, 2)
    bench.deliver(1, 3)
    assert [time.epoch for _, time, _ in bench.runner.snapshot().pending] == [0, 1, 2]
    bench.runner.complete(1, None)
    (pending,) = bench.restart(1).pending
    assert pending[1:] == (Time.root(2), rows(2))
    assert bench.runner.snapshot().pending == (pending,)
    bench.runner.complete(2, None)
    assert bench.sent == [(0, [1]), (1, [3]), (2, [2])]


def test_without_snapshots_nothing_is_kept() -> None:
    bench = Bench(lambda s: s.dropDuplicates(["n"]))
    bench.runner.keep_pending = False
    bench.runner.open()
    bench.deliver(0, 1)
    assert bench.runner.snapshot().pending == ()


def test_a_writer_makes_its_open_file_again(tmp_path: Path) -> None:
    flow = Flow()
    flow.generate(lambda offset, n: rows(*range(n)), rows=1).parquet(tmp_path)
    ParquetCommit(tmp_path).prepare()
    plan = physical_plan(flow, 1)
    (chain,) = [chain for chain in plan.chains if chain.name == "parquet"]
    manifests: list[Any] = []

    def runner() -> ChainRunner:
        made = ChainRunner(plan, chain, chain.first_node, lambda *sent: manifests.append(sent))
        made.keep_pending = True
        return made

    first, second = runner(), runner()
    first.open()
    first.deliver(0, rows(1), Time.root(0))
    first.deliver(0, rows(2), Time.root(1))
    first.complete(0, None)
    second.restore(first.snapshot(), 0)
    second.deliver(0, rows(3), Time.root(1))
    second.complete(1, None)
    files = {path.parent.name: pq.read_table(path) for path in tmp_path.rglob("*/epoch=*/*")}
    assert {name: table["n"].to_pylist() for name, table in files.items()} == {
        "epoch=0": [1],
        "epoch=1": [2, 3],
    }
    assert [time.epoch for _, _, time in manifests] == [0, 1]


class Total(Vertex):
    """Sends the total so far; has a function, and asks for the epoch after each batch."""

    def __init__(self) -> None:
        self.total = 0
        self.told: list[int] = []

    def open(self, context: Any) -> None:
        super().open(context)
        self.double = lambda n: 2 * n

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.total += sum(batch.column("n").to_pylist())
        self.notifyAt(time.next_epoch())
        self.sendBy(0, rows(self.double(self.total)), time)

    def onNotify(self, time: Time) -> None:
        self.told.append(time.epoch)
        self.sendBy(0, rows(*self.told), time)


def test_a_vertex_is_kept_as_it_is_with_what_it_asked_for() -> None:
    bench = Bench(lambda s: s.process(Total, SCHEMA))
    bench.runner.open()
    bench.deliver(0, 1, 2)
    state = bench.restart(-1)
    assert state.pending == ()
    bench.deliver(0, 4)
    bench.runner.complete(1, None)
    assert bench.sent == [(0, [6]), (0, [14]), (1, [1])]


def test_what_is_taken_does_not_change_any_more() -> None:
    bench = Bench(lambda s: s.process(Total, SCHEMA))
    bench.runner.open()
    state = bench.runner.snapshot()
    bench.deliver(0, 5)
    bench.runner.complete(1, None)
    other = bench.new()
    other.restore(state, -1)
    (vertex,) = other.vertices
    assert isinstance(vertex, Total)
    assert (vertex.total, vertex.told) == (0, [])


def timed(stream: Any) -> Any:
    return stream.withColumn("t", "CAST(n AS TIMESTAMP)").withWatermark("t", 1)


LARGE: dict[str, Any] = {
    "aggregate": lambda s: s.groupBy("n").agg(F.count("*"), F.sum("n")),
    "distinct": lambda s: s.dropDuplicates(["n"]),
    "window": lambda s: timed(s).groupBy(F.window("t", 10**6), "n").agg(F.count("*")),
    "join": lambda s: timed(s).join(
        timed(s).select("n", "t AS u"), "n", "left", within=10**6, time=("t", "u")
    ),
}


@pytest.mark.parametrize("family", LARGE)
def test_taking_a_large_state_copies_nothing(family: str) -> None:
    bench, feed = Bench(LARGE[family]), Bench(LARGE[family], position=0)
    feed.runner.produce = lambda link, parts, time: [
        bench.runner.deliver(0, batch, time) for _, batch, _ in parts
    ]
    bench.runner.open()
    feed.runner.open()
    for epoch in range(3):
        numbers = pa.array(range(epoch * 30_000, (epoch + 1) * 30_000), pa.int64())
        if family == "join":
            for port, name in enumerate("tu"):
                columns = {"n": numbers, name: numbers.cast(pa.timestamp("us"))}
                bench.runner.deliver(port, pa.record_batch(columns), Time.root(epoch))
        else:
            feed.runner.emit(pa.record_batch({"n": numbers}), Time.root(epoch))
        bench.runner.complete(epoch, None)
    before = pa.total_allocated_bytes()
    state = bench.runner.snapshot()
    assert pa.total_allocated_bytes() - before < 100_000
    tables = [table for stage in state.stages for table in stage.tables]
    assert sum(table_of(table).nbytes for table in tables) > 500_000


def test_an_object_that_cannot_be_kept_is_named_when_the_state_is_taken() -> None:
    class Holds(Vertex):
        def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
            self.by_key = {"a": [1, threading.Lock()]}

    bench = Bench(lambda s: s.process(Holds, SCHEMA).name("mine"))
    bench.runner.open()
    bench.runner.snapshot()
    bench.deliver(3, 1)
    with pytest.raises(
        FunctionError, match=r"by_key\['a'\]\[1\] is of type _thread.lock"
    ) as raised:
        bench.runner.snapshot()
    assert "override snapshot() and restore()" in raised.value.message
    assert raised.value.parameters["stage"] == "mine"


def test_a_function_that_was_replaced_is_refused() -> None:
    class Learns(Vertex):
        def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
            self.model = lambda n: n

    bench = Bench(lambda s: s.process(Learns, SCHEMA))
    bench.runner.open()
    bench.deliver(0, 1)
    with pytest.raises(FunctionError, match="model is of type builtins.function"):
        bench.runner.snapshot()


def test_a_repeatable_chain_does_not_gather() -> None:
    bench = Bench(lambda s: s.groupBy("n").agg(F.count("*")), position=0)
    bench.runner.open()
    bench.runner.emit(rows(1, 2), Time.root(0))
    bench.runner.emit(rows(1), Time.root(0))
    assert [sorted(values) for _, values in bench.sent] == [[1, 2], [1]]
    assert any(isinstance(vertex, CombineVertex) for vertex in bench.runner.vertices)
    assert not bench.runner.asked


def test_a_muted_chain_works_but_sends_nothing() -> None:
    bench = Bench(lambda s: s.withWatermark("n", 0).filter("n > 1"), position=0)
    bench.runner.open()
    with bench.runner.muted():
        bench.runner.emit(rows(5, 6), Time.root(0))
    assert bench.sent == []
    assert bench.runner.seen_us() == 6
    bench.runner.emit(rows(7), Time.root(0))
    assert bench.sent == [(0, [7])]


def test_watermarks_are_restated_without_notifying_anybody() -> None:
    bench = Bench(lambda s: s.process(Total, SCHEMA).withWatermark("n", 0.00001))
    bench.runner.open()
    bench.deliver(0, 50)
    (link,) = bench.runner.complete(0, 7)
    again = bench.new()
    again.restore(bench.runner.snapshot(), 0)
    assert again.restate(0, 7) == {link: 90}
    assert again.watermark_us == 90
    assert again.asked
    assert bench.sent == [(0, [100])]
    assert bench.runner.restate(1, WATERMARK_END) == {link: WATERMARK_END}


def test_what_watermark_stages_know_is_json() -> None:
    bench = Bench(lambda s: s.withWatermark("n", 0), position=0)
    bench.runner.open()
    bench.runner.emit(rows(5), Time.root(0))
    bench.runner.complete(0, None)
    bench.runner.emit(rows(9), Time.root(2))
    state = bench.runner.watermark_state()
    assert state == [[0, 9, 5, [[2, 9]], 0]]
    other = bench.new()
    other.open()
    other.restore_watermarks(state)
    assert list(other.restate(1, None).values()) == [5]
    assert list(other.complete(2, None).values()) == [9]
    assert other.seen_us() == 9


def test_watermarks_of_old_epochs_are_forgotten_and_a_repeated_one_replaces() -> None:
    marks = Watermarks()
    for epoch in range(3 * HISTORY):
        marks.append(epoch, epoch)
    assert len(marks.entries()) == HISTORY
    assert marks.at(3 * HISTORY - 5) == 3 * HISTORY - 5
    assert marks.at(0) is None
    marks.append(3 * HISTORY - 2, None)
    assert marks.last is None
    assert marks.entries(2) == ((3 * HISTORY - 3, 3 * HISTORY - 3), (3 * HISTORY - 2, None))
