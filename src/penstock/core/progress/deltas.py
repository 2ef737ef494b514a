"""Deltas: how counts of pointstamps change, in a form that msgpack packs as it is.

A delta is ``(place, time, count)``: ``count`` more (or fewer) unprocessed events at that
pointstamp. A batch of deltas is what one step of a node changed; it is applied whole. Inside a
batch, and on every wire, positive deltas come before negative ones (the Naiad paper, section 3.3),
so that even a reader that applies them one by one never sees an event gone before what it caused is
there.
"""

from __future__ import annotations

from typing import TypeAlias

from penstock.core.graph import LogicalGraph
from penstock.core.time import Time
from penstock.errors import PeerError

__all__ = [
    "Delta",
    "Deltas",
    "FrontierChange",
    "check_changes",
    "check_deltas",
    "positive_first",
]

Delta: TypeAlias = tuple[int, Time, int]
Deltas: TypeAlias = tuple[Delta, ...]
FrontierChange: TypeAlias = tuple[int, tuple[Time, ...]]


def positive_first(counts: dict[tuple[int, Time], int]) -> Deltas:
    """Return net counts as deltas, positive ones first, each part in the order of the mapping.

    >>> positive_first({(0, Time(1)): -1, (1, Time(1)): 2, (2, Time(1)): 0})
    ((1, Time(1), 2), (0, Time(1), -1))
    """
    more = [(place, time, count) for (place, time), count in counts.items() if count > 0]
    more += [(place, time, count) for (place, time), count in counts.items() if count < 0]
    return tuple(more)


def check_deltas(graph: LogicalGraph, deltas: Deltas) -> Deltas:
    """Return the deltas that a peer sent; refuse those that do not fit the graph."""
    for place, time, _count in deltas:
        _check_place(graph, place, time)
    return deltas


def check_changes(
    graph: LogicalGraph, changes: tuple[FrontierChange, ...]
) -> tuple[FrontierChange, ...]:
    """Return the frontier changes that a peer sent; refuse those that do not fit the graph."""
    for place, times in changes:
        for time in times:
            _check_place(graph, place, time)
    return changes


def _check_place(graph: LogicalGraph, place: int, time: Time) -> None:
    if not (0 <= place < len(graph) and time.depth == graph.depth(place)):
        raise PeerError(
            f"progress at place {place!r} and time {time!r} does not fit the graph", place=place
        )
