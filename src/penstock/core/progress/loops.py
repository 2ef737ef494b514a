"""Frontiers inside a loop, where every place is upstream of every other.

Decides the frontiers of one strongly connected component of places, for the tracker. A *source* is
a time that is active at a place of the loop or that enters there from outside. Every source is
carried to all places by the precomputed minimal summaries; the frontier of a place is the minimum
of what arrives.

No step inside a loop changes the epoch, so epochs are evaluated one by one and remembered: with
many epochs going round at once, a delta costs one epoch's evaluation and a merge, not all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.antichain import Antichain, minimal_times
from penstock.core.order import dominated
from penstock.core.progress.reachability import Reachability
from penstock.core.progress.summary import Transform
from penstock.core.time import Time

__all__ = ["LoopFrontiers"]

Before = Sequence[Sequence[tuple[int, Transform | None]]]


class LoopFrontiers:
    """The sources of one loop, by epoch, and what they bring to each of its places.

    Law: after :meth:`evaluate`, the frontier of every place of the loop is the minimum, over all
    sources, of the source carried along every path to that place.

    >>> from penstock.core.antichain import EMPTY
    >>> from penstock.core.graph import GraphBuilder
    >>> b = GraphBuilder()
    >>> names = b.loop("l"), b.stage("body", "l"), b.feedback("again", "l")
    >>> edges = b.connect("body", "again"), b.connect("again", "body")
    >>> reachability = Reachability(b.build())
    >>> loop = LoopFrontiers(reachability, (0, 1, 2, 3), before=[[], [], [], []])
    >>> frontiers = [EMPTY] * 4
    >>> loop.update(1, Time(0, (2,)), 1)                # a message is at the feedback stage
    >>> loop.evaluate(frontiers), frontiers[0], frontiers[1]
    ([0, 1, 2, 3], Antichain(Time(0, (3,))), Antichain(Time(0, (2,))))
    """

    def __init__(
        self, reachability: Reachability, members: tuple[int, ...], before: Before
    ) -> None:
        self._members = members
        self._index = {place: index for index, place in enumerate(members)}
        self._spread = [_effects(reachability, source, members) for source in members]
        self._entries = [
            (index, source, transform)
            for index, place in enumerate(members)
            for source, transform in before[place]
            if source not in self._index
        ]
        self._entered: list[tuple[Time, ...]] = [() for _ in self._entries]
        self._sources: dict[int, dict[tuple[Time, int], int]] = {}
        self._brought: dict[int, list[list[Time]]] = {}
        self._stale: dict[int, None] = {}

    def update(self, place: int, time: Time, change: int) -> None:
        """Note that a time became active (1) or inactive (-1) at a place of the loop."""
        self._add(time, self._index[place], change)

    def evaluate(self, frontiers: list[Antichain[Time]]) -> list[int]:
        """Set the frontiers of the loop's places; return the places whose frontier moved."""
        self._enter(frontiers)
        touched: dict[int, None] = {}
        for epoch in self._stale:
            old = self._brought.pop(epoch, None)
            new = self._carry(epoch)
            if new is not None:
                self._brought[epoch] = new
            for index in range(len(self._members)):
                if (old[index] if old else []) != (new[index] if new else []):
                    touched[index] = None
        self._stale = {}
        moved: list[int] = []
        for index in sorted(touched):
            place = self._members[index]
            elements = self._merge(index)
            if elements != frontiers[place].elements:
                frontiers[place] = Antichain.of_minimal(elements)
                moved.append(place)
        return moved

    def _add(self, time: Time, index: int, change: int) -> None:
        epoch = time[0]
        sources = self._sources.setdefault(epoch, {})
        key = (time, index)
        count = sources.get(key, 0) + change
        if count:
            sources[key] = count
        else:
            del sources[key]
            if not sources:
                del self._sources[epoch]
        self._stale[epoch] = None

    def _enter(self, frontiers: list[Antichain[Time]]) -> None:
        """Bring the sources that come from outside up to date."""
        for number, (index, place, transform) in enumerate(self._entries):
            elements = frontiers[place].elements
            entered = self._entered[number]
            if elements is entered or elements == entered:
                continue
            self._entered[number] = elements
            for time in elements:
                if time not in entered:
                    self._add(time if transform is None else transform(time), index, 1)
            for time in entered:
                if time not in elements:
                    self._add(time if transform is None else transform(time), index, -1)

    def _carry(self, epoch: int) -> list[list[Time]] | None:
        """Carry the sources of one epoch to all places; the minimal times at each, by sort_key."""
        sources = self._sources.get(epoch)
        if not sources:
            return None
        found: list[list[Time]] = [[] for _ in self._members]
        ordered = sorted(sources, key=_source_key) if len(sources) > 1 else sources
        for time, index in ordered:
            if dominated(found[index], time):
                continue  # an earlier source reaches here: it has spread wherever this one would
            for transform, targets in self._spread[index]:
                reached = time if transform is None else transform(time)
                for target in targets:
                    _insert(found[target], reached)
        for times in found:
            if len(times) > 1:
                times.sort(key=tuple)
        return found

    def _merge(self, index: int) -> tuple[Time, ...]:
        """Return the minimum over all epochs of what is brought to a place."""
        if len(self._brought) == 1:
            for brought in self._brought.values():
                return tuple(brought[index])
        return minimal_times(
            [time for brought in self._brought.values() for time in brought[index]]
        )


def _effects(
    reachability: Reachability, source: int, members: tuple[int, ...]
) -> list[tuple[Transform | None, list[int]]]:
    """Return what happens to a time on its way from ``source``, and the members where it does."""
    depth = reachability.graph.depth(source)
    reached = [reachability.summaries(source, target) for target in members]
    distinct = dict.fromkeys(summary for summaries in reached for summary in summaries)
    return [
        (
            None if summary.is_identity(depth) else summary.compiled(),
            [index for index, summaries in enumerate(reached) if summary in summaries],
        )
        for summary in distinct
    ]


def _source_key(source: tuple[Time, int]) -> tuple[int, ...]:
    return tuple(source[0])


def _insert(times: list[Time], time: Time) -> None:
    """Add a time to a list of incomparable times, which stays one."""
    if times:
        if dominated(times, time):
            return
        times[:] = [other for other in times if not time.less_equal(other)]
    times.append(time)
