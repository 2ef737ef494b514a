"""A host's loop with a transport that a test plays: credit, order, ends, failures."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock import Flow
from penstock.api.flow import Stream
from penstock.api.vertex import Time as VertexTime
from penstock.api.vertex import Vertex
from penstock.connectors.base import SourceContext
from penstock.core.node.messages import DATA, MARK, Message
from penstock.core.progress.marks import EPOCH_END, WATERMARK_END
from penstock.core.time import Time
from penstock.engine.host.build import add_node
from penstock.engine.host.clock import EpochClock
from penstock.engine.host.host import Host
from penstock.engine.host.source import SourceDriver
from penstock.errors import FunctionError, InvariantError, PenstockError
from penstock.planning.physical import PhysicalPlan, physical_plan

WAIT_S = 60.0
SCHEMA = pa.schema({"n": pa.int64()})
ELSEWHERE = 9


def make(offset: int, n: int) -> pa.RecordBatch:
    return pa.record_batch({"n": list(range(offset, offset + n))}, schema=SCHEMA)


class FakeTransport:
    """Sends nothing; remembers it, and gives credit as told."""

    window_bytes = 1000

    def __init__(self) -> None:
        self.sent: list[tuple[int, Message]] = []
        self.credit: dict[int, bool] = {}
        self.freed: list[tuple[int, int, int]] = []

    def cork(self) -> None:
        """Nothing waits here."""

    def uncork(self) -> None:
        """Nothing has waited."""

    def open(self, peer: int, node: int) -> bool:
        return self.credit.get(node, True)

    def send(self, peer: int, message: Message) -> None:
        self.sent.append((peer, message))

    def consumed(self, peer: int, node: int, size: int) -> None:
        self.freed.append((peer, node, size))


class Bench:
    """One host that runs some of a flow's nodes, and all it was heard to say."""

    def __init__(self, build: Callable[[Flow], Any], here: Callable[[str], bool]) -> None:
        flow = Flow()
        build(flow)
        self.plan: PhysicalPlan = physical_plan(flow, 1)
        self.transport = FakeTransport()
        self.failures: list[PenstockError] = []
        self.sinks: list[tuple[str, int]] = []
        self.finished: list[int] = []
        self.host = Host(
            1,
            lambda host: self.transport,  # type: ignore[arg-type,return-value]
            self.failures.append,
            lambda sink, node, epoch, cut: self.sinks.append((sink, epoch)),
            self.finished.append,
        )
        self.host.placement = {
            node: 1 if here(chain.name) else ELSEWHERE
            for chain in self.plan.chains
            for node in chain.nodes
        }
        for node, at in self.host.placement.items():
            if at == 1:
                chain = self.plan.chain_of_node(node)
                source = self._source(node) if chain.is_source else None
                add_node(self.host, self.plan, node, source)
        self.thread = threading.Thread(target=self.host.run, daemon=True)

    def _source(self, node: int) -> Any:
        chain = self.plan.chain_of_node(node)
        operator: Any = chain.stages[0].operator
        reader = operator.source.open(SourceContext(0, 1))
        clock = EpochClock(0, 0, 1 << 60)
        return lambda runner: SourceDriver(
            chain.name, chain.name, reader, runner.chain, clock, runner.cut, rows_max=10
        )

    def node(self, name: str) -> int:
        return next(chain.first_node for chain in self.plan.chains if chain.name == name)

    def step(self, times: int = 1) -> None:
        """So many turns of the loop, in this thread."""
        for _ in range(times):
            self.host._work()
            self.host._read_sources()
            self.host._take(0.0)

    def tell(self, *messages: Message) -> None:
        for message in messages:
            self.host.arrived(ELSEWHERE, message)
        self.host._take(0.0)


