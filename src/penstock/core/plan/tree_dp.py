"""Algorithm 2 of "FastRecover": the dynamic program over budget and frequency, for a tree.

Decides anchors and frequencies on a grid: Z steps of the budget, F steps of the frequency. It is
here for comparison; ``tree_exact`` plans. Follows section 3.4.1, with these corrections:

  * A state keeps every (recovery time, passed-up failure rate) that no other beats in both, not
    only the least recovery time: whether the ancestors' work is worth the rate is not known yet.
  * A leaf's recovery time is weighted by its failure rate, as every operator's is.
  * F_inc = F_max / F, and rt(i, f, 0) is the local part: the rate passed up charges the ancestors.
  * Children are merged one by one, so the work grows with Z² and not with the number of ways to
    split Z among all children at once.

Laws
  * The result is feasible, and never better than the optimum.
  * An operator with state takes at least one step, so a feasible result needs Z ≥ their number.

Cost: O(n · F · Z² · p²) time, where p is the size of the Pareto sets (one to three in practice).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Optional

from penstock.core.plan.cost import Configuration
from penstock.core.plan.topology import OperatorTopology

__all__ = ["tree_dp"]


class _Label(NamedTuple):
    """Steps spent on a subtree, its recovery time, the rate it passes up, and how."""

    steps: int
    time: float
    rate: float
    picks: Optional[_Pick]  # noqa: UP045 - a recursive NamedTuple


@dataclass(frozen=True, slots=True)
class _Pick:
    """One child's choice, linked to the choices of the children merged before it."""

    child: int
    closed: bool
    frequency: float
    label: _Label
    before: _Pick | None


@dataclass(slots=True)
class _Grid:
    topology: OperatorTopology
    width: float
    frequencies: list[float]
    caps: list[int]  # the most steps a subtree may take, so that the others get one each

    def steps(self, i: int, frequency: float, closed: bool) -> int:
        """ch(i, f, inp), rounded up to whole steps."""
        cost = frequency * self.topology.state_cost[i]
        if closed:
            cost += self.topology.log_cost[i]
        return math.ceil(cost / self.width - 1e-9)

    def local_time(self, i: int, frequency: float, closed: bool) -> float:
        """rt(i, f, inp): restoring one's state and replaying one's input, without the ancestors."""
        replay = self.topology.replay_cost[i] + (self.topology.log_cost[i] if closed else 0.0)
        return self.topology.state_cost[i] + replay / frequency


def tree_dp(
    topology: OperatorTopology,
    max_overhead: float,
    steps: int = 20,
    frequency_max: float = 200.0,
    frequency_steps: int = 100,
    *,
    anchors: frozenset[int] | None = None,
) -> Configuration | None:
    """The best configuration on the grid, or None if there is none.

    ``anchors`` fixes the anchors: with all operators it is the paper's NSegments on the same grid.
    """
    width = max_overhead / steps
    increment = frequency_max / frequency_steps
    frequencies = [increment * k for k in range(1, frequency_steps + 1)]
    grid = _Grid(topology, width, frequencies, [])
    grid.caps = _caps(grid, steps)
    closed: dict[int, list[_Pick]] = {}
    opened: dict[tuple[int, int], list[_Label]] = {}
    for i in reversed(topology.order):
        may_open = bool(topology.parents[i]) and (anchors is None or i not in anchors)
        may_close = not topology.parents[i] or anchors is None or i in anchors
        found: list[_Pick] = []
        for k, frequency in enumerate(frequencies):
            if grid.steps(i, frequency, False) > grid.caps[i]:
                break
            below = _merge_children(grid, i, k, closed, opened)
            if may_open:
                opened[i, k] = _prune_open(_finish(grid, i, frequency, below, False))
            if may_close:
                labels = _finish(grid, i, frequency, below, True)
                found += [_Pick(i, True, frequency, label, None) for label in labels]
        closed[i] = _least_per_step(found)
    return _best(topology, closed, steps)


