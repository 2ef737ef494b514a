"""Nodes that keep no log, and nodes that are clean: what they forget and how they start."""

import pytest

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.diffs import DiffLink, completion
from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.core.causal.plan import plan
from penstock.core.causal.reports import NodeReport, Saved, Stored, Target
from penstock.core.node.causal import CausalMachine
from penstock.core.node.causal_effects import CausalEffect, TakeCheckpoint
from penstock.core.node.messages import DATA, MARK, Complete, EndStep, Message, Send
from penstock.core.node.options import NodeOptions, Outlet, Wiring
from penstock.core.time import Time
from penstock.errors import GraphError
from penstock.testing.reference_retention import keep_from, low_epochs


def node(**options: object) -> CausalMachine:
    wiring = Wiring(5, {1: [1]}, (Outlet(9, (7,)),))
    return CausalMachine(wiring, NodeOptions(**options))  # type: ignore[arg-type]


class Driver:
    """Rows in, rows on (at the end of the epoch, if the node is clean); what was sent and kept."""

    def __init__(self, machine: CausalMachine) -> None:
        self.machine = machine
        self.sent: list[tuple[int, int]] = []
        self.checkpoints: list[TakeCheckpoint] = []
        self._count = 0

    def rows(self, epoch: int) -> None:
        self._get(DATA, epoch)

    def mark(self, epoch: int) -> None:
        self._get(MARK, epoch)

    def _get(self, kind: int, epoch: int) -> None:
        self._count += 1
        stamp = (self._count,)
        self._perform(
            self.machine.received(
                Message(
                    kind, 1, 1, 5, 0, self._count, Time.root(epoch), payload="x", stamp=stamp,
                    diff=(DiffLink(1, stamp, epoch),),
                )
            )
        )  # fmt: skip

    def _perform(self, effects: list[CausalEffect]) -> None:
        machine = self.machine
        for effect in effects:
            if isinstance(effect, Send):
                self.sent.append((effect.message.kind, effect.message.time.epoch))
            elif isinstance(effect, EndStep):
                step = machine._current().turn.item
                if not machine.clean and step is not None:
                    machine.produced(9, [(7, "y", 1)], step[0].time)
                self._perform(machine.end_step())
            elif isinstance(effect, Complete):
                if machine.clean:
                    machine.produced(9, [(7, "z", 1)], Time.root(effect.epoch))
                self._perform(machine.completed(effect.epoch, {9: None}, 0))
            elif isinstance(effect, TakeCheckpoint):
                self.checkpoints.append(effect)


def test_a_node_without_a_log_forgets_what_it_has_sent_and_says_so() -> None:
    machine = node(logged=False)
    driver = Driver(machine)
    driver.rows(0)
    driver.rows(1)
    driver.mark(0)
    assert machine.log.bytes == machine.log.memory_bytes == 0
    floor = machine.report().floors[7]
    assert floor == Floor((3,), 0, 1)
    assert floor.reaches(Position((3,), 0))
    assert not floor.reaches(Position((2,), 0))


def test_a_node_without_a_log_keeps_what_it_has_not_sent() -> None:
    machine = node(logged=False)
    driver = Driver(machine)
    driver.rows(0)
    machine.fence({7: 1}, 1)
    driver.rows(0)
    driver.mark(0)
    assert len(driver.sent) == 1
    assert machine.report().floors[7] == Floor((1,), -1, 0)
    driver._perform(machine.open(7, 1, Position((1,), -1)))
    assert driver.sent[1:] == [(DATA, 0), (MARK, 0)]
    assert machine.log.bytes == 0


def test_a_log_that_is_turned_on_is_whole_from_its_floor_on() -> None:
    machine = node(logged=False)
    driver = Driver(machine)
    driver.rows(0)
    machine.logged = True
    driver.rows(0)
    assert machine.report().floors[7] == Floor((1,), -1, 0)
    assert machine.log.bytes == 1
    machine.logged = False
    assert machine.report().floors[7] == Floor((2,), -1, 0)
    assert machine.log.bytes == 0


def test_a_node_with_checkpoints_within_epochs_forgets_whole_epochs() -> None:
    machine = node(logged=False, stateful=True)
    driver = Driver(machine)
    driver.rows(0)
    driver.rows(1)
    assert machine.log.bytes == 2
    driver.mark(0)
    assert machine.report().floors[7].reaches(Position((), 0))
    assert not machine.report().floors[7].reaches(Position((9,), -1))


def test_the_watermark_where_a_child_stands_can_be_restated_without_a_log() -> None:
    machine = node(logged=False)
    driver = Driver(machine)
    driver.mark(0)
    driver.mark(2)
    machine.fence({7: 1}, 1)
    driver._perform(machine.open(7, 1, Position((2,), 2)))
    assert driver.sent[-1] == (MARK, 2)
    assert machine.log.marks_at(7, 2)[9].time.epoch == 2


def test_checkpoints_are_taken_where_multiples_end_though_later_rows_have_come() -> None:
    driver = Driver(node(logged=False, clean=True, stateful=True, checkpoint_every=3))
    for epoch in range(6):
        driver.rows(epoch)
        driver.rows(epoch + 1)
        driver.mark(epoch)
    reports = [effect.checkpoint.report for effect in driver.checkpoints]
    assert [report.completed for report in reports] == [2, 5]
    assert reports[0].clock == {1: Position((), 2)}
    assert all(diff[0].epoch <= 2 for diff in reports[0].diffs)
    assert reports[0].floors[7].reaches(Position((), 2))


