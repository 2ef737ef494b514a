"""Antichains keep minimal elements, whatever comes in which order."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.core.antichain import EMPTY, Antichain, MutableAntichain, minimal_times
from penstock.core.order import minimal
from penstock.core.time import Time

times = st.builds(Time, st.integers(0, 3), st.tuples(st.integers(0, 3)))
several = st.lists(times, max_size=6)


def brute_minimal(values: list[Time]) -> frozenset[Time]:
    return frozenset(v for v in values if not any(o.less_than(v) for o in values))


@given(several)
def test_an_antichain_is_the_minimal_elements(values: list[Time]) -> None:
    antichain = Antichain(values)
    assert frozenset(antichain) == brute_minimal(values)
    assert list(antichain) == sorted(antichain, key=Time.sort_key)
    assert Antichain(reversed(values)) == antichain
    assert hash(Antichain(reversed(values))) == hash(antichain)


@given(several, times)
def test_an_antichain_allows_what_any_element_allows(values: list[Time], time: Time) -> None:
    assert Antichain(values).less_equal(time) == any(v.less_equal(time) for v in values)


@given(several, several, several)
def test_precedes_is_a_partial_order_with_meets(
    x: list[Time], y: list[Time], z: list[Time]
) -> None:
    a, b, c = Antichain(x), Antichain(y), Antichain(z)
    assert a.precedes(a)
    assert a.precedes(EMPTY)
    if a.precedes(b) and b.precedes(a):
        assert a == b
    if a.precedes(b) and b.precedes(c):
        assert a.precedes(c)
    assert c.precedes(a.meet(b)) == (c.precedes(a) and c.precedes(b))


@given(st.lists(st.tuples(times, st.integers(-2, 2)), max_size=12))
def test_a_mutable_antichain_follows_its_counts(updates: list[tuple[Time, int]]) -> None:
    counts: Counter[Time] = Counter()
    antichain = MutableAntichain()
    for time, delta in updates:
        present = bool(counts[time])
        counts[time] += delta
        change = antichain.update(time, delta)
        assert change == bool(counts[time]) - present
        expected = brute_minimal([t for t, count in counts.items() if count])
        assert frozenset(antichain.elements) == expected
        assert antichain.frontier() == Antichain(expected)


@given(st.lists(st.tuples(st.builds(Time, st.integers(0, 5)), st.sampled_from((1, -1)))))
def test_reading_late_gives_the_same_as_reading_often(updates: list[tuple[Time, int]]) -> None:
    late, often = MutableAntichain(), MutableAntichain()
    for time, delta in updates:
        late.update(time, delta)
        often.update(time, delta)
        often.elements  # noqa: B018 - the cached value must not go stale
    assert late.elements == often.elements
    assert len(late) == len(often)


@given(st.integers(0, 3), st.data())
def test_the_quick_way_to_minimal_times_equals_the_general_one(
    depth: int, data: st.DataObject
) -> None:
    counters = st.tuples(*[st.integers(0, 5)] * depth)
    values = data.draw(st.lists(st.builds(Time, st.integers(0, 5), counters), max_size=15))
    assert minimal_times(values) == minimal(values)


wide = st.builds(Time, st.integers(0, 40), st.tuples(st.integers(0, 40)))


@given(st.integers(1, 3), st.lists(st.booleans(), min_size=40, max_size=40), wide)
def test_long_antichains_allow_what_any_element_allows(
    fall: int, present: list[bool], time: Time
) -> None:
    stairs = [Time(e, (fall * (40 - e) % 121,)) for e in range(40) if present[e]]
    antichain = Antichain(stairs)
    assert len(antichain) == len(stairs)
    assert antichain.less_equal(time) == any(v.less_equal(time) for v in stairs)
