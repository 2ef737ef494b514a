"""When epochs are complete, and with which watermark."""

import pytest

from penstock.core.progress.marks import EPOCH_END, WATERMARK_END, Completion, MarkAligner
from penstock.errors import PeerError


def test_an_epoch_is_complete_when_its_last_sender_has_marked_it() -> None:
    aligner = MarkAligner(["a", "b", "c"])
    assert aligner.mark("a", 0, 1) == []
    assert aligner.mark("c", 0, 3) == []
    assert aligner.mark("b", 0, 2) == [Completion(0, 1)]


def test_every_epoch_that_anybody_marked_is_reported_in_ascending_order() -> None:
    aligner = MarkAligner(["a", "b"])
    for epoch in (0, 2, 5):
        assert aligner.mark("a", epoch, epoch * 10) == []
    assert aligner.mark("b", 4, 33) == [Completion(0, None), Completion(2, None), Completion(4, 20)]
    assert aligner.mark("b", 5, 44) == [Completion(5, 44)]


def test_a_mark_stands_for_all_epochs_before_it() -> None:
    aligner = MarkAligner(["a"])
    assert aligner.mark("a", 7, None) == [Completion(7, None)]
    assert aligner.completed == 7


def test_the_watermark_is_unknown_until_every_sender_has_one() -> None:
    aligner = MarkAligner(["a", "b"])
    aligner.mark("a", 0, 10)
    assert aligner.mark("b", 0, None) == [Completion(0, None)]
    aligner.mark("a", 1, 20)
    assert aligner.mark("b", 1, 5) == [Completion(1, 5)]


def test_a_sender_that_has_ended_holds_nobody_back() -> None:
    aligner = MarkAligner(["a", "b"])
    aligner.mark("a", EPOCH_END, WATERMARK_END)
    assert aligner.mark("b", 3, 7) == [Completion(3, None)]
    assert aligner.mark("b", EPOCH_END, WATERMARK_END) == [Completion(EPOCH_END, WATERMARK_END)]


def test_marks_go_on_after_the_epoch_that_was_complete_at_the_start() -> None:
    aligner = MarkAligner(["a"], completed=6)
    with pytest.raises(PeerError, match="marked epoch 6 after 6"):
        aligner.mark("a", 6, None)
    assert aligner.mark("a", 7, None) == [Completion(7, None)]


def test_marks_that_do_not_ascend_are_refused() -> None:
    aligner = MarkAligner(["a"])
    aligner.mark("a", 3, None)
    for epoch in (3, 2):
        with pytest.raises(PeerError, match="marks must ascend"):
            aligner.mark("a", epoch, None)


def test_a_stranger_is_refused() -> None:
    with pytest.raises(PeerError, match="'x', which does not send here"):
        MarkAligner(["a"]).mark("x", 0, None)
