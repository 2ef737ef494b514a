"""Good plans quickly: values of anchor sets, and a search by single changes.

Decides nothing for sure: what it finds is a plan, hence an upper bound; ``forest`` supplies the
lower ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from penstock.core.plan.topology import OperatorTopology

__all__ = ["Valuer", "improve", "improve_pairs", "valuer"]

Valuer = Callable[[int], float]


def valuer(topology: OperatorTopology, max_overhead: float) -> Valuer:
    """A function from a bit mask of anchors to the least recovery time with them.

    Law: it equals ``best_recovery_time(segments(topology, anchors), max_overhead)``.
    """
    if topology.shape == "dag":
        return _dag_valuer(topology, max_overhead)
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


def _dag_valuer(topology: OperatorTopology, max_overhead: float) -> Valuer:
    """The same for a DAG, where what several inputs need has to be united first."""
    n, order, parents = len(topology), topology.order, topology.parents
    rho, log = topology.failure_rate, topology.log_cost
    cpu, state = topology.replay_cost, topology.state_cost
    width = (n + 7) // 8
    cpu_of, state_of, log_of = (_byte_sums(x, width) for x in (cpu, state, log))
    needed, group = [0] * n, [0] * n
    replayed, restored = [0.0] * n, [0.0] * n

    def find(i: int) -> int:
        while group[i] != i:
            group[i] = group[group[i]]
            i = group[i]
        return i

    def value(mask: int) -> float:
        room = max_overhead
        for i in order:
            above = parents[i]
            if mask >> i & 1:
                room -= log[i]
                needed[i], group[i] = 1 << i, i
                replayed[i], restored[i] = log[i] + cpu[i], state[i]
                continue
            first = above[0]
            group[i] = find(first)
            if len(above) == 1:
                needed[i] = needed[first] | 1 << i
                replayed[i], restored[i] = replayed[first] + cpu[i], restored[first] + state[i]
                continue
            union = 1 << i
            for p in above:
                union |= needed[p]
                group[find(p)] = group[i]
            needed[i] = union
            one = two = 0.0
            at_all, at_anchors = (
                union.to_bytes(width, "little"),
                (union & mask).to_bytes(width, "little"),
            )
            for k in range(width):
                one += cpu_of[k][at_all[k]] + log_of[k][at_anchors[k]]
                two += state_of[k][at_all[k]]
            replayed[i], restored[i] = one, two
        fixed = 0.0
        replay: dict[int, float] = {}
        held: dict[int, float] = {}
        for i in order:
            at = find(i)
            fixed += rho[i] * restored[i]
            replay[at] = replay.get(at, 0.0) + rho[i] * replayed[i]
            held[at] = held.get(at, 0.0) + state[i]
        weight = sum(math.sqrt(work * held[at]) for at, work in replay.items())
        if weight == 0.0:
            return fixed if room >= 0.0 else math.inf
        return fixed + weight * weight / room if room > 0.0 else math.inf

    return value


def _byte_sums(values: Sequence[float], width: int) -> list[list[float]]:
    """For each byte of a mask and each of its 256 contents, the sum of the values it selects."""
    tables = []
    for k in range(width):
        sums = [0.0]
        for value in (*values[8 * k : 8 * k + 8], *[0.0] * 8)[:8]:
            sums += [total + value for total in sums]
        tables.append(sums)
    return tables


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
    value: Valuer, mask: int, current: float, free: list[int], attempts: int = 800
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
