"""Algorithm 1 of "FastRecover": the dynamic program over a discretised budget, for a chain.

Decides anchors and one overhead per segment, in Z equal steps of the budget. It is written plainly,
as section 3.2.2 has it, because it is the yardstick that ``chain_exact`` is measured against; use
that one to plan. Three corrections: the empty prefix costs nothing at any budget, 0 included
(DP(c, 0) = 0), the last segment may take all that is left (1 ≤ c′ ≤ c; equation 3.3 as printed
wastes a step), and a segment whose share does not even pay for its input log is infeasible.

Laws
  * The result is feasible, and never better than the optimum.
  * If Z divides Z′, the result for Z′ is at most that for Z; as Z grows it tends to the optimum.

Cost: O(n²Z²) time, O(nZ) memory.
"""

from __future__ import annotations

from math import inf

from penstock.core.plan.cost import Configuration
from penstock.core.plan.topology import Topology

__all__ = ["chain_dp"]


class _Subchains:
    """CtoR and Ctoη of section 3.2.1 in constant time, from coefficients per (head, last)."""

    def __init__(self, topology: Topology) -> None:
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


def chain_dp(
    topology: Topology,
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
    chosen, frequency = set(), [0.0] * n
    left, last = steps, n
    while last > 0:
        k, taken = head[left][last], share[left][last]
        eta = chain.frequency(k, last - 1, taken * width)
        chosen.add(topology.order[k])
        for i in range(k, last):
            frequency[topology.order[i]] = eta
        left, last = left - taken, k
    return Configuration(frozenset(chosen), tuple(frequency))


def _allowed_heads(topology: Topology, anchors: frozenset[int] | None) -> list[list[int]]:
    """For each position, the positions that may be the head of the subchain ending there."""
    n = len(topology)
    if anchors is None:
        return [list(range(i + 1)) for i in range(n)]
    is_head = [op in anchors for op in topology.order]
    return [[max(k for k in range(i + 1) if is_head[k])] for i in range(n)]
