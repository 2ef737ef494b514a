"""Blocks of epochs in a loop: what waits, what is completed and saved, and in which order."""

from penstock.core.node.blocks import Admit, BlockEffect, Blocks, CompleteEpoch, SaveBlock
from penstock.core.node.messages import Deliver
from penstock.core.node.tracking import NodeCounts, NodeTracking
from penstock.core.progress.marks import EPOCH_END
from penstock.core.time import Time

NOTHING_LEFT = 1 << 63


def rows(epoch: int, turn: int = 0, link: int = 0) -> Deliver:
    return Deliver(link, f"rows of {epoch}", Time(epoch, (turn,)))


def counts() -> NodeCounts:
    return NodeCounts(NodeTracking(0, {9: 1}, None, 1), 0)


def run(
    blocks: Blocks, least_open: int, completed: int, may_save: bool = True
) -> list[BlockEffect]:
    """All that is over; the node completes what it is told to complete."""
    found: list[BlockEffect] = []
    while effects := blocks.next(least_open, completed, may_save):
        found += effects
        completed = max([completed, *(e.epoch for e in effects if isinstance(e, CompleteEpoch))])
    return found


def done(epoch: int) -> CompleteEpoch:
    return CompleteEpoch(epoch, None, 0)


def test_blocks_lie_at_multiples_wherever_a_node_starts() -> None:
    assert [Blocks(3, start, None).end for start in (-1, 0, 1, 2, 3)] == [2, 2, 2, 5, 5]


def test_rows_of_the_next_block_wait_and_are_counted() -> None:
    counted = counts()
    blocks = Blocks(2, -1, counted)
    assert blocks.let_in(rows(1))
    assert not blocks.let_in(rows(2))
    assert counted.take() == [(0, Time(2, (0,)), 1)]
    blocks.closed([(1, None, 0)])
    assert run(blocks, 2, -1) == [done(1), SaveBlock(), Admit(rows(2))]
    assert counted.take() == [(0, Time(2, (0,)), -1)]


def test_rows_from_inside_wait_like_those_from_outside() -> None:
    blocks = Blocks(2, -1, counts())
    assert not blocks.let_in(rows(2, turn=1, link=9))
    assert run(blocks, 2, -1)[-1] == Admit(rows(2, turn=1, link=9))


def test_rows_of_a_block_after_the_next_go_on_waiting() -> None:
    blocks = Blocks(2, -1, counts())
    assert not blocks.let_in(rows(5))
    assert not blocks.let_in(rows(2))
    assert run(blocks, 2, -1) == [Admit(rows(2))]
    assert blocks.end == 3


def test_nothing_is_over_while_the_frontier_has_not_passed_it() -> None:
    blocks = Blocks(2, -1, counts())
    blocks.closed([(0, None, 0), (1, None, 0)])
    assert run(blocks, 0, -1) == []
    assert run(blocks, 1, -1) == [done(0)]
    assert run(blocks, 1, 0) == []


def test_each_block_is_saved_though_the_frontier_is_far_ahead() -> None:
    blocks = Blocks(2, -1, counts())
    blocks.closed([(1, None, 0), (4, None, 0), (7, None, 0)])
    assert run(blocks, 8, -1) == [
        *(done(1), SaveBlock()),
        *(done(4), SaveBlock()),
        *(done(7), SaveBlock()),
    ]


def test_a_block_without_epochs_is_not_saved() -> None:
    blocks = Blocks(1, 3, counts())
    assert run(blocks, 6, 3) == []
    assert blocks.end == 6


def test_a_block_with_nothing_to_do_does_not_stop_the_next() -> None:
    blocks = Blocks(2, -1, counts())
    blocks.closed([(4, None, 0)])
    assert run(blocks, 6, -1) == [done(4), SaveBlock()]


def test_a_node_that_cannot_save_goes_on_without() -> None:
    blocks = Blocks(2, -1, counts())
    blocks.closed([(1, None, 0)])
    assert not blocks.let_in(rows(2))
    assert run(blocks, 2, -1, may_save=False) == [done(1), Admit(rows(2))]


def test_a_checkpoint_is_owed_until_all_that_was_let_in_is_complete() -> None:
    blocks = Blocks(2, -1, counts())
    blocks.closed([(1, None, 0)])
    assert not blocks.let_in(rows(2))
    run(blocks, 2, -1, may_save=False)
    assert run(blocks, 2, 1) == []  # rows of 2 are inside
    blocks.closed([(2, None, 0)])
    assert run(blocks, 3, 1) == [done(2), SaveBlock()]
    assert run(blocks, 3, 2) == []


def test_rows_after_all_that_is_repeated_wait_until_what_is_owed_is_saved() -> None:
    blocks = Blocks(2, -1, counts(), repeats=2)
    blocks.closed([(1, None, 0)])
    assert run(blocks, 2, -1, may_save=False) == [done(1)]
    assert not blocks.let_in(rows(3))
    assert blocks.let_in(rows(2))
    blocks.closed([(2, None, 0)])
    assert run(blocks, 3, 1, may_save=False) == [done(2)]
    assert not blocks.is_owed(3, 2, may_save=False)
    assert blocks.is_owed(3, 2, may_save=True)
    assert run(blocks, 3, 2) == [SaveBlock(), Admit(rows(3))]
    assert blocks.let_in(rows(3))


def test_rows_after_a_repeated_epoch_that_senders_skip_come_in_before_what_is_owed_is_saved() -> (
    None
):
    blocks = Blocks(2, -1, counts(), repeats=3)
    blocks.closed([(1, None, 0)])
    assert run(blocks, 2, -1, may_save=False) == [done(1)]
    assert not blocks.let_in(rows(4))
    assert not blocks.let_in(rows(5))
    blocks.closed([(4, None, 0)])
    assert not blocks.is_owed(3, 1, may_save=False)
    assert blocks.is_owed(4, 1, may_save=False)
    assert run(blocks, 4, 1, may_save=False) == [Admit(rows(4))]
    assert run(blocks, 5, 1, may_save=False) == [done(4)]
    assert run(blocks, 5, 4) == [SaveBlock(), Admit(rows(5))]


def test_nothing_is_saved_while_epochs_of_the_block_are_not_complete() -> None:
    blocks = Blocks(2, -1, counts())
    blocks.closed([(1, None, 0)])
    assert blocks.next(2, -1, may_save=True) == [done(1)]
    assert blocks.next(2, 0, may_save=True) == []  # the node still works on it
    assert blocks.end == 3
    assert blocks.next(2, 1, may_save=True) == [SaveBlock()]


def test_the_last_block_stays_when_nothing_comes_any_more() -> None:
    blocks = Blocks(2, -1, counts())
    blocks.closed([(0, None, 0), (EPOCH_END, None, 0)])
    assert run(blocks, NOTHING_LEFT, -1) == [done(0), SaveBlock(), done(EPOCH_END)]
    assert run(blocks, NOTHING_LEFT, EPOCH_END) == []
    assert blocks.end >= EPOCH_END


def test_a_hold_is_flushed_once_its_checkpoint_is_durable_or_none_follows() -> None:
    blocks = Blocks(2, -1, counts())
    assert not blocks.may_tell_flushed(3, saved=1, ended=False)
    assert blocks.may_tell_flushed(3, saved=3, ended=False)
    assert blocks.may_tell_flushed(3, saved=1, ended=True)


def test_the_end_of_a_block_answers_a_request_for_a_checkpoint() -> None:
    blocks = Blocks(4, 3, counts())
    assert blocks.answered_by(9, completed=5, now=False) == 9
    assert blocks.answered_by(9, completed=5, now=True) == 5
