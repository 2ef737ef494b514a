"""Regimes of a simulated flow: which node keeps what, and which edges are persisted.

A causal flow becomes one of mixed regimes.  A persisted edge is a sink and a source over what the
sink has published; the graph of recovery has no edge between the two.  With a global checkpoint
all nodes have the same regime.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.testing.simulator.stages import Shape

__all__ = ["REGIMES", "with_regimes", "with_switches"]

REGIMES = ("causal", "lazy", "ephemeral", "batch", "eager", "global", "persist", "switched")
LONG = 14
"""Epochs of runs in which some nodes save much less often than others."""
LONGER = 16
"""Epochs of runs in which logs are turned on and off again and again."""
_INNER = (NodeKind.STATELESS, NodeKind.STATEFUL, NodeKind.ORDERED)


def with_regimes(shape: Shape, random: Random) -> Shape:
    """The same flow with regimes for its nodes."""
    graph = shape.graph
    if random.random() < 0.2:
        return _global(shape, random)
    regimes = _chosen(graph, random)
    share = random.choice((0.0, 0.2, 0.4))
    persisted = {
        node
        for node in graph.order
        if graph.children[node] and (_must_persist(graph, regimes, node) or random.random() < share)
    }
    switched = frozenset(
        node
        for node in graph.order
        if regimes.get(node, "causal") == "causal"
        and graph.children[node]
        and random.random() < random.choice((0.0, 0.3))
    )
    return _built(shape, random, regimes, persisted, switched)


def with_switches(shape: Shape, random: Random) -> Shape:
    """The same flow for many epochs; nodes that keep a log may be told not to."""
    graph = shape.graph
    share = random.choice((0.3, 0.6, 1.0))
    switched = frozenset(
        node
        for node in graph.order
        if graph.children[node]
        and node not in graph.logless | graph.untraced
        and random.random() < share
    )
    return replace(shape, epochs=LONGER, switched=shape.switched | switched)


def _chosen(graph: CausalGraph, random: Random) -> dict[int, str]:
    found: dict[int, str] = {}
    for node in graph.order:
        kind = graph.kinds[node]
        if node in found or kind not in _INNER:
            continue
        choices = ["causal", "causal", "lazy", "lazy", "batch"]
        if kind is NodeKind.STATELESS:
            choices += ["ephemeral", "ephemeral"]
        if kind is NodeKind.STATEFUL:
            choices.append("eager")
        if node in graph.units:
            choices = ["causal", "lazy"]
        if kind is NodeKind.ORDERED:
            choices = ["causal"]
        regime = random.choice(choices)
        found.update(dict.fromkeys(graph.members[node], regime))
    return found


def _must_persist(graph: CausalGraph, regimes: dict[int, str], node: int) -> bool:
    """What batch and eager nodes make is durable: on its way, or because sinks are."""
    if regimes.get(node) not in ("batch", "eager"):
        return False
    return any(graph.kinds[child] is not NodeKind.SINK for child in graph.children[node])


def _built(
    shape: Shape,
    random: Random,
    regimes: dict[int, str],
    persisted: set[int],
    switched: frozenset[int],
) -> Shape:
    graph = shape.graph
    kinds, modes = dict(graph.kinds), dict(shape.modes)
    parents = dict(graph.parents)
    pairs: dict[int, int] = {}
    for node in sorted(persisted):
        sink, source = len(kinds), len(kinds) + 1
        for child in graph.children[node]:
            near = (source if parent == node else parent for parent in parents[child])
            parents[child] = tuple(sorted(near))
        kinds[sink], parents[sink], modes[sink] = NodeKind.SINK, (node,), "split"
        kinds[source], pairs[source] = NodeKind.SOURCE, sink
        modes[source] = "broadcast" if modes[node] == "broadcast" else "split"
    forgetful = [node for node, kind in kinds.items() if kind is NodeKind.SOURCE]
    logless = {node for node in forgetful if random.random() < 0.5} - switched
    logless |= {node for node, regime in regimes.items() if regime != "causal"}
    clean = {n for n, regime in regimes.items() if regime in ("lazy", "batch", "eager")}
    every = random.choice((1, 2, 3))
    return replace(
        shape,
        graph=CausalGraph(
            kinds,
            parents,
            graph.units,
            graph.noted,
            frozenset(logless),
            frozenset(clean),
        ),
        modes=modes,
        regimes=regimes,
        every={
            node: 1 if regimes[node] == "eager" else random.choice((every, 2 * every, 4 * every))
            for node in sorted(clean - set(graph.units))
        }
        | dict.fromkeys(clean.intersection(graph.units), every),
        pairs=pairs,
        switched=switched,
        epochs=random.choice((shape.epochs, shape.epochs, LONG)),
    )


def _global(shape: Shape, random: Random) -> Shape:
    """All checkpoints at one epoch; no node depends on an order, or notes values."""
    graph = shape.graph
    kinds = {
        node: NodeKind.STATEFUL if kind is NodeKind.ORDERED else kind
        for node, kind in graph.kinds.items()
    }
    inner = [node for node, kind in kinds.items() if kind in _INNER]
    every = random.choice((1, 2, 3))
    return replace(
        shape,
        graph=CausalGraph(
            kinds,
            graph.parents,
            graph.units,
            logless=frozenset(graph.order),
            clean=frozenset(inner),
        ),
        regimes=dict.fromkeys(inner, "global"),
        every=dict.fromkeys(inner, every),
        global_every=every,
        cuts_multiples=random.random() < 0.5,
    )
