"""The planner on the small cases in which simpler protocols go wrong."""

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.diffs import DiffLink, completion, origin
from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.core.causal.plan import plan
from penstock.core.causal.reports import Cut, NodeReport, Saved, Stored
from penstock.core.causal.times import END
from penstock.testing.reference_retention import (
    durable_epochs,
    low_epochs,
    watermark,
)

S, A, B, K0, K1, K2 = range(6)


def chain(*links: tuple[int, int]) -> tuple[DiffLink, ...]:
    return tuple(DiffLink(node, (time,), 0) for node, time in links)


def tree() -> CausalGraph:
    """S→A→{B, K2}, B→{K0, K1}."""
    kinds = {S: NodeKind.SOURCE, A: NodeKind.STATELESS, B: NodeKind.STATELESS}
    kinds |= dict.fromkeys((K0, K1, K2), NodeKind.STATEFUL)
    return CausalGraph(kinds, {A: (S,), B: (A,), K2: (A,), K0: (B,), K1: (B,)})


def live(node: int, **parts: object) -> NodeReport:
    return NodeReport(node, **parts)  # type: ignore[arg-type]


def survivors() -> dict[int, NodeReport]:
    return {
        S: live(S, floors={A: Floor()}),
        A: live(A, floors={B: Floor(), K2: Floor()}, clock={S: Position((1,), -1)}),
        K0: live(K0, clock={B: Position((), -1)}),
        K1: live(K1, clock={B: Position((1,), -1)}, diffs=(chain((B, 1), (A, 1), (S, 1)),)),
        K2: live(K2, clock={A: Position((1,), -1)}, diffs=(chain((A, 1), (S, 1)),)),
    }


def test_child_soon_after_a_parent_whose_log_starts_too_late_joins() -> None:
    reports = survivors()
    reports[A] = live(A, floors={B: Floor((1,), -1, 0), K2: Floor()})
    found = plan(tree(), frozenset({B}), reports, {})
    assert found.joining == (A,)
    again = plan(tree(), frozenset({A, B}), reports, {})
    assert again.joining == ()
    assert again.starts[A].clock[S] == Position((), -1)
    assert [t.stamp for t in again.starts[A].targets] == [(1,)]
    assert again.starts[A].targets[0].made_from == DiffLink(S, (1,), 0)


def test_a_log_that_reaches_back_needs_nobody_else() -> None:
    found = plan(tree(), frozenset({B}), survivors(), {})
    assert found.joining == ()
    assert found.starts[B].stamp == ()
    assert found.starts[B].clock[A] == Position((), -1)
    assert [(t.stamp, t.made_from.node) for t in found.starts[B].targets] == [((1,), A)]
    assert found.edges() == [(A, B), (B, K0), (B, K1)]
    assert found.position(B, K1) == Position((1,), -1)


def test_adjacent_failures_keep_the_numbers_that_grandchildren_know() -> None:
    found = plan(tree(), frozenset({A, B}), survivors(), {})
    assert found.starts[B].targets[0].made_from == DiffLink(A, (1,), 0)
    assert found.starts[A].targets[0].made_from == DiffLink(S, (1,), 0)


def line(kind: NodeKind) -> CausalGraph:
    """Two sources, a node of some kind, a sink."""
    kinds = {0: NodeKind.SOURCE, 1: NodeKind.SOURCE, 2: kind, 3: NodeKind.SINK}
    return CausalGraph(kinds, {2: (0, 1), 3: (2,)})


def sources() -> dict[int, NodeReport]:
    return {0: live(0, floors={2: Floor()}), 1: live(1, floors={2: Floor()})}


def saved(key: int, stamp: int, epoch: int, floor: Floor) -> Saved:
    clock = dict.fromkeys((0, 1), Position((stamp,), epoch))
    return Saved(key, NodeReport(2, (stamp,), epoch, epoch, clock, {3: floor}))


def test_the_newest_checkpoint_whose_log_reaches_the_children_is_taken() -> None:
    stored = {2: Stored((saved(1, 2, 0, Floor()), saved(2, 5, 1, Floor((4,), 1, 9))))}
    near = sources() | {3: live(3, clock={2: Position((4,), 1)})}
    assert plan(line(NodeKind.STATEFUL), frozenset({2}), near, stored).starts[2].checkpoint == 2
    far = sources() | {3: live(3, clock={2: Position((3,), 0)})}
    assert plan(line(NodeKind.STATEFUL), frozenset({2}), far, stored).starts[2].checkpoint == 1


