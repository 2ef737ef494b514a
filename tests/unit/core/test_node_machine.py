"""A node's machine: what counts, when epochs are complete, what leaves."""

import pytest

from penstock.core.node.messages import (
    DATA,
    MARK,
    Complete,
    Deliver,
    Effect,
    Finish,
    Message,
    Send,
)
from penstock.core.node.node import NodeMachine
from penstock.core.node.options import Outlet, Wiring
from penstock.core.progress.marks import EPOCH_END, WATERMARK_END
from penstock.core.time import Time
from penstock.errors import InvariantError, PeerError


def data(sender: int, sequence: int, epoch: int, payload: str = "rows", link: int = 0) -> Message:
    return Message(DATA, link, sender, 5, 0, sequence, Time.root(epoch), payload=payload, size=4)


def mark(
    sender: int, sequence: int, epoch: int, watermark: int | None = None, link: int = 0
) -> Message:
    return Message(MARK, link, sender, 5, 0, sequence, Time.root(epoch), watermark, cut_us=epoch)


def node(completed: int = -1) -> NodeMachine:
    return NodeMachine(Wiring(5, {0: [1, 2]}, (Outlet(9, (7, 8)),)), completed)


def sent(effects: list[Effect]) -> list[tuple[int, int, int, int]]:
    """(kind, target, sequence, epoch) of everything sent."""
    return [
        (e.message.kind, e.message.target, e.message.sequence, e.message.time.epoch)
        for e in effects
        if isinstance(e, Send)
    ]


def test_rows_are_delivered_as_they_come() -> None:
    machine = node()
    assert machine.received(data(1, 1, 3, "a")) == [Deliver(0, "a", Time.root(3))]
    assert machine.received(data(2, 1, 0, "b")) == [Deliver(0, "b", Time.root(0))]


def test_a_repeated_message_is_dropped() -> None:
    machine = node()
    machine.received(data(1, 1, 0))
    assert machine.received(data(1, 1, 0)) == []
    machine.received(mark(1, 2, 0))
    assert machine.received(mark(1, 2, 0)) == []


def test_a_missing_message_is_noticed() -> None:
    machine = node()
    machine.received(data(1, 1, 0))
    with pytest.raises(PeerError, match=r"node 5: message 3 of node 1 arrived after 1"):
        machine.received(data(1, 3, 0))


def test_numbers_count_per_sender_and_link() -> None:
    machine = NodeMachine(Wiring(5, {0: [1], 1: [1, 2]}))
    assert machine.received(data(1, 1, 0, link=0))
    assert machine.received(data(1, 1, 0, link=1))
    assert machine.received(data(2, 1, 0, link=1))


def test_a_stranger_is_refused() -> None:
    with pytest.raises(PeerError, match="node 3 does not send on link 0"):
        node().received(data(3, 1, 0))
    with pytest.raises(PeerError, match="node 1 does not send on link 4"):
        node().received(data(1, 1, 0, link=4))


def test_messages_of_another_incarnation_are_dropped() -> None:
    machine = NodeMachine(Wiring(5, {0: [1]}, incarnations={1: 2}))
    for incarnation in (0, 1, 3):
        assert machine.received(data(1, 1, 0)._replace(incarnation=incarnation)) == []
    assert machine.received(data(1, 1, 0)._replace(incarnation=2))


def test_an_unknown_kind_of_message_is_refused() -> None:
    with pytest.raises(PeerError, match="unknown kind of message 9"):
        node().received(data(1, 1, 0)._replace(kind=9))


def test_an_epoch_is_complete_after_the_marks_of_all_senders_of_all_links() -> None:
    machine = NodeMachine(Wiring(5, {0: [1, 2], 1: [1]}))
    assert machine.received(mark(1, 1, 0, 10)) == []
    assert machine.received(mark(2, 1, 0, 20)) == []
    assert machine.received(mark(1, 1, 0, 30, link=1)) == [Complete(0, 10, 0)]


