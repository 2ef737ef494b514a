"""Views of progress: frontiers per place, however they were computed.

A frontier tells which times may still come at a place. :class:`FrontierView` reads frontiers; the
tracker computes them from counts; :class:`FrontierMirror` only repeats what a tracker elsewhere
computed, for hosts that want to spend nothing on it. A mirror that lags is safe: frontiers move
forward only, so an old one allows more than there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from penstock.core.antichain import EMPTY, Antichain, minimal_times
from penstock.core.graph import LogicalGraph, StageKind
from penstock.core.progress.deltas import FrontierChange
from penstock.core.progress.reachability import step
from penstock.core.progress.summary import Transform
from penstock.core.time import Time

__all__ = ["FrontierMirror", "FrontierView"]

Bound: TypeAlias = Callable[[Time], Time | None]


class FrontierView:
    """Frontiers per place of one graph.

    Laws
      * ``frontier(p)``: the minimal times at which an event may still happen at ``p``, its own
        unprocessed events included;
      * ``upstream(p)``: the same without the events at ``p`` itself: what may still *arrive*;
      * ``complete(p, t)`` is ``not upstream(p).less_equal(t)``: no unprocessed event at any other
        place could result in ``(p, t)``. At a stage: every message at or before ``t`` was
        received. Events at ``p`` itself (notifications asked for, capabilities) do not count,
        unless they come round through a feedback;
      * ``upstream(p)`` never allows less than ``frontier(p)`` does.

    Costs: ``frontier`` is an index; ``complete`` and ``upstream`` look at the places one step
    before, ``complete`` without making anything new.
    """

    def __init__(self, graph: LogicalGraph) -> None:
        self.graph = graph
        self._frontiers: list[Antichain[Time]] = [EMPTY] * len(graph)
        self._before: list[list[tuple[int, Transform | None]]] = [
            [(source, _transform(graph, source)) for source in graph.predecessors(place)]
            for place in range(len(graph))
        ]
        self._bounds: list[list[tuple[int, Bound | None]]] = [
            [(source, _BOUNDS.get(graph.kind(source))) for source in graph.predecessors(place)]
            for place in range(len(graph))
        ]

    def frontier(self, place: int) -> Antichain[Time]:
        """Return the minimal times that may still happen at ``place``."""
        return self._frontiers[place]

    def upstream(self, place: int) -> Antichain[Time]:
        """Return the minimal times that may still arrive at ``place`` from elsewhere."""
        before = self._before[place]
        if not before:
            return EMPTY
        frontiers = self._frontiers
        source, transform = before[0]
        first = frontiers[source]
        if len(before) == 1:
            return first if transform is None else _moved(first, transform)
        same = transform is None
        times = list(_apply(first, transform))
        for source, transform in before[1:]:
            frontier = frontiers[source]
            if same and transform is None and frontier.elements == first.elements:
                continue
            same = False
            times.extend(_apply(frontier, transform))
        return first if same else Antichain.of_minimal(minimal_times(times))

    def complete(self, place: int, time: Time) -> bool:
        """Tell whether nothing at or before ``time`` can arrive at ``place`` any more."""
        for source, bound in self._bounds[place]:
            latest = time if bound is None else bound(time)
            if latest is not None and self._frontiers[source].less_equal(latest):
                return False
        return True

    @property
    def finished(self) -> bool:
        """Tell whether nothing can happen anywhere any more."""
        return not any(frontier.elements for frontier in self._frontiers)

    def changes(self, places: Iterable[int]) -> tuple[FrontierChange, ...]:
        """Return the frontiers at ``places`` in the form that a mirror takes."""
        return tuple((place, self._frontiers[place].elements) for place in places)


class FrontierMirror(FrontierView):
    """Repeats the frontiers of a tracker elsewhere.

    Law: after every change of the tracker was applied in order, both show the same frontiers; in
    between, a mirror shows frontiers that the tracker had before.

    >>> from penstock.core.graph import GraphBuilder
    >>> b = GraphBuilder()
    >>> names = b.input("in"), b.stage("count"), b.connect("in", "count")
    >>> mirror = FrontierMirror(b.build())
    >>> mirror.apply([(0, (Time(1),)), (2, (Time(1),)), (1, (Time(1),))])
    (0, 2, 1)
    >>> mirror.complete(1, Time(0)), mirror.complete(1, Time(1))
    (True, False)
    """

    def apply(self, changes: Iterable[FrontierChange]) -> tuple[int, ...]:
        """Take over frontiers; return the places whose frontier moved."""
        moved: list[int] = []
        for place, elements in changes:
            if self._frontiers[place].elements != elements:
                self._frontiers[place] = Antichain.of_minimal(elements)
                moved.append(place)
        return tuple(moved)


def _transform(graph: LogicalGraph, source: int) -> Transform | None:
    """Return what one step downstream does to a time; None if nothing."""
    summary = step(graph, source)
    return None if summary.is_identity(graph.depth(source)) else summary.compiled()


def _apply(frontier: Antichain[Time], transform: Transform | None) -> Iterable[Time]:
    return frontier.elements if transform is None else map(transform, frontier.elements)


def _moved(frontier: Antichain[Time], transform: Transform) -> Antichain[Time]:
    elements = frontier.elements
    if len(elements) == 1:
        return Antichain.of_minimal((transform(elements[0]),))
    return Antichain.of_minimal(minimal_times(map(transform, elements)))


def _before_ingress(time: Time) -> Time:
    return time.left()


def _before_egress(time: Time) -> Time:
    return Time(time.epoch, (*time.counters, _UNREACHED))


def _before_feedback(time: Time) -> Time | None:
    return Time(time.epoch, (*time.counters[:-1], time[-1] - 1)) if time[-1] else None


_UNREACHED = 1 << 62
"""A counter that no loop reaches: a bound for a counter that egress drops."""

# The latest time at a stage that gets to the given time or before on the stage's output.
_BOUNDS: dict[StageKind | None, Bound] = {
    StageKind.INGRESS: _before_ingress,
    StageKind.EGRESS: _before_egress,
    StageKind.FEEDBACK: _before_feedback,
}
