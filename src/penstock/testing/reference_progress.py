"""Slow reference models of progress tracking, and random graphs to compare on.

Nothing here uses path summaries, antichains or incremental state: could-result-in follows single
events through the graph step by step, frontiers are found by trying everything. The price is time;
use small graphs. Randomness comes from the generator that the caller passes in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random

from penstock.core.graph import GraphBuilder, LogicalGraph, StageKind
from penstock.core.time import Time

__all__ = [
    "random_graph",
    "random_time",
    "reference_could_result_in",
    "reference_frontiers",
    "reference_reached",
    "reference_upstreams",
]

Pointstamp = tuple[int, Time]


def follow(graph: LogicalGraph, place: int, time: Time) -> list[Pointstamp]:
    """Return the events that one event can cause directly, at the earliest."""
    kind = graph.kind(place)
    if kind is StageKind.INGRESS:
        time = time.entered()
    elif kind is StageKind.EGRESS:
        time = time.left()
    elif kind is StageKind.FEEDBACK:
        time = time.advanced()
    return [(following, time) for following in graph.successors(place)]


def reference_reached(
    graph: LogicalGraph, start: Iterable[Pointstamp], limit: int
) -> dict[Pointstamp, None]:
    """Return every event that the given ones can lead to, with counters of at most ``limit``."""
    reached: dict[Pointstamp, None] = {}
    pending = list(start)
    while pending:
        event = pending.pop()
        if event in reached or any(counter > limit for counter in event[1].counters):
            continue
        reached[event] = None
        pending.extend(follow(graph, *event))
    return reached


def reference_could_result_in(graph: LogicalGraph, earlier: Pointstamp, later: Pointstamp) -> bool:
    """Tell by following single events whether one pointstamp could result in another."""
    limit = _limit(graph, [earlier, later])
    target, bound = later
    return any(
        place == target and time.less_equal(bound)
        for place, time in reference_reached(graph, [earlier], limit)
    )


def reference_frontiers(
    graph: LogicalGraph, counts: Mapping[Pointstamp, int]
) -> list[frozenset[Time]]:
    """Return, for every place, the minimal times that may still happen there."""
    return _minimal_times(graph, [pointstamp for pointstamp, count in counts.items() if count])


def reference_upstreams(
    graph: LogicalGraph, counts: Mapping[Pointstamp, int]
) -> list[frozenset[Time]]:
    """Return, for every place, the minimal times that may still arrive in at least one step."""
    causes = [pointstamp for pointstamp, count in counts.items() if count]
    return _minimal_times(graph, [event for cause in causes for event in follow(graph, *cause)])


def _minimal_times(graph: LogicalGraph, start: list[Pointstamp]) -> list[frozenset[Time]]:
    times: list[list[Time]] = [[] for _ in range(len(graph))]
    for place, time in reference_reached(graph, start, _limit(graph, start)):
        times[place].append(time)
    return [
        frozenset(time for time in here if not any(other.less_than(time) for other in here))
        for here in times
    ]


def _limit(graph: LogicalGraph, events: list[Pointstamp]) -> int:
    """Return a counter that is high enough: more rounds than feedbacks only make times later."""
    highest = max((counter for _, time in events for counter in time.counters), default=0)
    return highest + 1 + sum(stage.kind is StageKind.FEEDBACK for stage in graph.stages)


def random_time(rng: Random, depth: int, bound: int = 3) -> Time:
    """Return a time with ``depth`` counters, all parts below ``bound``."""
    return Time(rng.randrange(bound), [rng.randrange(bound) for _ in range(depth)])


def random_graph(rng: Random, *, stages: int = 8, nesting: int = 2) -> LogicalGraph:
    """Return a well-formed graph with nested loops, several ingresses, egresses and feedbacks."""
    return _RandomGraph(rng, stages, nesting).build()


class _RandomGraph:
    """Builds context by context; within one, stages only connect forward, save for feedback."""

    def __init__(self, rng: Random, stages: int, nesting: int) -> None:
        self._rng = rng
        self._budget = stages
        self._nesting = nesting
        self._builder = GraphBuilder()
        self._number = 0

    def build(self) -> LogicalGraph:
        inputs = [self._builder.input(self._name("in")) for _ in range(self._rng.choice((1, 1, 2)))]
        while self._budget > 0:
            self._fill(inputs, None, self._nesting)
        return self._builder.build()

    def _name(self, prefix: str) -> str:
        self._number += 1
        return f"{prefix}{self._number}"

    def _fill(self, outlets: list[str], loop: str | None, nesting: int) -> None:
        """Add stages and loops after ``outlets``, to which their own outlets are added."""
        for _ in range(self._rng.randint(1, 2)):
            if nesting and self._budget > 0 and self._rng.random() < 0.45:
                self._add_loop(outlets, loop, nesting - 1)
            else:
                self._attach(self._builder.stage(self._name("s"), loop), outlets)

    def _attach(self, name: str, outlets: list[str], times: int = 2) -> None:
        """Connect one or more outlets to a new stage and make it an outlet itself."""
        self._budget -= 1
        for source in self._some(outlets, times):
            self._builder.connect(source, name)
        outlets.append(name)

    def _some(self, outlets: list[str], at_most: int) -> list[str]:
        return self._rng.sample(outlets, min(len(outlets), self._rng.randint(1, at_most)))

    def _add_loop(self, outlets: list[str], parent: str | None, nesting: int) -> None:
        rng, builder = self._rng, self._builder
        loop = builder.loop(self._name("loop"), parent)
        inside: list[str] = []
        for _ in range(rng.choice((1, 1, 2))):
            ingress = builder.ingress(self._name("enter"), loop)
            self._attach(ingress, outlets)
            outlets.remove(ingress)
            inside.append(ingress)
        feedbacks = [
            builder.feedback(self._name("again"), loop) for _ in range(rng.choice((0, 1, 1, 2)))
        ]
        self._budget -= len(feedbacks)
        inside.extend(feedbacks)
        self._fill(inside, loop, nesting)
        for feedback in feedbacks:
            for source in self._some([name for name in inside if name != feedback], 2):
                builder.connect(source, feedback)
        self._leave(outlets, inside, loop)
        if rng.random() < 0.3:  # back into the same context, on a path of its own: no cycle
            ingress = builder.ingress(self._name("enter"), loop)
            self._attach(ingress, outlets)
            outlets.remove(ingress)
            self._leave(outlets, [ingress], loop)

    def _leave(self, outlets: list[str], inside: list[str], loop: str) -> None:
        for _ in range(self._rng.choice((1, 1, 2))):
            egress = self._builder.egress(self._name("leave"), loop)
            self._budget -= 1
            for source in self._some(inside, 2):
                self._builder.connect(source, egress)
            outlets.append(egress)
