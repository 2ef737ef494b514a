"""The tracker: counts of unprocessed events in, frontiers out, incrementally.

Theory of operation
-------------------
The occurrence count of a pointstamp (place, time) says how many events there are unprocessed: at a
connector, messages sent and not yet handled; at a stage, notifications asked for and capabilities
held. A pointstamp is *active* while its count is not zero. A time may still happen at a place when
an active pointstamp could result in it, so

    frontier(p) = minimal times of  own(p)  and of  step(frontier(q))  for every q just before p.

Outside loops that is evaluated place by place, upstream first, starting at the places whose own
events mattered and stopping where a frontier stays as it was. A strongly connected component (a
loop) is evaluated as a whole, see :mod:`penstock.core.progress.loops`.

Most deltas cost one dictionary access and one comparison: a pointstamp that comes or goes behind
its place's frontier moves nothing.

The Naiad paper (section 2.3) keeps a precursor count per active pointstamp and calls those with
count zero the frontier. :mod:`penstock.core.progress.pointstamps` does exactly that. Frontiers per
place say the same (a pointstamp has no precursors when ``upstream`` at its place does not allow its
time and no earlier one is active beside it) and answer for times that are not active, too.

Counts may be negative for a while, see :class:`~penstock.core.antichain.MutableAntichain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.core.antichain import EMPTY, Antichain, MutableAntichain, minimal_times
from penstock.core.graph import LogicalGraph
from penstock.core.progress.deltas import Delta, Deltas
from penstock.core.progress.loops import LoopFrontiers
from penstock.core.progress.reachability import Reachability
from penstock.core.progress.view import FrontierView
from penstock.core.time import Time
from penstock.errors import InvariantError

__all__ = ["Tracker"]


class Tracker(FrontierView):
    """Occurrence counts per pointstamp, and the frontiers that follow from them.

    Laws
      * frontiers depend on the sum of all deltas only, never on how they were batched or ordered;
      * ``apply`` returns exactly the places whose frontier differs from before the call, each
        once, upstream first;
      * a frontier never goes back as long as every batch is *justified*: each positive delta is at
        or after (could-result-in) something that was active before, as a node's own steps are.

    >>> from penstock.core.graph import GraphBuilder
    >>> b = GraphBuilder()
    >>> names = b.input("in"), b.stage("count"), b.connect("in", "count", "rows")
    >>> t = Tracker(b.build())
    >>> source, count, rows = map(t.graph.place, ("in", "count", "rows"))
    >>> t.apply([(source, Time(0), +1)])                           # the input opens epoch 0
    (0, 2, 1)
    >>> t.apply([(rows, Time(0), +1)])                             # a message: nothing moves
    ()
    >>> t.apply([(source, Time(1), +1), (source, Time(0), -1)])    # the input closes epoch 0
    (0,)
    >>> t.complete(count, Time(0)), t.frontier(count)
    (False, Antichain(Time(0)))
    >>> t.apply([(rows, Time(0), -1)]), t.complete(count, Time(0))  # the message was handled
    ((2, 1), True)
    """

    def __init__(self, graph: LogicalGraph, reachability: Reachability | None = None) -> None:
        super().__init__(graph)
        self.reachability = reachability or Reachability(graph)
        self._own = [MutableAntichain() for _ in range(len(graph))]
        components = graph.components()
        self._members = components
        self._bits = [0] * len(graph)
        for number, members in enumerate(components):
            for place in members:
                self._bits[place] = 1 << number
        self._after = [0] * len(graph)
        for place in range(len(graph)):
            for following in graph.successors(place):
                if self._bits[following] != self._bits[place]:
                    self._after[place] |= self._bits[following]
        self._lengths = [graph.depth(place) + 1 for place in range(len(graph))]
        self._start_loops()

    def apply(self, deltas: Iterable[Delta]) -> tuple[int, ...]:
        """Add deltas to the counts, all at once; return the places whose frontier moved."""
        own, frontiers, bits = self._own, self._frontiers, self._bits
        loop_at = self._loop_at
        dirty = 0
        for place, time, delta in deltas:
            change = own[place].update(time, delta)
            if not change:
                continue
            if change > 0:
                if len(time) != self._lengths[place]:
                    self._refuse(place, time, delta)
                if not frontiers[place].less_equal(time):
                    dirty |= bits[place]
            elif time in frontiers[place].elements:
                dirty |= bits[place]
            loop = loop_at[place]
            if loop is not None:
                loop.update(place, time, change)
        return self._propagate(dirty) if dirty else ()

    def count(self, place: int, time: Time) -> int:
        """Return the occurrence count of a pointstamp."""
        return self._own[place].counts.get(time, 0)

    def counts(self, place: int) -> Mapping[Time, int]:
        """Return the occurrence counts at a place that are not zero, as a view to read only."""
        return self._own[place].counts

    def snapshot(self) -> Deltas:
        """Return all counts as deltas, by place and time: what a fresh tracker is given."""
        return tuple(
            (place, time, own.counts[time])
            for place, own in enumerate(self._own)
            for time in sorted(own.counts, key=tuple)
        )

    def reset(self, deltas: Iterable[Delta]) -> tuple[int, ...]:
        """Forget all counts and start from these, as after a recovery; return what moved.

        Unlike :meth:`apply` this may take frontiers back.
        """
        before = self._frontiers
        self._own = [MutableAntichain() for _ in before]
        self._frontiers = [EMPTY] * len(before)
        self._start_loops()
        self.apply(deltas)
        return tuple(
            place
            for members in self._members
            for place in members
            if before[place] != self._frontiers[place]
        )

    def _start_loops(self) -> None:
        self._loops = [
            LoopFrontiers(self.reachability, members, self._before) if len(members) > 1 else None
            for members in self._members
        ]
        self._loop_at: list[LoopFrontiers | None] = [None] * len(self.graph)
        for loop, members in zip(self._loops, self._members, strict=True):
            for place in members:
                self._loop_at[place] = loop

    def _propagate(self, dirty: int) -> tuple[int, ...]:
        """Evaluate dirty components, upstream first, and what follows from them."""
        frontiers, after = self._frontiers, self._after
        moved: list[int] = []
        while dirty:
            lowest = dirty & -dirty
            dirty ^= lowest
            number = lowest.bit_length() - 1
            loop = self._loops[number]
            if loop is not None:
                for place in loop.evaluate(frontiers):
                    moved.append(place)
                    dirty |= after[place]
                continue
            place = self._members[number][0]
            new = self._evaluate(place)
            if new.elements != frontiers[place].elements:
                frontiers[place] = new
                moved.append(place)
                dirty |= after[place]
        return tuple(moved)

    def _evaluate(self, place: int) -> Antichain[Time]:
        """Return the frontier of a place on no cycle, from its own events and those before it."""
        upstream = self.upstream(place)
        own = self._own[place].elements
        if not own:
            return upstream
        if not upstream.elements:
            return Antichain.of_minimal(own)
        for time in own:
            if not upstream.less_equal(time):
                return Antichain.of_minimal(minimal_times(upstream.elements + own))
        return upstream

    def _refuse(self, place: int, time: Time, delta: int) -> None:
        self._own[place].update(time, -delta)
        raise InvariantError(
            f"{time!r} has {time.depth} counters, but {self.graph.name_of(place)!r} is in "
            f"{self.graph.depth(place)} loops",
            place=place,
            time=time,
        )
