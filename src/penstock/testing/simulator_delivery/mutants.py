"""Mutants of the protocol: each leaves out one thing, and the simulator must notice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.delivery.records import ReplicaMachine
from penstock.core.delivery.ring_controller import RingController

__all__ = ["MUTANTS", "REAL", "Mutant"]


@dataclass(frozen=True)
class Mutant:
    """The machines of a run: the real ones, or slightly wrong ones."""

    name: str
    leaves_out: str = ""
    machine: type[ReplicaMachine] = ReplicaMachine
    controller: type[RingController] = RingController
    stale_writes: bool = False
    forgetful_store: bool = False


REAL = Mutant("real")
MUTANTS: tuple[Mutant, ...] = ()
