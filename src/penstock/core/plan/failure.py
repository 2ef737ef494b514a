"""What one failed machine costs: work in total, and time until the last segment is back.

Decides nothing; which operators fail is the caller's business (chapter 2 and section 4.1 of
"FastRecover": a machine runs instances of several operators, and all of them fail with it).

Laws
  * Operators that several failed ones need roll back once, to the oldest checkpoint needed.
  * Segments recover side by side: ``latency ≤ work``, with equality if one segment is hit.
  * For one failed operator, ``work`` is its entry of ``recovery_times``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.core.plan.cost import Configuration, bits, divide, needed_by, segment_members
from penstock.core.plan.topology import OperatorTopology

__all__ = ["RecoveryCost", "recover"]


@dataclass(frozen=True, slots=True)
class RecoveryCost:
    """The paper's RT_Computational and RT_Latency, for one failure."""

    work: float
    latency: float


def recover(
    topology: OperatorTopology, configuration: Configuration, failed: Iterable[int]
) -> RecoveryCost:
    """The cost of recovering from a failure of all the operators in ``failed`` at once."""
    needed = needed_by(topology, configuration.anchors)
    slowest: dict[int, float] = {}  # per operator that rolls back: the least frequency asked of it
    for i in failed:
        for k in bits(needed[i]):
            eta = configuration.frequency[i]
            slowest[k] = min(slowest.get(k, eta), eta)
    work = latency = 0.0
    for members in segment_members(topology, configuration.anchors):
        spent = 0.0
        for k in members:
            if k in slowest:
                replay = topology.replay_cost[k]
                if k in configuration.anchors:
                    replay += topology.log_cost[k]
                spent += topology.state_cost[k] + divide(replay, slowest[k])
        work += spent
        latency = max(latency, spent)
    return RecoveryCost(work, latency)
