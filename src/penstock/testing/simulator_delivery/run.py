"""Runs of the simulator of replicas: one seed, many seeds, mutants."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.testing.shards import in_shards
from penstock.testing.simulator_delivery.faults import FAULTS
from penstock.testing.simulator_delivery.monitor import Violation
from penstock.testing.simulator_delivery.mutants import MUTANTS, REAL, Mutant
from penstock.testing.simulator_delivery.shape import Shape
from penstock.testing.simulator_delivery.world import World

__all__ = ["Outcome", "catch_delivery_mutants", "caught_by", "run", "simulate_delivery"]

MUTANT_SEEDS_MAX = 4000


@dataclass
class Outcome:
    """How a run went."""

    seed: int
    violation: str | None
    rule: str | None
    faults: Counter[str]
    steps: int
    world: World
    trace: list[str] = field(default_factory=list)


def run(
    seed: int,
    mutant: Mutant = REAL,
    trace: bool = False,
    shape: Shape | None = None,
    faults: tuple[str, ...] | None = None,
) -> Outcome:
    """One run; everything in it follows from the seed (and from what is given here)."""
    lines: list[str] | None = [] if trace else None
    world = World(seed, mutant, lines, shape, faults)
    if lines is not None:
        lines += describe(world.shape)
    violation: Violation | None = None
    try:
        world.run()
    except Violation as found:
        violation = found
    if lines is not None:
        lines.append(f"{world.steps:5d}  {'VIOLATION ' + str(violation) if violation else 'ok'}")
    return Outcome(
        seed,
        None if violation is None else str(violation),
        None if violation is None else violation.rule,
        world.counts,
        world.steps,
        world,
        lines or [],
    )


def describe(shape: Shape) -> list[str]:
    """The flow, one line a stage."""
    settings = shape.settings
    way = (
        "mirrored" if settings.mirrored else "acknowledged" if settings.acknowledged else "records"
    )
    lines = [
        f"{settings.guarantee.value}, {way}, depth {settings.depth}, take-over by "
        f"{shape.takeover.value}, {shape.numbers} parcels of {shape.rows} rows a source role"
    ]
    for stage, hosts in shape.hosts.items():
        kind = shape.functions.get(stage, "sink" if stage else "source")
        routing = f", {shape.routings[stage].kind.value}" if stage in shape.routings else ""
        feeds = ", ".join(map(str, shape.stages.children.get(stage, ())))
        lines.append(
            f"stage {stage}: {kind}{routing}, {shape.stages.roles[stage]} roles on {hosts} hosts"
            + (f", feeds {feeds}" if feeds else "")
        )
    return lines


def simulate_delivery(seed: int, runs: int, processes: int = 1) -> dict[str, Any]:
    """Runs with consecutive seeds: counts of faults and violations, and the seeds that failed."""
    started = time.perf_counter()
    faults: Counter[str] = Counter(dict.fromkeys((*FAULTS, "zombie"), 0))
    guarantees: Counter[str] = Counter()
    failed: list[dict[str, Any]] = []
    steps = 0
    for found in in_shards(_shard, seed, runs, processes):
        faults.update(found.faults)
        guarantees.update(found.guarantees)
        steps += found.steps
        failed += found.failed
    return {
        "runs": runs,
        "violations": len(failed),
        "faults": dict(sorted(faults.items())),
        "guarantees": dict(sorted(guarantees.items())),
        "steps": steps,
        "failed": failed[:20],
        "seconds": round(time.perf_counter() - started, 3),
    }


class _Shard(NamedTuple):
    faults: Counter[str]
    guarantees: Counter[str]
    steps: int
    failed: list[dict[str, Any]]


def _shard(seeds: range) -> _Shard:
    found = _Shard(Counter(), Counter(), 0, [])
    for seed in seeds:
        outcome = run(seed)
        found.faults.update(outcome.faults)
        found.guarantees[outcome.world.shape.settings.guarantee.value] += 1
        found = found._replace(steps=found.steps + outcome.steps)
        if outcome.violation is not None:
            found.failed.append({"seed": seed, "violation": outcome.violation})
    return found


def catch_delivery_mutants(seed: int, seeds_max: int = MUTANT_SEEDS_MAX) -> dict[str, int | None]:
    """For each mutant the seed that caught it, or None."""
    return {mutant.name: caught_by(mutant, seed, seeds_max) for mutant in MUTANTS}


def caught_by(mutant: Mutant, seed: int, seeds_max: int = MUTANT_SEEDS_MAX) -> int | None:
    """The first seed from ``seed`` on in which a mutant breaks an invariant."""
    for number in range(seed, seed + seeds_max):
        if run(number, mutant).violation is not None:
            return number
    return None
