"""What a recovery configuration costs, and the best frequencies for given anchors.

Decides nothing about which operators are anchors. Follows chapter 2 (equation 2.1) and equation 3.2
of "FastRecover"; the closed form and the extension to DAGs are Penstock's own.

Theory. An anchor logs its whole input. When operator ``i`` fails, everything between it and the
nearest anchors above it rolls back: ``needed[i]``, which is ``i`` alone if it is an anchor, else
``i`` and what each of its inputs needs. In a chain or tree that is the path from ``i`` up to its
head. The operators whose recoveries overlap must hold checkpoints of the same instant (RSFS), so
they form one segment: a non-anchor lies in the segment of every one of its inputs. Let a segment
checkpoint with frequency η. Its overhead is ``log + state * η`` and its expected recovery time
``fixed + replay / η``, all four additive over its members, so for a budget X the best frequencies
follow from one Lagrange multiplier:

    η_k = √(replay_k / state_k) · (X − Σ log) / Σ √(replay · state)
    recovery time = Σ fixed + (Σ √(replay · state))² / (X − Σ log)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.core.plan.topology import OperatorTopology

__all__ = [
    "Configuration",
    "Segment",
    "best_configuration",
    "best_recovery_time",
    "needed_by",
    "overhead",
    "per_failure",
    "recovery_time",
    "recovery_times",
    "segment_members",
    "segments",
]

# Frequencies leave this share of the budget per operator unspent, so that rounding never overdraws
# it.
_SLACK = 4e-16


@dataclass(frozen=True, slots=True)
class Configuration:
    """Which operators are anchors, and how often each one checkpoints per unit of time.

    A frequency is ``inf`` where checkpoints cost nothing (a segment without state) and 0 where
    nothing is gained by one (a segment that never fails, or has nothing to replay).
    """

    anchors: frozenset[int]
    frequency: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """Operators that recover together, and the four numbers that say what that costs."""

    members: tuple[int, ...]
    anchors: tuple[int, ...]
    log: float
    state: float
    fixed: float
    replay: float

    @property
    def weight(self) -> float:
        """√(replay · state): the segment's share in the square of the closed form."""
        return math.sqrt(self.replay * self.state)


