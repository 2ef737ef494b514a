"""A running flow measures itself, is planned, and does what the plan says."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Flow, Lazy
from penstock.api import functions as F
from penstock.api.flow import Stream
from penstock.api.memory_stream import MemoryStream
from penstock.core.control.figures import NodeFigures
from penstock.core.plan import Configuration, OperatorProfile, OperatorTopology, Plan, solve
from penstock.engine.driver.live_plan import moved
from penstock.errors import PenstockError, SettingsError
from penstock.testing.local import LocalQuery, start_local

RATE = 10_000
WAIT_S = 60.0
EVERY = 8
"""Epochs from one checkpoint to the next, where a test plans them."""


def numbers(offset: int, n: int) -> pa.RecordBatch:
    offsets = range(offset, offset + n)
    return pa.record_batch(
        {
            "n": pa.array(offsets, pa.int64()),
            "key": pa.array([o % 50 for o in offsets], pa.int64()),
            "at": pa.array([o * 1000 for o in offsets], pa.timestamp("us")),
        }
    )


def counting(rows: int | None = None) -> tuple[Flow, Any]:
    """numbers -> even (exchanged by n) -> counts (windows per key) -> a table on the driver."""
    flow = Flow("counting")
    source = flow.generate(numbers, rate=RATE, rows=rows, shards=1, name="numbers")
    even = source.withWatermark("at", "0 seconds").keyBy("n").filter("n % 2 = 0").name("even")
    counts = even.groupBy(F.window("at", "1 second"), "key").agg(F.count("*").alias("rows"))
    return flow, counts.name("counts").memory()


@contextmanager
def running(flow: Flow, **options: Any) -> Iterator[LocalQuery]:
    query = start_local(
        flow, **{"hosts": 3, "parallelism": 1, "checkpointInterval": "200 ms", **options}
    )
    try:
        yield query
    finally:
        query.stop()


def wait_for(found: Callable[[], Any], query: LocalQuery) -> Any:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            value = found()
        except PenstockError:
            value = None
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited in vain; the flow: {query.status}, {query.exception()}")


def checkpoint_epochs(query: LocalQuery, stage: str) -> list[int]:
    """The epochs of the checkpoints that are in the store."""
    recovery = query._controller.recovery
    assert recovery is not None
    node = next(one["node"] for one in query.nodes() if one["stage"] == stage)
    return [
        saved.report.completed
        for saved in recovery.store.stored(node, recovery.incarnations()[node]).checkpoints
        if saved.key
    ]


def is_measured(query: LocalQuery) -> bool:
    """Whether windows have come out, and their state was saved."""
    by_name = {one["name"]: one for one in query.measured()["operators"]}
    saved, sent = by_name["counts"]["checkpoint_time"], by_name["memory_sink"]["tuple_size"]
    rates = (by_name[name]["rate"] for name in ("numbers", "even", "counts"))
    return min(saved, sent, by_name["counts"]["state_size"] - 100, *rates) > 0


def test_a_running_flow_is_measured_planned_and_follows_the_plan(tmp_path: Path) -> None:
    flow, _ = counting()
    options = {"checkpointLocation": str(tmp_path / "store"), "progressInterval": "200 ms"}
    # Who goes home saves before, and the one that starts there may save the same epoch again.
    with running(flow, reinstate=False, **options) as query:
        wait_for(lambda: is_measured(query), query)
        plan = wait_for(lambda: query.plan(maxOverhead=0.2), query)
        found = query.measured()
        by_name = {one["name"]: one for one in found["operators"]}
        source, even, counts = by_name["numbers"], by_name["even"], by_name["counts"]
        # The first half of the count was fused with the filter: they are one operator.
        assert even["stages"] == ["key_by", "even", "counts_combine"]
        assert even["inputs"] == ["numbers"]
        assert counts["inputs"] == ["even"]
        assert 0 < source["rate"] < 1.3 * RATE  # the start is in it
        assert 0 < even["rate"] < 1.3 * RATE
        assert 0 < counts["rate"] < even["rate"]
        # Logs of those without state are not written; what the windows send is.
        assert source["tuple_size"] == even["tuple_size"] == counts["tuple_size"] == 0
        assert by_name["memory_sink"]["tuple_size"] == pytest.approx(32, rel=0.1)
        assert counts["state_size"] > 100
        assert counts["checkpoint_time"] > 0
        assert even["state_size"] == source["state_size"] == 0
        assert all(one["cost"] > 0 for one in (source, even, counts))
        assert source["failure_rate"] > 0 == by_name["memory_sink"]["failure_rate"]
        assert found["storage_cost"] > 0
        assert solve(OperatorTopology.from_mapping(json.loads(json.dumps(found))), 0.2).feasible

        assert plan.feasible
        assert plan.overhead <= 0.2
        query.apply(replace(plan, configuration=configuration(plan, every_s=0.7)))
        record = json.loads((tmp_path / "store" / "plan.json").read_text())
        assert record["epochs"]["counts"] == 7
        assert record["max_overhead"] == 0.2
        wait_for(
            lambda: any((e + 1) % 7 == 0 for e in checkpoint_epochs(query, "counts")[-1:]), query
        )
        first = checkpoint_epochs(query, "counts")[-1]
        wait_for(lambda: checkpoint_epochs(query, "counts")[-1] > first, query)
        assert_one_for_every_seventh(checkpoint_epochs(query, "counts"), first)

        query.kill("counts[0]")
        wait_for(lambda: query.recoveries and query.recoveries[-1]["work_s"] is not None, query)
        work = query.recoveries[-1]["work"]["counts[0]"]
        assert work["restore_s"] > 0
        assert work["replay_s"] > 0
        assert by_name["counts"]["failures"] == 0
        again = {one["name"]: one for one in query.measured()["operators"]}["counts"]
        assert again["failures"] == 1
        assert again["failure_rate"] > 1.9 * counts["failure_rate"]
        # The new incarnation, on another host, follows the plan too.
        before = checkpoint_epochs(query, "counts")[-1:]
        wait_for(lambda: checkpoint_epochs(query, "counts")[-1:] > before, query)
        first = checkpoint_epochs(query, "counts")[-1]
        wait_for(lambda: checkpoint_epochs(query, "counts")[-1] > first, query)
        assert_one_for_every_seventh(checkpoint_epochs(query, "counts"), first)

    flow, _ = counting()
    with running(flow, **options) as query:
        epochs = query._controller.live_plan.orders.epochs  # type: ignore[union-attr]
        assert list(epochs.values()) == [7]


def assert_one_for_every_seventh(epochs: list[int], first: int) -> None:
    """From ``first`` on there is at most one checkpoint for each multiple of seven.

    Where no epoch ends at the multiple (a source skipped it) it is the last one before that.
    """
    multiples = [-(-(epoch + 1) // 7) for epoch in epochs if epoch >= first]
    assert len(multiples) >= 2
    assert len(set(multiples)) == len(multiples), epochs


def configuration(plan: Plan, every_s: float) -> Configuration:
    assert plan.configuration is not None
    return Configuration(plan.configuration.anchors, (1 / every_s,) * len(plan.topology))


@contextmanager
def pushing(source: MemoryStream) -> Iterator[list[int]]:
    """Rows come as long as the block lasts; how many is noted, then they end."""
    pushed, done = [0], threading.Event()

    def push() -> None:
        while not done.wait(0.05):
            source.push(pa.Table.from_batches([numbers(pushed[0], RATE // 20)]))
            pushed[0] += RATE // 20
        source.close()

    thread = threading.Thread(target=push)
    thread.start()
    try:
        yield pushed
    finally:
        done.set()
        thread.join(WAIT_S)


def segments() -> tuple[Flow, MemoryStream, Any]:
    """numbers (on the driver) -> marked -> firsts (lazy) -> counts -> totals."""
    flow = Flow("segments")
    source = flow.memory(numbers(0, 0).schema, name="numbers")
    marked = source.withWatermark("at", "0 seconds").name("marked")
    firsts = marked.dropDuplicates(["n"], within="1 second")
    window = F.window("at", "1 second")
    firsts = firsts.name("firsts").withRegime(Lazy(every=4))
    counts = firsts.groupBy(window, "key").agg(F.count("*").alias("rows"))
    totals = counts.name("counts").groupBy("key").agg(F.sum("rows").alias("total"))
    return flow, source, totals.name("totals").memory()


def restarted_by(query: LocalQuery, victim: str) -> set[str]:
    """The stages that start again when a node's host is killed, a while after a checkpoint."""
    before = len(query.recoveries)
    node = next(one["node"] for one in query.nodes() if one["name"] == victim)
    figures = query._controller.figures
    # A heartbeat may be two epochs old, and a host that has just come up has not said anything.
    wait_for(lambda: (figures().get(node, NodeFigures()).epoch + 1) % EVERY in (2, 3), query)
    query.kill(victim)
    wait_for(lambda: query.recoveries[before:] and query.recoveries[-1]["work_s"], query)
    return {name.partition("[")[0] for name in query.recoveries[-1]["restarted"]}