def test_a_multiple_that_is_left_out_is_saved_before_the_epoch_after_it_is_handled() -> None:
    driver = Driver(node(clean=True, stateful=True, checkpoint_every=3))
    for epoch in (0, 1, 4, 11, 12):
        driver.mark(epoch)
    found = [effect.checkpoint.report.completed for effect in driver.checkpoints]
    assert found == [1, 4, 11]


KINDS = {
    0: NodeKind.SOURCE,
    1: NodeKind.STATEFUL,
    2: NodeKind.STATELESS,
    3: NodeKind.STATEFUL,
    4: NodeKind.SINK,
}
PARENTS = {1: (0,), 2: (1,), 3: (2,), 4: (3,)}


def saved(node: int, key: int, epoch: int, floor: int) -> Saved:
    clock = {PARENTS[node][0]: Position((), epoch)}
    report = NodeReport(
        node, (key,), epoch, clock=clock, floors={node + 1: Floor((), floor, floor)}
    )
    return Saved(key, report)


def lazy() -> CausalGraph:
    three = frozenset({1, 2, 3})
    return CausalGraph(KINDS, PARENTS, logless=three, clean=three)


def test_who_restarts_below_nodes_without_logs_takes_them_back_to_epochs_that_fit() -> None:
    stored = {
        1: Stored((saved(1, 1, 2, 2), saved(1, 2, 5, 5), saved(1, 3, 8, 8))),
        3: Stored((saved(3, 1, 2, 2), saved(3, 2, 5, 5))),
    }
    reports = {
        0: NodeReport(0, floors={1: Floor()}),
        1: NodeReport(1, floors={2: Floor((8,), 8, 8)}, clock={0: Position((9,), 8)}),
        2: NodeReport(2, floors={3: Floor((8,), 8, 8)}, clock={1: Position((8,), 8)}),
        4: NodeReport(4, clock={3: Position((7,), 7)}),
    }
    assert plan(lazy(), frozenset({3}), reports, stored).joining == (2,)
    assert plan(lazy(), frozenset({2, 3}), reports, stored).joining == (1,)
    found = plan(lazy(), frozenset({1, 2, 3}), reports, stored)
    assert {n: s.completed for n, s in found.starts.items()} == {1: 5, 2: 5, 3: 5}


def test_a_clean_node_without_state_starts_at_the_end_of_an_epoch() -> None:
    graph = CausalGraph(
        {0: NodeKind.SOURCE, 1: NodeKind.STATELESS, 2: NodeKind.SINK, 3: NodeKind.SINK},
        {1: (0,), 2: (1,), 3: (1,)},
        clean=frozenset({1}),
    )
    made = (DiffLink(1, (9,), 5), completion(5))
    reports = {
        0: NodeReport(0, floors={1: Floor()}),
        2: NodeReport(2, clock={1: Position((9,), 5)}, diffs=(made,)),
        3: NodeReport(3, clock={1: Position((6,), 4)}),
    }
    start = plan(graph, frozenset({1}), reports, {}).starts[1]
    assert start.stamp == ()
    assert start.completed == 4
    assert start.clock == {0: Position((), 4)}
    assert start.targets == (Target((9,), completion(5)),)


def test_order_in_a_clean_node_is_refused() -> None:
    with pytest.raises(GraphError, match="node 1 depends on the order of its inputs"):
        CausalGraph({**KINDS, 1: NodeKind.ORDERED}, PARENTS, clean=frozenset({1}))


def test_without_logs_a_checkpoint_counts_only_if_everybody_below_has_come_as_far() -> None:
    epochs = {1: [2, 4, 6, 8], 3: [3, 5]}
    logged = CausalGraph(KINDS, PARENTS)
    assert keep_from(logged, epochs, {4: 9}, spare=0) == {1: 8, 3: 5}
    assert keep_from(lazy(), epochs, {4: 9}, spare=0) == {1: 4, 3: 5}
    assert keep_from(lazy(), epochs, {4: 4}, spare=0) == {1: 2, 3: 3}
    assert keep_from(lazy(), epochs, {4: 9}) == {1: 2, 3: 3}
    assert set(low_epochs(lazy(), epochs, {4: 9}, spare=0).values()) == {4}


def test_regions_do_not_hold_each_other_back() -> None:
    kinds = {**KINDS, 5: NodeKind.SOURCE, 6: NodeKind.SINK}
    graph = CausalGraph(kinds, {**PARENTS, 6: (5,)})
    low = low_epochs(graph, {1: [8], 3: [7]}, {4: 9, 6: 1})
    assert low == {**dict.fromkeys(range(5), 7), 5: 1, 6: 1}


def test_nothing_is_forgotten_behind_a_floor_that_was_reported() -> None:
    machine = node(logged=False, stateful=True)
    driver = Driver(machine)
    driver.rows(0)
    machine.fence({7: 1}, 1)
    reported = machine.report().floors[7]
    driver.mark(0)
    machine.logged = False
    assert machine.report().floors[7] == reported
    driver._perform(machine.open(7, 1, Position()))
    assert driver.sent[-2:] == [(DATA, 0), (MARK, 0)]
