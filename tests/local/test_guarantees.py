"""What each guarantee promises when hosts die, counted from what is in the sink.

Flows run until the test has seen enough and are stopped then, which drains what was read.  Each of
the two shards of a source reads a prefix of its own rows: what is missing in between was lost.
"""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from penstock import Flow
from penstock.api.stream import Stream
from penstock.api.vertex import Time, Vertex
from penstock.connectors.memory import MemorySink
from penstock.errors import TransientError
from penstock.planning.causal_graph import causal_graph
from penstock.testing.local import LocalQuery, start_local
from penstock.testing.processes import wait_until

SCHEMA = pa.schema({"n": pa.int64(), "k": pa.int64()})
GUARANTEES = ["exactly-once", "at-least-once", "at-most-once"]
RATE = 2_000
BLOCK = 2
"""Rows that go to one shard before the next gets as many: a millisecond's worth."""
WAIT_S = 60.0
EPOCHS = 8
"""The newest row is in one of the last epochs."""
EPOCHS_S = 0.06
"""An epoch that was open when a node was lost is over by then."""


each_guarantee = pytest.mark.parametrize("guarantee", GUARANTEES)


def make(offset: int, n: int) -> pa.RecordBatch:
    ids = range(offset, offset + n)
    return pa.record_batch({"n": list(ids), "k": [i % 7 for i in ids]}, schema=SCHEMA)


def made_in(flow: Flow) -> Stream:
    return flow.generate(make, rate=RATE, shards=2, name="made")


def started(flow: Flow, guarantee: str, hosts: int = 4, **options: Any) -> LocalQuery:
    options = {"epochInterval": "20 ms", "drainTimeout": "20 seconds"} | options
    return start_local(flow, hosts, guarantee=guarantee, **options)


def ids(sink: MemorySink) -> list[int]:
    return [row["n"] for row in sink.toPylist()]


def newest_in(sink: MemorySink) -> int:
    latest = list(sink.epochs().values())[-EPOCHS:]
    return max((int(pc.max(table.column("n")).as_py()) for table in latest), default=-1)


def more(sink: MemorySink, rows: int = 200) -> None:
    """Wait for rows that are newer than all there are."""
    newest = newest_in(sink)
    wait_until(lambda: newest_in(sink) > newest + rows, WAIT_S, "newer rows")


def kill(query: LocalQuery, victims: Sequence[str], pause_s: float = 0.0) -> None:
    for victim in victims:
        with suppress(TransientError):  # its host was killed for another's sake, and is not up yet
            query.kill(victim)
        time.sleep(pause_s)
    wait_until(lambda: query.recoveries, WAIT_S, "the loss")
    wait_until(lambda: query.recoveries[-1]["recovered_us"], WAIT_S, "the recovery")


def stopped(query: LocalQuery) -> None:
    query.stop()
    assert query.awaitTermination(WAIT_S)
    assert query.join()


