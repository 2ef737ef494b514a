"""Path summaries: composition, application and order agree with what paths do to times."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.progress.summary import PathSummary
from penstock.core.time import Time


@st.composite
def paths(draw: st.DrawFn, depth: int | None = None) -> tuple[int, list[str]]:
    """A start depth and a list of moves that stay within 0 to 3 loops."""
    start = at = draw(st.integers(0, 3)) if depth is None else depth
    moves: list[str] = []
    for _ in range(draw(st.integers(0, 6))):
        possible = (["enter"] if at < 3 else []) + (["leave", "again"] if at else [])
        move = draw(st.sampled_from(possible))
        at += {"enter": 1, "leave": -1, "again": 0}[move]
        moves.append(move)
    return start, moves


def summarise(depth: int, moves: list[str]) -> PathSummary:
    summary = PathSummary.identity(depth)
    for move in moves:
        make = {
            "enter": PathSummary.ingress,
            "leave": PathSummary.egress,
            "again": PathSummary.feedback,
        }[move]
        summary = summary.then(make(summary.depth))
    return summary


def walk(time: Time, moves: list[str]) -> Time:
    for move in moves:
        time = {"enter": Time.entered, "leave": Time.left, "again": Time.advanced}[move](time)
    return time


def all_times(depth: int, bound: int = 4) -> list[Time]:
    return [Time(0, counters) for counters in product(range(bound), repeat=depth)]


@given(paths())
def test_a_summary_does_what_its_path_does(path: tuple[int, list[str]]) -> None:
    depth, moves = path
    summary = summarise(depth, moves)
    for time in all_times(depth, 3):
        assert summary(time) == summary.compiled()(time) == walk(time, moves)


@given(paths(), st.data())
def test_composition_is_application_in_turn_and_associative(
    path: tuple[int, list[str]], data: st.DataObject
) -> None:
    depth, moves = path
    a = summarise(depth, moves)
    b = summarise(*data.draw(paths(a.depth)))
    c = summarise(*data.draw(paths(b.depth)))
    assert a.then(b).then(c) == a.then(b.then(c))
    assert a.then(PathSummary.identity(a.depth)) == a == PathSummary.identity(depth).then(a)
    for time in all_times(depth, 3):
        assert a.then(b)(time) == b(a(time))


@given(st.integers(0, 3), st.data())
def test_the_order_is_that_of_all_results(depth: int, data: st.DataObject) -> None:
    a, b = (summarise(*data.draw(paths(depth))) for _ in range(2))
    if a.depth == b.depth:
        # counters up to 7 suffice: increments and constants of six moves are at most 6
        values = (0, 1, 7)
        times = [Time(0, counters) for counters in product(values, repeat=depth)]
        assert a.less_equal(b) == all(a(t).less_equal(b(t)) for t in times)
        assert (a == b) == (a.less_equal(b) and b.less_equal(a))
    else:
        assert not a.less_equal(b)
    if a.less_equal(b):
        assert a.sort_key() <= b.sort_key()


@given(st.integers(0, 3), st.data())
def test_composition_is_monotone(depth: int, data: st.DataObject) -> None:
    a, b = (summarise(*data.draw(paths(depth))) for _ in range(2))
    if a.less_equal(b):
        c = summarise(*data.draw(paths(a.depth)))
        assert a.then(c).less_equal(b.then(c))


def test_staying_inside_and_going_round_outside_are_incomparable() -> None:
    stay = PathSummary.identity(2)
    around = summarise(2, ["leave", "again", "enter"])
    assert around == PathSummary(1, 1, (0,))
    assert not stay.less_equal(around)
    assert not around.less_equal(stay)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="no counter that it could increment"):
        PathSummary(0, 1)
    with pytest.raises(ValueError, match="negative"):
        PathSummary(1, -1)
    with pytest.raises(ValueError, match="no loop to leave"):
        PathSummary.egress(0)
    with pytest.raises(ValueError, match="more counters"):
        PathSummary.egress(1).then(PathSummary.identity(1))
    with pytest.raises(ValueError, match="wrong place"):
        PathSummary.feedback(1)(Time(0))
    assert str(PathSummary(1, 2, (0, 3))) == "keep 1; add 2; append 0, 3"
