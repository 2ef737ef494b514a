"""Could-result-in and frontiers equal the brute-force model on random graphs with nested loops."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from penstock.core.graph import LogicalGraph, StageKind
from penstock.core.progress import reachability as reachability_module
from penstock.core.progress import view as view_module
from penstock.core.progress.pointstamps import Pointstamp, Pointstamps
from penstock.core.progress.reachability import Reachability
from penstock.core.progress.summary import PathSummary
from penstock.core.progress.tracker import Tracker
from penstock.core.time import Time
from penstock.testing.reference_progress import (
    random_graph,
    random_time,
    reference_could_result_in,
    reference_frontiers,
    reference_upstreams,
)


def some_graph(rng: Random) -> LogicalGraph:
    return random_graph(rng, stages=rng.randint(2, 9))


def some_pointstamp(rng: Random, graph: LogicalGraph, bound: int = 3) -> Pointstamp:
    place = rng.randrange(len(graph))
    return place, random_time(rng, graph.depth(place), bound)


def some_batch(
    rng: Random, graph: LogicalGraph, counts: Counter[Pointstamp]
) -> list[tuple[int, Time, int]]:
    """Random deltas, half of them taking an active pointstamp away; adds them to ``counts``."""
    batch = []
    for _ in range(rng.randint(1, 3)):
        active = [pointstamp for pointstamp, count in counts.items() if count]
        if active and rng.random() < 0.5:
            pointstamp = rng.choice(active)
            delta = -counts[pointstamp]
        else:
            pointstamp = some_pointstamp(rng, graph)
            delta = rng.choice((1, 1, 2, -1))
        counts[pointstamp] += delta
        batch.append((*pointstamp, delta))
    return batch


def check_could_result_in(seed: int) -> None:
    rng = Random(seed)
    reachability = Reachability(some_graph(rng))
    graph = reachability.graph
    for _ in range(30):
        earlier, later = some_pointstamp(rng, graph), some_pointstamp(rng, graph)
        expected = reference_could_result_in(graph, earlier, later)
        assert reachability.could_result_in(earlier, later) == expected, (seed, earlier, later)


def check_frontiers(seed: int) -> None:
    rng = Random(seed)
    graph = some_graph(rng)
    tracker = Tracker(graph)
    counts: Counter[Pointstamp] = Counter()
    for _ in range(8):
        before = [tracker.frontier(place) for place in range(len(graph))]
        moved = tracker.apply(some_batch(rng, graph, counts))
        assert len(set(moved)) == len(moved)
        happen, arrive = reference_frontiers(graph, counts), reference_upstreams(graph, counts)
        for place in range(len(graph)):
            assert frozenset(tracker.frontier(place)) == happen[place], (seed, place)
            assert frozenset(tracker.upstream(place)) == arrive[place], (seed, place)
            assert (place in moved) == (before[place] != tracker.frontier(place)), (seed, place)
            time = random_time(rng, graph.depth(place))
            expected = not any(earlier.less_equal(time) for earlier in arrive[place])
            assert tracker.complete(place, time) == expected, (seed, place, time)


def test_many_epochs_and_iterations_at_once_give_the_same_frontiers() -> None:
    for seed in range(10):
        rng = Random(seed)
        graph = some_graph(rng)
        tracker = Tracker(graph)
        counts: Counter[Pointstamp] = Counter()
        for _ in range(5):
            batch = []
            for _ in range(15):
                active = list(counts)
                if len(active) > 40 or (active and rng.random() < 0.3):
                    pointstamp, delta = rng.choice(active), -1
                else:
                    pointstamp, delta = some_pointstamp(rng, graph, bound=8), 1
                counts[pointstamp] += delta
                if not counts[pointstamp]:
                    del counts[pointstamp]
                batch.append((*pointstamp, delta))
            tracker.apply(batch)
            happen = reference_frontiers(graph, counts)
            for place in range(len(graph)):
                assert frozenset(tracker.frontier(place)) == happen[place], (seed, place)


@pytest.mark.parametrize("first", range(0, 120, 60))
def test_could_result_in_equals_following_every_path(first: int) -> None:
    for seed in range(first, first + 60):
        check_could_result_in(seed)


@pytest.mark.parametrize("first", range(0, 120, 60))
def test_frontiers_equal_trying_everything(first: int) -> None:
    for seed in range(first, first + 60):
        check_frontiers(seed)


def test_random_graphs_have_what_they_are_meant_to_test() -> None:
    graphs = [some_graph(Random(seed)) for seed in range(150)]
    assert sum(any(len(c) > 1 for c in graph.components()) for graph in graphs) > 50
    assert sum(any(graph.depth(p) == 2 for p in range(len(graph))) for graph in graphs) > 25
    incomparable = 0
    for graph in graphs:
        reachability = Reachability(graph)
        places = range(len(graph))
        incomparable += any(len(reachability.summaries(a, b)) > 1 for a in places for b in places)
    assert incomparable > 10, "some minimal summaries are antichains of more than one"


def test_could_result_in_is_a_partial_order() -> None:
    for seed in range(60):
        rng = Random(seed)
        reachability = Reachability(some_graph(rng))
        before = reachability.could_result_in
        for _ in range(40):
            a, b, c = (some_pointstamp(rng, reachability.graph) for _ in range(3))
            assert before(a, a)
            assert not (before(a, b) and before(b, a)) or a == b
            assert not (before(a, b) and before(b, c)) or before(a, c)


def test_how_deltas_are_batched_does_not_matter() -> None:
    for seed in range(50):
        rng = Random(seed)
        graph = some_graph(rng)
        counts: Counter[Pointstamp] = Counter()
        deltas = [delta for _ in range(6) for delta in some_batch(rng, graph, counts)]
        whole, single = Tracker(graph), Tracker(graph)
        whole.apply(deltas)
        rng.shuffle(deltas)
        for delta in deltas:
            single.apply([delta])
        assert whole.snapshot() == single.snapshot()
        for place in range(len(graph)):
            assert whole.frontier(place) == single.frontier(place)


def recount(reachability: Reachability, active: list[Pointstamp], of: Pointstamp) -> int:
    return sum(p != of and reachability.could_result_in(p, of) for p in active)


def check_precursors(seed: int, kind: type[Pointstamps]) -> None:
    rng = Random(seed)
    reachability = Reachability(some_graph(rng))
    tracker = Tracker(reachability.graph, reachability)
    pointstamps = kind(reachability)
    counts: Counter[Pointstamp] = Counter()
    for _ in range(8):
        for place, time, delta in some_batch(rng, reachability.graph, counts):
            pointstamps.update((place, time), delta)
            tracker.apply([(place, time, delta)])
        active = [pointstamp for pointstamp, count in counts.items() if count]
        assert set(pointstamps.active()) == set(active)
        for pointstamp in active:
            assert pointstamps.occurrences(pointstamp) == counts[pointstamp]
            assert pointstamps.precursors(pointstamp) == recount(reachability, active, pointstamp)
            first = pointstamp in pointstamps.frontier()
            place, time = pointstamp
            beside = any(p == place and t.less_than(time) for p, t in active)
            assert first == (tracker.complete(place, time) and not beside)


def test_precursor_counts_equal_a_recount_and_agree_with_frontiers() -> None:
    for seed in range(80):
        check_precursors(seed, Pointstamps)


# -- canaries: wrong versions that the checks above must catch -------------------------------


class OnlyOwnPrecursors(Pointstamps):
    """Initialises a new pointstamp's precursors and forgets those that it precedes itself."""

    def _adjust(self, changed: Pointstamp, sign: int) -> None:
        later = dict(self._precursors)
        super()._adjust(changed, sign)
        if sign > 0:
            self._precursors.update(later)


