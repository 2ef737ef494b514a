"""Times: a partial order of plain, cheap values."""

from __future__ import annotations

import pickle
from itertools import product

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.time import Time

parts = st.integers(0, 4)


def times(depth: int) -> st.SearchStrategy[Time]:
    return st.builds(Time, parts, st.tuples(*[parts] * depth))


same_depth = st.integers(0, 3).flatmap(lambda d: st.tuples(times(d), times(d), times(d)))


@given(same_depth)
def test_less_equal_is_a_partial_order(three: tuple[Time, Time, Time]) -> None:
    a, b, c = three
    assert a.less_equal(a)
    if a.less_equal(b) and b.less_equal(a):
        assert a == b
    if a.less_equal(b) and b.less_equal(c):
        assert a.less_equal(c)


@given(same_depth)
def test_less_equal_compares_every_coordinate(three: tuple[Time, Time, Time]) -> None:
    a, b, _ = three
    assert a.less_equal(b) == all(x <= y for x, y in zip(a, b, strict=True))
    assert a.less_than(b) == (a.less_equal(b) and a != b)


@given(same_depth)
def test_sort_key_extends_the_order(three: tuple[Time, Time, Time]) -> None:
    a, b, _ = three
    if a.less_equal(b):
        assert a.sort_key() <= b.sort_key()


@given(same_depth)
def test_join_and_meet_are_bounds(three: tuple[Time, Time, Time]) -> None:
    a, b, c = three
    assert a.less_equal(a.join(b))
    assert b.less_equal(a.join(b))
    assert a.join(b).less_equal(c) == (a.less_equal(c) and b.less_equal(c))
    assert c.less_equal(a.meet(b)) == (c.less_equal(a) and c.less_equal(b))


@given(same_depth)
def test_what_edges_do_is_monotone(three: tuple[Time, Time, Time]) -> None:
    a, b, _ = three
    if a.less_equal(b):
        assert a.entered().less_equal(b.entered())
        assert a.next_epoch().less_equal(b.next_epoch())
        if a.depth:
            assert a.left().less_equal(b.left())
            assert a.advanced(2).less_equal(b.advanced(2))
    assert a.entered().left() == a


def test_inner_iterations_compare_whatever_the_outer_counter() -> None:
    assert not Time(0, (0, 5)).less_equal(Time(0, (1, 0)))
    assert not Time(0, (1, 0)).less_equal(Time(0, (0, 5)))


def test_times_of_different_depth_are_incomparable() -> None:
    assert not Time(0).less_equal(Time(1, (0,)))
    assert not Time(0, (0,)).less_equal(Time(1))
    with pytest.raises(ValueError, match="different loop depth"):
        Time(0).join(Time(0, (0,)))


def test_comparison_operators_are_refused_even_against_tuples() -> None:
    a, b = Time(0), Time(1)
    for compare in (
        lambda: a < b,
        lambda: a <= b,
        lambda: a > b,
        lambda: a >= b,
        lambda: (0,) < b,  # noqa: SIM300
        lambda: sorted([b, a]),
    ):
        with pytest.raises(TypeError, match="partially ordered"):
            compare()


@pytest.mark.parametrize("bad", [(-1, ()), (0, (-1,)), ("1", ()), (0, (1.0,))])
def test_only_integers_from_zero_make_a_time(bad: tuple[int, tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="integers from 0 up"):
        Time(*bad)


def test_no_loop_no_counter() -> None:
    with pytest.raises(ValueError, match="in no loop"):
        Time(3).left()
    with pytest.raises(ValueError, match="in no loop"):
        Time(3).advanced()
    with pytest.raises(ValueError, match="go back"):
        Time(3, (1,)).advanced(-1)


def test_times_survive_pickle_and_msgpack_and_work_as_keys() -> None:
    for epoch, counters in product((0, 7), ((), (1,), (2, 300))):
        time = Time(epoch, counters)
        assert pickle.loads(pickle.dumps(time)) == time
        assert type(pickle.loads(pickle.dumps(time))) is Time
        assert Time.from_wire(msgpack.unpackb(msgpack.packb(time))) == time
        assert {time: "x"}[Time(epoch, counters)] == "x"
