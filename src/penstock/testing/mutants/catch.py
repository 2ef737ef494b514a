"""Every mutant, and the seeds that catch them."""

from __future__ import annotations

import time
from typing import Any

from penstock.testing.mutants.lives import LIVES
from penstock.testing.mutants.loops import LOOPS
from penstock.testing.mutants.membership import MEMBERSHIP
from penstock.testing.mutants.mutant import Flows, Mutant, applied
from penstock.testing.mutants.nodes import NODES
from penstock.testing.mutants.recovery import RECOVERY
from penstock.testing.mutants.replicas import REPLICAS
from penstock.testing.mutants.retention import RETENTION
from penstock.testing.mutants.together import TOGETHER
from penstock.testing.shards import in_processes
from penstock.testing.simulator.run import run_seed

__all__ = ["MUTANTS", "catch_all", "caught_by", "violation"]

MUTANTS: tuple[Mutant, ...] = (
    *NODES,
    *LOOPS,
    *RECOVERY,
    *RETENTION,
    *MEMBERSHIP,
    *LIVES,
    *REPLICAS,
    *TOGETHER,
)

SEEDS_MAX = 4000
"""A mutant that this many seeds do not catch has survived."""


def violation(flows: Flows, seed: int) -> str | None:
    """What a seed's run of such flows breaks, if anything."""
    return run_seed(f"{flows.value}:{seed}").violation


def caught_by(mutant: Mutant, seeds_max: int = SEEDS_MAX) -> int | None:
    """The first seed, from the one that is known to catch it on, in which a mutant is caught."""
    with applied(mutant):
        for seed in range(mutant.seed, mutant.seed + seeds_max):
            if violation(mutant.flows, seed) is not None:
                return seed
    return None


def catch_all(processes: int) -> dict[str, Any]:
    """The seed that catches each mutant."""
    started = time.perf_counter()
    found = dict(in_processes(_catch, [mutant.name for mutant in MUTANTS], processes))
    return {
        "count": len(MUTANTS),
        "caught": sum(seed is not None for seed in found.values()),
        "mutants": {name: seed is not None for name, seed in found.items()},
        "caught_by_seed": found,
        "seconds": round(time.perf_counter() - started, 3),
    }


def _catch(name: str) -> tuple[str, int | None]:
    return name, caught_by(next(mutant for mutant in MUTANTS if mutant.name == name))