def caught(check: object, seeds: int, *arguments: object) -> bool:
    for seed in range(seeds):
        try:
            check(seed, *arguments)  # type: ignore[operator]
        except (AssertionError, KeyError):
            return True
    return False


def test_canary_precursors_not_raised_on_activation_is_caught() -> None:
    assert caught(check_precursors, 50, OnlyOwnPrecursors)


def test_canary_summaries_that_ignore_feedback_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    original = reachability_module.step

    def without_feedback(graph: LogicalGraph, source: int) -> PathSummary:
        if graph.kind(source) is StageKind.FEEDBACK:
            return PathSummary.identity(graph.depth(source))
        return original(graph, source)

    monkeypatch.setattr(reachability_module, "step", without_feedback)
    assert caught(check_could_result_in, 100)
    monkeypatch.setattr(view_module, "step", without_feedback)
    assert caught(check_frontiers, 100)


def test_canary_one_summary_per_pair_of_places_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the product order the minimum over paths is an antichain, not one summary."""
    original = Reachability.summaries
    monkeypatch.setattr(Reachability, "summaries", lambda *args: original(*args)[:1])
    assert caught(check_could_result_in, 300)
    assert caught(check_frontiers, 300)


def test_canary_a_tracker_that_misses_departures_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Tracker.apply
    monkeypatch.setattr(
        Tracker, "apply", lambda self, deltas: original(self, [d for d in deltas if d[2] > 0])
    )
    assert caught(check_frontiers, 20)