def bits(mask: int) -> Iterable[int]:
    """The positions of the ones in ``mask``, from low to high."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def needed_by(topology: OperatorTopology, anchors: frozenset[int]) -> list[int]:
    """For each operator, a bit mask of the operators that its failure rolls back."""
    needed = [0] * len(topology)
    for i in topology.order:
        mask = 1 << i
        if i not in anchors:
            for p in topology.parents[i]:
                mask |= needed[p]
        needed[i] = mask
    return needed


def segment_members(topology: OperatorTopology, anchors: frozenset[int]) -> list[list[int]]:
    """The segments as lists of operators, in topological order of their first member."""
    group = list(range(len(topology)))

    def find(i: int) -> int:
        while group[i] != i:
            group[i] = group[group[i]]
            i = group[i]
        return i

    for i in topology.order:
        if i not in anchors:
            for p in topology.parents[i]:
                group[find(i)] = find(p)
    found: dict[int, list[int]] = {}
    for i in topology.order:
        found.setdefault(find(i), []).append(i)
    return list(found.values())


def segments(topology: OperatorTopology, anchors: frozenset[int]) -> list[Segment]:
    """The segments that ``anchors`` cut the topology into, with their coefficients.

    The sources must be among the anchors.
    """
    replay_of, fixed_of = per_failure(topology, anchors)
    failure_rate, state_cost = topology.failure_rate, topology.state_cost
    found = []
    for members in segment_members(topology, anchors):
        heads = tuple(i for i in members if i in anchors)
        found.append(
            Segment(
                members=tuple(members),
                anchors=heads,
                log=sum(topology.log_cost[i] for i in heads),
                state=sum(state_cost[i] for i in members),
                fixed=sum(failure_rate[i] * fixed_of[i] for i in members),
                replay=sum(failure_rate[i] * replay_of[i] for i in members),
            )
        )
    return found


def per_failure(
    topology: OperatorTopology, anchors: frozenset[int]
) -> tuple[list[float], list[float]]:
    """Per operator: what its failure replays for η = 1, and what it restores."""
    n = len(topology)
    log, cpu, state = topology.log_cost, topology.replay_cost, topology.state_cost
    replay_of, fixed_of = [0.0] * n, [0.0] * n
    needed: list[int] = []
    for i in topology.order:
        above = topology.parents[i]
        if i in anchors:
            replay_of[i], fixed_of[i] = log[i] + cpu[i], state[i]
        elif len(above) == 1:
            replay_of[i] = replay_of[above[0]] + cpu[i]
            fixed_of[i] = fixed_of[above[0]] + state[i]
        else:  # what several inputs need may overlap: count each operator once
            needed = needed or needed_by(topology, anchors)
            for k in bits(needed[i]):
                replay_of[i] += cpu[k] + (log[k] if k in anchors else 0.0)
                fixed_of[i] += state[k]
    return replay_of, fixed_of


def best_recovery_time(parts: Sequence[Segment], max_overhead: float) -> float:
    """The least expected recovery time of these segments within the budget; ``inf`` if none is."""
    room = max_overhead - sum(part.log for part in parts)
    weight = sum(part.weight for part in parts)
    fixed = sum(part.fixed for part in parts)
    if weight == 0.0:
        return fixed if room >= 0.0 else math.inf
    return fixed + weight * weight / room if room > 0.0 else math.inf


def best_configuration(
    topology: OperatorTopology, anchors: Iterable[int], max_overhead: float
) -> Configuration | None:
    """The anchors with their best frequencies (closed form), or None if over the budget.

    Law: no configuration with these anchors, under RSFS and within the budget, recovers faster.
    """
    chosen = frozenset(anchors)
    parts = segments(topology, chosen)
    if math.isinf(best_recovery_time(parts, max_overhead)):
        return None
    total = sum(part.weight for part in parts)
    room = max_overhead - sum(part.log for part in parts)
    reserve = _SLACK * (len(topology) + 16) * max_overhead
    room = max(room - reserve, 0.5 * room)
    frequency = [0.0] * len(topology)
    for part in parts:
        if part.state == 0.0:
            eta = math.inf
        elif part.weight == 0.0:
            eta = 0.0
        else:
            eta = part.weight / part.state * (room / total)
        for i in part.members:
            frequency[i] = eta
    return Configuration(chosen, tuple(frequency))


def overhead(topology: OperatorTopology, configuration: Configuration) -> float:
    """The share of time spent on checkpoints and logs, summed over operators (equation 2.1)."""
    total = 0.0
    for i, eta in enumerate(configuration.frequency):
        if topology.state_cost[i] > 0.0:
            total += eta * topology.state_cost[i]
        if i in configuration.anchors:
            total += topology.log_cost[i]
    return total


def recovery_times(topology: OperatorTopology, configuration: Configuration) -> list[float]:
    """The time that one failure of each operator takes to recover (equation 3.2).

    Everything since the failed operator's own last checkpoint is replayed, which also covers
    operators above it that checkpoint more often (section 3.3).
    """
    replay_of, fixed_of = per_failure(topology, configuration.anchors)
    return [
        fixed + divide(replay, eta)
        for fixed, replay, eta in zip(fixed_of, replay_of, configuration.frequency, strict=True)
    ]


def recovery_time(topology: OperatorTopology, configuration: Configuration) -> float:
    """The expected time spent on recovery per unit of time: the paper's RT_all."""
    times = recovery_times(topology, configuration)
    return float(
        sum(rho * rt for rho, rt in zip(topology.failure_rate, times, strict=True) if rho > 0.0)
    )


def divide(work: float, frequency: float) -> float:
    """``work / frequency`` with 0/0 = 0 (nothing to replay) and x/0 = ∞."""
    if work == 0.0:
        return 0.0
    return work / frequency if frequency > 0.0 else math.inf
