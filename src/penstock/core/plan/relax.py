"""Different frequencies inside a segment: section 3.3 of "FastRecover" (RSRFS).

Decides frequencies for given anchors, starting from any plan. An operator may checkpoint a whole
multiple as often as those it feeds in its segment, if it keeps that many checkpoints: when one of
those fails, it goes back to the checkpoint of the same instant. Only factors of two are used, and
at most 64 checkpoints kept.

The paper's step halves one operator (and the ones below it that would then be more frequent) and
doubles another (and the ones above it that would then be less frequent) where that shortens the
expected recovery within the budget. Two corrections: the test for the ones above reads
η_parent ≥ 2·η, and the change of overhead of the halved ones is added, not subtracted twice. With
``rescale`` (the default) single steps are tried as well and all segments' frequencies are then
brought to their best common scale in closed form; in a DAG "above" means all inputs.

Laws
  * The result keeps RSRFS and the anchors, is within the budget if the start was, and its expected
    recovery time is at most the start's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.core.plan.cost import (
    Configuration,
    needed_by,
    overhead,
    per_failure,
    recovery_time,
    segment_members,
)
from penstock.core.plan.topology import OperatorTopology

__all__ = ["is_relaxed_synchronised", "relax"]

_ROUNDS = 400
_GAIN = 1e-12
_KEPT_MAX = 64  # checkpoints that an operator may have to keep for those below it


def is_relaxed_synchronised(topology: OperatorTopology, configuration: Configuration) -> bool:
    """Whether each frequency is a whole multiple of those it feeds in its segment (RSRFS)."""
    for i in range(len(topology)):
        if i in configuration.anchors:
            continue
        for p in topology.parents[i]:
            mine, above = configuration.frequency[i], configuration.frequency[p]
            if mine == above:
                continue
            if not 0.0 < mine < math.inf or math.isinf(above):
                return False
            ratio = above / mine
            if ratio < 0.5 or abs(ratio - round(ratio)) > 1e-9 * ratio:
                return False
    return True


def relax(
    topology: OperatorTopology,
    configuration: Configuration,
    max_overhead: float,
    *,
    rescale: bool = True,
) -> Configuration:
    """The configuration with frequencies moved between operators where that helps."""
    state = _State.of(topology, configuration)
    room = max_overhead - sum(topology.log_cost[i] for i in configuration.anchors)
    best, least = configuration, recovery_time(topology, configuration)
    for _ in range(_ROUNDS):
        moved = _paper_step(state, max_overhead)
        if rescale:
            moved = _shape_segments(state) or moved
            _rescale(state, room)
        if not moved:
            break
        current = Configuration(configuration.anchors, tuple(state.frequency))
        attained = recovery_time(topology, current)
        if overhead(topology, current) > max_overhead or attained >= least * (1.0 - _GAIN):
            break
        best, least = current, attained
    return best


@dataclass(slots=True)
class _State:
    """Frequencies in motion, with what each operator replays and stores at frequency 1."""

    topology: OperatorTopology
    anchors: frozenset[int]
    frequency: list[float]
    replay: list[float]
    members: list[list[int]]
    needed: list[int]
    inside: list[tuple[int, ...]]  # children in the same segment
    part_of: list[int]  # index into ``members``

    @classmethod
    def of(cls, topology: OperatorTopology, configuration: Configuration) -> _State:
        replay_of, _ = per_failure(topology, configuration.anchors)
        moving = [0.0 < eta < math.inf for eta in configuration.frequency]
        members = [
            part
            for part in segment_members(topology, configuration.anchors)
            if all(moving[i] for i in part)
        ]
        part_of = [-1] * len(topology)
        for index, part in enumerate(members):
            for i in part:
                part_of[i] = index
        return cls(
            topology=topology,
            anchors=configuration.anchors,
            frequency=list(configuration.frequency),
            replay=[r * rho for r, rho in zip(replay_of, topology.failure_rate, strict=True)],
            members=members,
            needed=needed_by(topology, configuration.anchors),
            inside=[
                tuple(c for c in below if c not in configuration.anchors)
                for below in topology.children
            ],
            part_of=part_of,
        )

    def halved_with(self, i: int) -> list[int]:
        """``i`` and those below it that must be halved with it."""
        found, queue = [i], [i]
        while queue:
            p = queue.pop()
            for c in self.inside[p]:
                if c not in found and self.frequency[p] < 1.5 * self.frequency[c]:
                    found.append(c)
                    queue.append(c)
        return found

    def doubled_with(self, i: int) -> list[int]:
        """``i`` and those above it that must be doubled with it."""
        found, queue = [i], [i]
        while queue:
            c = queue.pop()
            if c in self.anchors:
                continue
            for p in self.topology.parents[c]:
                if p not in found and self.frequency[p] < 1.5 * self.frequency[c]:
                    found.append(p)
                    queue.append(p)
        return found

    def change(self, members: list[int], factor: float) -> tuple[float, float]:
        """The change of recovery time and of overhead if these are multiplied by ``factor``."""
        time = sum(self.replay[k] / self.frequency[k] for k in members) * (1.0 / factor - 1.0)
        cost = sum(self.topology.state_cost[k] * self.frequency[k] for k in members)
        return time, cost * (factor - 1.0)

    def spreads(self, members: list[int], factor: float) -> bool:
        """Whether multiplying these would make an operator keep too many checkpoints."""
        part = self.members[self.part_of[members[0]]]
        after = [self.frequency[k] * (factor if k in members else 1.0) for k in part]
        return max(after) > 1.5 * _KEPT_MAX * min(after)

    def multiply(self, members: list[int], factor: float) -> None:
        for k in members:
            self.frequency[k] *= factor


def _paper_step(state: _State, max_overhead: float) -> bool:
    """Halve one and double another: the pair that gains most, if any does."""
    spent = overhead(state.topology, Configuration(state.anchors, tuple(state.frequency)))
    moving = [i for part in state.members for i in part]
    ups = [
        (j, up, *state.change(up, 2.0))
        for j in moving
        for up in [state.doubled_with(j)]
        if not state.spreads(up, 2.0)
    ]
    best, gain = None, -_GAIN * sum(state.replay[i] / state.frequency[i] for i in moving)
    for i in moving:
        down = state.halved_with(i)
        slower, saved = state.change(down, 0.5)
        for j, up, faster, paid in ups:
            total = slower + faster
            if total < gain and spent + saved + paid <= max_overhead:
                if (
                    state.needed[j] >> i & 1
                ):  # i is above j: one cannot be halved, the other doubled
                    continue
                best, gain = (down, up), total
    if best is None:
        return False
    state.multiply(best[0], 0.5)
    state.multiply(best[1], 2.0)
    return True


def _shape_segments(state: _State) -> bool:
    """Inside each segment, lower the product of replay time and state cost by single steps."""
    moved = False
    for part in state.members:
        for _ in range(4 * len(part)):
            time = sum(state.replay[k] / state.frequency[k] for k in part)
            cost = sum(state.topology.state_cost[k] * state.frequency[k] for k in part)
            best, least = None, time * cost * (1.0 - 1e-9)
            for i in part:
                for group, factor in ((state.halved_with(i), 0.5), (state.doubled_with(i), 2.0)):
                    faster, paid = state.change(group, factor)
                    product = (time + faster) * (cost + paid)
                    if product < least and not state.spreads(group, factor):
                        best, least = (group, factor), product
            if best is None:
                break
            state.multiply(*best)
            moved = True
    return moved


def _rescale(state: _State, room: float) -> None:
    """One factor per segment, in closed form, so that the whole budget is used best."""
    sums = []
    for part in state.members:
        time = sum(state.replay[k] / state.frequency[k] for k in part)
        cost = sum(state.topology.state_cost[k] * state.frequency[k] for k in part)
        sums.append((time, cost, math.sqrt(time * cost)))
    total = sum(weight for _, _, weight in sums)
    if total <= 0.0 or room <= 0.0:
        return
    for part, (_, cost, weight) in zip(state.members, sums, strict=True):
        if weight > 0.0:
            state.multiply(part, weight / cost * (room * (1.0 - 1e-13) / total))
