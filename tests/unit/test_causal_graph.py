"""What each node of a plan loses when it dies, and who feeds it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Flow
from penstock.api import functions as F
from penstock.api.flow import Stream
from penstock.api.vertex import Vertex
from penstock.core.causal.graph import NodeKind
from penstock.library.graphs import connected_components
from penstock.planning.causal_graph import causal_graph, loop_units
from penstock.planning.physical import PhysicalPlan, physical_plan

SCHEMA = pa.schema({"n": pa.int64(), "k": pa.string(), "t": pa.timestamp("us")})


def make(offset: int, n: int) -> pa.RecordBatch:
    raise NotImplementedError


class Unordered(Vertex):
    """Says that the order of its input does not matter."""

    orderSensitive = False


class Stateless(Vertex):
    """Says that it keeps nothing."""

    stateless = True


def source(flow: Flow, schema: pa.Schema = SCHEMA) -> Stream:
    return flow.generate(make, schema=schema)


def planned(build: Callable[[Flow], Any], parallelism: int = 1) -> PhysicalPlan:
    flow = Flow()
    build(flow)
    return physical_plan(flow, parallelism)


def kinds(build: Callable[[Stream], Any]) -> list[NodeKind]:
    graph = causal_graph(planned(lambda flow: build(source(flow))))
    return [graph.kinds[node] for node in sorted(graph.kinds)]


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (lambda s: s.keyBy("k").filter("n > 1"), NodeKind.STATELESS),
        (lambda s: s.keyBy("k").withWatermark("t", "1 second"), NodeKind.STATEFUL),
        (lambda s: s.groupBy("k").agg(F.count("*")), NodeKind.STATEFUL),
        (lambda s: s.dropDuplicates(["k"]).filter("n > 1"), NodeKind.STATEFUL),
        (lambda s: s.process(Vertex, SCHEMA), NodeKind.ORDERED),
        (lambda s: s.process(lambda: Vertex(), SCHEMA), NodeKind.ORDERED),
        (lambda s: s.keyBy("k").process(partial(Unordered), SCHEMA), NodeKind.STATEFUL),
        (lambda s: s.keyBy("k").process(Stateless, SCHEMA), NodeKind.STATELESS),
    ],
)
def test_a_node_between_source_and_sink(build: Callable[[Stream], Stream], kind: NodeKind) -> None:
    assert kinds(lambda s: build(s).memory()) == [NodeKind.SOURCE, kind, NodeKind.SINK]


def test_a_writer_keeps_rows_of_open_epochs_and_the_committer_is_a_sink(tmp_path: Path) -> None:
    assert kinds(lambda s: s.parquet(tmp_path)) == [
        NodeKind.SOURCE,
        NodeKind.STATEFUL,
        NodeKind.SINK,
    ]


def test_a_watermark_or_a_combiner_at_a_source_is_part_of_it() -> None:
    def build(stream: Stream) -> None:
        marked = stream.withWatermark("t", "1 second")
        marked.groupBy(F.window("t", "10 seconds"), "k").agg(F.count("*")).memory()

    assert kinds(build) == [NodeKind.SOURCE, NodeKind.STATEFUL, NodeKind.SINK]


def test_every_shard_is_a_node_fed_by_the_shards_that_reach_it() -> None:
    def build(flow: Flow) -> None:
        source(flow).filter("n > 1").groupBy("k").agg(F.count("*")).filter("count > 1").memory()

    graph = causal_graph(planned(build, parallelism=2))
    assert graph.parents == {0: (), 1: (), 2: (0, 1), 3: (0, 1), 4: (2, 3)}


def test_the_nodes_of_a_loop_are_one_unit() -> None:
    edges = pa.schema({"a": pa.int64(), "b": pa.int64()})
    plan = planned(lambda flow: connected_components(source(flow, edges)).memory(), parallelism=2)
    graph, units = causal_graph(plan), loop_units(plan)
    inside = sorted(units)
    assert set(units.values()) == {min(inside)}
    assert all(graph.kinds[node] is NodeKind.STATEFUL for node in inside)
    assert all(not set(graph.parents[node]) & set(inside) for node in inside)
    assert all(graph.parents[node] for node in inside)
    (sink,) = [node for node, kind in graph.kinds.items() if kind is NodeKind.SINK]
    assert set(graph.parents[sink]) == set(inside)


@pytest.mark.parametrize("joined", [False, True])
def test_every_loop_that_is_in_no_other_is_a_unit_of_its_own(joined: bool) -> None:
    edges = pa.schema({"a": pa.int64(), "b": pa.int64()})

    def build(flow: Flow) -> None:
        rows = source(flow, edges)
        first = connected_components(rows, name="one")
        first.memory(name="first")
        connected_components(first if joined else rows, name="two").memory(name="second")

    assert len(set(loop_units(planned(build)).values())) == 2
