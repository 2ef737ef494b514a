"""Which parts of a plan have their progress tracked, and as which logical graph.

Epochs travel in band, as marks, wherever a flow has no cycle: that is exact, needs no coordinator
and costs one small message per edge and epoch.  Inside loops marks cannot work; there, occurrence
counts of pointstamps are tracked (Naiad, Sections 2.3 and 3.3).  Where rows enter a loop, the
receiving nodes hold a count for every epoch that their marks have not closed yet (the *gate*);
where rows leave it, the sending nodes mark an epoch once no count is left that could result in it.

Each outermost loop, with the loops inside it, is a *unit*: it has counts of its own, which begin
anew when it is restarted, and between two units there are marks as everywhere else.

``whole`` tracks everything, sources included, as one unit, and marks nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.core.control.assignment import UnitProgress
from penstock.core.control.host_progress import HostProgress
from penstock.core.control.loop_progress import gate_counts
from penstock.core.graph import GraphBuilder, LogicalGraph
from penstock.core.node.tracking import NodeTracking
from penstock.errors import GraphError
from penstock.operators.watermark import WithWatermark
from penstock.planning.physical import Chain, Link, PhysicalPlan

__all__ = ["TrackingPlan", "graph_of", "tracked_with", "tracking_plans"]


@dataclass(frozen=True)
class TrackingPlan:
    """The logical graph of what is tracked, and where the plan's parts are in it."""

    graph: LogicalGraph
    chains: Mapping[int, int]
    """The place of each tracked chain."""
    links: Mapping[int, int]
    """The place of each link between tracked chains."""
    gates: Mapping[int, int]
    """The place at which a chain's nodes hold the epochs that are still open outside."""
    unit: int = 0
    """Its first node: the number by which recovery knows it."""

    def node(self, chain: Chain) -> NodeTracking | None:
        """What a node of a chain needs to count, None if it is not tracked."""
        place = self.chains.get(chain.index)
        if place is None:
            return None
        gate = self.gates.get(chain.index)
        return NodeTracking(place, dict(self.links), gate, len(chain.loops), self.unit)

    def gate_places(self, plan: PhysicalPlan) -> dict[int, int]:
        """The place of the gate of each node that has one."""
        return {
            node: gate for chain, gate in self.gates.items() for node in plan.chains[chain].nodes
        }

    def host_progress(
        self, plan: PhysicalPlan, welcome: UnitProgress, nodes: frozenset[int]
    ) -> HostProgress:
        """What a host begins to count with, if it runs these nodes."""
        gates = {node: at for node, at in self.gate_places(plan).items() if node in nodes}
        held = gate_counts(gates, welcome.epoch + 1)
        return HostProgress(self.unit, self.graph, welcome, held)


def tracking_plans(plan: PhysicalPlan, whole: bool = False) -> tuple[TrackingPlan, ...]:
    """What to track in a plan: each unit by itself, or everything together."""
    if whole:
        _check_watermarks(plan)
        return (graph_of(plan, plan.chains),)
    units: dict[str, list[Chain]] = {}
    for chain in plan.chains:
        if chain.loops:
            units.setdefault(chain.loops[0], []).append(chain)
    return tuple(graph_of(plan, chains) for chains in units.values())


def tracked_with(plans: Iterable[TrackingPlan], chain: Chain) -> TrackingPlan | None:
    """The unit that a chain is in, if its progress is tracked."""
    return next((plan for plan in plans if chain.index in plan.chains), None)


def graph_of(plan: PhysicalPlan, tracked: Sequence[Chain]) -> TrackingPlan:
    """Some chains of a plan, and the links and loops around them, as a logical graph."""
    builder = GraphBuilder()
    for chain in tracked:
        for depth, name in enumerate(chain.loops):
            if name not in _loops(builder):
                builder.loop(name, chain.loops[depth - 1] if depth else None)
    inside = {chain.index for chain in tracked}
    for chain in tracked:
        if chain.is_source:
            builder.input(_stage(chain))
        else:
            builder.stage(_stage(chain), chain.loops[-1] if chain.loops else None)
    gated: list[int] = []
    for link in plan.links:
        if link.target_chain not in inside:
            continue
        target = _stage(plan.chains[link.target_chain])
        if link.source_chain in inside:
            _join(builder, link, _stage(plan.chains[link.source_chain]), target)
        elif link.target_chain not in gated:
            gated.append(link.target_chain)
            _join(builder, link, builder.input(f"gate {link.target_chain}"), target)
    graph = builder.build()
    gates = {chain: graph.place(f"gate {chain}") for chain in gated}
    gates |= {c.index: graph.place(_stage(c)) for c in tracked if c.is_source}
    return TrackingPlan(
        graph,
        {chain.index: graph.place(_stage(chain)) for chain in tracked},
        {
            link.index: graph.place(f"link {link.index}")
            for link in plan.links
            if link.source_chain in inside and link.target_chain in inside
        },
        gates,
        min(chain.first_node for chain in tracked),
    )


def _join(builder: GraphBuilder, link: Link, source: str, target: str) -> None:
    """A link as connectors, with a stage for every loop boundary on the way.

    Boundaries of loops that are not in the graph lie before its gate.
    """
    at = source
    known = _loops(builder)
    for number, shift in enumerate(link.shifts):
        if shift.loop not in known:
            continue
        name = f"{shift.kind} {link.index}.{number}"
        if shift.kind == "enter":
            builder.ingress(name, shift.loop)
        elif shift.kind == "leave":
            builder.egress(name, shift.loop)
        else:
            builder.feedback(name, shift.loop)
        builder.connect(at, name)
        at = name
    builder.connect(at, target, f"link {link.index}")


def _stage(chain: Chain) -> str:
    return f"chain {chain.index}"


def _loops(builder: GraphBuilder) -> list[str]:
    return [loop.name for loop in builder._loops]


def _check_watermarks(plan: PhysicalPlan) -> None:
    for chain in plan.chains:
        for stage in chain.stages:
            if isinstance(stage.operator, WithWatermark) and not chain.is_source:
                raise GraphError(
                    f"stage {stage.name!r}: with progress='tracked' event time is taken where the "
                    "source is read; call withWatermark before the first exchange"
                )
