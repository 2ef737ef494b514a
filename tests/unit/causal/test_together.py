"""Checkpoints that others wait for, recoveries of everybody, rollbacks that people ask for."""

from dataclasses import replace

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.codec import record_from, to_plain
from penstock.core.causal.diffs import DiffLink
from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.core.causal.reports import NodeReport, Saved, Stored
from penstock.core.control.global_hold import GlobalHold
from penstock.core.control.going_back import GoingBack, newest_epoch
from penstock.core.control.recovery import (
    CollectStored,
    GiveUp,
    PersistRecord,
    RecoveryEffect,
    RecoveryMachine,
    RecoveryRecord,
    Refuse,
    StartNode,
)
from penstock.core.node.causal import CausalMachine
from penstock.core.node.causal_effects import CausalEffect, Flushed, TakeCheckpoint
from penstock.core.node.messages import DATA, MARK, Complete, Deliver, EndStep, Message, Send
from penstock.core.node.options import NodeOptions, Outlet, Wiring
from penstock.core.progress.marks import EPOCH_END
from penstock.core.time import Time

SENDERS = (1, 2)


class Driver:
    """A clean node with two senders and one child."""

    def __init__(self, **options: object) -> None:
        self.machine = CausalMachine(
            Wiring(5, {1: [1], 2: [2]}, (Outlet(9, (7,)),)),
            NodeOptions(clean=True, stateful=True, **options),  # type: ignore[arg-type]
        )
        self.seen: list[object] = []
        self._count = dict.fromkeys(SENDERS, 0)

    def get(self, kind: int, sender: int, epoch: int) -> list[object]:
        self._count[sender] += 1
        stamp = (self._count[sender],)
        message = Message(
            kind, sender, sender, 5, 0, self._count[sender], Time.root(epoch), payload=epoch,
            stamp=stamp, diff=(DiffLink(sender, stamp, epoch),),
        )  # fmt: skip
        return self.perform(self.machine.received(message))

    def marks(self, epoch: int) -> list[object]:
        return [seen for sender in SENDERS for seen in self.get(MARK, sender, epoch)]

    def perform(self, effects: list[CausalEffect]) -> list[object]:
        self.seen = []
        self._perform(effects)
        return self.seen

    def _perform(self, effects: list[CausalEffect]) -> None:
        for effect in effects:
            if isinstance(effect, EndStep):
                self._perform(self.machine.end_step())
            elif isinstance(effect, Complete):
                self.machine.produced(9, [(7, "z", 1)], Time.root(effect.epoch))
                self._perform(self.machine.completed(effect.epoch, {9: None}, 0))
            elif isinstance(effect, Send):
                self.seen.append(("sent", effect.message.time.epoch))
            elif isinstance(effect, Deliver):
                self.seen.append(effect.payload)
            elif isinstance(effect, TakeCheckpoint):
                self.seen.append(("saved", effect.checkpoint.report.completed))
            else:
                self.seen.append(effect)


def test_an_eager_node_lets_nothing_out_before_its_checkpoint_is_durable() -> None:
    driver = Driver(eager=True, logged=False, checkpoint_every=1)
    assert driver.marks(0) == [("saved", 0)]
    assert driver.marks(1) == [("saved", 1)]
    assert driver.perform(driver.machine.checkpoint_stored(0)) == [("sent", 0)] * 2
    assert driver.perform(driver.machine.checkpoint_stored(0)) == []
    assert driver.machine.log.bytes == 1


def test_the_checkpoint_of_an_eager_node_has_the_output_of_its_epoch() -> None:
    driver = Driver(eager=True, logged=False)
    driver.marks(0)
    checkpoint = driver.machine.checkpoint()
    assert [part.time.epoch for part in checkpoint.log[7][0].parts] == [0, 0]
    assert checkpoint.report.floors[7].reaches(Position())


def test_input_waits_behind_the_epoch_of_the_hold() -> None:
    driver = Driver(hold_after=1, checkpoint_every=2)
    assert driver.get(DATA, 1, 2) == []
    assert driver.get(DATA, 2, 1) == [1]
    assert driver.get(MARK, 1, 2) == []
    sent = [("sent", 1), ("sent", 1)]
    assert driver.get(MARK, 2, 1) == [*sent, ("saved", 1), Flushed(1, None)]
    assert driver.perform(driver.machine.resume(3)) == [2]
    assert driver.get(MARK, 2, 2) == [("sent", 2), ("sent", 2)]


def test_an_epoch_that_ends_at_the_hold_is_saved_and_told() -> None:
    driver = Driver(hold_after=1)
    driver.marks(0)
    assert driver.marks(1) == [("sent", 1), ("sent", 1), ("saved", 1), Flushed(1, None)]
    assert driver.get(DATA, 1, 2) == []
    assert driver.perform(driver.machine.resume(1)) == []
    assert driver.perform(driver.machine.resume(3)) == [2]


def test_the_end_of_the_stream_does_not_wait() -> None:
    driver = Driver(hold_after=1)
    driver.get(MARK, 1, EPOCH_END)
    seen = driver.get(MARK, 2, EPOCH_END)
    assert ("sent", EPOCH_END) in seen
    assert seen[-1] == Flushed(1, EPOCH_END)


