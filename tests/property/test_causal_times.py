"""Dense times, positions, floors and clocks: their laws."""

from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.times import END, ZERO, Stamp, after, between

stamps: st.SearchStrategy[Stamp] = st.lists(st.integers(-3, 3), max_size=4).map(tuple)
positions = st.builds(Position, stamps, st.integers(-1, 4))
floors = st.builds(
    lambda stamp, epoch, more: Floor(stamp, epoch, epoch + more),
    stamps,
    st.integers(-1, 4),
    st.integers(0, 3),
)


@given(stamps, stamps)
def test_there_is_a_stamp_between_any_two(one: Stamp, other: Stamp) -> None:
    assume(one != other)
    low, high = min(one, other), max(one, other)
    assert low < between(low, high) < high


@given(stamps)
def test_every_stamp_has_one_after_it_and_lies_between_the_ends(stamp: Stamp) -> None:
    assert stamp < after(stamp) < END
    assert stamp >= ZERO


@given(stamps, stamps, st.integers(1, 30))
def test_many_stamps_fit_between_two(one: Stamp, other: Stamp, number: int) -> None:
    assume(one != other)
    low, high = min(one, other), max(one, other)
    found = []
    for _ in range(number):
        low = between(low, high)
        found.append(low)
    assert found == sorted(set(found))
    assert max(found) < high


@given(floors, positions, positions)
def test_a_log_that_reaches_a_position_reaches_every_later_one(
    floor: Floor, one: Position, other: Position
) -> None:
    assume(one.stamp <= other.stamp and one.epoch <= other.epoch)
    assert not floor.reaches(one) or floor.reaches(other)


@given(positions, stamps, st.integers(-1, 4))
def test_a_mark_lies_beyond_wherever_rows_do(position: Position, stamp: Stamp, epoch: int) -> None:
    assert not position.beyond(stamp, epoch) or position.beyond(stamp, epoch, is_mark=True)
