"""Runs of the simulator: one seed, many seeds, mutants."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from penstock.core.causal.graph import CausalGraph
from penstock.testing.simulator.faults import FAULTS
from penstock.testing.simulator.monitor import Violation
from penstock.testing.simulator.mutants import MUTANTS, REAL, Mutant
from penstock.testing.simulator.stages import Shape
from penstock.testing.simulator.world import World

__all__ = ["Outcome", "catch_mutants", "describe", "run_many", "run_seed"]

SHARD = 100
"""Seeds that one process runs in one go."""
MUTANT_SEEDS_MAX = 4000


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
        world.faults,
        world.steps,
        lines or [],
    )


def describe(shape: Shape) -> list[str]:
    """The graph, one line a node."""
    graph: CausalGraph = shape.graph
    return [
        f"node {node}: {graph.kinds[node].value}, {shape.modes[node]}"
        + (f", fed by {', '.join(map(str, graph.parents[node]))}" if graph.parents[node] else "")
        + (", with determinants" if node in graph.determined else "")
        + (", unrepeatable" if node in graph.unrepeatable else "")
        + (", noisy" if node in graph.noted else "")
        + (", in a loop" if node in graph.units else "")
        for node in graph.order
    ]


def run_many(seed: int, runs: int, processes: int = 1) -> dict[str, Any]:
    """Runs with consecutive seeds: counts of faults and violations, and the seeds that failed."""
    started = time.perf_counter()
    shards = [
        range(first, min(first + SHARD, seed + runs)) for first in range(seed, seed + runs, SHARD)
    ]
    faults: Counter[str] = Counter(dict.fromkeys((*FAULTS, "stale"), 0))
    failed: list[dict[str, Any]] = []
    steps = 0
    if processes == 1:
        results: Iterable[tuple[Counter[str], int, list[dict[str, Any]]]] = map(_shard, shards)
        for found in results:
            faults.update(found[0])
            steps += found[1]
            failed += found[2]
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, mp_context=context) as pool:
            for found in pool.map(_shard, shards):
                faults.update(found[0])
                steps += found[1]
                failed += found[2]
    return {
        "runs": runs,
        "violations": len(failed),
        "faults": dict(sorted(faults.items())),
        "steps": steps,
        "failed": failed[:20],
        "seconds": round(time.perf_counter() - started, 3),
    }


def _shard(seeds: range) -> tuple[Counter[str], int, list[dict[str, Any]]]:
    faults: Counter[str] = Counter()
    failed = []
    steps = 0
    for seed in seeds:
        outcome = run_seed(seed)
        faults.update(outcome.faults)
        steps += outcome.steps
        if outcome.violation is not None:
            failed.append({"seed": seed, "violation": outcome.violation})
    return faults, steps, failed


def catch_mutants(seed: int, seeds_max: int = MUTANT_SEEDS_MAX) -> dict[str, int | None]:
    """For each mutant the seed that caught it, or None."""
    return {m.name: caught_by(m, max(seed, m.seed), seeds_max) for m in MUTANTS}


def caught_by(mutant: Mutant, seed: int, seeds_max: int = MUTANT_SEEDS_MAX) -> int | None:
    """The first seed from ``seed`` on in which a mutant breaks an invariant."""
    for number in range(seed, seed + seeds_max):
        if run_seed(number, mutant).violation is not None:
            return number
    return None
