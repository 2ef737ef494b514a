"""Clocks: how far a node has come, and how far back its log reaches.

:class:`Position` is the part of the thesis's inverted tree of clocks (Sections 3.1.1 and 3.4.1)
that an edge needs in order to resume, made constant in size by epochs: a node that completed epoch
e has handled everything up to e from *all* its ancestors, so one number stands for a clock of every
shard. What lies beyond a position is

    data with  stamp > position.stamp  and  epoch > position.epoch
    marks with                              epoch > position.epoch

Marks go by epoch alone: they carry no rows, and the one who needs one again may have lost it
although later data of the same sender left a trace in its children.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.core.causal.times import ZERO, Stamp

__all__ = ["Floor", "Position"]


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
