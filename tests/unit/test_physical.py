"""From stages to nodes: what is fused, split, sharded and placed, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Flow
from penstock.api import functions as F
from penstock.api.flow import Stream
from penstock.api.regimes import Lazy
from penstock.api.vertex import Time, Vertex
from penstock.errors import GraphError, SettingsError
from penstock.operators.base import Forward, Hash, Single
from penstock.planning.physical import PhysicalPlan, physical_plan

SCHEMA = pa.schema({"n": pa.int64(), "k": pa.string(), "t": pa.timestamp("us")})


def make(offset: int, n: int) -> pa.RecordBatch:
    raise NotImplementedError


class Echo(Vertex):
    """Passes rows on."""

    def onRecv(self, port: int, batch: pa.RecordBatch, time: Time) -> None:
        self.sendBy(0, batch, time)


class Stateless(Echo):
    """Says that it keeps nothing."""

    stateless = True


class Unordered(Echo):
    """Says that the order of its input does not matter."""

    orderSensitive = False


def source(flow: Flow, shards: int | None = None, name: str | None = None) -> Stream:
    return flow.generate(make, schema=SCHEMA, shards=shards, name=name)


def planned(build: Callable[[Flow], Any], parallelism: int = 2) -> PhysicalPlan:
    flow = Flow()
    build(flow)
    return physical_plan(flow, parallelism)


def fused(plan: PhysicalPlan) -> list[list[str]]:
    return [[stage.name for stage in chain.stages] for chain in plan.chains]


# -- fusing ----------------------------------------------------------------------------------------


def test_stages_with_the_same_partitioning_are_one_chain() -> None:
    plan = planned(
        lambda f: source(f).filter("n > 1").select("n").mapInArrow(lambda b: b, "n LONG").memory()
    )
    assert fused(plan) == [["generate", "filter", "select", "map_in_arrow"], ["memory_sink"]]
    assert [stage.parent for stage in plan.chains[0].stages] == [None, (0, 0), (1, 0), (2, 0)]


def test_an_exchange_starts_a_new_chain() -> None:
    plan = planned(lambda f: source(f).keyBy("k").filter("n > 1").keyBy("n").memory())
    assert fused(plan) == [["generate"], ["key_by", "filter"], ["key_by_2"], ["memory_sink"]]
    assert [link.exchange for link in plan.links] == [Hash(("k",)), Hash(("n",)), Single()]


def test_a_stream_that_is_read_twice_is_not_fused_with_its_readers() -> None:
    def build(flow: Flow) -> None:
        stream = source(flow)
        stream.filter("n > 1").memory(name="one")
        stream.filter("n < 1").memory(name="two")

    plan = planned(build)
    assert fused(plan) == [["generate"], ["filter"], ["one"], ["filter_2"], ["two"]]
    assert [type(link.exchange) for link in plan.links_out_of(0)] == [Forward, Forward]


def test_both_outputs_of_a_vertex_are_fused_into_its_chain() -> None:
    def build(flow: Flow) -> None:
        one, two = flow.vertex(Echo, [source(flow)], [SCHEMA, SCHEMA], name="two_ways")
        one.filter("n > 1").keyBy("k").memory(name="a")
        two.select("n").keyBy("n").memory(name="b")

    plan = planned(build)
    chain = plan.chains[1]
    assert [stage.name for stage in chain.stages] == ["two_ways", "filter", "select"]
    assert [stage.parent for stage in chain.stages] == [None, (0, 0), (0, 1)]
    assert [(link.source_stage, link.source_port) for link in plan.links_out_of(1)] == [
        (1, 0),
        (2, 0),
    ]


def test_state_is_not_fused_with_a_source(tmp_path: Path) -> None:
    plan = planned(lambda f: source(f).process(Echo, SCHEMA).memory())
    assert fused(plan) == [["generate"], ["vertex"], ["memory_sink"]]
    plan = planned(lambda f: source(f).filter("n > 1").parquet(tmp_path))
    assert fused(plan)[:2] == [["generate", "filter"], ["parquet"]]


def test_what_keeps_nothing_is_fused_with_a_source() -> None:
    def build(flow: Flow) -> None:
        rows = source(flow).withWatermark("t", "1 second").process(Stateless, SCHEMA)
        rows.groupBy("k").agg(F.count("*")).memory()

    plan = planned(build)
    assert fused(plan)[0] == ["generate", "watermark", "vertex", "aggregate_combine"]


def test_a_vertex_is_fused_with_other_vertices_but_not_with_stages_kept_by_epoch(
    tmp_path: Path,
) -> None:
    def build(flow: Flow) -> None:
        rows = source(flow).keyBy("k").process(Echo, SCHEMA).filter("n > 1")
        rows.process(Unordered, SCHEMA).parquet(tmp_path)

    plan = planned(build)
    assert fused(plan)[1:3] == [["key_by", "vertex", "filter", "vertex_2"], ["parquet"]]


def test_a_vertex_is_not_fused_behind_stages_kept_by_epoch() -> None:
    plan = planned(lambda f: source(f).dropDuplicates(["k"]).process(Echo, SCHEMA).memory())
    assert fused(plan)[1:3] == [["distinct"], ["vertex"]]


def test_several_inputs_start_a_new_chain() -> None:
    plan = planned(lambda f: source(f).union(source(f)).filter("n > 1").memory())
    assert fused(plan) == [["generate"], ["generate_2"], ["union", "filter"], ["memory_sink"]]
    assert [(link.source_chain, link.target_port) for link in plan.links_into(2)] == [
        (0, 0),
        (1, 1),
    ]


def test_a_stream_joined_with_itself_has_two_links_between_the_same_chains() -> None:
    def build(flow: Flow) -> None:
        stream = source(flow)
        stream.union(stream).memory()

    plan = planned(build)
    assert [(link.source_chain, link.target_chain) for link in plan.links_into(1)] == [
        (0, 1),
        (0, 1),
    ]


def test_what_lives_on_the_driver_is_not_fused_with_what_does_not() -> None:
    plan = planned(lambda f: f.memory(SCHEMA).filter("n > 1").memory())
    assert fused(plan) == [["memory"], ["filter"], ["memory_sink"]]
    assert [chain.on_driver for chain in plan.chains] == [True, False, True]
    assert [chain.shards for chain in plan.chains] == [1, 1, 1]


def test_a_chain_is_named_after_the_last_name_that_the_user_gave() -> None:
    plan = planned(
        lambda f: source(f, name="events").filter("n > 1").name("some").select("n").memory()
    )
    assert plan.chains[0].name == "some"
    assert plan.node_name(1) == "some[1]"


# -- combiners -------------------------------------------------------------------------------------


def windowed(flow: Flow, late: bool) -> None:
    counts = (
        source(flow)
        .withWatermark("t", "1 second")
        .groupBy(F.window("t", "1 second"), "k")
        .agg(F.count("*"))
    )
    counts.memory()
    if late:
        counts.late().memory(name="late")


def test_aggregates_are_combined_before_the_exchange() -> None:
    plan = planned(lambda f: windowed(f, late=False))
    first, second = plan.chains[0], plan.chains[1]
    assert first.stages[-1].name == f"{second.stages[0].name}_combine"
    assert isinstance(plan.links[0].exchange, Hash)
    assert plan.links[0].schema == first.stages[-1].outputs[0]


def test_late_rows_cannot_be_combined() -> None:
    plan = planned(lambda f: windowed(f, late=True))
    assert not any("combine" in name for names in fused(plan) for name in names)


def test_running_aggregates_are_combined_too() -> None:
    plan = planned(lambda f: source(f).groupBy("k").count().memory())
    assert plan.chains[0].stages[-1].name.endswith("_combine")


# -- shards ----------------------------------------------------------------------------------------


def test_an_exchange_gets_as_many_shards_as_wanted_and_a_key_by_as_many_as_it_says() -> None:
    plan = planned(lambda f: source(f).keyBy("k").keyBy("n", shards=5).memory(), parallelism=3)
    assert [chain.shards for chain in plan.chains] == [3, 3, 5, 1]
    assert [list(chain.nodes) for chain in plan.chains] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8, 9, 10],
        [11],
    ]


def test_a_source_has_the_shards_it_says_and_what_follows_has_them_too() -> None:
    plan = planned(lambda f: source(f, shards=4).union(source(f, shards=2)).memory())
    assert [chain.shards for chain in plan.chains] == [4, 2, 4, 1]


def test_every_node_behind_a_union_is_reached() -> None:
    plan = planned(lambda f: source(f, shards=4).union(source(f, shards=2)).memory())
    one, two = plan.links_into(2)
    nodes = plan.chains[2].nodes
    assert [plan.senders(one, node) for node in nodes] == [(0,), (1,), (2,), (3,)]
    assert [plan.senders(two, node) for node in nodes] == [(4,), (5,), (), ()]


def test_fewer_shards_than_senders_share_them() -> None:
    plan = planned(lambda f: source(f, shards=3).process(Echo, SCHEMA, shards=2).memory())
    (link,) = plan.links_into(1)
    assert [plan.targets(link, node) for node in (0, 1, 2)] == [(3,), (4,), (3,)]
    assert [plan.senders(link, node) for node in (3, 4)] == [(0, 2), (1,)]


def test_more_shards_than_senders_are_refused_unless_rows_are_divided() -> None:
    with pytest.raises(SettingsError, match=r"shards=4, but its rows stay in the 2 shards"):
        planned(lambda f: source(f, shards=2).process(Echo, SCHEMA, shards=4).memory())
    plan = planned(
        lambda f: source(f, shards=2).process(Echo, SCHEMA, shards=4, partitionBy=["k"]).memory()
    )
    assert plan.chains[1].shards == 4


def test_no_shards_at_all_are_refused() -> None:
    with pytest.raises(SettingsError, match="shards must be at least 1"):
        planned(lambda f: source(f).keyBy("k", shards=0).memory())


def test_an_exchange_reaches_every_node_and_every_node_hears_from_all() -> None:
    plan = planned(lambda f: source(f, shards=2).keyBy("k", shards=3).memory())
    link = plan.links[0]
    assert plan.targets(link, 0) == plan.targets(link, 1) == (2, 3, 4)
    assert all(plan.senders(link, node) == (0, 1) for node in (2, 3, 4))


# -- placement -------------------------------------------------------------------------------------


def test_shards_are_spread_and_forward_neighbours_stay_together() -> None:
    def build(flow: Flow) -> None:
        stream = source(flow, shards=4)
        stream.filter("n > 1").memory(name="one")
        stream.filter("n < 1").memory(name="two")

    plan = planned(build)
    at = plan.place([1, 2, 3], driver=0)
    first, second, third = (
        [at[n] for n in chain.nodes] for chain in plan.chains if not chain.on_driver
    )
    assert first == [1, 2, 3, 1]
    assert second == third == first
    assert all(at[n] == 0 for chain in plan.chains if chain.on_driver for n in chain.nodes)


def test_an_exchange_goes_on_dealing_out_hosts_in_turn() -> None:
    plan = planned(lambda f: source(f, shards=2).keyBy("k", shards=2).memory())
    assert plan.place([1, 2, 3], driver=0) == {0: 1, 1: 2, 2: 3, 3: 1, 4: 0}


def test_every_node_has_a_host() -> None:
    plan = planned(lambda f: windowed(f, late=True), parallelism=5)
    assert sorted(plan.place([7], driver=0)) == sorted(plan.chain_of)


# -- grid and refusals -----------------------------------------------------------------------------


def test_windows_say_when_their_results_are_due() -> None:
    assert planned(lambda f: source(f).memory()).cut_grid_us is None
    assert planned(lambda f: windowed(f, late=False)).cut_grid_us == 1_000_000


def test_an_empty_flow_is_refused() -> None:
    with pytest.raises(GraphError, match="is empty: add a source"):
        planned(lambda f: None)


def test_a_flow_without_a_sink_is_refused() -> None:
    with pytest.raises(GraphError, match="has no sink"):
        planned(lambda f: source(f).filter("n > 1"))


def test_a_window_without_a_watermark_is_refused() -> None:
    with pytest.raises(GraphError, match=r"no withWatermark\(column, delay\) comes before it"):
        planned(lambda f: source(f).groupBy(F.window("t", "1 second")).count().memory())


def test_a_window_behind_a_union_needs_a_watermark_on_every_input() -> None:
    def build(flow: Flow, both: bool) -> None:
        one = source(flow).withWatermark("t", 0)
        two = source(flow)
        merged = one.union(two.withWatermark("t", 0) if both else two)
        merged.groupBy(F.window("t", "1 second")).count().memory()

    with pytest.raises(GraphError, match="withWatermark"):
        planned(lambda f: build(f, both=False))
    assert planned(lambda f: build(f, both=True))


def test_parts_have_hosts_of_their_own_where_there_are_enough() -> None:
    flow = Flow()
    with flow.part("one"):
        first = flow.memory(pa.schema({"n": pa.int64()}), name="first").keyBy("n", shards=3)
        first.name("a").memory(name="kept")
    with flow.part("other", Lazy(every=5)):
        second = first.filter("n > 0").name("b").keyBy("n", shards=2).name("c")
        second.memory(name="also")
    plan = physical_plan(flow, 2)
    chains = {chain.name: chain for chain in plan.chains}
    assert [chains[name].part for name in ("a", "b", "c")] == ["one", "other", "other"]
    assert chains["b"].regime == chains["c"].regime == Lazy(every=5)

    def hosts_of(placed: dict[int, int], *names: str) -> set[int]:
        return {placed[node] for name in names for node in chains[name].nodes}

    placed = plan.place([1, 2, 3], 0)
    assert not hosts_of(placed, "a") & hosts_of(placed, "b", "c")
    assert len(set(placed.values())) == 4
    alone = plan.place([1], 0)
    assert hosts_of(alone, "a", "b", "c") == {1}
