"""Algorithm 1 of "FastRecover": the dynamic program over a discretised budget, for a chain.

Decides anchors and one overhead per segment, in Z equal steps of the budget. ``chain_dp`` is
written plainly, as section 3.2.2 has it, because it is the yardstick that ``chain_exact`` is
measured against; ``chain_dp_arrays`` fills the same table with NumPy. Three corrections: the empty
prefix costs nothing at any budget, 0 included (DP(c, 0) = 0), the last segment may take all that is
left (1 ≤ c′ ≤ c; equation 3.3 as printed wastes a step), and a segment whose share does not even
pay for its input log is infeasible.

Laws
  * The result is feasible, and never better than the optimum.
  * If Z divides Z′, the result for Z′ is at most that for Z; as Z grows it tends to the optimum.
  * ``chain_dp_arrays`` finds the same recovery time as ``chain_dp``.

Cost: O(n²Z²) time, O(nZ) memory.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
from numpy.typing import NDArray

from penstock.core.plan.cost import Configuration
from penstock.core.plan.topology import OperatorTopology

__all__ = ["chain_dp", "chain_dp_arrays"]


class _Subchains:
    """CtoR and Ctoη of section 3.2.1 in constant time, from coefficients per (head, last)."""

    def __init__(self, topology: OperatorTopology) -> None:
        self.order = topology.order
        self.log = [topology.log_cost[i] for i in self.order]
        self.state: dict[tuple[int, int], float] = {}
        self.fixed: dict[tuple[int, int], float] = {}
        self.replay: dict[tuple[int, int], float] = {}
        for j, head in enumerate(self.order):
            replayed, restored = topology.log_cost[head], 0.0
            replay = fixed = state = 0.0
            for i in range(j, len(self.order)):
                op = self.order[i]
                replayed += topology.replay_cost[op]
                restored += topology.state_cost[op]
                replay += topology.failure_rate[op] * replayed
                fixed += topology.failure_rate[op] * restored
                state += topology.state_cost[op]
                self.replay[j, i], self.fixed[j, i], self.state[j, i] = replay, fixed, state

    def frequency(self, j: int, i: int, overhead: float) -> float:
        """Ctoη: the frequency that an overhead buys; 0 if it does not pay for the log."""
        left = overhead - self.log[j]
        if self.state[j, i] == 0.0:
            return inf if left >= 0.0 else 0.0
        return left / self.state[j, i] if left > 0.0 else 0.0

    def recovery_time(self, j: int, i: int, overhead: float) -> float:
        """CtoR: the expected recovery time of the subchain with this overhead."""
        eta = self.frequency(j, i, overhead)
        if eta > 0.0:
            return self.fixed[j, i] + self.replay[j, i] / eta
        # No checkpoint at all is fine where there is nothing to replay, if the log is paid for.
        return self.fixed[j, i] if self.replay[j, i] == 0.0 and overhead >= self.log[j] else inf

    def recovery_times(self, j: int, i: int, overheads: NDArray[np.float64]) -> NDArray[np.float64]:
        """CtoR of many overheads at once."""
        if self.state[j, i] == 0.0 or self.replay[j, i] == 0.0:
            return np.array([self.recovery_time(j, i, c) for c in overheads])
        left = overheads - self.log[j]
        paid = left > 0.0
        work = self.replay[j, i] * self.state[j, i]
        return np.where(paid, self.fixed[j, i] + work / np.where(paid, left, 1.0), inf)


def chain_dp(
    topology: OperatorTopology,
    max_overhead: float,
    steps: int = 60,
    *,
    anchors: frozenset[int] | None = None,
) -> Configuration | None:
    """The best configuration on the grid, or None if there is none.

    ``anchors`` fixes the heads: with all operators it is the paper's NSegments on the same grid.
    """
    chain = _Subchains(topology)
    n, width = len(topology), max_overhead / steps
    heads_of = _allowed_heads(topology, anchors)
    time = [[inf] * (n + 1) for _ in range(steps + 1)]
    head = [[0] * (n + 1) for _ in range(steps + 1)]
    share = [[0] * (n + 1) for _ in range(steps + 1)]
    for c in range(steps + 1):
        time[c][0] = 0.0
    for i in range(1, n + 1):
        for c in range(1, steps + 1):
            for k in heads_of[i - 1]:
                for taken in range(1, c + 1):
                    total = time[c - taken][k] + chain.recovery_time(k, i - 1, taken * width)
                    if total < time[c][i]:
                        time[c][i], head[c][i], share[c][i] = total, k, taken
    if time[steps][n] == inf:
        return None
    return _read_back(chain, steps, width, lambda c, i: (head[c][i], share[c][i]))


def chain_dp_arrays(
    topology: OperatorTopology,
    max_overhead: float,
    steps: int = 60,
    *,
    anchors: frozenset[int] | None = None,
) -> Configuration | None:
    """The same as :func:`chain_dp`, one array operation per pair of head and last operator."""
    chain = _Subchains(topology)
    n, width = len(topology), max_overhead / steps
    heads_of = _allowed_heads(topology, anchors)
    time = np.full((n + 1, steps + 1), inf)
    time[0] = 0.0
    head = np.zeros((n + 1, steps + 1), dtype=np.int64)
    share = np.zeros((n + 1, steps + 1), dtype=np.int64)
    # Row c, column c' - 1: what is left of c steps after c', or a column of infinities at the end.
    left = np.arange(steps + 1)[:, None] - np.arange(1, steps + 1)[None, :]
    left = np.where(left < 0, steps + 1, left)
    shares: NDArray[np.float64] = width * np.arange(1, steps + 1, dtype=np.float64)
    every = np.arange(steps + 1)
    for i in range(1, n + 1):
        for k in heads_of[i - 1]:
            last = chain.recovery_times(k, i - 1, shares)
            totals = np.append(time[k], inf)[left] + last
            taken = totals.argmin(axis=1)
            value = totals[every, taken]
            better = value < time[i]
            time[i][better], head[i][better] = value[better], k
            share[i][better] = taken[better] + 1
    if time[n][steps] == inf:
        return None
    return _read_back(chain, steps, width, lambda c, i: (int(head[i, c]), int(share[i, c])))


def _read_back(
    chain: _Subchains, steps: int, width: float, choice: Callable[[int, int], tuple[int, int]]
) -> Configuration:
    """Lines 10 to 25 of Algorithm 1: from the last segment to the first."""
    n = len(chain.order)
    chosen, frequency = set(), [0.0] * n
    left, last = steps, n
    while last > 0:
        k, taken = choice(left, last)
        eta = chain.frequency(k, last - 1, taken * width)
        chosen.add(chain.order[k])
        for i in range(k, last):
            frequency[chain.order[i]] = eta
        left, last = left - taken, k
    return Configuration(frozenset(chosen), tuple(frequency))


def _allowed_heads(topology: OperatorTopology, anchors: frozenset[int] | None) -> list[list[int]]:
    """For each position, the positions that may be the head of the subchain ending there."""
    n = len(topology)
    if anchors is None:
        return [list(range(i + 1)) for i in range(n)]
    is_head = [op in anchors for op in topology.order]
    return [[max(k for k in range(i + 1) if is_head[k])] for i in range(n)]