def test_one_mark_can_complete_several_epochs() -> None:
    machine = node()
    machine.received(mark(1, 1, 0, 10))
    machine.received(mark(1, 2, 1, 20))
    effects = machine.received(mark(2, 1, 4, 15))
    assert effects == [Complete(0, None, 0), Complete(1, None, 1)]
    assert machine.received(mark(1, 3, 6, 30)) == [Complete(4, 15, 4)]


def test_rows_of_a_complete_epoch_are_refused() -> None:
    machine = node()
    machine.received(mark(1, 1, 2))
    machine.received(mark(2, 1, 2))
    with pytest.raises(PeerError, match="node 1 sent rows of epoch 2, which is complete"):
        machine.received(data(1, 2, 2))


def test_rows_that_were_complete_before_the_restart_are_refused() -> None:
    with pytest.raises(PeerError, match="epoch 4, which is complete"):
        node(completed=4).received(data(1, 1, 4))


def test_output_is_numbered_per_target_and_marks_follow_it() -> None:
    machine = node()
    at = Time.root(3)
    first = machine.produced(9, [(7, "a", 1), (8, "b", 1)], at)
    second = machine.produced(9, [(8, "c", 1)], at)
    marks = machine.completed(3, {9: 100}, 55)
    assert sent(first) == [(DATA, 7, 1, 3), (DATA, 8, 1, 3)]
    assert sent(second) == [(DATA, 8, 2, 3)]
    assert sent(marks) == [(MARK, 7, 2, 3), (MARK, 8, 3, 3)]
    message = marks[0]
    assert isinstance(message, Send)
    assert (message.message.watermark_us, message.message.cut_us) == (100, 55)


def test_two_links_to_the_same_target_are_numbered_apart_with_their_own_watermarks() -> None:
    machine = NodeMachine(Wiring(5, {0: [1]}, (Outlet(3, (7,)), Outlet(4, (7,)))))
    machine.produced(4, [(7, "a", 1)], Time.root(0))
    effects = machine.completed(0, {3: 1, 4: None}, 0)
    assert [
        (e.message.link, e.message.sequence, e.message.watermark_us)
        for e in effects
        if isinstance(e, Send)
    ] == [(3, 1, 1), (4, 2, None)]


def test_output_of_an_epoch_that_was_passed_on_is_refused() -> None:
    machine = node()
    machine.completed(3, {9: None}, 0)
    with pytest.raises(InvariantError, match="output at epoch 3"):
        machine.produced(9, [(7, "a", 1)], Time.root(3))
    assert machine.produced(9, [(7, "a", 1)], Time.root(4))


def test_a_source_cuts_epochs_in_ascending_order() -> None:
    machine = NodeMachine(Wiring(0, outlets=(Outlet(0, (1,)),)), completed=4)
    with pytest.raises(InvariantError, match="cannot cut epoch 4 after 4"):
        machine.cut(4, None, 0)
    assert machine.cut(6, 12, 99) == [Complete(6, 12, 99)]
    machine.completed(6, {0: 12}, 99)
    with pytest.raises(InvariantError):
        machine.cut(6, None, 0)


def test_a_node_with_inputs_cannot_cut() -> None:
    with pytest.raises(InvariantError):
        node().cut(0, None, 0)


def test_a_node_is_finished_after_the_end_of_all_its_inputs() -> None:
    machine = node()
    assert machine.received(mark(1, 1, EPOCH_END, WATERMARK_END)) == []
    (complete,) = machine.received(mark(2, 1, EPOCH_END, WATERMARK_END))
    assert complete == Complete(EPOCH_END, WATERMARK_END, EPOCH_END)
    assert not machine.finished
    effects = machine.completed(EPOCH_END, {9: WATERMARK_END}, 0)
    assert sent(effects) == [(MARK, 7, 1, EPOCH_END), (MARK, 8, 1, EPOCH_END)]
    assert effects[-1] == Finish()
    assert machine.finished
