"""Mutants of the protocol that the simulator must catch."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.machine.causal import CausalMachine
from penstock.core.machine.causal_source import CausalSource
from penstock.core.machine.recovery import RecoveryMachine

__all__ = ["MUTANTS", "REAL", "Mutant"]


@dataclass(frozen=True)
class Mutant:
    """The machines of a run; the real ones, or slightly wrong ones."""

    name: str
    claim: str = ""
    machine: type[CausalMachine] = CausalMachine
    source: type[CausalSource] = CausalSource
    recovery: type[RecoveryMachine] = RecoveryMachine
    stale_writes: bool = False


REAL = Mutant("real")

MUTANTS: tuple[Mutant, ...] = ()
