"""The rollback solver against brute force, on random graphs of mixed regimes and domains."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.rollback.metadata import Edge, Kept, Offer, RollbackGraph, Witness
from penstock.core.rollback.solver import solve
from penstock.core.rollback.spans import EMPTY, TOP, Moment, Numbered, Span
from penstock.core.rollback.transformers import (
    ENTERING,
    LEAVING,
    SAME,
    TURNING,
    UNKNOWN,
    Custom,
    Recorded,
    Transformer,
)
from penstock.core.time import CONVERGED, Time
from penstock.testing.reference_rollback import consistent, consistent_choices, largest_choice

EPOCHS, LOOP, ITERATIONS, NUMBERS = "epochs", "loop", "iterations", "numbers"
DOMAINS = (EPOCHS, EPOCHS, LOOP, ITERATIONS, NUMBERS)
Case = tuple[RollbackGraph, list[Kept]]

small = st.integers(0, 4)


def moments(domain: str, edges: list[int]) -> st.SearchStrategy[Moment]:
    if domain == EPOCHS:
        return st.builds(Time, small)
    if domain == LOOP:
        return st.builds(lambda e: Time(e, (CONVERGED,)), small)
    if domain == ITERATIONS:
        counters = st.sampled_from([0, 1, 2, CONVERGED])
        return st.builds(lambda e, c: Time(e, (c,)), small, counters)
    return st.builds(Numbered, st.sampled_from(edges or [0]), small)


def spans(domain: str, edges: list[int]) -> st.SearchStrategy[Span]:
    return st.lists(moments(domain, edges), max_size=2).map(lambda tops: Span.of(*tops))


def growing(drawn: list[Span]) -> list[Span]:
    """A chain of different spans, each with all of the one before."""
    chain = [EMPTY]
    for span in drawn:
        if (chain[-1] | span) != chain[-1]:
            chain.append(chain[-1] | span)
    return chain


@st.composite
def transformers(draw: st.DrawFn, number: int, source: str, target: str) -> Transformer:
    deep = (LOOP, ITERATIONS)
    if source == EPOCHS and target == EPOCHS:
        choices: list[Transformer] = [SAME, SAME, SAME, Custom("half", halved)]
    elif source == EPOCHS and target in deep:
        choices = [ENTERING]
    elif source in deep and target in deep:
        choices = [SAME, TURNING]
    elif source in deep and target == EPOCHS:
        choices = [LEAVING]
    else:
        choices = [UNKNOWN]
        keys = growing(draw(st.lists(spans(source, [number]), max_size=3)))[1:]
        images = growing(draw(st.lists(spans(target, [number]), min_size=3, max_size=6)))
        if keys and len(images) > len(keys):
            choices = [Recorded(zip(keys, images[1:], strict=False))]
    return draw(st.sampled_from(choices))


def halved(span: Span) -> Span:
    return Span.epoch((span.scalar or 0) // 2 if span != EMPTY else -1)


@st.composite
def cases(draw: st.DrawFn, nodes_max: int = 5) -> Case:
    count = draw(st.integers(1, nodes_max))
    domains = [draw(st.sampled_from(DOMAINS)) for _ in range(count)]
    ends = draw(
        st.lists(st.tuples(*[st.integers(0, count - 1)] * 2), max_size=2 * count, unique=True)
    )
    edges = [
        Edge(p, q, draw(transformers(number, domains[p], domains[q])), draw(st.booleans()))
        for number, (p, q) in enumerate(ends)
    ]
    graph = RollbackGraph(count, edges)
    kept = []
    for node in range(count):
        some = spans(domains[node], list(graph.ins[node]))
        offers = []
        # Ephemeral and lazy nodes lose what they sent; batch and eager ones do not; a causal
        # node has lost what was truncated.
        regime = draw(st.sampled_from(["loses", "loses", "keeps", "truncates"]))
        for span in growing(draw(st.lists(some, max_size=3))):
            gone = {"loses": span, "keeps": EMPTY, "truncates": span & draw(some)}[regime]
            offers.append(Offer(span, discarded=gone))
        known = Kept(tuple(offers))
        if draw(st.integers(0, 2)):
            events = draw(st.just(TOP) | some)
            known = known.alive(
                events,
                discarded=draw(st.sampled_from([None, EMPTY]) | some),
                complete=draw(some),
            )
        kept.append(known)
    return graph, draw(with_witnesses(graph, kept, domains))


@st.composite
def with_witnesses(
    draw: st.DrawFn, graph: RollbackGraph, kept: list[Kept], domains: list[str]
) -> list[Kept]:
    """Exact deliveries on some edges, and witnesses whose needs come earlier in one order."""
    messages: list[tuple[int, Moment]] = []
    delivered: list[dict[int, frozenset[Moment]]] = [{} for _ in kept]
    for number, edge in enumerate(graph.edges):
        if draw(st.booleans()):
            times = draw(st.sets(moments(domains[edge.target], [number]), max_size=4))
            delivered[edge.target][number] = frozenset(times)
            messages += [(number, time) for time in sorted(times, key=lambda t: t.sort_key())]
    messages = draw(st.permutations(messages))
    witnesses: list[list[Witness]] = [[] for _ in kept]
    for index, (number, time) in enumerate(messages):
        sender = graph.edges[number].source
        before = [m for m in messages[:index] if graph.edges[m[0]].target == sender]
        if draw(st.integers(0, 3)):
            needs = draw(st.lists(st.sampled_from(before), max_size=2)) if before else []
            witnesses[sender].append(Witness(number, time, tuple(needs)))
    return [
        replace(
            known,
            delivered=delivered[node],
            notified=frozenset(
                draw(st.sets(moments(domains[node], list(graph.ins[node])), max_size=1))
            ),
            witnesses=tuple(witnesses[node]),
        )
        for node, known in enumerate(kept)
    ]


thorough = settings(
    max_examples=1500,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@thorough
@given(cases())
def test_the_solver_equals_the_brute_force_maximum(case: Case) -> None:
    graph, kept = case
    found = solve(graph, kept)
    assert found.choices == largest_choice(graph, kept)
    assert consistent(graph, kept, found.choices)


@settings(thorough, max_examples=300)
@given(cases(nodes_max=4))
def test_the_larger_of_two_consistent_choices_is_consistent(case: Case) -> None:
    graph, kept = case
    for one, other in pairwise(consistent_choices(graph, kept)):
        assert consistent(graph, kept, tuple(map(max, one, other)))


@settings(thorough, max_examples=700)
@given(cases(nodes_max=8), st.randoms(use_true_random=False))
def test_the_result_does_not_depend_on_the_order_of_nodes_and_edges(case: Case, random) -> None:  # type: ignore[no-untyped-def]
    graph, kept = case
    place = list(range(len(graph)))
    random.shuffle(place)
    order = list(range(len(graph.edges)))
    random.shuffle(order)
    number = {old: new for new, old in enumerate(order)}
    edges = [graph.edges[old] for old in order]
    moved = RollbackGraph(
        len(graph), [replace(e, source=place[e.source], target=place[e.target]) for e in edges]
    )
    # Numbered times name their edge, so those graphs keep the numbering of their edges.
    if any(isinstance(top, Numbered) for k in kept for o in k.offers for top in o.span.tops):
        moved = RollbackGraph(
            len(graph),
            [replace(e, source=place[e.source], target=place[e.target]) for e in graph.edges],
        )
        number = {old: old for old in number}
    renamed: list[Kept] = list(kept)
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
    assert [after.choices[place[node]] for node in range(len(graph))] == list(before.choices)


@settings(thorough, max_examples=300)
@given(cases(nodes_max=6))
def test_nothing_rolls_back_when_nobody_failed(case: Case) -> None:
    graph, kept = case
    live = [k if k.offers[-1].span is TOP else k.alive() for k in kept]
    assert solve(graph, live).rolled_back == ()
