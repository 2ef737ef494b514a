"""The flow of a simulated run."""

from __future__ import annotations

from random import Random

from penstock.testing.simulator.cases import Case
from penstock.testing.simulator.guarantees import with_guarantees
from penstock.testing.simulator.plans import fan_out_shape, planned_shape
from penstock.testing.simulator.regimes import with_regimes, with_switches
from penstock.testing.simulator.stages import Shape, random_shape

__all__ = ["flow_of"]


def flow_of(case: Case, random: Random) -> Shape:
    """The flow of a case."""
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
