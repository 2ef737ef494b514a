"""Slow reference models for the planner: every anchor set, straight from the definitions.

Shares no code with ``penstock.core.plan`` beyond the topology itself, so that property tests can
compare the two. Exponential in the number of operators: keep it to about ten.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import combinations

from penstock.core.plan.topology import OperatorTopology

__all__ = ["brute_force", "expected_recovery", "rolled_back", "spent"]


def rolled_back(topology: OperatorTopology, anchors: frozenset[int], failed: int) -> frozenset[int]:
    """The operators that a failure rolls back: up every path to the nearest anchor."""
    found = {failed}
    if failed not in anchors:
        for above in topology.parents[failed]:
            found |= rolled_back(topology, anchors, above)
    return frozenset(found)


def spent(
    topology: OperatorTopology, anchors: frozenset[int], frequency: Mapping[int, float]
) -> float:
    """Overhead, by equation 2.1."""
    price = topology.storage_cost
    total = 0.0
    for i, operator in enumerate(topology.operators):
        if price * operator.state_size:
            total += price * frequency[i] * operator.state_size
        if i in anchors:
            total += price * topology.rate[i] * operator.tuple_size
    return total


def expected_recovery(
    topology: OperatorTopology, anchors: frozenset[int], frequency: Mapping[int, float]
) -> float:
    """Expected recovery time, by equation 3.2 and the definition of RT_all."""
    price = topology.storage_cost
    total = 0.0
    for i, operator in enumerate(topology.operators):
        once = 0.0
        for k in rolled_back(topology, anchors, i):
            other = topology.operators[k]
            work = topology.rate[k] * other.cost
            if k in anchors:
                work += price * topology.rate[k] * other.tuple_size
            if work:
                once += work / frequency[i] if frequency[i] else math.inf
            once += price * other.state_size
        if operator.failure_rate:
            total += operator.failure_rate * once
    return total


def brute_force(topology: OperatorTopology, max_overhead: float) -> float:
    """The least expected recovery time of any plan under RSFS; ``inf`` if none is feasible."""
    least = math.inf
    for anchors in _anchor_sets(topology):
        least = min(least, _best_for(topology, anchors, max_overhead))
    return least


def _anchor_sets(topology: OperatorTopology) -> Iterator[frozenset[int]]:
    free = [i for i in range(len(topology)) if topology.parents[i]]
    for count in range(len(free) + 1):
        for chosen in combinations(free, count):
            yield frozenset(chosen) | frozenset(topology.sources)


def _best_for(topology: OperatorTopology, anchors: frozenset[int], max_overhead: float) -> float:
    """Closed form per set: segments by merging what rolls back together until nothing changes."""
    n = len(topology)
    groups = [set(rolled_back(topology, anchors, i)) for i in range(n)]
    merged = True
    while merged:
        merged = False
        for a in range(len(groups)):
            for b in range(a + 1, len(groups)):
                if groups[a] & groups[b] and groups[a] != groups[b]:
                    groups[a] = groups[b] = groups[a] | groups[b]
                    merged = True
    price = topology.storage_cost
    room = max_overhead - sum(
        price * topology.rate[i] * topology.operators[i].tuple_size for i in anchors
    )
    fixed = weight = 0.0
    for group in {frozenset(g) for g in groups}:
        replay = 0.0
        for i in group:
            for k in rolled_back(topology, anchors, i):
                other = topology.operators[k]
                work = topology.rate[k] * other.cost
                if k in anchors:
                    work += price * topology.rate[k] * other.tuple_size
                replay += topology.operators[i].failure_rate * work
                fixed += topology.operators[i].failure_rate * price * other.state_size
        weight += math.sqrt(replay * sum(price * topology.operators[i].state_size for i in group))
    if weight == 0.0:
        return fixed if room >= 0.0 else math.inf
    return fixed + weight**2 / room if room > 0.0 else math.inf
