"""Runs of the simulator: one seed, many seeds, mutants."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from penstock.core.causal.graph import CausalGraph, Kind
from penstock.testing.shards import in_shards
from penstock.testing.simulator.faults import FAULTS, ROLLBACK
from penstock.testing.simulator.monitor import Violation
from penstock.testing.simulator.mutants import MUTANTS, REAL, Mutant
from penstock.testing.simulator.regimes import REGIMES
from penstock.testing.simulator.stages import Shape
from penstock.testing.simulator.world import World

__all__ = ["Outcome", "catch_mutants", "describe", "run_many", "run_seed"]

MUTANT_SEEDS_MAX = 4000
MIXED_SHARE = 0.6
"""So many of the flows have mixed regimes."""
PROMISED_SHARE = 0.4
"""So many of the others promise less than exactly once somewhere."""


@dataclass
class Outcome:
    """How a run went."""

    seed: int
    violation: str | None
    rule: str | None
    faults: Counter[str]
    steps: int
    trace: list[str] = field(default_factory=list)
    regimes: frozenset[str] = frozenset()
    guarantees: frozenset[str] = frozenset()


def run_seed(
    seed: int,
    mutant: Mutant = REAL,
    trace: bool = False,
    shape: Shape | None = None,
    mixed: bool | None = None,
    promised: bool | None = None,
) -> Outcome:
    """One run; everything in it follows from the seed.

    Unless ``mixed`` says whether it has regimes of all kinds, and ``promised`` guarantees.
    """
    lines: list[str] | None = [] if trace else None
    if mixed is None:
        mixed = shape is None and is_mixed(seed)
    if promised is None:
        promised = shape is None and not mixed and is_promised(seed)
    world = World(seed, mutant, lines, shape, mixed, promised)
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
        regimes_of(world.shape),
        guarantees_of(world.shape),
    )


def is_mixed(seed: int) -> bool:
    """Whether the flow of a seed has regimes of all kinds, or is causal as a whole."""
    return Random(f"regimes of {seed}").random() < MIXED_SHARE


def is_promised(seed: int) -> bool:
    """Whether a causal flow promises less than exactly once somewhere."""
    return Random(f"guarantees of {seed}").random() < PROMISED_SHARE


def guarantees_of(shape: Shape) -> frozenset[str]:
    """The guarantees of a flow's sinks."""
    graph = shape.graph
    sinks = {node for node, kind in graph.kinds.items() if kind is Kind.SINK}
    found = {"at-most-once"} if sinks & graph.lossy else set()
    if sinks & graph.doubling:
        found.add("at-least-once")
    return frozenset(found | ({"exactly-once"} if sinks - graph.untraced else set()))


def regimes_of(shape: Shape) -> frozenset[str]:
    """The regimes that a flow has."""
    ends = (Kind.SOURCE, Kind.SINK)
    inner = [node for node, kind in shape.graph.kinds.items() if kind not in ends]
    found = {shape.regimes.get(node, "causal") for node in inner}
    if shape.global_every is not None:
        found = {"global"}
    return frozenset(found | ({"persist"} if shape.pairs else set())) | (
        {"switched"} if shape.switched else set()
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
        + (f", {shape.regimes[node]}" if node in shape.regimes else "")
        + (f", a checkpoint every {shape.every[node]} epochs" if node in shape.every else "")
        + (", at most once" if node in graph.lossy else "")
        + (", at least once" if node in graph.doubling else "")
        + (", without a log" if node in graph.logless else "")
        + (f", reads what {shape.pairs[node]} has published" if node in shape.pairs else "")
        for node in graph.order
    ]


def run_many(seed: int, runs: int, processes: int = 1) -> dict[str, Any]:
    """Runs with consecutive seeds: counts of faults and violations, and the seeds that failed."""
    started = time.perf_counter()
    faults: Counter[str] = Counter(dict.fromkeys((*FAULTS, ROLLBACK, "stale"), 0))
    regimes: Counter[str] = Counter(dict.fromkeys(REGIMES, 0))
    guarantees: Counter[str] = Counter()
    failed: list[dict[str, Any]] = []
    steps = 0
    for found in in_shards(_shard, seed, runs, processes):
        faults.update(found.faults)
        regimes.update(found.regimes)
        guarantees.update(found.guarantees)
        steps += found.steps
        failed += found.failed
    return {
        "runs": runs,
        "violations": len(failed),
        "faults": dict(sorted(faults.items())),
        "regimes": dict(sorted(regimes.items())),
        "guarantees": dict(sorted(guarantees.items())),
        "steps": steps,
        "failed": failed[:20],
        "seconds": round(time.perf_counter() - started, 3),
    }


class _Shard(NamedTuple):
    faults: Counter[str]
    regimes: Counter[str]
    guarantees: Counter[str]
    steps: int
    failed: list[dict[str, Any]]


def _shard(seeds: range) -> _Shard:
    faults: Counter[str] = Counter()
    regimes: Counter[str] = Counter()
    guarantees: Counter[str] = Counter()
    failed = []
    steps = 0
    for seed in seeds:
        outcome = run_seed(seed)
        faults.update(outcome.faults)
        regimes.update(outcome.regimes)
        guarantees.update(outcome.guarantees)
        steps += outcome.steps
        if outcome.violation is not None:
            failed.append({"seed": seed, "violation": outcome.violation})
    return _Shard(faults, regimes, guarantees, steps, failed)


def catch_mutants(seed: int, seeds_max: int = MUTANT_SEEDS_MAX) -> dict[str, int | None]:
    """For each mutant the seed that caught it, or None."""
    return {m.name: caught_by(m, max(seed, m.seed), seeds_max) for m in MUTANTS}


def caught_by(mutant: Mutant, seed: int, seeds_max: int = MUTANT_SEEDS_MAX) -> int | None:
    """The first seed from ``seed`` on in which a mutant breaks an invariant."""
    for number in range(seed, seed + seeds_max):
        found = run_seed(number, mutant, mixed=mutant.mixed, promised=mutant.promised)
        if found.violation is not None:
            return number
    return None
