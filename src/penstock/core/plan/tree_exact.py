"""The optimum for a tree (or several): the least recovery time under RSFS.

Decides the anchors of a topology in which no operator has two inputs. The dual over ``forest``
gives a plan and a lower bound; pairs that cannot be part of a better plan are dropped; then the
sets that are left are enumerated from the leaves as labels (open segment: replay, state; closed
ones: weight, log; both: fixed), where a label goes as soon as its bound exceeds the best plan or
another label is at least as good in everything. Law: when the enumeration finishes, which ``bound``
equal to the value says, the result is the minimum over all anchor sets.

Cost: the sweeps take O(pairs) array operations. The enumeration has no polynomial bound and stops
at a fixed number of labels; random trees of 200 operators stay far below.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.core.plan.dual import Curve, maximise
from penstock.core.plan.forest import Array, Forest, Rooted
from penstock.core.plan.local import Valuer, improve, valuer
from penstock.core.plan.topology import OperatorTopology

__all__ = ["Solution", "solve_tree", "squeeze"]

_LABELS_MAX = 200_000


@dataclass(slots=True)
class Solution:
    """The best anchors found (bit mask), their recovery time, and a bound on every plan."""

    anchors: int
    value: float
    bound: float
    t: float

    @property
    def proven(self) -> bool:
        """Whether the bound reaches the value, up to rounding."""
        return self.bound >= self.value * (1.0 - 1e-12)


def solve_tree(topology: OperatorTopology, max_overhead: float) -> Solution:
    """The best anchors for a tree, for a budget above the least overhead."""
    parent = [above[0] if above else None for above in topology.parents]
    forest = Forest(topology, parent)
    value = valuer(topology, max_overhead)
    solution = squeeze(forest, value, max_overhead)
    if not solution.proven:
        _enumerate(forest, value, max_overhead, solution)
    return solution


def squeeze(
    forest: Forest,
    value: Valuer,
    max_overhead: float,
    known: Solution | None = None,
    rounds: int = 4,
) -> Solution:
    """Bounds from both sides, and a forest without the pairs that they rule out.

    ``known`` has a multiplier to start from.
    """
    topology = forest.topology
    n = len(topology)
    must = sum(1 << i for i in range(n) if forest.must_anchor[i])
    best = min(((value(mask), mask) for mask in (must, (1 << n) - 1)), key=lambda x: x[0])
    solution = Solution(best[1], best[0], 0.0, 0.0)
    start = _multiplier(topology, must, max_overhead)
    if known is not None:
        start = known.t or start

    def oracle(t: float) -> Curve:
        curve = forest.curve(t, max_overhead)
        attained = value(curve.anchors)
        if attained < solution.value:
            solution.anchors, solution.value = curve.anchors, attained
        return curve

    for _ in range(rounds):
        before = solution.bound
        dual = maximise(oracle, start)
        if dual.bound > solution.bound:
            solution.bound, solution.t = dual.bound, dual.t
        free = [i for i in range(n) if forest.may_anchor[i] and not forest.must_anchor[i]]
        solution.anchors, solution.value = improve(value, solution.anchors, solution.value, free)
        solution.bound = min(solution.bound, solution.value)
        if solution.proven or solution.bound <= before * (1.0 + 1e-9):
            break
        start = dual.t
        forest.inside(start)
        forest.outside(start)
        forest.tighten(solution.value + start * start * max_overhead)
    return solution


def _multiplier(topology: OperatorTopology, mask: int, max_overhead: float) -> float:
    """A first guess of t: that of the coarsest plan."""
    log = sum(topology.log_cost[i] for i in range(len(topology)) if mask >> i & 1)
    work = sum(
        rho * cpu * state
        for rho, cpu, state in zip(
            topology.failure_rate, topology.replay_cost, topology.state_cost, strict=True
        )
    )
    return float(np.sqrt(work)) * len(topology) ** 0.5 / (max_overhead - log) + 1e-30


@dataclass(slots=True)
class _Labels:
    """Rows of (replay, state) of the open segment, and (fixed, weight, log) of everything."""

    rows: Array
    masks: list[int]

    def take(self, keep: Array) -> _Labels:
        where = np.flatnonzero(keep)
        return _Labels(self.rows[where], [self.masks[k] for k in where])


def _enumerate(forest: Forest, value: Valuer, max_overhead: float, solution: Solution) -> None:
    """Close the gap between bound and value, unless there are too many labels."""
    t = solution.t
    forest.inside(t)
    forest.outside(t)
    limit = solution.value + t * t * max_overhead
    limit += 1e-11 * abs(limit)
    closed: dict[int, _Labels] = {}
    for r in reversed(forest.topology.order):
        if not forest.may_anchor[r] or not forest.rooted[r].outer.size:
            continue
        labels = _close(forest, forest.rooted[r], closed, t, limit)
        if labels is None:
            return
        closed[r] = labels
    final = closed[forest.roots[0]]
    for r in forest.roots[1:]:
        final = _product(final, closed[r])
        if len(final.masks) > _LABELS_MAX:
            return
        final = _undominated(final)
    room = max_overhead - final.rows[:, 4]
    safe = np.where(room > 0.0, room, 1.0)
    totals = final.rows[:, 2] + np.where(room > 0.0, final.rows[:, 3] ** 2 / safe, np.inf)
    for k in np.argsort(totals)[:4]:
        attained = value(final.masks[k])
        if attained < solution.value:
            solution.anchors, solution.value = final.masks[k], attained
    solution.bound = solution.value


def _close(
    forest: Forest, rooted: Rooted, closed: dict[int, _Labels], t: float, limit: float
) -> _Labels | None:
    """All labels of the subtree under an anchor that may belong to a better plan."""
    nodes, up = rooted.nodes, rooted.up
    best = forest.best_at
    own = np.zeros((len(nodes), 5))
    own[:, 0], own[:, 1], own[:, 2] = rooted.replay, rooted.state, rooted.fixed
    labels = [_Labels(own[at : at + 1], [0]) for at in range(len(nodes))]
    # What the children that are not merged yet cost at least, per column.
    valid = np.isfinite(rooted.inner)
    pending = np.zeros_like(rooted.inner)
    pending[valid] = (rooted.inner - np.where(valid, rooted.base, 0.0) - t * rooted.slope)[valid]
    for at in range(len(nodes) - 1, -1, -1):
        for child in rooted.cut[at]:
            if child not in closed:
                return _Labels(np.empty((0, 5)), [])
            pending[at] -= np.where(valid[at], best[child], 0.0)
            merged = _merge(forest, rooted, at, labels[at], closed[child], pending[at], t, limit)
            if merged is None:
                return None
            labels[at] = merged
        if at:
            above, i = up[at], nodes[at]
            chosen = np.minimum(rooted.inner[at], best[i])
            pending[above] -= np.where(valid[above], chosen, 0.0)
            options = labels[at]
            if i in closed:
                options = _Labels(
                    np.vstack([options.rows, closed[i].rows]), options.masks + closed[i].masks
                )
            merged = _merge(forest, rooted, above, labels[above], options, pending[above], t, limit)
            if merged is None:
                return None
            labels[above] = merged
    done = labels[0]
    rows = done.rows.copy()
    rows[:, 3] += np.sqrt(rows[:, 0] * rows[:, 1])
    rows[:, 4] += forest.log[rooted.root]
    rows[:, :2] = 0.0
    cost = rows[:, 2] + 2.0 * t * rows[:, 3] + t * t * rows[:, 4] + forest.rest_at[rooted.root]
    bit = 1 << rooted.root
    kept = _Labels(rows, [mask | bit for mask in done.masks]).take(cost <= limit)
    return _undominated(kept)


def _merge(
    forest: Forest,
    rooted: Rooted,
    at: int,
    left: _Labels,
    right: _Labels,
    pending: Array,
    t: float,
    limit: float,
) -> _Labels | None:
    """Combine two lists of labels and keep what may still belong to a better plan."""
    if len(left.masks) * len(right.masks) > _LABELS_MAX:
        return None
    both = _product(left, right)
    if not both.masks:
        return both
    rows = both.rows
    settled = rows[:, 2] + 2.0 * t * rows[:, 3] + t * t * rows[:, 4]
    q, regular = rooted.q, rooted.q.size
    ahead = rooted.outer[at] + pending
    least = np.full(len(rows), np.inf)
    if regular:
        shrink = _shrink(rooted)
        opened = shrink * (rows[:, :1] / q + rows[:, 1:2] * q)
        least = (t * opened + ahead[:regular]).min(axis=1)
    for column, free in _degenerate(rooted):
        least = np.minimum(least, np.where(rows[:, free] == 0.0, ahead[column], np.inf))
    return _undominated(both.take(settled + least <= limit))


def _shrink(rooted: Rooted) -> float:
    """The grid's factor 1/cosh δ, read off the first row."""
    whole = rooted.replay[0] / rooted.q[0] + rooted.state[0] * rooted.q[0]
    return float(rooted.slope[0, 0] / whole) if whole > 0.0 else 1.0


def _degenerate(rooted: Rooted) -> list[tuple[int, int]]:
    """The columns for segments without state or replay, and which of the two is zero there."""
    column, found = rooted.q.size, []
    for free, values in ((1, rooted.state), (0, rooted.replay)):
        if values[0] == 0.0:
            found.append((column, free))
            column += 1
    return found


def _product(left: _Labels, right: _Labels) -> _Labels:
    rows = (left.rows[:, None, :] + right.rows[None, :, :]).reshape(-1, 5)
    return _Labels(rows, [a | b for a in left.masks for b in right.masks])


def _undominated(labels: _Labels) -> _Labels:
    """Labels to which no other is at least as good in all five numbers."""
    rows = labels.rows
    if len(rows) < 2 or len(rows) > 3000:
        return labels
    order = np.lexsort(rows.T[::-1])
    ordered = rows[order]
    keep = np.ones(len(rows), dtype=bool)
    for k in range(1, len(ordered)):
        earlier = ordered[:k][keep[:k]]
        keep[k] = not bool((earlier <= ordered[k]).all(axis=1).any())
    return _Labels(ordered[keep], [labels.masks[order[k]] for k in np.flatnonzero(keep)])
