"""Loops over streams, on real channels but without Spark: hosts are threads of this process."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Flow, Stream, Time, Vertex
from penstock.api import functions as F
from penstock.core.node.blocks import Blocks
from penstock.core.node.messages import Deliver
from penstock.engine.store.durable import CheckpointWriter
from penstock.errors import FunctionError, GraphError, PeerError, SettingsError, TransientError
from penstock.testing.kills import await_recovery
from penstock.testing.local import run_local, start_local

NUMBERS = pa.schema({"n": pa.int64()})
TIMED = pa.schema({"n": pa.int64(), "t": pa.timestamp("us")})
HALF = "cast(floor(n / 2) as bigint)"
WAIT_S = 60.0


def numbers(flow: Flow, *epochs: list[int]) -> Stream:
    """A stream with the given numbers in its epochs."""
    stream = flow.memory(NUMBERS, manualEpochs=True)
    for rows in epochs:
        stream.push({"n": rows})
        stream.closeEpoch()
    stream.close()
    return stream


def by_epoch(sink: object) -> dict[int, Counter[int]]:
    epochs = sink.epochs()  # type: ignore[attr-defined]
    return {epoch: Counter(table["n"].to_pylist()) for epoch, table in epochs.items()}


def halves(start: list[int], iterations: int | None = None) -> Counter[int]:
    """What leaves a loop that halves numbers above 1."""
    left: Counter[int] = Counter()
    current, done = start, 0
    while current and (iterations is None or done < iterations):
        current = [n // 2 for n in current if n > 1]
        left.update(current)
        done += 1
    return left


def halve(stream: Stream) -> Stream:
    return stream.keyBy("n").filter("n > 1").withColumn("n", HALF)


def test_iterate_ends_when_nothing_circulates_any_more() -> None:
    flow = Flow("halving")
    epochs = [list(range(300)), [1], list(range(77, 500))]
    out = numbers(flow, *epochs).iterate(halve).memory()
    run_local(flow)
    wanted = {epoch: halves(rows) for epoch, rows in enumerate(epochs)}
    assert by_epoch(out) == {epoch: rows for epoch, rows in wanted.items() if rows}


@pytest.mark.parametrize("bound", [1, 2, 5])
def test_a_bound_ends_what_would_go_on(bound: int) -> None:
    flow = Flow("bounded")
    rows = list(range(100))
    out = numbers(flow, rows).iterate(halve, maxIterations=bound).memory()
    run_local(flow)
    assert by_epoch(out) == {0: halves(rows, bound)}


def test_a_bound_ends_an_endless_body() -> None:
    flow = Flow("endless")
    out = numbers(flow, [7]).iterate(lambda s: s.keyBy("n"), maxIterations=9).memory()
    run_local(flow)
    assert by_epoch(out) == {0: Counter({7: 9})}


def test_a_body_may_feed_back_one_stream_and_let_another_leave() -> None:
    flow = Flow("two")

    def body(stream: Stream) -> tuple[Stream, Stream]:
        lower = stream.keyBy("n").withColumn("n", "n - 1")
        return lower.filter("n > 0"), lower.filter("n = 0")

    out = numbers(flow, [3, 5, 8]).iterate(body).memory()
    run_local(flow)
    assert by_epoch(out) == {0: Counter({0: 3})}


def test_loops_nest() -> None:
    """The outer loop takes one off what the inner loop has halved to an odd number."""
    flow = Flow("nested")

    def outer(stream: Stream) -> tuple[Stream, Stream]:
        def inner(again: Stream) -> tuple[Stream, Stream]:
            kept = again.keyBy("n")
            return kept.filter("n % 2 = 0").withColumn("n", HALF), kept.filter("n % 2 = 1")

        odd = stream.iterate(inner, name="odd")
        return odd.filter("n > 1").withColumn("n", "n - 1"), odd

    epochs = [list(range(1, 60)), [1024, 1023]]
    out = numbers(flow, *epochs).iterate(outer, name="outer").memory()
    run_local(flow)

    def wanted(start: list[int]) -> Counter[int]:
        left: Counter[int] = Counter()
        for n in start:
            while True:
                while n % 2 == 0:
                    n //= 2
                left[n] += 1
                if n <= 1:
                    break
                n -= 1
        return left

    assert by_epoch(out) == {epoch: wanted(rows) for epoch, rows in enumerate(epochs)}


def test_several_streams_enter_and_leave() -> None:
    flow = Flow("several")
    loop = flow.loop("steps")
    around = loop.variable(NUMBERS)
    one = loop.enter(numbers(flow, [10, 3]))
    other = loop.enter(numbers(flow, [4]))
    lower = one.union(other, around).keyBy("n").withColumn("n", "n - 3")
    around.feed(lower.filter("n > 0"))
    evens = loop.leave(lower.filter("n % 2 = 0")).memory()
    odds = loop.leave(lower.filter("n % 2 <> 0")).memory()
    run_local(flow)
    steps = Counter([7, 4, 1, -2, 0, 1, -2])
    assert by_epoch(evens)[0] == Counter({n: c for n, c in steps.items() if n % 2 == 0})
    assert by_epoch(odds)[0] == Counter({n: c for n, c in steps.items() if n % 2})


def changed(counts: Counter[int], rows: list[int]) -> list[tuple[int, int]]:
    """What a running count sends when rows are added to it."""
    counts.update(rows)
    return [(n, counts[n]) for n in set(rows)]


SLOW_AND_QUICK = [[4096, 4095, 5000], [64, 8, 5000], [4, 2, 3], list(range(1, 40)), [7], [4096]]
"""The first epochs go round longest, and the others overtake them."""


def test_running_counts_in_a_loop_have_the_rows_of_no_later_epoch() -> None:
    flow = Flow("counted")

    def body(stream: Stream) -> tuple[Stream, Stream]:
        halved = halve(stream)
        return halved, halved.groupBy("n").agg(F.count("*").alias("rows"))

    out = numbers(flow, *SLOW_AND_QUICK).iterate(body).memory()
    run_local(flow)
    counts: Counter[int] = Counter()
    for epoch, rows in enumerate(SLOW_AND_QUICK):
        wanted: list[tuple[int, int]] = []
        while rows := [n // 2 for n in rows if n > 1]:
            wanted += changed(counts, rows)
        found = out.epochs()[epoch].to_pylist()
        assert sorted((row["n"], row["rows"]) for row in found) == sorted(wanted)


def test_a_row_that_is_distinct_in_a_loop_leaves_in_the_first_epoch_that_has_it() -> None:
    flow = Flow("distinct")

    def body(stream: Stream) -> tuple[Stream, Stream]:
        halved = halve(stream)
        return halved, halved.distinct()

    out = numbers(flow, *SLOW_AND_QUICK).iterate(body).memory()
    run_local(flow)
    seen: set[int] = set()
    wanted = {}
    for epoch, rows in enumerate(SLOW_AND_QUICK):
        wanted[epoch] = Counter(set(halves(rows)) - seen)
        seen |= set(wanted[epoch])
    assert by_epoch(out) == {epoch: rows for epoch, rows in wanted.items() if rows}


def test_running_counts_in_a_loop_of_a_loop_take_outer_iterations_in_order() -> None:
    flow = Flow("counted")
    outer = flow.loop("outer")
    inner = flow.loop("inner", parent=outer)
    outer_round, inner_round = outer.variable(NUMBERS), inner.variable(NUMBERS)
    began = outer.enter(numbers(flow, *SLOW_AND_QUICK)).union(outer_round)
    inside = inner.enter(began).union(inner_round).keyBy("n")
    inner_round.feed(inside.filter("n % 2 = 0").withColumn("n", HALF))
    counts = inside.groupBy("n").agg(F.count("*").alias("rows"))
    odd = inner.leave(inside.filter("n % 2 = 1"))
    outer_round.feed(odd.filter("n > 1").withColumn("n", "n - 1").keyBy("n"))
    out = outer.leave(inner.leave(counts)).memory()
    run_local(flow)
    totals: Counter[int] = Counter()
    for epoch, rows in enumerate(SLOW_AND_QUICK):
        wanted: list[tuple[int, int]] = []
        while rows:
            following = []
            while rows:
                wanted += changed(totals, rows)
                following += [n - 1 for n in rows if n % 2 and n > 1]
                rows = [n // 2 for n in rows if n % 2 == 0]
            rows = following
        found = out.epochs()[epoch].to_pylist()
        assert sorted((row["n"], row["rows"]) for row in found) == sorted(wanted)


class Order(Vertex):
    """Sends everything round once and remembers the order of notifications."""

    seen: list[Time] = []  # noqa: RUF012 - one process: shared on purpose

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.notifyAt(time)
        if time.counters[0] < 3:
            self.sendBy(0, batch, time)

    def onNotify(self, time: Time) -> None:
        self.seen.append(time)


def test_notifications_of_one_epoch_come_in_the_order_of_iterations() -> None:
    Order.seen = []
    flow = Flow("order")
    out = numbers(flow, [1], [2], [3]).iterate(
        lambda s: s.process(Order, NUMBERS, partitionBy=["n"], shards=1)
    )
    out.memory()
    run_local(flow)
    for epoch in range(3):
        assert [t for t in Order.seen if t.epoch == epoch] == [Time(epoch, (i,)) for i in range(4)]
    for place, seen in enumerate(Order.seen):
        assert not any(later.less_than(seen) for later in Order.seen[place + 1 :])


class Endless(Vertex):
    """Sends the number 0 round for ever; counts the iterations of each epoch."""

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.count(f"epoch_{time.epoch}", 1)
        values = batch.column(0).to_pylist()
        if 0 in values or time.counters[0] < 3:
            self.sendBy(0, batch, time)
        self.sendBy(1, batch, time)


def await_progress(query: object, said: Callable[[dict[str, object]], bool]) -> dict[str, object]:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        progress = query.lastProgress  # type: ignore[attr-defined]
        for stage in progress.stages if progress else ():
            if said(stage):
                return dict(stage)
        time.sleep(0.05)
    raise AssertionError(query.lastProgress)  # type: ignore[attr-defined]


def test_a_body_that_never_converges_lets_others_run_is_reported_and_can_be_stopped() -> None:
    flow = Flow("endless")
    stream = flow.memory(NUMBERS, manualEpochs=True)
    loop = flow.loop("for_ever")
    around = loop.variable(NUMBERS)
    again, left = flow.vertex(
        Endless,
        [loop.enter(stream), around],
        [NUMBERS, NUMBERS],
        partitionBy=[["n"], ["n"]],
        name="endless",
    )
    around.feed(again)
    out = loop.leave(left).memory()
    query = start_local(flow, progressInterval="100 ms", drainTimeout="300 ms")
    stream.push({"n": [5]})
    stream.closeEpoch()
    assert out.awaitEpoch(0, 30)
    stream.push({"n": [0]})  # epoch 1 never ends
    stream.closeEpoch()
    for n in (7, 8):
        stream.push({"n": [n]})
        stream.closeEpoch()
    done = {"endless.epoch_2": 4, "endless.epoch_3": 4}  # three times round each
    stage = await_progress(
        query,
        lambda s: s["name"] == "endless" and done.items() <= s["counters"].items(),  # type: ignore[attr-defined]
    )
    assert stage["name"] == "endless"
    counted = await_progress(query, lambda s: max(s["loopCounters"] or [0]) > 50)  # type: ignore[call-overload]
    assert counted["name"] == "endless"
    text = query.explain()
    assert "frontier (1, " in text
    query.stop()
    assert not query.isActive
    assert list(out.epochs()) == [0]


class IntoThePast(Vertex):
    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.sendBy(0, batch, time if time.counters[0] < 2 else Time(time.epoch, (0,)))


def test_a_vertex_that_sends_into_the_past_is_named() -> None:
    flow = Flow("bad")
    out = numbers(flow, [1]).iterate(
        lambda s: s.process(IntoThePast, NUMBERS, partitionBy=["n"]).name("time_machine")
    )
    out.memory()
    with pytest.raises(FunctionError, match="time_machine.*sent rows at Time"):
        run_local(flow)


class Asks(Vertex):
    """Asks for a notification without a capability and sends all the same."""

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.rows = batch
        self.notifyAt(time.converged(), capability=None)

    def onNotify(self, time: Time) -> None:
        self.sendBy(0, self.rows, time)


def test_a_notification_without_capability_may_not_send() -> None:
    flow = Flow("silent")
    out = numbers(flow, [1]).iterate(lambda s: s.process(Asks, NUMBERS).name("asks"))
    out.memory()
    with pytest.raises(FunctionError, match="'asks'"):
        run_local(flow)


class Turns(Vertex):
    """Holds every epoch back until the one before has converged; sends rows round four times."""

    order: list[Time] = []  # noqa: RUF012 - one process: shared on purpose

    def __init__(self) -> None:
        self.held: dict[Time, pa.RecordBatch] = {}

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        if time.counters[0]:
            self._go(batch, time)
        else:
            self.held[time] = batch
            before = Time(max(time.epoch - 1, 0), (0,))
            guarantee = before.converged() if time.epoch else time
            self.notifyAt(guarantee, capability=time)

    def onNotify(self, time: Time) -> None:
        now = time if not time.is_converged else Time(time.epoch + 1, (0,))
        self._go(self.held.pop(now), now)

    def _go(self, batch: pa.RecordBatch, time: Time) -> None:
        self.order.append(time)
        if time.counters[0] < 4:
            self.sendBy(0, batch, time)


def test_a_guarantee_earlier_than_the_capability_makes_epochs_take_turns() -> None:
    Turns.order = []
    flow = Flow("turns")
    out = numbers(flow, [1], [2], [3], [4]).iterate(
        lambda s: s.process(Turns, NUMBERS, partitionBy=["n"], shards=1)
    )
    out.memory()
    run_local(flow)
    assert Turns.order == [Time(epoch, (i,)) for epoch in range(4) for i in range(5)]


class WaitsForItself(Vertex):
    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.notifyAt(time.converged(), capability=time)


def test_a_notification_that_would_wait_for_itself_is_refused() -> None:
    flow = Flow("stuck")
    out = numbers(flow, [1]).iterate(lambda s: s.process(WaitsForItself, NUMBERS).name("stuck"))
    out.memory()
    with pytest.raises(FunctionError, match="'stuck'.*wait for itself"):
        run_local(flow)


# -- building ------------------------------------------------------------------------------------


def test_a_loop_without_feedback_is_refused() -> None:
    flow = Flow("open")
    loop = flow.loop()
    loop.leave(loop.enter(numbers(flow, [1])).union(loop.variable(NUMBERS))).memory()
    with pytest.raises(GraphError, match="feed"):
        run_local(flow)


def test_rows_that_wait_for_a_checkpoint_go_on_when_it_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a replay a node owes a checkpoint; while it is written nothing else may happen."""
    replays, waited, durable = threading.Event(), threading.Event(), threading.Event()
    write, let_in = CheckpointWriter._write, Blocks.let_in

    def write_late(writer: CheckpointWriter, job: Any) -> Any:
        if replays.is_set():
            durable.wait(WAIT_S)
        elif job.checkpoint.report.completed > 0:
            raise TransientError("this checkpoint is not to be had")
        return write(writer, job)

    def let_in_and_say(blocks: Blocks, rows: Deliver) -> bool:
        enters = let_in(blocks, rows)
        if not enters and rows.time.epoch >= 6:
            waited.set()
        return enters

    monkeypatch.setattr(CheckpointWriter, "_write", write_late)
    monkeypatch.setattr(Blocks, "let_in", let_in_and_say)
    flow = Flow("owed")
    source = flow.memory(NUMBERS, manualEpochs=True)
    out = source.iterate(halve, name="loop").memory()
    query = start_local(
        flow, checkpointLocation=str(tmp_path), checkpointInterval="100 ms", linger=0
    )
    try:
        for _ in range(4):
            source.push({"n": list(range(20))})
            source.closeEpoch()
        assert out.awaitEpoch(3, WAIT_S)
        replays.set()
        query.kill(next(node["name"] for node in query.nodes() if node["loop"]))
        source.closeEpoch()  # these the loop has not completed before
        source.closeEpoch()
        await_recovery(query, 1, WAIT_S)
        source.push({"n": list(range(20))})
        source.close()
        assert waited.wait(WAIT_S)
        durable.set()
        query.finish(WAIT_S)
    finally:
        durable.set()
        query.stop()
    assert by_epoch(out) == dict.fromkeys((0, 1, 2, 3, 6), halves(list(range(20))))


