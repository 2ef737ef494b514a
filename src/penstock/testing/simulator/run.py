"""Runs of the simulator: one seed, many seeds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from penstock.testing.shards import in_shards
from penstock.testing.simulator.cases import LIVES, PLAIN, Case, case_of
from penstock.testing.simulator.describe import describe, guarantees_of, regimes_of
from penstock.testing.simulator.faults import ALL_FAULTS
from penstock.testing.simulator.lives.shape import describe as describe_life
from penstock.testing.simulator.lives.world import LifeWorld
from penstock.testing.simulator.plain import PlainWorld
from penstock.testing.simulator.regimes import REGIMES
from penstock.testing.simulator.violations import Violation
from penstock.testing.simulator.world import World

__all__ = [
    "Outcome",
    "Shard",
    "run_many",
    "run_seed",
    "run_shard",
    "summed",
]


@dataclass
class Outcome:
    """How a run went."""

    case: Case
    violation: str | None
    rule: str | None
    faults: Counter[str]
    steps: int
    trace: list[str] = field(default_factory=list)
    regimes: frozenset[str] = frozenset()
    guarantees: frozenset[str] = frozenset()


def run_seed(seed: int | str | Case, trace: bool = False) -> Outcome:
    """One run; everything in it follows from the seed, or from the name of the run."""
    case = case_of(seed)
    lines: list[str] | None = [] if trace else None
    world: World | LifeWorld | PlainWorld
    regimes = guarantees = frozenset[str]()
    if case.layout == LIVES:
        world = life = LifeWorld(case, lines)
        about = describe_life(life.shape)
    elif case.layout == PLAIN:
        world = plain = PlainWorld(case, lines)
        about = plain.describe()
    else:
        world = nodes = World(case, lines)
        about = describe(nodes.shape)
        regimes, guarantees = regimes_of(nodes.shape), guarantees_of(nodes.shape)
    if lines is not None:
        lines += about
    violation: Violation | None = None
    try:
        world.run()
    except Violation as found:
        violation = found
    if lines is not None:
        lines.append(f"{world.steps:5d}  {'VIOLATION ' + str(violation) if violation else 'ok'}")
    return Outcome(
        case,
        None if violation is None else str(violation),
        None if violation is None else violation.rule,
        world.faults,
        world.steps,
        lines or [],
        regimes,
        guarantees,
    )


class Shard(NamedTuple):
    """How some runs went."""

    faults: Counter[str]
    regimes: Counter[str]
    guarantees: Counter[str]
    runs: int
    steps: int
    failed: list[dict[str, Any]]


def run_shard(seeds: range, draw: Callable[[int], Case] = Case.drawn) -> Shard:
    """Run these seeds; one whose run breaks off has failed like one that breaks an invariant."""
    faults: Counter[str] = Counter()
    regimes: Counter[str] = Counter()
    guarantees: Counter[str] = Counter()
    failed = []
    steps = 0
    for case in map(draw, seeds):
        try:
            outcome = run_seed(case)
        except Exception as error:
            failed.append({"seed": str(case), "violation": f"{type(error).__name__}: {error}"})
            continue
        faults.update(outcome.faults)
        regimes.update(outcome.regimes)
        guarantees.update(outcome.guarantees)
        steps += outcome.steps
        if outcome.violation is not None:
            failed.append({"seed": str(case), "violation": outcome.violation})
    return Shard(faults, regimes, guarantees, len(seeds), steps, failed)


def run_many(
    seed: int, runs: int, processes: int = 1, draw: Callable[[int], Case] = Case.drawn
) -> dict[str, Any]:
    """Runs with consecutive seeds: counts of faults and violations, and the seeds that failed."""
    return summed(in_shards(partial(run_shard, draw=draw), seed, runs, processes))


def summed(shards: Iterable[Shard]) -> dict[str, Any]:
    """What was found in all shards together."""
    started = time.perf_counter()
    faults: Counter[str] = Counter(dict.fromkeys(ALL_FAULTS, 0))
    regimes: Counter[str] = Counter(dict.fromkeys(REGIMES, 0))
    guarantees: Counter[str] = Counter()
    failed: list[dict[str, Any]] = []
    runs = steps = 0
    for found in shards:
        faults.update(found.faults)
        regimes.update(found.regimes)
        guarantees.update(found.guarantees)
        runs += found.runs
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
