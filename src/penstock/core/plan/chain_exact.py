"""The optimum for a chain: the least recovery time under RSFS, without discretising the budget.

Decides the anchors of a chain; their frequencies follow in closed form. A chain's anchor sets are
the paths through its O(n²) possible segments, and a path costs ``C + S²/(X − A)`` with C, S and A
additive along it. The dual (see ``dual``) finds a path and a lower bound by a few shortest-path
passes; where they differ, the paths whose dual cost lies between them are enumerated, and
dominated prefixes dropped. Law: the result is the minimum over all 2^(n−1) anchor sets.

Cost: O(n²) per pass. The enumeration has no polynomial bound, but in random chains it visits a
handful of paths.
"""

from __future__ import annotations

from math import inf, sqrt

from penstock.core.plan.dual import Curve, maximise
from penstock.core.plan.topology import OperatorTopology

__all__ = ["solve_chain"]

# (where the segment ends, fixed, weight, log), grouped by where it starts
_Segments = list[list[tuple[int, float, float, float]]]


def solve_chain(topology: OperatorTopology, max_overhead: float) -> tuple[frozenset[int], float]:
    """The best anchors and their recovery time, for a budget above the least overhead."""
    order = topology.order
    by_start = _segments(topology, order)
    n = len(order)
    best_path = 1
    whole = _curve(by_start, n, best_path, max_overhead)
    best = _value(whole)

    def oracle(t: float) -> Curve:
        nonlocal best, best_path
        path, _ = _shortest(by_start, n, t)
        curve = _curve(by_start, n, path, max_overhead)
        value = _value(curve)
        if value < best:
            best, best_path = value, path
        return curve

    dual = maximise(oracle, whole.peak)
    if dual.bound < best * (1.0 - 1e-13):
        best, best_path = _enumerate(by_start, n, max_overhead, dual.t, best, best_path)
    return frozenset(order[j] for j in range(n) if best_path >> j & 1), best


def _segments(topology: OperatorTopology, order: tuple[int, ...]) -> _Segments:
    log = [topology.log_cost[i] for i in order]
    rows = [
        (topology.failure_rate[i], topology.replay_cost[i], topology.state_cost[i]) for i in order
    ]
    found: _Segments = []
    for j, head in enumerate(log):
        replayed, restored = head, 0.0
        replay = fixed = state = 0.0
        starting = []
        end = j
        for rho, cpu, size in rows[j:]:
            end += 1
            replayed += cpu
            restored += size
            replay += rho * replayed
            fixed += rho * restored
            state += size
            starting.append((end, fixed, sqrt(replay * state), head))
        found.append(starting)
    return found


def _shortest(by_start: _Segments, n: int, t: float) -> tuple[int, list[float]]:
    """The cheapest path at multiplier t, as a mask of its anchors, and the costs to go."""
    two_t, square = 2.0 * t, t * t
    to_go = [0.0] * (n + 1)
    ends = [0] * n
    for j in range(n - 1, -1, -1):
        least, where = inf, n
        for end, fixed, weight, _ in by_start[j]:
            cost = fixed + two_t * weight + to_go[end]
            if cost < least:
                least, where = cost, end
        to_go[j] = least + square * by_start[j][0][3]
        ends[j] = where
    at, path = 0, 0
    while at < n:
        path |= 1 << at
        at = ends[at]
    return path, to_go


def _curve(by_start: _Segments, n: int, path: int, max_overhead: float) -> Curve:
    fixed = weight = log = 0.0
    start = 0
    for end in range(1, n + 1):
        if end == n or path >> end & 1:
            _, f, w, a = by_start[start][end - start - 1]
            fixed += f
            weight += w
            log += a
            start = end
    return Curve(fixed, weight, max_overhead - log, path)


def _value(curve: Curve) -> float:
    if curve.weight == 0.0:
        return curve.fixed if curve.room >= 0.0 else inf
    return curve.fixed + curve.weight**2 / curve.room if curve.room > 0.0 else inf


def _enumerate(
    by_start: _Segments, n: int, budget: float, t: float, best: float, best_path: int
) -> tuple[float, int]:
    """The best path among those whose dual cost does not exceed the best value known."""
    _, to_go = _shortest(by_start, n, t)
    limit = best + t * t * budget
    limit += 1e-12 * abs(limit)
    labels: list[list[tuple[float, float, float, float, int]]] = [[] for _ in range(n + 1)]
    labels[0] = [(0.0, 0.0, 0.0, 0.0, 0)]
    for j in range(n):
        for cost, fixed, weight, log, path in _undominated(labels[j]):
            for end, f, w, a in by_start[j]:
                reached = cost + f + 2.0 * t * w + t * t * a
                if reached + to_go[end] <= limit and log + a <= budget:
                    entry = (reached, fixed + f, weight + w, log + a, path | 1 << j)
                    labels[end].append(entry)
    for _, fixed, weight, log, path in labels[n]:
        value = _value(Curve(fixed, weight, budget - log, path))
        if value < best:
            best, best_path = value, path
    return best, best_path


def _undominated(
    labels: list[tuple[float, float, float, float, int]],
) -> list[tuple[float, float, float, float, int]]:
    """Labels to which no other is at least as good in fixed part, weight and log cost."""
    kept: list[tuple[float, float, float, float, int]] = []
    for label in sorted(labels, key=lambda x: x[1:4]):
        if not any(k[2] <= label[2] and k[3] <= label[3] for k in kept):
            kept.append(label)
    return kept
