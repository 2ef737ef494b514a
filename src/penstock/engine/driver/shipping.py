"""What of a plan travels to the hosts, and what stays on the driver."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.connectors.driver import DriverSink
from penstock.connectors.memory import MemorySource
from penstock.operators.base import SourceOperator
from penstock.planning.physical import PhysicalPlan

__all__ = ["driver_sinks", "memory_sources", "without_driver_operators"]


def driver_sinks(plan: PhysicalPlan) -> dict[str, DriverSink]:
    """The sinks that live on the driver."""
    return {
        stage.name: stage.operator
        for chain in plan.chains
        for stage in chain.stages
        if isinstance(stage.operator, DriverSink)
    }


def memory_sources(plan: PhysicalPlan) -> list[MemorySource]:
    """The sources that the driver pushes rows into."""
    return [
        operator.source
        for chain in plan.chains
        if isinstance(operator := chain.stages[0].operator, SourceOperator)
        and isinstance(operator.source, MemorySource)
    ]


def without_driver_operators(plan: PhysicalPlan) -> PhysicalPlan:
    """The plan as hosts get it: what lives on the driver stays there."""
    chains = tuple(
        replace(chain, stages=tuple(replace(s, operator=_STAYS) for s in chain.stages))
        if chain.on_driver
        else chain
        for chain in plan.chains
    )
    return replace(plan, chains=chains)


class _Stays:
    """Stands for an operator that did not travel."""

    sink = False


_STAYS: Any = _Stays()
