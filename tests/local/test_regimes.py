"""Every regime, and mixtures, with hosts that are killed: the results are always the same."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Batch, Causal, Eager, Ephemeral, Flow, Lazy
from penstock.api import functions as F
from penstock.api.flow import Stream
from penstock.api.regimes import GlobalCheckpoint, Regime
from penstock.api.vertex import Time, Vertex
from penstock.core.causal.graph import NodeKind
from penstock.errors import SettingsError
from penstock.library.graphs import connected_components
from penstock.planning.causal_graph import causal_graph
from penstock.planning.physical import physical_plan
from penstock.testing.kills import run_killing

ROWS = 25_000
RATE = 15_000

REGIMES: list[Regime] = [
    Causal(),
    Lazy(every=3),
    Lazy(every="300 ms", selective=False),
    Batch(),
    Eager(),
    GlobalCheckpoint(every=4),
]


def numbers(offset: int, n: int) -> pa.RecordBatch:
    offsets = range(offset, offset + n)
    return pa.record_batch(
        {
            "n": pa.array(offsets, pa.int64()),
            "key": pa.array([o % 7 for o in offsets], pa.int64()),
            "at": pa.array([o * 1000 for o in offsets], pa.timestamp("us")),
        }
    )


def keyed(flow: Flow, rows: int = ROWS) -> Stream:
    return (
        flow.generate(numbers, rate=RATE, rows=rows, shards=2, name="numbers")
        .withWatermark("at", "0 seconds")
        .keyBy("n")
        .select("n", "key", "at")
        .name("keyed")
    )


def counted(stream: Stream) -> Stream:
    return (
        stream.groupBy(F.window("at", "1 second"), "key")
        .agg(F.count("*").alias("rows"), F.sum("n").alias("total"))
        .name("counts")
    )


def expected(rows: int = ROWS) -> Counter[tuple[int, int, int, int]]:
    groups: dict[tuple[int, int], list[int]] = {}
    for n in range(rows):
        groups.setdefault((n // 1000, n % 7), []).append(n)
    return Counter((w, k, len(ns), sum(ns)) for (w, k), ns in groups.items())


def found(rows: list[dict[str, Any]]) -> Counter[tuple[int, int, int, int]]:
    starts = [row["window"]["start"] for row in rows]
    return Counter(
        (start.minute * 60 + start.second, row["key"], row["rows"], row["total"])
        for start, row in zip(starts, rows, strict=True)
    )


@pytest.mark.parametrize("regime", REGIMES, ids=str)
def test_windows_under_every_regime(regime: Regime) -> None:
    flow = Flow()
    out = counted(keyed(flow)).memory()
    query = run_killing(flow, ["counts[0]", "keyed[1]", "numbers[0]"], hosts=4, regime=regime)
    assert found(out.toPylist()) == expected()
    if regime.whole_flow:
        assert len(query.recoveries[0]["restarted"]) == len(query.nodes())


@pytest.mark.parametrize("regime", [Batch(), Eager()], ids=str)
def test_running_totals_behind_a_durable_stage(regime: Regime) -> None:
    """The edge to the totals is kept: after a restart an epoch's partial sums come as one batch."""
    flow = Flow()
    made = flow.generate(numbers, rate=1_000, rows=1_500, shards=1, name="numbers")
    shifted = made.withColumn("n", "n + 1").name("shifted").withRegime(regime)
    out = shifted.groupBy("key").agg(F.count("*").alias("rows")).name("totals").memory()
    run_killing(flow, ["totals[0]"], hosts=1, checkpointInterval="1 second")
    results = [(row["key"], row["rows"]) for row in out.toPylist()]
    assert len(results) == len(set(results))
    assert dict(sorted(results)) == Counter(n % 7 for n in range(1_500))


def test_a_mixture_with_a_parquet_sink(tmp_path: Path) -> None:
    flow = Flow()
    stream = keyed(flow).withRegime(Ephemeral()).persist(name="kept")
    counted(stream).withRegime(Eager()).filter("rows > 0").name("some").withRegime(Batch()).select(
        "window", "key", "rows", "total"
    ).parquet(str(tmp_path / "out"), name="published")
    victims = ["keyed[0]", "counts[1]", "some[0]", "kept[0]", "published[0]"]
    run_killing(flow, victims, hosts=4, checkpointLocation=str(tmp_path / "store"))
    rows: list[dict[str, Any]] = []
    for file in sorted((tmp_path / "out").glob("epoch=*/*.parquet")):
        rows += pq.read_table(file, partitioning=None).to_pylist()
    assert found(rows) == expected()


def test_nodes_that_were_not_lost_go_back_in_memory() -> None:
    """Lazy stages keep no log: a lost child takes them along, from what they have in memory."""
    flow = Flow()
    first = counted(keyed(flow)).withRegime(Lazy(every=2))
    out = (
        first.keyBy("key")
        .select("window", "key", "rows", "total")
        .name("again")
        .withRegime(Lazy(every=2))
        .memory()
    )
    query = run_killing(flow, ["again[0]", "again[1]"], hosts=4)
    assert found(out.toPylist()) == expected()
    assert any(
        name.startswith("counts[") for entry in query.recoveries for name in entry["restarted"]
    )