def in_force(query: LocalQuery, logless: set[str]) -> bool:
    """Whether just these stages have no log, and whoever has one has all that may be needed."""
    recovery = query._controller.recovery
    assert recovery is not None
    names = {recovery.plan.chain_of_node(node).name for node in recovery.retention.watch.logless}
    figures = query._controller.figures()
    told = {
        recovery.plan.chain_of_node(node).name
        for node, one in figures.items()
        if one.causal is None or not one.causal.logged
    }
    return names == told == logless


def test_who_sends_to_no_anchor_works_again_and_results_stay_exact(tmp_path: Path) -> None:
    flow, source, out = segments()
    options = {"hosts": 5, "progressInterval": "100 ms", "standby": 1}
    with running(flow, checkpointLocation=str(tmp_path), **options) as query:
        with pushing(source) as pushed:
            plan = wait_for(lambda: query.plan(maxOverhead=0.5), query)
            names = plan.topology.names
            every = (10 / EVERY,) * len(names)

            def anchored(*anchors: str) -> Plan:
                chosen = frozenset(map(names.index, ("numbers", *anchors)))
                return replace(plan, configuration=Configuration(chosen, every))

            above = {"numbers", "marked", "firsts"}
            query.apply(anchored("totals"))
            wait_for(lambda: in_force(query, above | {"totals"}), query)
            record = json.loads((tmp_path / "plan.json").read_text())
            assert record["anchors"] == ["numbers", "totals"]
            assert restarted_by(query, "counts[0]") == above | {"counts"}
            assert restarted_by(query, "totals[0]") == {"totals"}
            assert restarted_by(query, "firsts[0]") == above

            query.apply(anchored("marked", "firsts", "counts", "totals"))
            wait_for(lambda: in_force(query, {"totals"}), query)
            assert restarted_by(query, "counts[0]") == {"counts"}
        query.finish(WAIT_S)
    totals: dict[int, int] = {}
    for row in out.toPylist():
        totals[row["key"]] = max(totals.get(row["key"], 0), row["total"])
    assert totals == dict.fromkeys(range(50), pushed[0] // 50)


def test_with_a_budget_a_flow_plans_by_itself(tmp_path: Path) -> None:
    flow, out = counting(rows=3 * RATE)
    options = {"maxOverhead": 0.1, "planInterval": "500 ms", "progressInterval": "100 ms"}
    with running(flow, checkpointLocation=str(tmp_path), **options) as query:
        wait_for(lambda: (tmp_path / "plan.json").exists(), query)
        record = json.loads((tmp_path / "plan.json").read_text())
        assert record["max_overhead"] == 0.1
        assert record["overhead"] <= 0.1
        assert set(record["epochs"]) == {"numbers", "even", "counts", "memory_sink"}
        query.finish(WAIT_S)
    assert sum(row["rows"] for row in out.toPylist()) == 3 * RATE // 2


def test_a_loop_is_one_operator() -> None:
    flow = Flow()
    start = flow.memory(pa.schema({"n": pa.int64()}), name="start")

    def body(stream: Stream) -> Stream:
        return stream.keyBy("n").select("n - 10 AS n").keyBy("n").filter("n > 0")

    start.iterate(body, name="lowered").filter("n = 5").memory()
    with running(flow, hosts=2, parallelism=2) as query:
        start.push([{"n": n} for n in range(100)])
        found = wait_for(query.measured, query)
        looping = [one for one in query.nodes() if one["loop"]]
    assert len({one["stage"] for one in looping}) > 1
    by_name = {one["name"]: one for one in found["operators"]}
    assert by_name["lowered"]["parallelism"] == len(looping)
    assert by_name["lowered"]["inputs"] == ["start"]
    assert not {one["stage"] for one in looping} & set(by_name)
    OperatorTopology.from_mapping(found)


def test_what_cannot_be_planned_says_why() -> None:
    flow, _ = counting()
    with running(flow, recovery="none") as query, pytest.raises(SettingsError, match="recovery"):
        query.measured()
    flow, _ = counting()
    with running(flow) as query:
        other = OperatorTopology((OperatorProfile("elsewhere", 1, 1, 1, 1, 1),), 1.0, 1e-3)
        with pytest.raises(SettingsError, match="elsewhere"):
            query.apply(solve(other, 0.5))
        with pytest.raises(SettingsError, match="maxOverhead"):
            query.apply(solve(other, 0.0))
    with pytest.raises(SettingsError, match="maxOverhead"):
        start_local(flow, maxOverhead=2.0)


def test_a_damaged_plan_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    flow, _ = counting()
    (tmp_path / "plan.json").write_text('{"anchors": [], "epochs": {"counts": "often"}}')
    with running(flow, checkpointLocation=str(tmp_path)) as query:
        assert query._controller.live_plan.orders.epochs == {}  # type: ignore[union-attr]
    assert "plan.json is not used" in caplog.text


def test_only_what_matters_counts_as_a_change() -> None:
    def topology(cost: float, tiny: float) -> OperatorTopology:
        operators = (
            OperatorProfile("a", 1, cost, 1000, 10, 0.1),
            OperatorProfile("b", 1, tiny, 1000, 10, 0.1, inputs=("a",)),
        )
        return OperatorTopology(operators, 100.0, 1e-6)

    assert not moved(topology(1e-3, 1e-9), topology(1.2e-3, 5e-9))
    assert moved(topology(1e-3, 1e-9), topology(1.6e-3, 1e-9))
    assert moved(topology(1e-3, 1e-9), topology(1e-3, 1e-3))