def message(
    bench: Bench, number: int, epoch: int, *numbers: int, watermark: int | None = None
) -> Message:
    """A message over the only link into the node that is here."""
    (node,) = bench.host.nodes
    (link,) = bench.plan.links_into(bench.plan.chain_of[node])
    sender = bench.plan.senders(link, node)[0]
    batch = pa.record_batch({"n": list(numbers)}, schema=SCHEMA) if numbers else None
    kind = MARK if batch is None else DATA
    size = 0 if batch is None else batch.nbytes
    at = Time.root(epoch)
    return Message(kind, link.index, sender, node, 0, number, at, watermark, 0, batch, size)


def keyed(flow: Flow) -> None:
    flow.generate(make, rows=30, name="source").keyBy("n").name("middle").keyBy("n").name(
        "last"
    ).memory()


def test_a_node_handles_one_message_a_turn_in_the_order_of_arrival() -> None:
    bench = Bench(keyed, lambda name: name == "middle")
    bench.tell(message(bench, 1, 0, 1), message(bench, 2, 0, 2), message(bench, 3, 0))
    runner = bench.host.nodes[bench.node("middle")]
    assert len(runner.queue) == 3
    assert runner.queued_bytes == 16
    bench.step()
    assert (len(runner.queue), runner.queued_bytes, runner.rows_in) == (2, 8, 1)
    bench.step(2)
    assert [m.payload and m.payload.column("n").to_pylist() for _, m in bench.transport.sent] == [  # type: ignore[attr-defined]
        [1],
        [2],
        None,
    ]
    assert [m.kind for _, m in bench.transport.sent] == [DATA, DATA, MARK]


def test_what_was_handled_is_given_back_as_credit() -> None:
    bench = Bench(keyed, lambda name: name == "middle")
    bench.tell(message(bench, 1, 0, 1, 2))
    assert bench.transport.freed == []
    bench.step()
    assert bench.transport.freed == [(ELSEWHERE, bench.node("middle"), 16)]


def test_a_node_whose_target_has_no_credit_waits_and_goes_on() -> None:
    bench = Bench(keyed, lambda name: name == "middle")
    bench.transport.credit[bench.node("last")] = False
    bench.tell(message(bench, 1, 0, 1))
    bench.step(3)
    assert bench.transport.sent == []
    bench.transport.credit[bench.node("last")] = True
    bench.step()
    assert len(bench.transport.sent) == 1


def test_who_can_wait_does_so_while_others_recover() -> None:
    bench = Bench(keyed, lambda name: name == "middle")
    bench.host.nodes[bench.node("middle")].pause = 0
    bench.host.pause(60.0)
    bench.tell(message(bench, 1, 0, 1))
    bench.step(3)
    assert bench.transport.sent == []
    bench.host.pause(0.0)
    bench.step()
    assert len(bench.transport.sent) == 1


def test_who_can_wait_but_recovers_itself_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(keyed, lambda name: name == "middle")
    middle = bench.host.nodes[bench.node("middle")]
    middle.pause = 0
    monkeypatch.setattr(type(middle.machine), "replaying", True)
    bench.host.pause(60.0)
    bench.tell(message(bench, 1, 0, 1))
    bench.step()
    assert len(bench.transport.sent) == 1


def test_others_do_not_wait_while_some_recover() -> None:
    bench = Bench(keyed, lambda name: name == "middle")
    bench.host.pause(60.0)
    bench.tell(message(bench, 1, 0, 1))
    bench.step()
    assert len(bench.transport.sent) == 1


def test_a_source_whose_target_has_no_credit_does_not_read() -> None:
    bench = Bench(keyed, lambda name: name == "source")
    bench.host.start_sources()
    bench.transport.credit[bench.node("middle")] = False
    bench.step(3)
    assert bench.host.nodes[0].source is not None
    assert bench.host.nodes[0].source.rows == 0
    bench.transport.credit[bench.node("middle")] = True
    bench.step()
    assert bench.host.nodes[0].source.rows == 10


def test_a_source_does_not_read_before_it_is_told() -> None:
    bench = Bench(keyed, lambda name: name == "source")
    bench.step(3)
    assert bench.transport.sent == []


