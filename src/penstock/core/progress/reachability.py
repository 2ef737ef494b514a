"""Could-result-in: what an event at one place can lead to at another.

Decides, once per graph, the minimal path summaries between every two places; then answers whether
one pointstamp could result in another. Knows nothing of counts. Follows the Naiad paper, section
2.3, where the minimum over paths is a single summary; under the product order it is an antichain.

A *pointstamp* is a pair (place, time): an event that has not happened yet. ``(p, t)`` could result
in ``(q, u)`` when a path from p to q turns t into a time at or before u. The empty path counts.
"""

from __future__ import annotations

from penstock.core.graph import LogicalGraph, StageKind
from penstock.core.order import dominated
from penstock.core.progress.summary import PathSummary
from penstock.core.time import Time

__all__ = ["Reachability", "step"]


def step(graph: LogicalGraph, source: int) -> PathSummary:
    """Return the summary of one step downstream from ``source``, the same to every successor."""
    depth = graph.depth(source)
    kind = graph.kind(source)
    if kind is StageKind.INGRESS:
        return PathSummary.ingress(depth)
    if kind is StageKind.EGRESS:
        return PathSummary.egress(depth)
    if kind is StageKind.FEEDBACK:
        return PathSummary.feedback(depth)
    return PathSummary.identity(depth)


class Reachability:
    """The minimal summaries between all places of a graph.

    Laws
      * could-result-in is reflexive and transitive, and antisymmetric because cycles advance time;
      * ``summaries(p, q)`` is an antichain, and for every path from p to q with summary s it holds
        an element at or before s.

    Cost: about (places)² small tuples; found once per graph by relaxation.

    >>> from penstock.core.graph import GraphBuilder
    >>> b = GraphBuilder()
    >>> names = [b.input("in"), b.loop("l"), b.ingress("enter", "l"), b.stage("body", "l"),
    ...          b.feedback("again", "l")]
    >>> edges = [b.connect("in", "enter"), b.connect("enter", "body"),
    ...          b.connect("body", "again"), b.connect("again", "body")]
    >>> reach = Reachability(b.build())
    >>> source, body = reach.graph.place("in"), reach.graph.place("body")
    >>> reach.summaries(source, body)
    (PathSummary(kept=0, increment=0, appended=(0,)),)
    >>> reach.could_result_in((source, Time(3)), (body, Time(3, (2,))))
    True
    >>> reach.could_result_in((body, Time(3, (2,))), (body, Time(3, (1,))))
    False
    """

    def __init__(self, graph: LogicalGraph) -> None:
        self.graph = graph
        self._from = tuple(_summaries_from(graph, place) for place in range(len(graph)))

    def summaries(self, source: int, target: int) -> tuple[PathSummary, ...]:
        """Return the minimal summaries over all paths, the empty one included; () if none."""
        return self._from[source].get(target, ())

    def round_trips(self, place: int) -> tuple[PathSummary, ...]:
        """Return the summaries of the non-empty paths from ``place`` to itself (not minimised)."""
        first = step(self.graph, place)
        return tuple(
            first.then(rest)
            for following in self.graph.successors(place)
            for rest in self.summaries(following, place)
        )

    def could_result_in(self, earlier: tuple[int, Time], later: tuple[int, Time]) -> bool:
        """Tell whether the event ``earlier`` can lead to the event ``later`` (reflexive)."""
        (source, time), (target, bound) = earlier, later
        return any(summary(time).less_equal(bound) for summary in self.summaries(source, target))


def _summaries_from(graph: LogicalGraph, source: int) -> dict[int, tuple[PathSummary, ...]]:
    """Return the minimal summaries from ``source`` to every place it reaches, by relaxation.

    It ends because every cycle makes a summary strictly later, or as late and therefore dominated.
    """
    best: dict[int, list[PathSummary]] = {source: [PathSummary.identity(graph.depth(source))]}
    pending = [(source, best[source][0])]
    while pending:
        place, summary = pending.pop(0)
        if summary not in best[place]:
            continue  # something earlier replaced it meanwhile
        longer = summary.then(step(graph, place))
        for following in graph.successors(place):
            known = best.setdefault(following, [])
            if dominated(known, longer):
                continue
            known[:] = [other for other in known if not longer.less_equal(other)]
            known.append(longer)
            pending.append((following, longer))
    return {place: tuple(sorted(best[place], key=PathSummary.sort_key)) for place in sorted(best)}
