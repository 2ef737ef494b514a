"""Payload logs and diff logs."""

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.logs import Bundle, Part, PayloadLog, Spilled
from penstock.core.node.messages import DATA, MARK
from penstock.core.time import Time


def rows(stamp: int, epoch: int, size: int = 10) -> Bundle:
    part = Part(DATA, 0, Time.root(epoch), payload=f"rows {stamp}", size=size)
    return Bundle((stamp,), (), (part,))


def mark(stamp: int, epoch: int) -> Bundle:
    return Bundle((stamp,), (), (Part(MARK, 0, Time.root(epoch)),))


def log(*bundles: Bundle, budget_bytes: int | None = None) -> PayloadLog:
    made = PayloadLog([7], budget_bytes)
    for bundle in bundles:
        made.append(7, bundle)
    return made


def stamps(made: PayloadLog) -> list[int]:
    """Of what is logged; 0 stands for the newest mark that is not."""
    return [bundle.stamp[0] if bundle.stamp else 0 for bundle in made.snapshot()[7]]


def test_truncation_keeps_what_lies_beyond_the_position() -> None:
    made = log(rows(1, 0), rows(2, 1), mark(3, 0), rows(4, 1), mark(5, 1))
    made.truncate(7, Position((2,), 0))
    assert stamps(made) == [0, 4, 5]
    assert made.bytes == 10
    assert made.floors()[7] == Floor((2,), 0, 1)


def test_truncation_stops_at_rows_that_came_early_and_goes_on_the_next_time() -> None:
    made = log(rows(1, 1), rows(2, 0), mark(3, 0), rows(4, 2))
    made.truncate(7, Position((), 0))
    assert stamps(made) == [1, 2, 3, 4]
    made.truncate(7, Position((), 1))
    assert stamps(made) == [0, 4]


def test_the_newest_mark_behind_a_truncation_is_never_forgotten() -> None:
    made = log(mark(1, 0), rows(2, 3), mark(3, 3), rows(4, 7), mark(5, 7))
    made.truncate(7, Position((), 5))
    assert stamps(made) == [0, 4, 5]
    assert made.marks_at(7, 6)[0].time.epoch == 3
    made.truncate(7, Position((), 8))
    assert made.marks_at(7, 9)[0].time.epoch == 7
    assert made.marks_at(7, 6) == {}


def test_a_stale_truncation_changes_nothing() -> None:
    made = log(rows(1, 0), rows(4, 2))
    made.set_floor(7, Floor((3,), 1, 5))
    made.truncate(7, Position((2,), 0))
    assert stamps(made) == [1, 4]


def test_truncation_moves_the_cursor_with_what_was_sent() -> None:
    made = log(rows(1, 0), rows(2, 0), rows(3, 1))
    made.taken(7)
    made.truncate(7, Position((2,), 0))
    taken = made.take(7)
    assert taken is not None
    assert taken.stamp == (3,)


def test_past_its_budget_the_log_spills_the_oldest_each_once() -> None:
    made = log(rows(1, 0), rows(2, 0), rows(3, 0), budget_bytes=15)
    spill = made.over_budget()
    assert [(child, bundle.stamp) for child, bundle in spill] == [(7, (1,)), (7, (2,))]
    assert made.over_budget() == []
    for child, bundle in spill:
        made.spilled(child, bundle.stamp, ("file",))
    assert made.memory_bytes == 10
    assert made.bytes == 30
    assert made.over_budget() == []
    assert made.snapshot()[7][0].parts[0].payload == Spilled("file")
    made.truncate(7, Position((2,), -1))
    assert (made.bytes, made.memory_bytes) == (10, 10)


def test_what_is_truncated_while_it_is_moved_is_not_counted_twice() -> None:
    made = log(rows(1, 0), rows(2, 1), budget_bytes=15)
    [(child, bundle)] = made.over_budget()
    made.truncate(7, Position((), 0))
    made.spilled(child, bundle.stamp, ("file",))
    assert (made.bytes, made.memory_bytes) == (10, 10)
    made.append(7, rows(3, 1))
    assert [bundle.stamp for _, bundle in made.over_budget()] == [(2,)]
