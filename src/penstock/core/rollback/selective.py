"""Selective rollback: state partitioned by time, kept or undone time by time.

Decides which parts of such a state go when a node goes back, and which times may be merged. Follows
Falkirk Wheel, sections 3.4 and 4.4. A node that worked on t1 and t2 keeps t1 and undoes t2 in
whatever order the work was done, as long as its state for each time is apart; times may be merged
only where no rollback can ever tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TypeVar

from penstock.core.rollback.spans import Moment, Span

__all__ = ["Region", "coalesced", "region", "restricted"]

V = TypeVar("V")
M = TypeVar("M", bound=Moment)


class Region(Enum):
    """Where a time lies among a node's offers."""

    STABLE = "no rollback goes behind it"
    OFFERED = "between two spans that the node may be sent back to"
    RECENT = "in no checkpoint yet"


def region(time: Moment, offered: Sequence[Span]) -> Region:
    """Tell where a time lies; ``offered`` starts with the low-watermark and grows.

    >>> from penstock.core.time import Time
    >>> [region(Time(e), [Span.epoch(2), Span.epoch(5)]).name for e in (1, 4, 7)]
    ['STABLE', 'OFFERED', 'RECENT']
    """
    if offered and time in offered[0]:
        return Region.STABLE
    return Region.OFFERED if offered and time in offered[-1] else Region.RECENT


def restricted(parts: Mapping[M, V], span: Span) -> dict[M, V]:
    """Return the parts of a state that stay when a node goes back to ``span``.

    >>> from penstock.core.time import Time
    >>> restricted({Time(2): "late", Time(1): "early"}, Span.epoch(1))
    {Time(1): 'early'}
    """
    return {time: part for time, part in parts.items() if time in span}


def coalesced(times: Iterable[M], offered: Sequence[Span]) -> list[tuple[M, ...]]:
    """Group completed times that no rollback tells apart; each group may become one.

    Two times share a group exactly if every offered span has both or neither. The next checkpoint
    must have all the times given here.

    >>> from penstock.core.time import Time
    >>> coalesced(map(Time, range(8)), [Span.epoch(2), Span.epoch(5)])
    [(Time(0), Time(1), Time(2)), (Time(3), Time(4), Time(5)), (Time(6), Time(7))]
    """
    groups: dict[int, list[M]] = {}
    for time in sorted(times, key=lambda each: each.sort_key()):
        # Offers grow, so how many of them lack the time says which.
        missing = sum(time not in span for span in offered)
        groups.setdefault(missing, []).append(time)
    return [tuple(groups[missing]) for missing in sorted(groups)]
