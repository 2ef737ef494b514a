"""A chain's vertices: fused calls, notifications, watermarks, refusals, errors."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from penstock import Flow
from penstock.api.flow import Stream
from penstock.api.vertex import Vertex
from penstock.core.progress.marks import EPOCH_END, WATERMARK_END
from penstock.core.time import Time
from penstock.engine.host.chain import ChainRunner
from penstock.errors import DataError, FunctionError
from penstock.planning.physical import physical_plan

SCHEMA = pa.schema({"n": pa.int64()})


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": list(numbers)}, schema=SCHEMA)


class Recorder(Vertex):
    """Remembers what it was told, and passes rows on."""

    def __init__(self, story: list[Any], name: str = "") -> None:
        self.story, self.name = story, name

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.story.append((f"recv{self.name}", time.epoch, batch.column("n").to_pylist()))
        self.notifyAt(time)
        self.sendBy(0, batch, time)

    def onNotify(self, time: Time) -> None:
        self.story.append((f"notify{self.name}", time.epoch))

    def close(self) -> None:
        self.story.append(f"close{self.name}")


class Bench:
    """The chain behind an exchange that ``build`` adds stages to."""

    def __init__(self, build: Callable[[Stream], Any], shards: int = 1) -> None:
        flow = Flow()
        build(flow.generate(lambda offset, n: rows(*range(n)), rows=1).keyBy("n", shards=shards))
        plan = physical_plan(flow, 1)
        (chain,) = [c for c in plan.chains if c.stages[0].name == "key_by"]
        self.sent: list[tuple[int, int, list[int]]] = []
        self.runner = ChainRunner(plan, chain, chain.first_node, self._produce)
        self.runner.open()

    def _produce(self, link: int, parts: Any, time: Time) -> None:
        for target, batch, size in parts:
            assert size == batch.nbytes
            self.sent.append((target, time.epoch, batch.column("n").to_pylist()))

    def deliver(self, epoch: int, *numbers: int) -> None:
        self.runner.deliver(0, rows(*numbers), Time.root(epoch))


def process(factory: Callable[[], Vertex]) -> Callable[[Stream], None]:
    def build(stream: Stream) -> None:
        stream.process(factory, SCHEMA).name("mine").memory()

    return build


def test_output_of_one_vertex_goes_into_the_next_and_then_out() -> None:
    story: list[Any] = []

    def build(stream: Stream) -> None:
        first = stream.process(lambda: Recorder(story, "1"), SCHEMA)
        first.filter("n > 1").process(lambda: Recorder(story, "2"), SCHEMA).memory()

    bench = Bench(build)
    bench.deliver(3, 1, 2, 3)
    assert story == [("recv1", 3, [1, 2, 3]), ("recv2", 3, [2, 3])]
    assert [(epoch, numbers) for _, epoch, numbers in bench.sent] == [(3, [2, 3])]
    assert bench.runner.rows_out == 2


def test_a_port_that_nobody_reads_goes_nowhere() -> None:
    class Both(Vertex):
        def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
            self.sendBy(0, batch, time)
            self.sendBy(1, batch, time)

    def build(stream: Stream) -> None:
        _, second = stream._flow.vertex(Both, [stream], [SCHEMA, SCHEMA])
        second.memory()

    bench = Bench(build)
    bench.deliver(0, 5)
    assert len(bench.sent) == 1


def test_empty_batches_are_not_sent() -> None:
    bench = Bench(process(lambda: Recorder([])))
    bench.deliver(0)
    assert bench.sent == []


# -- notifications ---------------------------------------------------------------------------------


def test_notifications_come_in_order_once_and_only_when_asked_for() -> None:
    story: list[Any] = []
    bench = Bench(process(lambda: Recorder(story)))
    for epoch in (4, 2, 9, 2):
        bench.deliver(epoch, epoch)
    story.clear()
    bench.runner.complete(1, None)
    assert story == []
    bench.runner.complete(5, None)
    assert story == [("notify", 2), ("notify", 4)]
    bench.runner.complete(6, None)
    bench.runner.complete(9, None)
    assert story == [("notify", 2), ("notify", 4), ("notify", 9)]


def test_a_notification_that_asks_for_the_next_one_gets_it_in_the_same_turn() -> None:
    told: list[int] = []

    class Again(Vertex):
        def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
            self.notifyAt(time)

        def onNotify(self, time: Time) -> None:
            told.append(time.epoch)
            self.notifyAt(time.next_epoch())

    bench = Bench(process(Again))
    bench.deliver(2, 1)
    bench.runner.complete(5, None)
    assert told == [2, 3, 4, 5]
    bench.runner.complete(EPOCH_END, None)
    assert told == [2, 3, 4, 5, 6]


def test_a_vertex_is_notified_after_the_one_that_feeds_it() -> None:
    story: list[Any] = []

    class Holds(Recorder):
        def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
            self.notifyAt(time)
            self.batch = batch

        def onNotify(self, time: Time) -> None:
            story.append("first")
            self.sendBy(0, self.batch, time)

    def build(stream: Stream) -> None:
        held = stream.process(lambda: Holds(story), SCHEMA)
        held.process(lambda: Recorder(story), SCHEMA).memory()

    bench = Bench(build)
    bench.deliver(1, 7)
    bench.runner.complete(1, None)
    assert story == ["first", ("recv", 1, [7]), ("notify", 1)]


# -- refusals --------------------------------------------------------------------------------------


class Past(Vertex):
    """Sends or asks an epoch too early, when told rows or when notified."""

    def __init__(self, how: str, when: str) -> None:
        self.how, self.when = how, when

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.notifyAt(time)
        if self.when == "recv":
            self._act(batch, time)
        self.batch = batch

    def onNotify(self, time: Time) -> None:
        if self.when == "notify":
            self._act(self.batch, time)

    def _act(self, batch: pa.RecordBatch, time: Time) -> None:
        before = Time.root(time.epoch - 1)
        if self.how == "send":
            self.sendBy(0, batch, before)
        else:
            self.notifyAt(before)


@pytest.mark.parametrize("when", ["recv", "notify"])
@pytest.mark.parametrize("how", ["send", "ask"])
def test_the_past_is_refused_with_an_error_that_names_the_vertex(how: str, when: str) -> None:
    bench = Bench(process(lambda: Past(how, when)))
    with pytest.raises(FunctionError) as caught:  # noqa: PT012
        bench.deliver(5, 1)
        bench.runner.complete(5, None)
    error = caught.value
    assert error.parameters["stage"] == "mine"
    assert error.parameters["node"] == "mine[0]"
    assert error.parameters["epoch"] == 5
    assert "Time(4) while working on Time(5)" in str(error)


def test_a_vertex_that_is_fed_at_a_later_time_is_held_to_that_time() -> None:
    class Later(Vertex):
        def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
            self.sendBy(0, batch, Time.root(time.epoch + 3))

    def build(stream: Stream) -> None:
        later = stream.process(Later, SCHEMA)
        later.process(lambda: Past("send", "recv"), SCHEMA).name("mine").memory()

    bench = Bench(build)
    with pytest.raises(FunctionError, match=r"Time\(7\) while working on Time\(8\)") as caught:
        bench.deliver(5, 1)
    assert caught.value.parameters["epoch"] == 8


def test_after_feeding_another_vertex_a_vertex_is_back_at_its_own_time() -> None:
    class LaterThenNow(Vertex):
        def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
            self.sendBy(0, batch, Time.root(time.epoch + 3))
            self.sendBy(0, batch, time)

    def build(stream: Stream) -> None:
        stream.process(LaterThenNow, SCHEMA).filter("n > 0").memory()

    bench = Bench(build)
    bench.deliver(5, 1)
    assert [epoch for _, epoch, _ in bench.sent] == [8, 5]


# -- errors ----------------------------------------------------------------------------------------


def test_an_error_carries_stage_node_epoch_and_traceback() -> None:
    def broken(batch: pa.RecordBatch) -> pa.Array:
        raise KeyError("no such thing")

    def build(stream: Stream) -> None:
        stream.filter("n > 0").withColumn("m", broken, pa.int64()).name("maker").memory()

    bench = Bench(build)
    with pytest.raises(FunctionError, match="no such thing") as caught:
        bench.deliver(6, 1)
    parameters = caught.value.parameters
    assert parameters["stage"] == "maker"
    assert parameters["node"] == "maker[0]"
    assert parameters["epoch"] == 6
    assert "in broken" in parameters["traceback"]
    assert "stage 'maker', node maker[0], epoch 6" in str(caught.value)


def test_an_error_of_our_own_kind_keeps_its_kind_and_is_told_where_it_was() -> None:
    class Broken(Vertex):
        def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
            raise DataError("division by zero", column="n")

    bench = Bench(process(Broken))
    with pytest.raises(DataError) as caught:
        bench.deliver(2, 0)
    assert caught.value.parameters == {
        "column": "n",
        "stage": "mine",
        "node": "mine[0]",
        "epoch": 2,
    }


def test_the_innermost_stage_is_the_one_that_is_named() -> None:
    def broken(batch: pa.RecordBatch) -> pa.Array:
        raise ValueError("inner")

    def build(stream: Stream) -> None:
        outer = stream.process(lambda: Recorder([]), SCHEMA).name("outer")
        outer.withColumn("m", broken, pa.int64()).name("inner").memory()

    with pytest.raises(FunctionError) as caught:
        Bench(build).deliver(0, 1)
    assert caught.value.parameters["stage"] == "inner"


@pytest.mark.parametrize("where", ["make", "open", "close"])
def test_an_error_while_opening_or_closing_names_the_stage(where: str) -> None:
    class Broken(Vertex):
        def __init__(self) -> None:
            if where == "make":
                raise RuntimeError("broken")

        def open(self, context: Any) -> None:
            if where == "open":
                raise RuntimeError("broken")

        def close(self) -> None:
            if where == "close":
                raise RuntimeError("broken")

    with pytest.raises(FunctionError, match="broken") as caught:
        Bench(process(Broken)).runner.close()
    assert caught.value.parameters["stage"] == "mine"


def test_every_vertex_is_closed_even_if_one_fails() -> None:
    story: list[Any] = []

    class Broken(Recorder):
        def close(self) -> None:
            raise RuntimeError("broken")

    def build(stream: Stream) -> None:
        first = stream.process(lambda: Broken(story), SCHEMA)
        first.process(lambda: Recorder(story, "2"), SCHEMA).memory()

    bench = Bench(build)
    with pytest.raises(FunctionError, match="broken"):
        bench.runner.close()
    assert story == ["close2"]


# -- watermarks ------------------------------------------------------------------------------------


class Watches(Vertex):
    """Notes the watermark before and after each epoch it is notified of."""

    def __init__(self, story: list[Any]) -> None:
        self.story = story

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.notifyAt(time)

    def onNotify(self, time: Time) -> None:
        before = self.watermark(Time.root(time.epoch - 1)) if time.epoch else None
        self.story.append((time.epoch, before, self.watermark(time)))


def test_the_watermark_that_arrives_is_passed_on() -> None:
    story: list[Any] = []
    bench = Bench(process(lambda: Watches(story)))
    for epoch in (0, 2, 5):
        bench.deliver(epoch, 1)
    assert list(bench.runner.complete(0, None).values()) == [None]
    assert list(bench.runner.complete(3, 30).values()) == [30]
    assert list(bench.runner.complete(5, 50).values()) == [50]
    assert story == [(0, None, None), (2, None, None), (5, 30, 50)]


def test_with_watermark_takes_the_largest_event_time_of_complete_epochs() -> None:
    story: list[Any] = []

    def build(stream: Stream) -> None:
        marked = stream.withWatermark("n", 0.00001)  # 10 µs
        marked.process(lambda: Watches(story), SCHEMA).memory()

    bench = Bench(build)
    bench.deliver(0, 100)
    bench.deliver(4, 900)
    bench.deliver(2, 300, 200)
    assert bench.runner.seen_us() == 890
    assert list(bench.runner.complete(0, None).values()) == [90]
    assert list(bench.runner.complete(2, None).values()) == [290]
    assert list(bench.runner.complete(4, None).values()) == [890]
    assert story == [(0, None, 90), (2, 90, 290), (4, 290, 890)]


def test_at_the_end_of_the_input_event_time_has_come_to_its_end() -> None:
    bench = Bench(lambda stream: stream.withWatermark("n", 0).memory())
    bench.deliver(0, 100)
    assert list(bench.runner.complete(0, WATERMARK_END).values()) == [WATERMARK_END]
    assert list(bench.runner.complete(EPOCH_END, WATERMARK_END).values()) == [WATERMARK_END]
    assert bench.runner.watermark_us == WATERMARK_END


def test_each_output_carries_the_watermark_of_its_own_branch() -> None:
    class Both(Vertex):
        def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
            self.sendBy(0, batch, time)
            self.sendBy(1, batch, time)

    def build(stream: Stream) -> None:
        one, two = stream._flow.vertex(Both, [stream], [SCHEMA, SCHEMA])
        one.withWatermark("n", 0).memory(name="one")
        two.memory(name="two")

    bench = Bench(build)
    bench.deliver(0, 100)
    assert sorted(map(str, bench.runner.complete(0, 7).values())) == ["100", "7"]


def test_counters_are_kept_per_stage() -> None:
    class Counts(Vertex):
        def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
            self.count("seen", batch.num_rows)

    bench = Bench(process(Counts))
    bench.deliver(0, 1, 2)
    bench.deliver(0, 3)
    assert bench.runner.counters == {"mine.seen": 3}