class Running(Vertex):
    """The last number of each key, and how often it fell: depends on the order of rows."""

    def __init__(self) -> None:
        self.last: dict[int, int] = {}
        self.fell: dict[int, int] = {}

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        for key, n in zip(batch["key"].to_pylist(), batch["n"].to_pylist(), strict=True):
            self.fell[key] = self.fell.get(key, 0) + (n < self.last.get(key, -1))
            self.last[key] = n
        self.sendBy(0, batch.append_column("rows", pa.array([1] * batch.num_rows)), time)


@pytest.mark.parametrize("regime", [Lazy(every=3), Batch()], ids=str)
def test_vertices_that_depend_on_the_order_of_rows(regime: Regime) -> None:
    flow = Flow()
    stream = keyed(flow)
    schema = stream.schema.append(pa.field("rows", pa.int64()))
    out = stream.keyBy("key").process(Running, schema).name("running").withRegime(regime)
    kept = out.select("n", "rows").memory()
    run_killing(flow, ["running[0]", "running[1]", "keyed[0]"], hosts=4)
    assert Counter(row["n"] for row in kept.toPylist()) == Counter(range(ROWS))


def edges(offset: int, n: int) -> pa.RecordBatch:
    offsets = range(offset, offset + n)
    return pa.record_batch(
        {
            "a": pa.array([o % 300 for o in offsets], pa.int64()),
            "b": pa.array([(o + 1) % 300 for o in offsets], pa.int64()),
        }
    )


@pytest.mark.parametrize("regime", [Lazy(every=2), Eager(), GlobalCheckpoint(every=3)], ids=str)
def test_a_loop_under_a_regime(regime: Regime) -> None:
    flow = Flow()
    source = flow.generate(edges, rate=2_000, rows=3_000, shards=2, name="edges")
    out = connected_components(source, name="components").memory()
    run_killing(flow, ["components[0]", "edges[0]"], regime=regime)
    latest: dict[int, int] = {}
    for epoch in sorted(out.epochs()):
        latest |= {r["vertex"]: r["component"] for r in out.epochs()[epoch].to_pylist()}
    assert latest == dict.fromkeys(range(300), 0)


def test_inputs_that_are_kept_make_even_state_again() -> None:
    flow = Flow()
    out = counted(keyed(flow)).withRegime(Ephemeral(logInputs=True)).memory()
    run_killing(flow, ["counts[0]", "counts[1]"], hosts=4)
    assert found(out.toPylist()) == expected()


# -- what the plan makes of regimes ------------------------------------------------------------


def test_regimes_decide_about_logs_and_checkpoints() -> None:
    flow = Flow()
    stream = keyed(flow).withRegime(Ephemeral())
    counted(stream).withRegime(Lazy(every=5)).memory()
    plan = physical_plan(flow, 2)
    graph = causal_graph(plan)
    by_name = {chain.name: chain for chain in plan.chains}
    assert set(by_name["counts"].nodes) <= graph.logless & graph.clean
    assert set(by_name["keyed"].nodes) <= graph.logless - graph.clean
    assert {graph.kinds[node] for node in by_name["counts"].nodes} == {NodeKind.STATEFUL}
    assert not graph.logless & set(by_name["numbers"].nodes)


def test_what_a_regime_would_lose_is_refused() -> None:
    flow = Flow()
    counted(keyed(flow)).withRegime(Ephemeral()).memory()
    with pytest.raises(SettingsError, match="'counts' keeps state from epoch to epoch"):
        physical_plan(flow, 2)
    flow = Flow()
    keyed(flow).mapInArrow(lambda batches, ctx: batches, "n long").name("asks").withRegime(
        Lazy()
    ).memory()
    with pytest.raises(SettingsError, match="'asks' asks for the time"):
        physical_plan(flow, 2)


def test_regimes_are_checked_where_they_are_given() -> None:
    stream = keyed(Flow())
    with pytest.raises(SettingsError, match="every must be at least one epoch"):
        Lazy(every=0)
    with pytest.raises(SettingsError, match="a regime of the whole flow"):
        stream.withRegime(GlobalCheckpoint())
    with pytest.raises(SettingsError, match=r"a regime is Causal\(\)"):
        stream.withRegime("lazy")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="withPause"):
        stream.withPause("slow")


def test_pause_classes_reach_the_nodes_and_the_flow_goes_on() -> None:
    flow = Flow()
    stream = keyed(flow).withPause("insensitive")
    out = counted(stream).withPause("low-latency").memory()
    query = run_killing(flow, ["counts[0]", "keyed[1]"], hosts=4)
    assert found(out.toPylist()) == expected()
    pauses = {chain.name: chain.pause for chain in query._controller.plan.chains}
    assert (pauses["keyed"], pauses["counts"]) == ("insensitive", "low-latency")