def test_all_resume_when_the_last_one_is_flushed() -> None:
    hold = GlobalHold([1, 2], every=3, completed=2)
    assert hold.epoch == 5
    assert hold.flushed(1, Flushed(5, 20)) is None
    assert hold.flushed(1, Flushed(5, 20)) is None
    assert hold.flushed(7, Flushed(5, None)) is None
    assert hold.flushed(2, Flushed(2, None)) is None
    assert hold.flushed(2, Flushed(5, 17)) == 17
    assert hold.flushed(1, Flushed(20, None)) is None
    assert hold.flushed(2, Flushed(17, 30)) == 20
    assert hold.flushed(2, Flushed(20, EPOCH_END)) == 23


def test_a_node_that_starts_at_its_end_holds_no_other_back() -> None:
    hold = GlobalHold([1, 2], every=2, completed=15, ahead={1: EPOCH_END, 2: 15})
    assert hold.flushed(1, Flushed(17, EPOCH_END)) is None
    assert hold.flushed(2, Flushed(17, EPOCH_END)) > EPOCH_END


KINDS = {
    0: NodeKind.SOURCE,
    1: NodeKind.STATEFUL,
    2: NodeKind.STATEFUL,
    3: NodeKind.SINK,
    4: NodeKind.SOURCE,
}
KINDS |= {5: NodeKind.SINK}
PARENTS = {1: (0,), 2: (1,), 3: (2,), 5: (4,)}
ZEROS = dict.fromkeys(KINDS, 0)
GRAPH = CausalGraph(KINDS, PARENTS)


def saved(node: int, epoch: int) -> Saved:
    clock = {PARENTS[node][0]: Position((), epoch)}
    floors = {node + 1: Floor()} if node < 3 else {}
    return Saved(epoch, NodeReport(node, (), epoch, clock=clock, floors=floors))


STORED = {
    0: Stored(through=8),
    1: Stored(tuple(saved(1, epoch) for epoch in (2, 5, 8))),
    2: Stored(tuple(saved(2, epoch) for epoch in (2, 5))),
    3: Stored((saved(3, 7),)),
    4: Stored(through=8),
    5: Stored((saved(5, 1),)),
}


def starts(machine: RecoveryMachine, effects: list[RecoveryEffect]) -> dict[int, int]:
    """Where the nodes start, if no survivor has anything to say."""
    found = [e for e in answered(machine, effects) if isinstance(e, StartNode)]
    return {effect.node: effect.start.completed for effect in found}


def answered(machine: RecoveryMachine, effects: list[RecoveryEffect]) -> list[RecoveryEffect]:
    for node in KINDS:
        floors = dict.fromkeys(GRAPH.children[node], Floor())
        machine.reported(node, machine.round, NodeReport(node, floors=floors))
    (collect,) = (effect for effect in effects if isinstance(effect, CollectStored))
    return machine.stored(collect.round, {node: STORED[node] for node in collect.nodes}, {})


def test_any_loss_takes_everybody_to_the_newest_epoch_that_all_have() -> None:
    machine = RecoveryMachine(GRAPH, RecoveryRecord(ZEROS), tuple, all_together=True)
    assert starts(machine, machine.lost({4: 0})) == {0: 5, 1: 5, 2: 5, 3: 7, 4: 1, 5: 1}


def test_a_rollback_by_hand_takes_all_back_but_what_sinks_have_published() -> None:
    machine = RecoveryMachine(GRAPH, RecoveryRecord(ZEROS), tuple)
    assert starts(machine, machine.rollback(4, {})) == {0: 2, 1: 2, 2: 2, 3: 7, 4: 1, 5: 1}
    assert machine.record.limits == {0: 4, 1: 4, 2: 4, 4: 4}
    assert record_from(to_plain(machine.record)) == machine.record


def test_a_controller_that_restarts_finishes_a_rollback_by_hand() -> None:
    machine = RecoveryMachine(GRAPH, RecoveryRecord(ZEROS), tuple)
    machine.rollback(6, {})
    again = RecoveryMachine(GRAPH, machine.record, tuple)
    assert starts(again, again.lost(machine.record.incarnations)) == {
        0: 5,
        1: 5,
        2: 5,
        3: 7,
        4: 1,
        5: 1,
    }


def test_a_rollback_to_what_is_gone_is_refused_and_all_start_from_the_newest() -> None:
    machine = RecoveryMachine(GRAPH, RecoveryRecord(ZEROS), tuple)
    effects = answered(machine, machine.rollback(1, {}))
    assert isinstance(effects[0], PersistRecord)
    assert isinstance(effects[1], Refuse)
    assert not any(isinstance(effect, GiveUp) for effect in effects)
    assert {e.node: e.start.completed for e in effects if isinstance(e, StartNode)}[1] == 8
    assert machine.record.limits == {}


def test_what_can_be_asked_for_is_known() -> None:
    back = GoingBack(GRAPH, STORED, dict.fromkeys(KINDS, -1))
    assert back.oldest_epoch() == 2
    assert replace(back, lows=dict.fromkeys(KINDS, 3)).oldest_epoch() is None
    assert newest_epoch(STORED) == 8