def test_without_any_checkpoint_that_reaches_the_plan_says_so() -> None:
    stored = {2: Stored((saved(2, 5, 1, Floor((4,), 1, 9)),))}
    far = sources() | {3: live(3, clock={2: Position((3,), 0)})}
    found = plan(line(NodeKind.STATEFUL), frozenset({2}), far, stored)
    assert found.impossible is not None
    assert "node 2" in found.impossible


def test_determinants_are_bound_up_to_what_was_observed_and_trimmed_after() -> None:
    determinants = (
        (DiffLink(2, (1,), 0), DiffLink(0, (1,), 0)),
        (DiffLink(2, (2,), 0), DiffLink(1, (1,), 0)),
        (DiffLink(2, (3,), 0), completion(0)),
        (DiffLink(2, (4,), 1), DiffLink(0, (3,), 1)),
    )
    stored = {2: Stored((saved(1, 0, -1, Floor())._replace(report=initial()),), determinants)}
    seen = sources() | {3: live(3, clock={2: Position((1,), -1)})}
    start = plan(line(NodeKind.ORDERED), frozenset({2}), seen, stored).starts[2]
    assert (start.trim, [t.stamp for t in start.targets]) == ((1,), [(1,)])
    # Somebody below has completed epoch 0: everything that led to it is bound.
    done = sources() | {3: live(3, completed=0, clock={2: Position((1,), -1)})}
    start = plan(line(NodeKind.ORDERED), frozenset({2}), done, stored).starts[2]
    assert (start.trim, [t.stamp for t in start.targets]) == ((3,), [(1,), (2,), (3,)])


def initial() -> NodeReport:
    return NodeReport(2, clock=dict.fromkeys((0, 1), Position()), floors={3: Floor()})


def test_one_line_of_single_parents_needs_no_determinants() -> None:
    kinds = {0: NodeKind.SOURCE, 1: NodeKind.ORDERED, 2: NodeKind.SINK}
    assert CausalGraph(kinds, {1: (0,), 2: (1,)}).determined == frozenset()
    assert line(NodeKind.ORDERED).determined == {2}


def test_a_source_reads_on_after_the_last_known_range_and_keeps_durable_cuts() -> None:
    graph = CausalGraph({0: NodeKind.SOURCE, 1: NodeKind.STATEFUL}, {1: (0,)})
    known = (DiffLink(0, (2,), 1), DiffLink(origin(0), (30, 20), 1))
    reports = {1: live(1, clock={0: Position((2,), 0)}, diffs=(known,))}
    stored = {0: Stored(cuts=(Cut(0, 15), Cut(1, 40)))}
    start = plan(graph, frozenset({0}), reports, stored).starts[0]
    assert start.offset == 30
    assert [cut.epoch for cut in start.cuts] == [1]


def test_a_failed_child_that_completed_first_sets_a_deadline_for_its_parents_mark() -> None:
    kinds = {0: NodeKind.SOURCE, 1: NodeKind.STATELESS, 2: NodeKind.STATELESS, 3: NodeKind.STATEFUL}
    graph = CausalGraph(kinds, {1: (0,), 2: (1,), 3: (2,)})
    diffs = (
        (DiffLink(2, (5,), 0), completion(0)),
        (DiffLink(2, (6,), 1), DiffLink(1, (4,), 1), DiffLink(0, (3,), 1)),
    )
    reports = {
        0: live(0, floors={1: Floor()}),
        3: live(3, clock={2: Position((), -1)}, diffs=diffs),
    }
    start = plan(graph, frozenset({1, 2}), reports, {}).starts[1]
    assert [(t.stamp, t.loose, t.made_from.epoch) for t in start.targets] == [
        ((4,), True, 0),
        ((4,), False, 1),
    ]
    assert all(t.stamp != END for t in start.targets)


def test_the_watermark_is_the_plan_with_all_but_the_sources_failed() -> None:
    graph = line(NodeKind.STATEFUL)
    sink = NodeReport(3, completed=1, newest=1, clock={2: Position((), 1)})
    stored = {
        2: Stored((saved(1, 2, 0, Floor()), saved(2, 5, 1, Floor()))),
        3: Stored((Saved(1, sink),)),
    }
    found = watermark(graph, stored)
    assert min(start.completed for start in found.starts.values()) == 1
    assert low_epochs(graph, *durable_epochs(graph, stored))[0] == 0  # the older of two
    assert found.position(0, 2) == Position((5,), 1)
    assert found.position(2, 3) == Position((), 1)
