"""Spans as sets of times, and transformers as what they promise about messages."""

from collections.abc import Callable
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.rollback.cascades import StageEdge, Trouble, cascades
from penstock.core.rollback.metadata import Edge, RollbackGraph
from penstock.core.rollback.regimes import (
    BATCH,
    EAGER,
    EPHEMERAL,
    EPHEMERAL_LOGGED,
    SOURCE,
    RollbackRegime,
    lazy,
)
from penstock.core.rollback.solver import solve
from penstock.core.rollback.spans import EMPTY, TOP, Moment, NumberedTime, Span
from penstock.core.rollback.transformers import ENTERING, LEAVING, SAME, TURNING, Transformer
from penstock.core.time import CONVERGED, Time

COUNTERS = (0, 1, 2, CONVERGED)
UNIVERSES: dict[str, list[Moment]] = {
    "epochs": [Time(e) for e in range(5)],
    "loop": [Time(e, (c,)) for e, c in product(range(4), COUNTERS)],
    "nested": [Time(e, c) for e, *c in product(range(3), COUNTERS, COUNTERS)],
    "numbers": [NumberedTime(edge, n) for edge, n in product(range(3), range(4))],
}
universes = st.sampled_from(sorted(UNIVERSES))


def drawn(data: st.DataObject, universe: str) -> Span:
    moments = st.lists(st.sampled_from(UNIVERSES[universe]), max_size=4)
    return data.draw(st.just(TOP) | moments.map(lambda tops: Span.of(*tops)))


def times(universe: str, span: Span) -> set[Moment]:
    return {moment for moment in UNIVERSES[universe] if moment in span}


@given(universes, st.data())
def test_spans_are_downward_closed_sets(universe: str, data: st.DataObject) -> None:
    one, two = drawn(data, universe), drawn(data, universe)
    have_one, have_two = times(universe, one), times(universe, two)
    assert times(universe, one | two) == have_one | have_two
    assert times(universe, one & two) == have_one & have_two
    if TOP not in (one, two):
        assert one.includes(two) == (have_one >= have_two)
        assert (one == two) == (have_one == have_two)
    assert TOP.includes(one)
    assert one.includes(EMPTY)
    assert Span.from_plain(one.to_plain()) == one
    for moment in have_one:
        below = [m for m in UNIVERSES[universe] if m.less_equal(moment)]  # type: ignore[arg-type]
        assert have_one.issuperset(below)


def on_entering(time: Time) -> Time:
    return time.entered()


def on_leaving(time: Time) -> Time:
    return time.left()


def on_turning(time: Time) -> Time:
    return time if time.is_converged else time.advanced()


@pytest.mark.parametrize(
    ("transformer", "universe", "message"),
    [
        (SAME, "loop", lambda time: time),
        (ENTERING, "epochs", on_entering),
        (ENTERING, "loop", on_entering),
        (LEAVING, "loop", on_leaving),
        (LEAVING, "nested", on_leaving),
        (TURNING, "loop", on_turning),
        (TURNING, "nested", on_turning),
    ],
)
def test_transformers_are_monotone_and_promise_nothing_wrong(
    transformer: Transformer, universe: str, message: Callable[[Moment], Moment]
) -> None:
    random = Random(7)
    moments = UNIVERSES[universe]
    for _ in range(300):
        small = Span.of(*random.sample(moments, random.randint(0, 2)))
        large = small | Span.of(*random.sample(moments, random.randint(0, 2)))
        assert transformer.fixed(large).includes(transformer.fixed(small))
        assert transformer.sent(large).includes(transformer.sent(small))
        for moment in moments:
            if moment in small:
                assert message(moment) in transformer.sent(small)
            elif moment[-1] != CONVERGED:  # no event happens at "all iterations"
                assert message(moment) not in transformer.fixed(small)


REGIMES = (
    EPHEMERAL,
    EPHEMERAL_LOGGED,
    BATCH,
    EAGER,
    EPHEMERAL_LOGGED.stateful(),
    EAGER.stateful(),
    *(lazy(every).stateful() for every in (2, 4, 6, 9, 15)),
)


def floors(
    regimes: dict[str, RollbackRegime], edges: list[StageEdge], completed: dict[str, int]
) -> dict[str, int]:
    """How far back stages go at most: a whole interval of their group behind its slowest."""
    group = {name: {name} for name in regimes}
    couples = [e for e in edges if not (e.persisted or regimes[e.source].keeps_output)]
    for edge in couples:
        joined = group[edge.source] | group[edge.target]
        for name in joined:
            group[name] = joined
    found = dict(completed)
    for _ in range(2 * len(regimes)):
        for name in regimes:
            least = min(found[other] for other in group[name])
            feeders = [found[e.source] for e in edges if e.target in group[name]]
            interval = max(regimes[other].every for other in group[name])
            found[name] = min([least, *feeders]) // interval * interval
    return found


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 7), st.integers(0, 2**32))
def test_without_a_warning_rollbacks_do_not_cascade(stages: int, seed: int) -> None:
    random = Random(seed)
    names = [f"s{n}" for n in range(stages)]
    regimes = {name: random.choice(REGIMES) for name in names}
    regimes["s0"] = SOURCE
    edges = [
        StageEdge(f"s{random.randrange(n)}", f"s{n}", random.random() < 0.3)
        for n in range(1, stages)
        for _ in range(random.randint(1, 2))
    ]
    warned = {found.trouble for found in cascades(regimes, edges)}
    if warned & {Trouble.DOMINO, Trouble.BEGINNING}:
        return
    completed = {name: 100 + random.randrange(9) for name in names}
    kept = []
    for name, epoch in completed.items():
        regime = regimes[name]
        known = regime.kept(epoch, range(0, epoch + 1, regime.every))
        if random.random() < 0.5:
            gone = EMPTY if regime.keeps_output else Span.epoch(110)
            known = known.alive(Span.epoch(110), discarded=gone, complete=Span.epoch(epoch))
        kept.append(known)
    place = {name: number for number, name in enumerate(names)}
    graph = RollbackGraph(
        stages, [Edge(place[e.source], place[e.target], logged=e.persisted) for e in edges]
    )
    found = solve(graph, kept)
    for name, floor in floors(regimes, edges, completed).items():
        assert found.spans[place[name]].includes(Span.epoch(floor))
