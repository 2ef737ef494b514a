"""The thesis's worked example (Fig. 3-6 to 3-12), and its table."""

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.diffs import DiffLink
from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.core.causal.plan import plan
from penstock.core.causal.replay import Replay, slot
from penstock.core.causal.reports import NodeReport, RecoveryPlan
from penstock.core.causal.table import Pending, is_valid, solve
from penstock.testing.reference_replay import all_tables

RECEIVED = [  # Fig. 3-8, in the order of arrival
    Pending("A3", 1, ("C1",)),
    Pending("A1", 2, ("C2",)),
    Pending("A2", 1, ("C1",)),
    Pending("A1", 3, ("C3",)),
    Pending("A3", 2, ("C2",)),
    Pending("A2", 2, ("C1", "C3")),
]
TARGETS = {5: ("A1", 3), 6: ("A2", 2)}
RESUME = {"C1": 2, "C2": 2, "C3": 7}  # Fig. 3-7c

A1, A2, A3, B, C1, C2, C3 = range(7)


def diff(stamp: int, parent: int, handled: int) -> tuple[DiffLink, DiffLink]:
    return DiffLink(B, (stamp,), 0), DiffLink(parent, (handled,), 0)


def test_fig_3_11_has_exactly_six_solutions_and_ours_is_one() -> None:
    tables = list(all_tables(RECEIVED, TARGETS, RESUME, first=2))
    assert len(tables) == 6
    assert solve(RECEIVED, TARGETS, RESUME, first=2) in tables


def test_fig_3_11b_is_valid_and_the_order_of_arrival_is_not() -> None:
    assert is_valid({2: ("A2", 1), 3: ("A1", 2), **TARGETS}, RECEIVED, TARGETS, RESUME)
    arrival = {at: message.key for at, message in enumerate(RECEIVED, 2)}
    assert not is_valid(arrival, RECEIVED, TARGETS, RESUME)


def test_a_table_without_room_has_no_solution() -> None:
    pending = [Pending("A", 1, ("C",)), Pending("A", 2, ("C",)), Pending("A", 3, ("C",))]
    assert solve(pending, {2: ("A", 3)}, {"C": 1}, first=1) is None
    assert list(all_tables(pending, {2: ("A", 3)}, {"C": 1}, first=1)) == []


def reports() -> dict[int, NodeReport]:
    """Fig. 3-7b: C1 and C2 know B:1, C3 knows B:5 and B:6."""
    return {
        C1: NodeReport(C1, clock={B: Position((1,), -1)}, diffs=(diff(1, A1, 1),)),
        C2: NodeReport(C2, clock={B: Position((1,), -1)}, diffs=(diff(1, A1, 1),)),
        C3: NodeReport(C3, clock={B: Position((6,), -1)}, diffs=(diff(5, A1, 3), diff(6, A2, 2))),
        **{parent: NodeReport(parent, floors={B: Floor()}) for parent in (A1, A2, A3)},
    }


def example_graph() -> CausalGraph:
    kinds = {**dict.fromkeys((A1, A2, A3), NodeKind.SOURCE), B: NodeKind.STATELESS}
    kinds |= dict.fromkeys((C1, C2, C3), NodeKind.SINK)
    return CausalGraph(kinds, {B: (A1, A2, A3), C1: (B,), C2: (B,), C3: (B,)})


def example_plan() -> RecoveryPlan:
    return plan(example_graph(), frozenset({B}), reports(), {})


def test_fig_3_7_the_plan_has_t_star_and_the_resume_positions() -> None:
    start = example_plan().starts[B]
    assert start.stamp == (1,)
    assert {a: p.stamp for a, p in start.clock.items()} == {A1: (1,), A2: (), A3: ()}
    assert {c: p.stamp for c, p in start.positions.items()} == {C1: (1,), C2: (1,), C3: (6,)}
    assert [(t.stamp, t.made_from.node, t.made_from.stamp) for t in start.targets] == [
        ((5,), A1, (3,)),
        ((6,), A2, (2,)),
    ]


def test_fig_3_12_the_dense_replay_of_the_example_is_a_valid_execution() -> None:
    start = example_plan().starts[B]
    rows = {"A1": A1, "A2": A2, "A3": A3}
    children = {"C1": C1, "C2": C2, "C3": C3}
    replay: Replay[Pending] = Replay(start.targets, [A1, A2, A3])
    for message in RECEIVED:
        replay.arrived(rows[message.parent], (message.time,), 0, message)
    stamp, sent = start.stamp, []
    while (turn := replay.next({}, ())) is not None:
        assert turn.item is not None
        to = [children[child] for child in turn.item.children]
        skipped: tuple[int, ...] = ()
        if turn.exactly is not None:
            stamp = turn.exactly
        elif turn.before is not None:
            stamp, skipped = slot(stamp, turn.before, to, start.positions)
        else:
            stamp = (max(stamp, start.top)[0] + 1,)
        sent.append((stamp, turn.item.key, [c for c in to if c not in skipped]))
    assert [stamp for stamp, _, _ in sent] == sorted(stamp for stamp, _, _ in sent)
    made = {key: stamp for stamp, key, _ in sent}
    assert made["A1", 3] == (5,)  # Regularity
    assert made["A2", 2] == (6,)
    assert made["A1", 2] < (5,)  # Monotonicity
    assert made["A2", 1] < (6,)
    assert made["A3", 1] < made["A3", 2]
    assert len(sent) == len(RECEIVED)  # Eventuality: each is after its recipients' positions
    for stamp, key, to in sent:
        if key not in (("A1", 3), ("A2", 2)):
            assert all(stamp > start.positions[child].stamp for child in to)
