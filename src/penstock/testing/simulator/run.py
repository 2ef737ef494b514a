"""Runs of the simulator: one seed, many seeds, mutants."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from penstock.testing.simulator.monitor import Violation
from penstock.testing.simulator.mutants import REAL, Mutant
from penstock.testing.simulator.stages import Shape
from penstock.testing.simulator.world import World

__all__ = ["Outcome", "run_seed"]


@dataclass
class Outcome:
    """How a run went."""

    seed: int
    violation: str | None
    rule: str | None
    faults: Counter[str]
    steps: int
    trace: list[str] = field(default_factory=list)


def run_seed(
    seed: int, mutant: Mutant = REAL, trace: bool = False, shape: Shape | None = None
) -> Outcome:
    """One run; everything in it follows from the seed."""
    lines: list[str] | None = [] if trace else None
    world = World(seed, mutant, lines, shape)
    violation: Violation | None = None
    try:
        world.run()
    except Violation as found:
        violation = found
    return Outcome(
        seed,
        None if violation is None else str(violation),
        None if violation is None else violation.rule,
        world.faults,
        world.steps,
        lines or [],
    )