def test_a_checkpoint_that_fails_late_is_not_taken_for_one_of_the_next_incarnation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node restarts where it was while its old checkpoint, which the store refuses, waits."""
    begun, submitted, refused = threading.Event(), threading.Event(), threading.Event()
    stores: list[Any] = []
    name = ""
    write, submit = CheckpointWriter._write, CheckpointWriter.submit

    def write_late(writer: CheckpointWriter, job: Any) -> Any:
        if stores and job.store is stores[0]:
            begun.set()
            refused.wait(WAIT_S)
            raise PeerError("another incarnation has its place")
        return write(writer, job)

    def submit_and_say(writer: CheckpointWriter, store: Any, *rest: Any) -> None:
        if store.name == name:
            stores.append(store)
        submit(writer, store, *rest)
        if stores and store.name == name and store is not stores[0]:
            submitted.set()

    monkeypatch.setattr(CheckpointWriter, "_write", write_late)
    monkeypatch.setattr(CheckpointWriter, "submit", submit_and_say)
    flow = Flow("late")
    source = flow.memory(NUMBERS, manualEpochs=True)
    out = source.iterate(halve, name="loop").memory()
    query = start_local(flow, checkpointLocation=str(tmp_path), checkpointInterval="100 ms")
    try:
        places = {node["name"]: node["host"] for node in query.nodes() if node["loop"]}
        other = next(iter(places))
        name = next(node for node, host in places.items() if host != places[other])
        source.push({"n": list(range(20))})
        source.closeEpoch()
        assert begun.wait(WAIT_S)
        query.kill(other)
        await_recovery(query, 1, WAIT_S)
        source.push({"n": list(range(20))})
        source.closeEpoch()
        assert submitted.wait(WAIT_S)
        refused.set()
        source.close()
        query.finish(WAIT_S)
    finally:
        refused.set()
        query.stop()
    assert by_epoch(out) == dict.fromkeys((0, 1), halves(list(range(20))))


@pytest.mark.parametrize("recovery", ["causal", "none"])
def test_what_left_a_loop_does_not_enter_it_again(recovery: str) -> None:
    flow = Flow("again")
    loop = flow.loop("steps")
    around = loop.variable(NUMBERS)
    halved = halve(loop.enter(numbers(flow, [5])).union(around))
    around.feed(halved)
    between = loop.leave(halved).filter("n > 1").name("between")
    loop.leave(halve(loop.enter(between))).memory()
    with pytest.raises(GraphError, match=r"'steps': what left it enters it again.* 'between'"):
        start_local(flow, recovery=recovery)


def test_streams_of_different_loops_do_not_mix() -> None:
    flow = Flow("mixed")
    outside = numbers(flow, [1])
    inside = flow.loop().enter(outside)
    with pytest.raises(GraphError, match="same loop"):
        inside.union(outside)


@pytest.mark.parametrize(
    "build",
    [
        lambda s: s.groupBy(F.window("t", "1 second")).count(),
        lambda s: s.groupBy(F.session_window("t", "1 second"), "n").count(),
        lambda s: s.join(s.select("n", "t AS u"), "n", within="1 second", time=("t", "u")),
        lambda s: s.dropDuplicates(["n"], within="1 second"),
    ],
    ids=["window", "session", "join", "dropDuplicates"],
)
def test_what_needs_a_watermark_is_refused_inside_a_loop(build: Callable[[Stream], Stream]) -> None:
    flow = Flow()
    marked = flow.memory(TIMED).withWatermark("t", 0)
    build(marked)
    inside = flow.loop().enter(marked)
    with pytest.raises(GraphError, match="before or after a loop, not inside one"):
        build(inside)


def test_epochs_are_closed_by_hand_only_where_that_was_asked_for() -> None:
    with pytest.raises(SettingsError, match="manualEpochs"):
        Flow("clock").memory(NUMBERS).closeEpoch()


def test_epochs_closed_by_hand_are_exact() -> None:
    flow = Flow("exact")
    out = numbers(flow, [1, 2], [], [3]).memory()
    run_local(flow, epochInterval="1 ms")
    assert by_epoch(out) == {0: Counter([1, 2]), 2: Counter([3])}


# -- explain -------------------------------------------------------------------------------------


def test_explain_shows_loops_feedback_and_summaries(tmp_path: object) -> None:
    flow = Flow("shown")
    numbers(flow, [1]).iterate(halve, name="halving").memory()
    path = f"{tmp_path}/flow.svg"
    text = flow.explain(picture=path)
    assert "feedback of loop halving: (e, i) -> (e, i+1)" in text
    assert "into loop halving: (e) -> (e, 0)" in text
    assert "out of loop halving: (e, i) -> (e)" in text
    assert "== Path summaries ==" in text
    with open(path) as file:
        picture = file.read()
    assert picture.startswith("<svg ")
    assert "loop halving (e, i)" in picture
    assert "feedback (e, i) -&gt; (e, i+1)" in picture
