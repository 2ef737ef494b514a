"""Loops: a unit that fails and starts as a whole."""

import pytest

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.core.causal.plan import plan
from penstock.core.causal.reports import NodeReport, Saved, Start, Stored
from penstock.core.control.recovery import RecoveryMachine, RecoveryRecord, StartNode
from penstock.core.node.causal import CausalMachine
from penstock.core.node.causal_effects import Checkpoint, Restated, TakeCheckpoint, TellRecovered
from penstock.core.node.messages import (
    DATA,
    MARK,
    Complete,
    Deliver,
    EndStep,
    Message,
    Send,
    TellClosed,
)
from penstock.core.node.options import NodeOptions, Outlet, Wiring
from penstock.core.time import Time
from penstock.errors import InvariantError, PeerError
from penstock.testing.reference_retention import durable_epochs, keep_from, low_epochs

INSIDE = 8
OUTSIDE = 9
EPOCH = Time.root(0)

GRAPH = CausalGraph(
    {0: NodeKind.SOURCE, 1: NodeKind.STATEFUL, 2: NodeKind.STATEFUL, 3: NodeKind.SINK},
    {1: (0,), 3: (2,)},
    {1: 5, 2: 5},
)


def loop(start: Start | None = None, checkpoint: Checkpoint | None = None) -> CausalMachine:
    outlets = (Outlet(INSIDE, (6,), marked=False), Outlet(OUTSIDE, (7,)))
    wiring = Wiring(5, {0: [1], INSIDE: [6]}, outlets)
    return CausalMachine(wiring, NodeOptions(inside=frozenset({INSIDE})), start, checkpoint)


def message(sequence: int, kind: int = DATA, link: int = 0, epoch: int = 0) -> Message:
    sender = 6 if link == INSIDE else 1
    return Message(
        kind, link, sender, 5, 0, sequence, Time.root(epoch), 30 + epoch, stamp=(sequence,)
    )


def test_members_of_a_unit_are_neighbours_and_have_the_same_descendants() -> None:
    assert GRAPH.order == (0, 1, 2, 3)
    assert GRAPH.descendants[1] == GRAPH.descendants[2] == {1, 2, 3}
    assert GRAPH.closure([0, 2]) == {0, 1, 2}


def saved(node: int, key: int, epoch: int) -> Saved:
    clock = dict.fromkeys(GRAPH.parents[node], Position((), epoch))
    floors = dict.fromkeys(GRAPH.children[node], Floor())
    return Saved(key, NodeReport(node, (key,), epoch, clock=clock, floors=floors))


STORED = {
    1: Stored((saved(1, 1, 3), saved(1, 2, 5), saved(1, 3, 9))),
    2: Stored((saved(2, 4, 3), saved(2, 5, 5))),
}


def test_a_unit_starts_at_the_newest_epoch_that_all_its_nodes_have() -> None:
    reports = {0: NodeReport(0, floors={1: Floor()}), 3: NodeReport(3, clock={2: Position((), 6)})}
    found = plan(GRAPH, frozenset({1, 2}), reports, STORED)
    assert {node: (s.checkpoint, s.completed) for node, s in found.starts.items()} == {
        1: (2, 5),
        2: (5, 5),
    }


def test_the_nodes_of_a_unit_repeat_epochs_together() -> None:
    """Also one whose own children have them all: without it the others would wait for ever."""
    graph = CausalGraph(
        {**GRAPH.kinds, 4: NodeKind.STATEFUL, 5: NodeKind.SINK},
        {1: (0,), 3: (1,), 4: (2,), 5: (4,)},
        GRAPH.units,
    )

    def at(node: int, epoch: int) -> Stored:
        clock = dict.fromkeys(graph.parents[node], Position((), epoch))
        floors = dict.fromkeys(graph.children[node], Floor())
        return Stored((Saved(1, NodeReport(node, (), epoch, clock=clock, floors=floors)),))

    stored = {node: at(node, 14 if node in (3, 5) else 8) for node in (1, 2, 3, 4, 5)}
    found = plan(graph, frozenset(graph.kinds), {}, stored | {0: Stored(through=14)})
    repeated = {n: [t.made_from.epoch for t in found.starts[n].targets] for n in (1, 2)}
    assert repeated == {1: [14], 2: [14]}


