"""The flow of a simulated run."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.testing.simulator.cases import REPLICAS, Case
from penstock.testing.simulator.guarantees import with_guarantees
from penstock.testing.simulator.plans import fan_out_shape, planned_shape
from penstock.testing.simulator.regimes import with_regimes, with_switches
from penstock.testing.simulator.roles.shape import ReplicatedShape, shape_of
from penstock.testing.simulator.stages import Shape, random_shape

__all__ = ["flow_of", "only_replicas"]


def flow_of(case: Case, random: Random) -> Shape:
    """The flow of a case."""
    if case.layout == REPLICAS:
        return _with_replicas(case, random)
    if case.layout == "fan_out":
        shape = fan_out_shape(case.seed)
    elif case.layout == "planned":
        shape = planned_shape(random)
    else:
        shape = random_shape(random, twice=case.layout == "two_loops")
    if case.mixed:
        shape = with_regimes(shape, random)
    if case.promised:
        shape = with_guarantees(shape, random)
    if case.long:
        shape = with_switches(shape, random)
    return shape


def only_replicas(part: ReplicatedShape) -> Shape:
    """A flow that replicas play as a whole."""
    return Shape(CausalGraph({}, {}), {}, epochs=1, replicated=part)


def _with_replicas(case: Case, random: Random) -> Shape:
    """Replicas, alone or beside nodes on the same hosts."""
    if not case.mixed:
        return only_replicas(shape_of(random))
    shape = with_regimes(random_shape(random), random)
    part = shape_of(random, first=len(shape.graph.order))
    sinks = [node for node, kind in shape.graph.kinds.items() if kind is NodeKind.SINK]
    reads = random.choice((None, *sinks))
    return replace(shape, replicated=replace(part, reads=reads))
