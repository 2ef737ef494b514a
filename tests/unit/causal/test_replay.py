"""The replay rule, case by case."""

import pytest

from penstock.core.causal.clocks import Position
from penstock.core.causal.diffs import DiffLink, completion
from penstock.core.causal.replay import Replay, Turn, slot
from penstock.core.causal.reports import Target
from penstock.errors import InvariantError


def test_predecessors_of_a_target_go_before_it_and_the_rest_after() -> None:
    replay: Replay[str] = Replay([Target((5,), DiffLink(1, (2,), 0))], [1, 2])
    replay.arrived(2, (9,), 0, "other row")
    replay.arrived(1, (1,), 0, "predecessor")
    replay.arrived(1, (2,), 0, "target")
    turns = [replay.next({}, ()) for _ in range(4)]
    assert turns == [
        Turn("predecessor", None, (5,)),
        Turn("target", (5,), None),
        Turn("other row", None, None),
        None,
    ]


def test_a_completion_takes_rows_up_to_its_marks() -> None:
    replay: Replay[str] = Replay([Target((5,), completion(0))], [1, 2])
    replay.arrived(1, (1,), 0, "rows")
    replay.arrived(1, (2,), 0, "mark", only_marks=True)
    replay.arrived(1, (3,), 1, "next epoch")
    assert replay.next({}, ()) == Turn("rows", None, (5,))
    assert replay.next({}, ()) == Turn("mark", None, (5,))
    assert replay.next({1: 0}, ()) is None  # sender 2 has not marked the epoch
    assert replay.next({1: 0, 2: 0}, (0,)) == Turn(None, (5,), None)
    assert replay.next({1: 0, 2: 0}, ()) == Turn("next epoch", None, None)


def test_a_mark_overtakes_rows_of_later_epochs_but_rows_do_not() -> None:
    replay: Replay[str] = Replay([Target((5,), completion(0))], [1])
    replay.arrived(1, (1,), 1, "next epoch")
    replay.arrived(1, (2,), 0, "mark", only_marks=True)
    assert replay.next({}, ()) == Turn("mark", None, (5,))
    again: Replay[str] = Replay([Target((5,), completion(0))], [1])
    again.arrived(1, (1,), 1, "next epoch")
    again.arrived(1, (2,), 0, "rows")
    assert again.next({}, ()) == Turn("next epoch", None, (5,))


def test_a_loose_completion_goes_before_its_stamp_and_earlier_epochs_before_it() -> None:
    replay: Replay[str] = Replay([Target((5,), completion(1), loose=True)], [1])
    assert replay.next({1: 1}, (0, 1)) == Turn(None, None, (5,))
    assert not replay.over
    assert replay.next({1: 1}, (1,)) == Turn(None, None, (5,))
    assert replay.over


def test_a_row_that_goes_on_without_the_target_is_a_bug() -> None:
    replay: Replay[str] = Replay([Target((5,), DiffLink(1, (2,), 0))], [1])
    replay.arrived(1, (3,), 0, "too late")
    with pytest.raises(InvariantError, match="missing"):
        replay.next({}, ())


def test_a_slot_is_after_the_recipients_and_avoids_known_stamps() -> None:
    positions = {7: Position((3,), 0), 8: Position((6,), 0)}
    assert slot((2,), (6,), [7], positions) == ((4,), ())
    assert slot((2,), (6,), [7], positions, {(4,): None, (5,): None}) == ((5, 0), ())
    assert slot((2,), (6,), [7, 8], positions) == ((4,), (8,))
    assert slot((6,), (6,), [8], positions) == ((6,), (8,))
    taken = {(4, 5): DiffLink(1, (2,), 0), (5, 5): DiffLink(2, (1,), 0)}
    assert slot((2,), (5,), [7], positions, taken, DiffLink(1, (3,), 0)) == ((4, 6), ())


def test_a_completion_that_nobody_knows_comes_before_rows_after_its_marks() -> None:
    row = Target((5,), DiffLink(1, (3,), 4))
    assert Replay([row], [1]).next({1: 2}, [2]) == Turn(None, None, (5,))
    late = Target((7,), completion(2))
    replay: Replay[str] = Replay([row, late], [1])
    replay.arrived(1, (3,), 4, "rows")
    assert replay.next({1: 2}, [2]) == Turn("rows", (5,), None)


def test_a_loose_completion_does_not_pass_the_inputs_of_known_steps() -> None:
    """Sender 2 skips epoch 0: its next mark is behind a row that a later target is made from."""
    known = Target((6,), DiffLink(2, (1,), 1))
    loose = Target((5,), completion(0), loose=True)
    replay: Replay[str] = Replay([loose, Target((5,), DiffLink(1, (2,), 1)), known], [1, 2])
    replay.arrived(1, (1,), 0, "mark 0", only_marks=True, marked=0)
    replay.arrived(1, (2,), 1, "one")
    replay.arrived(2, (1,), 1, "two")
    replay.arrived(2, (2,), 1, "mark 1", only_marks=True, marked=1)
    assert replay.next({}, ()) == Turn("mark 0", None, (5,))
    assert replay.next({1: 0}, ()) == Turn("one", (5,), None)
    assert replay.next({1: 0}, ()) == Turn("two", (6,), None)
    assert replay.over


def test_a_completion_comes_after_what_a_child_has_seen_without_its_mark() -> None:
    targets = [Target((5,), DiffLink(1, (2,), 3)), Target((6,), DiffLink(1, (3,), 3))]
    behind: Replay[str] = Replay(targets, [1], positions={7: Position((5,), 1)})
    behind.arrived(1, (2,), 3, "seen")
    behind.arrived(1, (3,), 3, "not seen")
    assert behind.next({1: 2}, (2,)) == Turn("seen", (5,), None)
    assert behind.next({1: 2}, (2,)) == Turn(None, None, (6,))
    level: Replay[str] = Replay(targets, [1], positions={7: Position((4,), 1)})
    level.arrived(1, (2,), 3, "seen")
    assert level.next({1: 2}, (2,)) == Turn(None, None, (5,))
