"""Flows as a planner lays them out: stages in shards, exchanges that fan out, hosts of many nodes.

The layered graphs of :mod:`.stages` join single nodes at random.  A planned flow is regular: every
shard of a stage feeds every shard of the next (an exchange) or the shard of its own number, a stage
may feed several branches, each of which gets every row, and a host that dies takes all its nodes
with it.  The sinks live on a host of their own, as on the driver, and are seldom lost.
"""

from __future__ import annotations

from random import Random

from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.testing.simulator.stages import Shape

__all__ = ["fan_out_shape", "planned_shape"]

DRIVER = 0
"""The host of the sinks."""


class _Layout:
    """Nodes are added stage by stage, so that their numbers follow the flow."""

    def __init__(self, random: Random, hosts: int) -> None:
        self.random = random
        self.hosts_count = hosts
        self.kinds: dict[int, NodeKind] = {}
        self.modes: dict[int, str] = {}
        self.parents: dict[int, tuple[int, ...]] = {}
        self.links: dict[int, tuple[tuple[int, ...], ...]] = {}
        self.hosts: dict[int, int] = {}
        self.clean: set[int] = set()

    def stage(
        self,
        kind: NodeKind,
        above: tuple[int, ...],
        shards: int,
        mode: str = "split",
        forward: bool | None = None,
    ) -> tuple[int, ...]:
        """Add a stage, fed by all shards above or, if it is ``forward``, by that of its number.

        Unless that is said the coin decides where both are possible.
        """
        first = len(self.kinds)
        nodes = tuple(range(first, first + shards))
        if forward is None:
            may = len(above) == shards and kind is NodeKind.STATELESS
            forward = may and self.random.random() < 0.6
        for shard, node in enumerate(nodes):
            self.kinds[node], self.modes[node] = kind, mode
            self.parents[node] = (above[shard],) if forward else above
            sink = kind is NodeKind.SINK
            self.hosts[node] = DRIVER if sink else 1 + (node * 7 + shard) % self.hosts_count
        for shard, node in enumerate(above):
            reached = (nodes[shard],) if forward else nodes
            self.links[node] = (*self.links.get(node, ()), reached)
        return nodes


def planned_shape(random: Random) -> Shape:
    """Sources, an exchange or two, one to three branches with or without state, sinks."""
    layout = _Layout(random, random.choice((1, 1, 2, 3)))
    shards = random.choice((1, 2, 2))
    streams = [layout.stage(NodeKind.SOURCE, (), random.choice((1, 2, 2, 3)), "split")]
    if random.random() < 0.25:
        streams.append(layout.stage(NodeKind.SOURCE, (), random.choice((1, 2)), "split"))
    above = tuple(node for stream in streams for node in stream)
    for _ in range(random.choice((1, 1, 2))):
        above = layout.stage(NodeKind.STATELESS, above, shards, random.choice(("split", "filter")))
    for _ in range(random.choice((1, 2, 2, 3))):
        _branch(layout, above, shards)
    return Shape(
        CausalGraph(layout.kinds, layout.parents, clean=frozenset(layout.clean)),
        layout.modes,
        epochs=random.choice((3, 6, 10)),
        cut_share=random.choice((0.2, 0.35, 0.5)),
        skip_share=random.choice((0.0, 0.3, 0.6)),
        budget_bytes=random.choice((None, 40)),
        links=layout.links,
        hosts=layout.hosts,
    )


def fan_out_shape(seed: int) -> Shape:
    """Two shards of everything on one host: an exchange that feeds one branch, or two.

    The one has state whose checkpoints hold rows of open epochs, so that what they know of the
    exchange in several incarnations has to be brought together.
    """
    random = Random(seed)
    layout = _Layout(random, 1)
    sources = layout.stage(NodeKind.SOURCE, (), 2)
    keyed = layout.stage(NodeKind.STATELESS, sources, 2, forward=False)
    if random.random() < 0.5:
        layout.stage(NodeKind.SINK, layout.stage(NodeKind.STATELESS, keyed, 2, forward=True), 1)
    partial = layout.stage(NodeKind.STATELESS, keyed, 2, forward=True)
    layout.stage(NodeKind.SINK, layout.stage(NodeKind.STATEFUL, partial, 2, forward=False), 1)
    return Shape(
        CausalGraph(layout.kinds, layout.parents),
        layout.modes,
        epochs=random.choice((8, 14)),
        cut_share=random.choice((0.15, 0.3, 0.5)),
        batch_max=random.choice((1, 3)),
        skip_share=random.choice((0.3, 0.6)),
        links=layout.links,
        hosts=layout.hosts,
    )


def _branch(layout: _Layout, above: tuple[int, ...], shards: int) -> None:
    """Stages behind an exchange, down to a sink."""
    random = layout.random
    nodes = above
    for _ in range(random.choice((0, 1, 1, 2))):
        nodes = layout.stage(NodeKind.STATELESS, nodes, shards, random.choice(("split", "filter")))
    if random.random() < 0.6:
        kind = NodeKind.ORDERED if random.random() < 0.2 else NodeKind.STATEFUL
        mode = random.choice(("split", "split", "broadcast"))
        nodes = layout.stage(kind, nodes, random.choice((1, shards)), mode)
        if kind is NodeKind.STATEFUL and random.random() < 0.6:
            layout.clean.update(nodes)
        if random.random() < 0.3:
            nodes = layout.stage(NodeKind.STATELESS, nodes, shards, "filter")
    layout.stage(NodeKind.SINK, nodes, 1, "split")
