"""Plans for any acyclic topology: exact when small, with a bound when not.

Decides the anchors of a topology with operators that have several inputs, which "FastRecover"
leaves as future work. Keeping one input per operator turns a DAG into a forest in which every
anchor set costs at most what it costs in the DAG (see ``forest``), so the forest's dual bounds the
DAG, and a decision that the forest rules out is ruled out. What is left open is enumerated if that
is few enough; otherwise a search by single and double changes gives the plan and the best of
several forests the bound.

Law: ``solution.bound`` never exceeds the least recovery time of any plan under RSFS.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock.core.plan.forest import Forest
from penstock.core.plan.local import Valuer, improve, improve_pairs, valuer
from penstock.core.plan.topology import OperatorTopology
from penstock.core.plan.tree_exact import Solution, squeeze

__all__ = ["forests", "solve_dag"]

_ROUNDS = 4
_WORK_MAX = 250_000  # anchor sets to enumerate times operators: any DAG of 15 operators fits


def solve_dag(topology: OperatorTopology, max_overhead: float) -> Solution:
    """The best anchors found for a DAG and a bound, for a budget above the least overhead."""
    n = len(topology)
    value = valuer(topology, max_overhead)
    may, must = [True] * n, [False] * n
    best = Solution(0, math.inf, 0.0, 0.0)
    for _ in range(_ROUNDS):
        before = sum(may) - sum(must)
        for parent in forests(topology):
            forest = Forest(topology, parent, may_anchor=may, must_anchor=must)
            found = squeeze(forest, value, max_overhead, best)
            best.bound, best.t = max((best.bound, best.t), (found.bound, found.t))
            if found.value < best.value:
                best.anchors, best.value = found.anchors, found.value
            may = [a and b for a, b in zip(may, forest.may_anchor, strict=True)]
            must = [a or b for a, b in zip(must, forest.must_anchor, strict=True)]
            best.bound = min(best.bound, best.value)
            if best.proven:
                return best
        if sum(may) - sum(must) > 0.9 * before:
            break
    return _finish(value, best, may, must)


def _finish(value: Valuer, best: Solution, may: list[bool], must: list[bool]) -> Solution:
    """Enumerate what is still open, or search it."""
    free = [i for i in range(len(may)) if may[i] and not must[i]]
    best.bound = min(best.bound, best.value)
    if best.proven:
        return best
    if len(may) << len(free) <= _WORK_MAX:
        base = sum(1 << i for i, required in enumerate(must) if required)
        for subset in range(1 << len(free)):
            mask = base | sum(1 << i for k, i in enumerate(free) if subset >> k & 1)
            attained = value(mask)
            if attained < best.value:
                best.anchors, best.value = mask, attained
        best.bound = best.value
        return best
    best.anchors, best.value = improve(value, best.anchors, best.value, free)
    best.anchors, best.value = improve_pairs(value, best.anchors, best.value, free)
    best.bound = min(best.bound, best.value)
    return best


def forests(topology: OperatorTopology) -> list[list[int | None]]:
    """Ways to keep one input per operator: the busiest, the costliest to restore, the last."""
    rank = {i: k for k, i in enumerate(topology.order)}
    keys: list[Callable[[int], float]] = [
        lambda p: topology.log_cost[p] + topology.replay_cost[p],
        lambda p: topology.state_cost[p],
        lambda p: float(rank[p]),
        lambda p: -float(rank[p]),
    ]
    found: list[list[int | None]] = []
    for key in keys:
        parent = [max(above, key=key) if above else None for above in topology.parents]
        if parent not in found:
            found.append(parent)
    return found