def test_a_full_queue_inside_the_host_holds_up_the_sender() -> None:
    bench = Bench(keyed, lambda name: name in ("source", "middle"))
    bench.transport.window_bytes = 150
    bench.transport.credit[bench.node("last")] = False
    bench.host.start_sources()
    bench.step(10)
    assert bench.host.nodes[0].source is not None
    assert bench.host.nodes[0].source.rows == 20  # 80 bytes each; one may overdraw
    bench.transport.credit[bench.node("last")] = True
    bench.step(10)
    assert bench.host.nodes[0].source.rows == 30


def test_the_end_of_the_input_goes_through_all_nodes_once() -> None:
    bench = Bench(keyed, lambda name: True)
    bench.host.start_sources()
    bench.step(30)
    assert bench.finished == sorted(bench.host.nodes)
    assert all(runner.machine.finished for runner in bench.host.nodes.values())
    assert ("memory_sink", EPOCH_END) in bench.sinks


def test_a_sink_is_reported_with_every_epoch_that_is_complete_there() -> None:
    bench = Bench(keyed, lambda name: name == "memory_sink")
    bench.tell(
        message(bench, 1, 0, 5),
        message(bench, 2, 0),
        message(bench, 3, 4),
        message(bench, 4, EPOCH_END, watermark=WATERMARK_END),
    )
    bench.step(4)
    assert bench.sinks == [("memory_sink", epoch) for epoch in (0, 4, EPOCH_END)]


# -- the thread ------------------------------------------------------------------------------------


@pytest.fixture
def run() -> Iterator[Callable[[Bench], Bench]]:
    started: list[Bench] = []

    def start(bench: Bench) -> Bench:
        started.append(bench)
        bench.thread.start()
        return bench

    yield start
    for bench in started:
        bench.host.end()
        bench.thread.join(WAIT_S)
        assert not bench.thread.is_alive()


def test_the_loop_ends_when_told(run: Callable[[Bench], Bench]) -> None:
    bench = run(Bench(keyed, lambda name: True))
    bench.host.end()
    assert bench.host.ended.wait(WAIT_S)
    assert bench.failures == []


def test_an_error_ends_the_loop_is_reported_once_and_closes_every_vertex(
    run: Callable[[Bench], Bench],
) -> None:
    closed: list[str] = []

    class Broken(Vertex):
        def onRecv(self, port: int, batch: pa.RecordBatch, time: VertexTime) -> None:
            raise RuntimeError("broken")

        def close(self) -> None:
            closed.append(self.place.stage)

    class Fine(Vertex):
        def close(self) -> None:
            closed.append(self.place.stage)
            raise RuntimeError("another, while closing")

    def build(flow: Flow) -> None:
        source: Stream = flow.generate(make, rows=5, name="source")
        first = source.process(Broken, SCHEMA, partitionBy=["n"]).name("first")
        first.process(Fine, SCHEMA, partitionBy=["n"]).name("second").memory()

    bench = Bench(build, lambda name: True)
    bench.host.call(bench.host.start_sources)
    run(bench)
    assert bench.host.ended.wait(WAIT_S)
    (failure,) = bench.failures
    assert isinstance(failure, FunctionError)
    assert failure.parameters["stage"] == "first"
    assert bench.host.failed is failure
    assert sorted(closed) == ["first", "second"]


def test_a_bug_of_ours_is_reported_as_one_with_its_traceback(
    run: Callable[[Bench], Bench],
) -> None:
    def bug() -> None:
        raise ZeroDivisionError("ours")

    bench = run(Bench(keyed, lambda name: True))
    bench.host.call(bug)
    assert bench.host.ended.wait(WAIT_S)
    (failure,) = bench.failures
    assert isinstance(failure, InvariantError)
    assert "host 1" in str(failure)
    assert "in bug" in failure.parameters["traceback"]
