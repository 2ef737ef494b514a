"""Mutants of what several have in common: loops of one flow, and hosts that are lost at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.core.control.recovery import RecoveryEffect
from penstock.testing.mutants.mutant import Flows, Mutant, Replacement, mutant

__all__ = ["TOGETHER"]

_GRAPH = "penstock.core.causal.graph:CausalGraph"
_MACHINE = "penstock.core.control.recovery:RecoveryMachine"


@mutant("each of two loops fails as one (20)", f"{_GRAPH}.closure", flows=Flows.TWO_LOOPS, seed=3)
def second_loop_forgotten(real: Replacement, self: Any, nodes: Iterable[int]) -> frozenset[int]:
    """Fails the first loop as a whole, and of the other one only the nodes that were lost."""
    given = frozenset(nodes)
    first = min(self.units.values(), default=None)
    alone = {node for node in given if self.units.get(node, first) != first}
    found: frozenset[int] = real(self, given - alone)
    return found | alone


@mutant("a host lost with another one is lost, too (4)", f"{_MACHINE}.lost", flows=Flows.PLANNED)
def hears_one_loss_at_a_time(
    real: Replacement, self: Any, nodes: Mapping[int, int]
) -> list[RecoveryEffect]:
    effects: list[RecoveryEffect] = real(self, nodes) if self.open else []
    return effects


TOGETHER: tuple[Mutant, ...] = tuple(one for one in globals().values() if isinstance(one, Mutant))
