"""Antichains: sets of mutually incomparable elements, which is what a frontier is.

Decides which times a frontier still allows; knows nothing of where the frontier is. An antichain
of times stands for every time at or after one of its elements. :class:`MutableAntichain` keeps the
minimal elements of a multiset whose counts go up and down.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from operator import le
from typing import Final, Generic, TypeVar

from penstock.core.order import PartiallyOrdered, dominated, minimal
from penstock.core.time import Time

__all__ = ["EMPTY", "Antichain", "MutableAntichain", "minimal_times"]

P = TypeVar("P", bound=PartiallyOrdered)


class Antichain(Generic[P]):
    """An immutable set of minimal elements; as a frontier, the times that may still come.

    Laws
      * no element is at or before another; elements are listed by ``sort_key``;
      * ``a.less_equal(x)``: some element is at or before ``x``, that is, ``x`` may still come;
      * ``a.precedes(b)`` (every element of ``b`` is allowed by ``a``) is a partial order;
        the empty antichain, "nothing comes any more", is the last one;
      * ``Antichain(a.elements + b.elements)`` is the greatest lower bound of ``a`` and ``b``.

    >>> f = Antichain([Time(1, (3,)), Time(2, (0,)), Time(2, (5,))])
    >>> f
    Antichain(Time(1, (3,)), Time(2, (0,)))
    >>> f.less_equal(Time(1, (4,))), f.less_equal(Time(1, (2,)))
    (True, False)
    >>> f.precedes(EMPTY), EMPTY.precedes(f)
    (True, False)
    """

    __slots__ = ("elements",)

    elements: tuple[P, ...]

    def __init__(self, elements: Iterable[P] = ()) -> None:
        self.elements = minimal(elements)

    @classmethod
    def of_minimal(cls, elements: tuple[P, ...]) -> Antichain[P]:
        """Wrap a tuple that is minimal and sorted already (as :func:`minimal` returns it)."""
        made = cls.__new__(cls)
        made.elements = elements
        return made

    def less_equal(self, value: P) -> bool:
        """Tell whether some element is at or before ``value``: it may still come.

        Inside one loop, where many epochs can be under way at once, this is a binary search.
        """
        elements = self.elements
        if len(elements) > 8 and isinstance(value, Time) and len(value) == 2:
            # epochs go up and counters go down, so the last element by sort_key decides
            index = bisect_right(elements, tuple(value), key=tuple)  # type: ignore[arg-type]
            return index > 0 and elements[index - 1].less_equal(value)
        for element in elements:  # noqa: SIM110 - the hottest test there is
            if element.less_equal(value):
                return True
        return False

    def precedes(self, other: Antichain[P]) -> bool:
        """Tell whether everything that ``other`` allows is allowed here too."""
        return all(dominated(self.elements, element) for element in other.elements)

    def meet(self, other: Antichain[P]) -> Antichain[P]:
        """Return the frontier that allows what either allows."""
        return Antichain(self.elements + other.elements)

    def __iter__(self) -> Iterator[P]:
        return iter(self.elements)

    def __len__(self) -> int:
        return len(self.elements)

    def __contains__(self, value: object) -> bool:
        return value in self.elements

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Antichain):
            return NotImplemented
        return self is other or bool(self.elements == other.elements)

    def __hash__(self) -> int:
        return hash(self.elements)

    def __repr__(self) -> str:
        return f"Antichain({', '.join(map(repr, self.elements))})"


EMPTY: Final[Antichain[Time]] = Antichain.of_minimal(())


class MutableAntichain:
    """Counts of times, and the minimal times among those whose count is not zero.

    A count may be negative for a while, when the message that takes one away overtakes the message
    that added it. Such a time counts as present: a frontier must not pass what is not settled.

    Costs: :meth:`update` is one dictionary access; :attr:`elements` is found again, in one pass
    over the distinct times, only after a minimal time came or went.

    >>> m = MutableAntichain()
    >>> m.update(Time.root(1), +2), m.update(Time.root(2), +1), m.elements
    (1, 1, (Time(1),))
    >>> m.update(Time.root(1), -1), m.update(Time.root(1), -1), m.elements
    (0, -1, (Time(2),))
    """

    __slots__ = ("_minimal", "counts")

    counts: dict[Time, int]

    def __init__(self, counts: Iterable[tuple[Time, int]] = ()) -> None:
        self.counts = {}
        self._minimal: tuple[Time, ...] | None = ()
        for time, delta in counts:
            self.update(time, delta)

    def update(self, time: Time, delta: int) -> int:
        """Add ``delta`` to the count of ``time``; 1: it became present, -1: absent, 0: neither."""
        counts = self.counts
        before = counts.get(time, 0)
        after = before + delta
        if after:
            counts[time] = after
            if before:
                return 0
            known = self._minimal
            if known is not None and not dominated(known, time):
                self._minimal = None if known else (time,)
            return 1
        if before:
            del counts[time]
            known = self._minimal
            if known is not None and time in known:
                self._minimal = None if counts else ()
            return -1
        return 0

    @property
    def elements(self) -> tuple[Time, ...]:
        """The minimal times present, by ``sort_key``."""
        known = self._minimal
        if known is None:
            known = self._minimal = minimal_times(self.counts)
        return known

    def frontier(self) -> Antichain[Time]:
        """Return the minimal times present as an antichain."""
        return Antichain.of_minimal(self.elements)

    def __len__(self) -> int:
        return len(self.counts)

    def __repr__(self) -> str:
        listed = ", ".join(
            f"{time!r}: {self.counts[time]}" for time in sorted(self.counts, key=tuple)
        )
        return f"MutableAntichain({{{listed}}})"


def minimal_times(times: Iterable[Time]) -> tuple[Time, ...]:
    """Return the minimal times, all of one depth, by ``sort_key``; :func:`minimal`, but quicker.

    In the order of ``sort_key`` epochs only go up, so a time is minimal unless the counters of one
    before it are at or below its own; of those only the minimal ones are remembered. They are few
    even where the minimal times are many: one, inside one loop.

    >>> minimal_times([Time(2, (1,)), Time(1, (3,)), Time(2, (4,)), Time(1, (3,))])
    (Time(1, (3,)), Time(2, (1,)))
    """
    ordered = sorted(times, key=tuple)
    if len(ordered) < 2:
        return tuple(ordered)
    if len(ordered[0]) == 1:
        return (ordered[0],)
    kept: list[Time] = []
    if len(ordered[0]) == 2:
        least = ordered[0][1] + 1
        for time in ordered:
            if time[1] < least:
                least = time[1]
                kept.append(time)
        return tuple(kept)
    floor: list[tuple[int, ...]] = []
    for time in ordered:
        counters = time[1:]
        if not any(all(map(le, low, counters)) for low in floor):
            floor = [low for low in floor if not all(map(le, counters, low))]
            floor.append(counters)
            kept.append(time)
    return tuple(kept)