def check(guarantee: str, got: Counter[int], shards: int = 2) -> None:
    """Nothing is lost, or nothing is doubled, as was promised."""
    if guarantee != "at-most-once":
        for shard in range(shards):
            own = [n for n in got if n // BLOCK % shards == shard]
            lost = [n for n in range(max(own)) if n // BLOCK % shards == shard and n not in got]
            assert not lost, f"{guarantee}: {len(lost)} lost, such as {lost[:10]}"
    if guarantee != "at-least-once":
        doubled = sorted(n for n, times in got.items() if times > 1)
        assert not doubled, f"{guarantee}: {len(doubled)} doubled, such as {doubled[:10]}"


class Run:
    """Numbers through two exchanges; the sink says what became of each."""

    def __init__(self, guarantee: str, **options: str) -> None:
        flow = Flow("promises")
        passed = made_in(flow).keyBy("k", shards=2).filter("n >= 0").name("passed")
        spread = passed.keyBy("n", shards=2).select("n").name("spread")
        self.sink = spread.memory(name="kept")
        self.query = started(flow, guarantee, **options)
        more(self.sink)

    def ended(self) -> Counter[int]:
        more(self.sink)
        stopped(self.query)
        return Counter(ids(self.sink))


@each_guarantee
def test_nothing_fails_or_only_a_connection_and_nothing_is_lost_or_doubled(guarantee: str) -> None:
    run = Run(guarantee)
    for host in (1, 3):
        run.query.severConnections(host)
        more(run.sink, 50)
    got = run.ended()
    assert run.query.recoveries == []
    check("exactly-once", got)


@pytest.mark.parametrize("victim", ["made[0]", "passed[1]", "spread[0]"])
@each_guarantee
def test_a_host_dies(guarantee: str, victim: str) -> None:
    run = Run(guarantee)
    kill(run.query, [victim])
    planned_us = run.query.recoveries[-1]["planned_us"]
    due = int((planned_us - run.query._controller.started_us) / 1e6 * RATE) + 2 * BLOCK
    wait_until(lambda: newest_in(run.sink) > due + 300, WAIT_S, "rows that were read later")
    got = run.ended()
    check(guarantee, got)
    # What is read after the failure comes, and comes once, whatever is promised.
    late = Counter({n: times for n, times in got.items() if n > due + EPOCHS_S * RATE})
    assert set(late.values()) == {1}
    check("exactly-once", Counter([*range(min(late)), *late]))


@each_guarantee
def test_a_host_freezes_is_replaced_and_wakes_up(guarantee: str) -> None:
    run = Run(guarantee, pingInterval="50 ms", pingTimeout="500 ms")
    run.query.freeze("passed[1]", WAIT_S)
    wait_until(lambda: run.query.recoveries, WAIT_S, "the loss")
    wait_until(lambda: run.query.recoveries[-1]["recovered_us"], WAIT_S, "the recovery")
    run.query.unfreeze("passed[1]")
    frozen = run.query.recoveries[0]
    wait_until(lambda: run.query.recoveries[0]["refused"], WAIT_S, "the one that wakes up")
    assert "silent" in frozen["reason"]
    more(run.sink)
    check(guarantee, run.ended())


@pytest.mark.parametrize("pause_s", [0.0, 0.05])
@each_guarantee
def test_several_hosts_die(guarantee: str, pause_s: float) -> None:
    run = Run(guarantee)
    nodes = ["passed[0]", "spread[1]", "made[0]", "made[1]", "passed[1]", "spread[0]"]
    kill(run.query, nodes, pause_s)
    check(guarantee, run.ended())


@each_guarantee
def test_the_driver_ends_in_the_middle_and_another_goes_on(guarantee: str, tmp_path: Path) -> None:
    folder = tmp_path / guarantee

    def run(**options: Any) -> LocalQuery:
        flow = Flow("restarted")
        passed = made_in(flow).keyBy("n", shards=2).name("passed")
        passed.parquet(str(folder / "out"), name="out")
        return started(flow, guarantee, 2, checkpointLocation=str(folder / "store"), **options)

    def published() -> Counter[int]:
        found = list((folder / "out").glob("epoch=*"))
        return Counter(pq.read_table(folder / "out").column("n").to_pylist() if found else [])

    def until_more() -> None:
        known = len(published())
        wait_until(lambda: len(published()) > known + 300, WAIT_S, "more rows")

    first = run(drainTimeout="1 ms")
    until_more()
    stopped(first)
    before = published()
    second = run()
    until_more()
    stopped(second)
    got = published()
    assert got >= before  # what was published stays
    check(guarantee, got)


@each_guarantee
def test_state_counts_what_it_should_count(guarantee: str) -> None:
    flow = Flow("counted")
    made = made_in(flow)
    seen = made.memory(name="seen")
    flow.setGuarantee("seen", "exactly-once")
    sink = made.count("k").name("counts").memory(name="kept")
    query = started(flow, guarantee, 3, checkpointInterval="100 ms")
    wait_until(lambda: {row["k"] for row in sink.toPylist()} == set(range(7)), WAIT_S, "state")
    kill(query, ["counts[1]"])
    more(seen)
    stopped(query)
    counts = {row["k"]: row["count"] for row in sink.toPylist()}  # the newest of each
    true = Counter(n % 7 for n in ids(seen))
    if guarantee == "exactly-once":
        assert counts == true
    elif guarantee == "at-least-once":
        assert all(counts[k] >= true[k] for k in true)
    else:
        assert all(counts[k] <= true[k] for k in true)


@each_guarantee
def test_a_host_dies_when_one_source_has_ended(guarantee: str) -> None:
    flow = Flow("ended")
    short = flow.generate(make, rows=BLOCK, shards=1, name="short")
    long = flow.generate(make, rate=RATE, shards=1, name="long").filter(f"n >= {BLOCK}")
    sink = short.union(long).keyBy("n", shards=2).name("both").memory(name="kept")
    query = started(flow, guarantee, 3)
    more(sink)
    kill(query, ["both[0]", "both[1]"])
    more(sink)
    stopped(query)
    check(guarantee, Counter(ids(sink)), shards=1)


class Stamped(Vertex):
    """Order-sensitive, and asks for the time."""

    def __init__(self) -> None:
        self.seen = 0

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.seen += batch.num_rows
        now = pa.array([self.now()] * batch.num_rows, pa.int64())
        self.sendBy(0, batch.set_column(1, "k", now), time)


@each_guarantee
def test_a_weaker_promise_is_less_work(guarantee: str, tmp_path: Path) -> None:
    flow = Flow("work")
    stamped = made_in(flow).process(Stamped, SCHEMA, partitionBy=["n"], shards=2).name("stamped")
    sink = stamped.keyBy("n", shards=1).name("last").memory(name="kept")
    store = tmp_path / guarantee
    query = started(flow, guarantee, 3, checkpointInterval="50 ms", checkpointLocation=str(store))
    more(sink)
    kill(query, ["stamped[0]"])

    def has_more(name: str, least: int) -> bool | None:
        """Whether a node has more than this; None: no node has measured its messages yet."""
        found = [one.causal for one in query._controller.figures().values()]
        measured = [getattr(one, name) for one in found if one is not None and one.diffs_measured]
        return max(measured) > least if measured else None

    exactly, logs = guarantee == "exactly-once", guarantee != "at-most-once"
    wait_until(lambda: has_more("diff_bytes", 1) is exactly, WAIT_S, "diffs in messages, or none")
    wait_until(lambda: has_more("log_bytes", 0) is logs, WAIT_S, "logs, or none")
    wait_until(lambda: any(store.rglob("checkpoint-*")) == logs, WAIT_S, "checkpoints, or none")
    assert any(store.rglob("determinants.log")) == exactly
    more(sink)
    stopped(query)
    check(guarantee, Counter(ids(sink)))


def test_one_flow_may_promise_several_things() -> None:
    flow = Flow("mixed")
    passed = made_in(flow).keyBy("k", shards=2).filter("n >= 0").name("passed")
    sinks = {}
    for guarantee in GUARANTEES:
        name = guarantee.replace("-", "_")
        sinks[guarantee] = passed.keyBy("n", shards=1).name(name).memory(name=f"{name}_kept")
        flow.setGuarantee(f"{name}_kept", guarantee)
    query = started(flow, "exactly-once")
    graph = causal_graph(query._controller.plan)
    assert (len(graph.lossy), len(graph.doubling)) == (2, 2)  # a branch and its sink each
    for victim in ("at_most_once[0]", "at_least_once[0]", "passed[0]", "made[1]"):
        more(sinks["exactly-once"])
        kill(query, [victim])
    more(sinks["exactly-once"])
    stopped(query)
    for guarantee, sink in sinks.items():
        check(guarantee, Counter(ids(sink)))


def test_loops_are_exactly_once_whatever_is_promised() -> None:
    flow = Flow("looped")
    made = made_in(flow)
    halved = made.iterate(lambda rows: rows.select("n DIV 2 AS n", "k").filter("n > 0"))
    halved.memory(name="halved")
    made.keyBy("n").name("passed").memory(name="kept")
    query = started(flow, "at-most-once", 2)
    plan = query._controller.plan
    stopped(query)
    graph = causal_graph(plan)
    lossy = {plan.node_name(node) for node in graph.lossy}
    assert "passed[0]" in lossy
    assert not graph.untraced & set(graph.units)
    assert "made[0]" not in lossy