def _caps(grid: _Grid, steps: int) -> list[int]:
    topology = grid.topology
    least = [grid.steps(i, grid.frequencies[0], False) for i in range(len(topology))]
    below = list(least)
    for i in reversed(topology.order):
        for p in topology.parents[i]:
            below[p] += below[i]
    total = sum(least)
    return [steps - (total - below[i]) for i in range(len(topology))]


def _merge_children(
    grid: _Grid,
    i: int,
    k: int,
    closed: dict[int, list[_Pick]],
    opened: dict[tuple[int, int], list[_Label]],
) -> list[_Label]:
    """All worthwhile ways to spend steps on the children of i when i has the k-th frequency."""
    merged = [_Label(0, 0.0, 0.0, None)]
    cap = grid.caps[i]
    for child in grid.topology.children[i]:
        options = list(closed[child])
        options += [
            _Pick(child, False, grid.frequencies[k], label, None)
            for label in opened.get((child, k), ())
        ]
        merged = _undominated(
            [
                _Label(
                    before.steps + pick.label.steps,
                    before.time + pick.label.time,
                    before.rate + (0.0 if pick.closed else pick.label.rate),
                    _Pick(child, pick.closed, pick.frequency, pick.label, before.picks),
                )
                for before in merged
                for pick in options
                if before.steps + pick.label.steps <= cap
            ]
        )
    return merged


def _finish(
    grid: _Grid, i: int, frequency: float, below: list[_Label], closed: bool
) -> list[_Label]:
    """Equation 3.5: add the operator itself to what its children came to."""
    own = grid.steps(i, frequency, closed)
    local = grid.local_time(i, frequency, closed)
    rho = grid.topology.failure_rate[i]
    return [
        _Label(own + b.steps, b.time + local * (rho + b.rate), rho + b.rate, b.picks)
        for b in below
        if own + b.steps <= grid.caps[i]
    ]


def _undominated(labels: list[_Label]) -> list[_Label]:
    """Labels that no other equals or beats in steps, time and rate."""
    kept: list[_Label] = []
    for label in sorted(labels, key=lambda x: x[:3]):
        if not any(k.time <= label.time and k.rate <= label.rate for k in kept):
            kept.append(label)
    return kept


def _prune_open(labels: list[_Label]) -> list[_Label]:
    """What an open subtree hands to its parent. Keeping the least time only is the paper's slip."""
    return _undominated(labels)


def _least_per_step(picks: list[_Pick]) -> list[_Pick]:
    """DP_rt*: the least time for each number of steps; a closed subtree passes no rate up."""
    kept: list[_Pick] = []
    for pick in sorted(picks, key=lambda p: p.label[:2]):
        if not kept or pick.label.time < kept[-1].label.time:
            kept.append(pick)
    return kept


def _best(
    topology: OperatorTopology, closed: dict[int, list[_Pick]], steps: int
) -> Configuration | None:
    """Combine the roots, pick the least time within all steps, and read the plan back."""
    whole: list[tuple[int, float, list[_Pick]]] = [(0, 0.0, [])]
    for root in topology.sources:
        options = [
            (spent + pick.label.steps, time + pick.label.time, [*picks, pick])
            for spent, time, picks in whole
            for pick in closed[root]
            if spent + pick.label.steps <= steps
        ]
        whole = []
        for option in sorted(options, key=lambda x: x[:2]):
            if not whole or option[1] < whole[-1][1]:
                whole.append(option)
    if not whole:
        return None
    anchors: set[int] = set()
    frequency = [0.0] * len(topology)
    stack = list(min(whole, key=lambda x: x[1])[2])
    while stack:
        pick = stack.pop()
        frequency[pick.child] = pick.frequency
        if pick.closed:
            anchors.add(pick.child)
        below = pick.label.picks
        while below is not None:
            stack.append(below)
            below = below.before
    return Configuration(frozenset(anchors), tuple(frequency))
