"""Good plans quickly: values of anchor sets, and a search by single changes.

Decides nothing for sure: what it finds is a plan, hence an upper bound; ``forest`` supplies the
lower ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock.core.plan.cost import best_recovery_time, bits, segments
from penstock.core.plan.topology import Topology

__all__ = ["Valuer", "improve", "improve_pairs", "valuer"]

Valuer = Callable[[int], float]


def valuer(topology: Topology, max_overhead: float) -> Valuer:
    """A function from a bit mask of anchors to the least recovery time with them.

    Law: it equals ``best_recovery_time(segments(topology, anchors), max_overhead)``.
    """
    if topology.shape == "dag":
        return lambda mask: best_recovery_time(
            segments(topology, frozenset(bits(mask))), max_overhead
        )
    rows = [
        (
            i,
            topology.parents[i][0] if topology.parents[i] else -1,
            topology.failure_rate[i],
            topology.log_cost[i],
            topology.replay_cost[i],
            topology.state_cost[i],
        )
        for i in topology.order
    ]
    n = len(rows)
    head, replayed, restored = [0] * n, [0.0] * n, [0.0] * n
    replay, state = [0.0] * n, [0.0] * n

    def value(mask: int) -> float:
        fixed, room = 0.0, max_overhead
        for i, above, rho, log, cpu, size in rows:
            if mask >> i & 1:
                room -= log
                head[i] = i
                replayed[i], restored[i] = log + cpu, size
                replay[i], state[i] = rho * replayed[i], size
                fixed += rho * size
            else:
                r = head[i] = head[above]
                replayed[i], restored[i] = replayed[above] + cpu, restored[above] + size
                replay[r] += rho * replayed[i]
                state[r] += size
                fixed += rho * restored[i]
        weight = sum(math.sqrt(replay[r] * state[r]) for r in range(n) if mask >> r & 1)
        if weight == 0.0:
            return fixed if room >= 0.0 else math.inf
        return fixed + weight * weight / room if room > 0.0 else math.inf

    return value


def improve(
    value: Valuer, mask: int, current: float, free: list[int], rounds: int = 8
) -> tuple[int, float]:
    """Toggle one operator of ``free`` at a time for as long as that helps, in a few rounds."""
    for _ in range(rounds):
        before = current
        for i in free:
            attempt = value(mask ^ 1 << i)
            if attempt < current * (1.0 - 1e-14):
                mask, current = mask ^ 1 << i, attempt
        if current == before:
            break
    return mask, current


def improve_pairs(
    value: Valuer, mask: int, current: float, free: list[int], attempts: int = 1500
) -> tuple[int, float]:
    """Toggle two operators of ``free`` at a time, up to a number of attempts."""
    left = attempts
    for a, i in enumerate(free):
        for j in free[a + 1 :]:
            if left == 0:
                return mask, current
            left -= 1
            attempt = value(mask ^ 1 << i ^ 1 << j)
            if attempt < current * (1.0 - 1e-14):
                mask, current = mask ^ 1 << i ^ 1 << j, attempt
    return mask, current
