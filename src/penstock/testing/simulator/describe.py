"""What a simulated flow is like, in words."""

from __future__ import annotations

from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.testing.simulator.roles.shape import describe_roles
from penstock.testing.simulator.stages import Shape

__all__ = ["describe", "guarantees_of", "regimes_of"]


def guarantees_of(shape: Shape) -> frozenset[str]:
    """The guarantees of a flow's sinks."""
    graph = shape.graph
    sinks = {node for node, kind in graph.kinds.items() if kind is NodeKind.SINK}
    found = {"at-most-once"} if sinks & graph.lossy else set()
    if sinks & graph.doubling:
        found.add("at-least-once")
    if shape.replicated is not None:
        found.add(shape.replicated.settings.guarantee.value)
    return frozenset(found | ({"exactly-once"} if sinks - graph.untraced else set()))


def regimes_of(shape: Shape) -> frozenset[str]:
    """The regimes that a flow has."""
    ends = (NodeKind.SOURCE, NodeKind.SINK)
    inner = [node for node, kind in shape.graph.kinds.items() if kind not in ends]
    found = {shape.regimes.get(node, "causal") for node in inner}
    if shape.global_every is not None:
        found = {"global"}
    if shape.replicated is not None:
        found.add("replicated")
    return frozenset(found | ({"persist"} if shape.pairs else set())) | (
        {"switched"} if shape.switched else set()
    )


def describe(shape: Shape) -> list[str]:
    """The graph, one line a node, then what replicas play."""
    graph: CausalGraph = shape.graph
    roles = [] if shape.replicated is None else describe_roles(shape.replicated)
    return [
        f"node {node}: {graph.kinds[node].value}, {shape.modes[node]}"
        + (f", fed by {', '.join(map(str, graph.parents[node]))}" if graph.parents[node] else "")
        + (", with determinants" if node in graph.determined else "")
        + (", noisy" if node in graph.noted else "")
        + (", in a loop" if node in graph.units else "")
        + (f", {shape.regimes[node]}" if node in shape.regimes else "")
        + (f", a checkpoint every {shape.every[node]} epochs" if node in shape.every else "")
        + (", at most once" if node in graph.lossy else "")
        + (", at least once" if node in graph.doubling else "")
        + (", without a log" if node in graph.logless else "")
        + (f", reads what {shape.pairs[node]} has published" if node in shape.pairs else "")
        for node in graph.order
    ] + roles
