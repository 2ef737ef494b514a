"""Logical graphs: well-formed ones are numbered, malformed ones refused with the reason."""

from __future__ import annotations

import pytest

from penstock.core.graph import (
    Connector,
    GraphBuilder,
    GraphStage,
    LogicalGraph,
    LoopContext,
    StageKind,
)
from penstock.errors import GraphError


def edges(builder: GraphBuilder, listed: str) -> GraphBuilder:
    for edge in listed.split(","):
        builder.connect(*edge.split())
    return builder


def looped() -> GraphBuilder:
    builder = GraphBuilder()
    builder.input("in")
    builder.loop("outer")
    builder.ingress("enter", "outer")
    builder.stage("body", "outer")
    builder.feedback("again", "outer")
    builder.egress("leave", "outer")
    builder.stage("out")
    return builder


def test_a_loop_gives_its_places_a_counter() -> None:
    graph = edges(
        looped(), "in enter,enter body,body again,again body,body leave,leave out"
    ).build()
    depths = {graph.name_of(place): graph.depth(place) for place in range(len(graph))}
    assert [name for name, depth in depths.items() if depth] == [
        "body", "again", "leave", "enter->body", "body->again", "again->body", "body->leave",
    ]  # fmt: skip
    assert graph.context(graph.place("body")) == "outer"
    assert graph.inputs() == (graph.place("in"),)
    cyclic = [component for component in graph.components() if len(component) > 1]
    assert [graph.name_of(p) for p in cyclic[0] if graph.is_stage(p)] == ["body", "again"]


def test_components_are_listed_upstream_first() -> None:
    graph = edges(
        looped(), "in enter,enter body,body again,again body,body leave,leave out"
    ).build()
    order = {place: i for i, members in enumerate(graph.components()) for place in members}
    for place in range(len(graph)):
        for following in graph.successors(place):
            assert order[place] <= order[following]


def test_cycle_outside_every_loop_is_refused() -> None:
    builder = GraphBuilder()
    builder.stage("a")
    builder.stage("b")
    with pytest.raises(GraphError, match=r"cycle outside every loop has no feedback.*a -> b"):
        edges(builder, "a b,b a").build()


def test_cycle_inside_a_loop_without_feedback_is_refused() -> None:
    builder = looped()
    builder.stage("other", "outer")
    with pytest.raises(GraphError, match=r"cycle in loop 'outer' has no feedback stage of its own"):
        edges(builder, "in enter,enter body,body other,other body").build()


def test_feedback_of_an_inner_loop_does_not_make_an_outer_cycle_advance() -> None:
    builder = looped()
    builder.loop("inner", "outer")
    builder.ingress("enter2", "inner")
    builder.feedback("again2", "inner")
    builder.egress("leave2", "inner")
    edges(builder, "in enter,enter body,body enter2,enter2 again2,again2 leave2,leave2 body")
    with pytest.raises(GraphError, match="cycle in loop 'outer' has no feedback"):
        builder.build()


def test_leaving_and_entering_a_loop_again_without_an_outer_feedback_is_refused() -> None:
    builder = looped()
    edges(builder, "in enter,enter body,body again,again body,body leave,leave enter")
    with pytest.raises(GraphError, match="cycle outside every loop"):
        builder.build()


def test_entering_the_same_context_twice_without_a_cycle_is_fine() -> None:
    builder = looped()
    builder.ingress("enter2", "outer")
    builder.egress("leave2", "outer")
    edges(builder, "in enter,enter body,body again,again body,body leave")
    edges(builder, "leave enter2,enter2 leave2,leave2 out").build()


@pytest.mark.parametrize(
    ("edge", "reason"),
    [
        ("in body", r"'in' \(outside every loop.*to 'body' \(in loop 'outer', times with 1"),
        ("body out", r"'body' \(in loop 'outer'.*to 'out' \(outside every loop"),
        ("out again", r"one loop at a time"),
        ("body enter", r"one loop at a time"),
        ("leave body", r"one loop at a time"),
        ("out in", r"leads into input 'in'"),
        ("out nowhere", r"'nowhere', which is not a stage"),
    ],
)
def test_edges_that_cross_a_loop_boundary_or_end_nowhere_are_refused(
    edge: str, reason: str
) -> None:
    with pytest.raises(GraphError, match=reason):
        edges(looped(), edge).build()


def test_sibling_loops_of_equal_depth_do_not_mix() -> None:
    builder = looped()
    builder.loop("sibling")
    builder.stage("there", "sibling")
    with pytest.raises(GraphError, match="in loop 'sibling', times with 1 counter"):
        edges(builder, "body there").build()


def test_skipping_a_level_of_nesting_is_refused() -> None:
    builder = looped()
    builder.loop("inner", "outer")
    builder.ingress("enter2", "inner")
    with pytest.raises(GraphError, match="times with 0 counter"):
        edges(builder, "in enter2").build()


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (([GraphStage("a"), GraphStage("a")],), "two stages or connectors are called 'a'"),
        (([GraphStage("a", loop="x")],), "loop 'x', which is not defined"),
        (([GraphStage("a", StageKind.INGRESS)],), "ingress 'a' names no loop"),
        (
            ([GraphStage("a", StageKind.INPUT, "x")], (), [LoopContext("x")]),
            "inside loop 'x'; inputs bring",
        ),
        (([], (), [LoopContext("x"), LoopContext("x")]), "two loops are called 'x'"),
        (([], (), [LoopContext("x", "y"), LoopContext("y", "x")]), "inside itself"),
        (([], (), [LoopContext("x", "y")]), "inside 'y', which is not defined"),
        (([GraphStage("a")], [Connector("c", "a", "c")]), "'c', which is not a stage"),
    ],
)
def test_definitions_that_make_no_sense_are_refused(
    graph: tuple[list[GraphStage]], reason: str
) -> None:
    with pytest.raises(GraphError, match=reason):
        LogicalGraph(*graph)


def test_parallel_connectors_get_names_of_their_own() -> None:
    builder = GraphBuilder()
    builder.stage("a")
    builder.stage("b")
    assert [builder.connect("a", "b") for _ in range(3)] == ["a->b", "a->b#2", "a->b#3"]
    assert len(builder.build()) == 5
    with pytest.raises(GraphError, match="there is no stage or connector 'c'"):
        builder.build().place("c")
