"""Deltas: how counts of pointstamps change, in a form that msgpack packs as it is.

A delta is ``(place, time, count)``: so many more (or fewer) unprocessed events at that pointstamp.
A batch of deltas is what one step of a node changed; it is applied whole. Inside a batch, and on
every wire, positive deltas come before negative ones (the Naiad paper, section 3.3), so that even a
reader that applies them one by one never sees an event gone before what it caused is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from penstock.core.graph import LogicalGraph
from penstock.core.time import Time
from penstock.errors import PeerError

__all__ = [
    "Delta",
    "Deltas",
    "FrontierChange",
    "decode_changes",
    "decode_deltas",
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


def decode_deltas(graph: LogicalGraph, raw: Iterable[Sequence[Any]]) -> Deltas:
    """Return the deltas that a peer sent as nested lists; refuse what does not fit the graph."""
    deltas: list[Delta] = []
    for place, parts, count in raw:
        deltas.append((place, _decode_time(graph, place, parts), count))
        if not isinstance(count, int):
            raise PeerError(f"a progress delta counts {count!r}", place=place)
    return tuple(deltas)


def decode_changes(graph: LogicalGraph, raw: Iterable[Sequence[Any]]) -> tuple[FrontierChange, ...]:
    """Return the frontier changes that a peer sent as nested lists; refuse what does not fit."""
    return tuple(
        (place, tuple(_decode_time(graph, place, parts) for parts in times)) for place, times in raw
    )


def _decode_time(graph: LogicalGraph, place: Any, parts: Any) -> Time:
    try:
        fits = 0 <= place < len(graph) and len(parts) == graph.depth(place) + 1
        if fits:
            return Time.from_wire(parts)
    except (TypeError, ValueError):
        pass
    raise PeerError(
        f"progress at place {place!r} and time {parts!r} does not fit the graph", place=place
    )
