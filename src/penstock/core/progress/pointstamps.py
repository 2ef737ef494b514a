"""Pointstamps with occurrence and precursor counts, as the Naiad paper defines them.

Decides which active pointstamps have no precursor; the paper's section 2.3, read literally, with
the correction that a pointstamp which becomes active raises the precursor counts of the active ones
that it could result in (the paper only initialises its own). Quadratic in the active pointstamps,
hence meant for explanations, tests and small graphs; :class:`~penstock.core.progress.tracker.
Tracker` gives the same frontier at a cost that does not depend on them.
"""

from __future__ import annotations

from penstock.core.progress.reachability import Reachability
from penstock.core.time import Time

__all__ = ["Pointstamp", "Pointstamps"]

Pointstamp = tuple[int, Time]


class Pointstamps:
    """Active pointstamps with their occurrence and precursor counts.

    Laws
      * ``precursors(p)`` is the number of *other* active pointstamps that could result in p;
      * an active pointstamp without precursors exists whenever any is active;
      * a notification may be delivered when its pointstamp has no precursors.

    >>> from penstock.core.graph import GraphBuilder
    >>> b = GraphBuilder()
    >>> names = b.input("in"), b.stage("count"), b.connect("in", "count", "rows")
    >>> p = Pointstamps(Reachability(b.build()))
    >>> p.update((1, Time(0)), +1); p.update((0, Time(0)), +1)
    >>> p.precursors((1, Time(0))), p.frontier()
    (1, ((0, Time(0)),))
    >>> p.update((0, Time(0)), -1); p.frontier()
    ((1, Time(0)),)
    """

    def __init__(self, reachability: Reachability) -> None:
        self._reachability = reachability
        self._occurrences: dict[Pointstamp, int] = {}
        self._precursors: dict[Pointstamp, int] = {}

    def update(self, pointstamp: Pointstamp, delta: int) -> None:
        """Add ``delta`` to the occurrence count, and adjust precursor counts on a change of state.

        A pointstamp is active while its count is not zero (negative counts: see the tracker).
        """
        before = self._occurrences.get(pointstamp, 0)
        after = before + delta
        if after:
            self._occurrences[pointstamp] = after
        elif before:
            del self._occurrences[pointstamp]
        if bool(before) != bool(after):
            self._adjust(pointstamp, 1 if after else -1)

    def occurrences(self, pointstamp: Pointstamp) -> int:
        """Return how many unprocessed events bear the pointstamp."""
        return self._occurrences.get(pointstamp, 0)

    def precursors(self, pointstamp: Pointstamp) -> int:
        """Return how many other active pointstamps could result in this active one."""
        return self._precursors[pointstamp]

    def active(self) -> tuple[Pointstamp, ...]:
        """Return the active pointstamps by place and time."""
        return tuple(sorted(self._occurrences, key=_sort_key))

    def frontier(self) -> tuple[Pointstamp, ...]:
        """Return the active pointstamps without precursors, by place and time."""
        return tuple(p for p in self.active() if not self._precursors[p])

    def _adjust(self, changed: Pointstamp, sign: int) -> None:
        could_result_in = self._reachability.could_result_in
        precursors = 0
        for other in self._occurrences:
            if other != changed:
                precursors += could_result_in(other, changed)
                if could_result_in(changed, other):
                    self._precursors[other] += sign
        if sign > 0:
            self._precursors[changed] = precursors
        else:
            del self._precursors[changed]


def _sort_key(pointstamp: Pointstamp) -> tuple[int, tuple[int, ...]]:
    place, time = pointstamp
    return place, time.sort_key()