def test_a_unit_keeps_two_epochs_that_all_its_nodes_have() -> None:
    saved, _ = durable_epochs(GRAPH, STORED)
    assert low_epochs(GRAPH, saved, {3: 9}) == dict.fromkeys(range(4), 3)
    assert keep_from(GRAPH, saved, {3: 9}) == {1: 3, 2: 3}


def test_when_one_node_of_a_loop_is_lost_all_of_them_start_again_and_know_each_other() -> None:
    machine = RecoveryMachine(GRAPH, RecoveryRecord(dict.fromkeys(range(4), 0)), tuple)
    machine.lost({2: 0})
    assert machine.failed == {1, 2}
    machine.stored(1, STORED, {})
    machine.reported(0, 1, NodeReport(0, floors={1: Floor()}))
    starts = machine.reported(3, 1, NodeReport(3, clock={2: Position((), 6)}))
    assert [(s.node, s.incarnations) for s in starts if isinstance(s, StartNode)] == [
        (1, {0: 0, 1: 1, 2: 1}),
        (2, {1: 1, 2: 1, 3: 0}),
    ]


def test_inside_nothing_is_stamped_or_logged() -> None:
    machine = loop()
    assert machine.received(message(1, link=INSIDE)) == [Deliver(INSIDE, None, EPOCH)]
    [send] = machine.produced(INSIDE, [(6, "rows", 8)], EPOCH)
    assert isinstance(send, Send)
    assert (send.message.stamp, send.message.diff) == ((), ())
    assert machine.log.bytes == 0


def test_an_epoch_is_complete_when_the_loop_says_so() -> None:
    machine = loop()
    assert [type(e) for e in machine.received(message(1))] == [Deliver, EndStep]
    with pytest.raises(InvariantError, match="leaves before the epoch"):
        machine.produced(OUTSIDE, [(7, "rows", 8)], EPOCH)
    machine.end_step()
    assert machine.received(message(2, MARK)) == [TellClosed(0, 30, 0)]
    assert machine.region_completed(0, 20, 4) == [Complete(0, 20, 4)]
    machine.produced(OUTSIDE, [(7, "rows", 8)], EPOCH)
    sent = [effect.message for effect in machine.completed(0, {OUTSIDE: 20}, 4)]  # type: ignore[union-attr]
    assert [(m.kind, m.target) for m in sent] == [(DATA, 7), (MARK, 7)]
    with pytest.raises(PeerError, match="round the loop"):
        machine.received(message(1, link=INSIDE))


def test_a_checkpoint_has_nothing_of_later_epochs() -> None:
    machine = loop()
    machine.received(message(1, epoch=3))
    machine.end_step()
    machine.region_completed(2, None, 0)
    machine.checkpoints.due = True
    taken = next(
        e for e in machine.completed(2, {OUTSIDE: None}, 0) if isinstance(e, TakeCheckpoint)
    )
    assert taken.checkpoint.report.clock == {1: Position((), 2)}


def test_a_restarted_node_says_where_its_gate_stands_and_then_takes_what_came_early() -> None:
    report = NodeReport(5, (3,), 2, floors={7: Floor()}, watermark_us=40)
    start = Start(5, 1, (3,), 2, {1: Position((), 2)}, {7: Position((), 2)})
    machine = loop(start=start, checkpoint=Checkpoint(report, {}))
    assert machine.begin() == []
    assert machine.received(message(1, link=INSIDE, epoch=3)) == []
    stated = message(1, MARK, epoch=2)
    assert machine.received(stated) == [TellClosed(2, 32, 0), Restated(2, 40)]
    assert machine.restated({OUTSIDE: 40}) == [
        TellRecovered(),
        Deliver(INSIDE, None, Time.root(3)),
    ]
    assert machine.region_completed(3, 35, 0) == [Complete(3, 40, 0)]
