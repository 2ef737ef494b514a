"""The two well-known plans: log everywhere, or log only at the sources.

Follows section 3.1 of "FastRecover". Frequencies are the best ones for these anchors, in closed
form, so a comparison with a baseline is a comparison of anchors and nothing else.
"""

from __future__ import annotations

from penstock.core.plan.cost import Configuration, best_configuration
from penstock.core.plan.topology import OperatorTopology

__all__ = ["n_segments", "n_segments_min_overhead", "one_segment"]


def n_segments(topology: OperatorTopology, max_overhead: float) -> Configuration | None:
    """NSegments: every operator is an anchor. None if the logs alone exceed the budget."""
    return best_configuration(topology, range(len(topology)), max_overhead)


def n_segments_min_overhead(topology: OperatorTopology) -> float:
    """The infimum of NSegments' overhead: every operator's input log."""
    return sum(topology.log_cost)


def one_segment(topology: OperatorTopology, max_overhead: float) -> Configuration | None:
    """1Segment: only source-fed operators are anchors; a failure replays all that is above it."""
    return best_configuration(topology, topology.sources, max_overhead)
