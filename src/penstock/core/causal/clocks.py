"""Clocks: how far a node has come, and how far its ancestors had when they made what it has.

:class:`TreeClock` is the thesis's inverted tree (Sections 3.1.1 and 3.4.1), bounded in depth.
:class:`Position` is the part of it that an edge needs in order to resume, made constant in size by
epochs: a node that completed epoch e has handled everything up to e from *all* its ancestors, so
one number stands for a clock of every shard.  What lies beyond a position is

    data with  stamp > position.stamp  and  epoch > position.epoch
    marks with                              epoch > position.epoch

Marks go by epoch alone: they carry no rows, and the one who needs one again may have lost it
although later data of the same sender left a trace in its children.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.core.causal.diffs import Diff
from penstock.core.causal.times import ZERO, Stamp, show

__all__ = ["Floor", "Position", "TreeClock"]


class Position(NamedTuple):
    """Where an edge resumes: after this stamp, after this epoch."""

    stamp: Stamp = ZERO
    epoch: int = -1

    def beyond(self, stamp: Stamp, epoch: int, is_mark: bool = False) -> bool:
        """Whether a message lies behind the position, that is, must be sent.

        >>> Position((4,), 1).beyond((5,), 2), Position((4,), 1).beyond((4,), 2, is_mark=True)
        (True, True)
        """
        return epoch > self.epoch and (is_mark or stamp > self.stamp)


class Floor(NamedTuple):
    """How far back a payload log reaches: it has everything beyond (stamp, epoch).

    From ``horizon`` on it has whole epochs: no message at or before ``stamp`` was of an epoch after
    the horizon.
    """

    stamp: Stamp = ZERO
    epoch: int = -1
    horizon: int = -1

    def reaches(self, position: Position) -> bool:
        """Whether everything beyond a position is in the log; monotone in both parts.

        >>> floor = Floor((9,), 5, horizon=7)
        >>> floor.reaches(Position((9,), 5)), floor.reaches(Position((), 5))
        (True, False)
        >>> floor.reaches(Position((), 7))
        True
        """
        if position.epoch < self.epoch:
            return False
        return position.stamp >= self.stamp or position.epoch >= self.horizon


@dataclass(frozen=True)
class TreeClock:
    """An inverted tree of nodes and stamps: every path by which a message may have come.

    Law: ``apply`` takes the greater stamp of corresponding entries; it is commutative, associative
    and idempotent.

    >>> clock = TreeClock(8, (8,)).apply(((8, (9,)), (3, (9,)), (1, (6,))), depth=3)
    >>> clock.apply(((8, (9,)), (3, (7,)), (2, (4,))), depth=3).show()
    '8:9 [3:9 [1:6 2:4]]'
    """

    node: int
    stamp: Stamp = ZERO
    parents: Mapping[int, TreeClock] | None = None

    def apply(self, path: tuple[tuple[int, Stamp], ...], depth: int) -> TreeClock:
        """Take in a linear diff whose root is this node, to a bounded depth."""
        _, stamp = path[0]
        rest = path[1:]
        parents = dict(self.parents or {})
        if rest and depth > 1:
            node = rest[0][0]
            parents[node] = parents.get(node, TreeClock(node)).apply(rest, depth - 1)
        return TreeClock(self.node, max(self.stamp, stamp), parents)

    def merge(self, other: TreeClock) -> TreeClock:
        """The least clock that includes both."""
        mine, theirs = self.parents or {}, other.parents or {}
        parents = {
            node: mine[node].merge(theirs[node])
            if node in mine and node in theirs
            else mine.get(node) or theirs[node]
            for node in sorted({*mine, *theirs})
        }
        return TreeClock(self.node, max(self.stamp, other.stamp), parents)

    def at(self, *path: int) -> Stamp:
        """The stamp at the end of a path of nodes."""
        clock = self
        for node in path:
            if not clock.parents or node not in clock.parents:
                return ZERO
            clock = clock.parents[node]
        return clock.stamp

    def show(self) -> str:
        """The thesis's notation."""
        text = f"{self.node}:{show(self.stamp)}"
        if self.parents:
            inner = " ".join(self.parents[node].show() for node in sorted(self.parents))
            text += f" [{inner}]"
        return text


def path_of(diff: Diff) -> tuple[tuple[int, Stamp], ...]:
    """A diff as a path for :meth:`TreeClock.apply`; completions and origins are left out.

    >>> from penstock.core.causal.diffs import DiffLink, completion
    >>> path_of((DiffLink(2, (5,), 0), completion(0)))
    ((2, (5,)),)
    """
    return tuple((link.node, link.stamp) for link in diff if link.node >= 0)
