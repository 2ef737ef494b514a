"""The rollback solver against brute force, on random graphs of mixed regimes and domains."""

from dataclasses import replace
from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.rollback.metadata import RollbackGraph, Witness
from penstock.core.rollback.solver import solve
from penstock.core.rollback.spans import TOP
from penstock.testing.reference_rollback import consistent, consistent_choices, largest_choice
from penstock.testing.rollback_cases import EPOCHS, ITERATIONS, LOOP, RollbackCases

seeds = st.integers(0, 2**32)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5), seeds)
def test_the_solver_equals_the_brute_force_maximum(nodes: int, seed: int) -> None:
    graph, kept = RollbackCases(Random(seed)).draw(nodes)
    found = solve(graph, kept)
    assert found.choices == largest_choice(graph, kept)
    assert consistent(graph, kept, found.choices)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5), seeds)
def test_without_witnesses_too(nodes: int, seed: int) -> None:
    graph, kept = RollbackCases(Random(seed), witnesses=False, offers=4).draw(nodes)
    assert solve(graph, kept).choices == largest_choice(graph, kept)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), seeds)
def test_the_larger_of_two_consistent_choices_is_consistent(nodes: int, seed: int) -> None:
    graph, kept = RollbackCases(Random(seed)).draw(nodes)
    for one, other in pairwise(consistent_choices(graph, kept)):
        assert consistent(graph, kept, tuple(map(max, one, other)))


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 30), seeds)
def test_the_result_does_not_depend_on_the_order_of_nodes_and_edges(nodes: int, seed: int) -> None:
    random = Random(seed)
    # Sequence numbers name their edge, so here edges can only be numbered anew without them.
    cases = RollbackCases(random, domains=(EPOCHS, EPOCHS, LOOP, ITERATIONS))
    graph, kept = cases.draw(nodes)
    place = random.sample(range(nodes), nodes)
    order = random.sample(range(len(graph.edges)), len(graph.edges))
    number = {old: new for new, old in enumerate(order)}
    moved = RollbackGraph(
        nodes,
        [
            replace(edge, source=place[edge.source], target=place[edge.target])
            for edge in map(graph.edges.__getitem__, order)
        ],
    )
    renamed = list(kept)
    for node, known in enumerate(kept):
        renamed[place[node]] = replace(
            known,
            delivered={number[edge]: times for edge, times in known.delivered.items()},
            witnesses=tuple(
                Witness(number[w.edge], w.time, tuple((number[d], t) for d, t in w.needs))
                for w in known.witnesses
            ),
        )
    before, after = solve(graph, kept), solve(moved, renamed)
    assert [after.choices[place[node]] for node in range(nodes)] == list(before.choices)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 30), seeds)
def test_nothing_rolls_back_when_nobody_failed(nodes: int, seed: int) -> None:
    graph, kept = RollbackCases(Random(seed), live=1.0).draw(nodes)
    assert solve(graph, kept).rolled_back == ()


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), seeds)
def test_more_failures_never_keep_more(nodes: int, seed: int) -> None:
    random = Random(seed)
    graph, kept = RollbackCases(random).draw(nodes)
    worse = [
        replace(known, offers=known.offers[:-1])
        if known.offers[-1].span is TOP and random.random() < 0.5
        else known
        for known in kept
    ]
    few, many = solve(graph, kept), solve(graph, worse)
    assert all(a.includes(b) for a, b in zip(few.spans, many.spans, strict=True))
