"""Logical times: an epoch and one counter per enclosing loop.

Decides what a time is and how times compare; knows nothing of graphs, messages or clocks. Follows
"Naiad: a timely dataflow system" (SOSP 2013), section 2.1, with one difference: counters are
compared coordinate by coordinate (the product order of timely dataflow), not lexicographically, so
that the order of two iterations of an inner loop never depends on the outer loop's counter.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import le
from typing import NoReturn

__all__ = ["Time"]

_new = tuple.__new__

CONVERGED = 1 << 60
"""A counter that no loop reaches."""


class Time(tuple[int, ...]):
    """A point of logical time ``(epoch, counters)``: immutable, hashable, partially ordered.

    Stored as the flat tuple ``(epoch, *counters)``, so hashing and equality run in C and msgpack
    packs a time as a short array; :meth:`from_wire` reads it back.

    Laws
      * :meth:`less_equal` is a partial order: reflexive, antisymmetric, transitive. Times of
        different depth are never comparable.
      * :meth:`join` and :meth:`meet` are the least upper and greatest lower bound at equal depth.
      * ``t.entered().left() == t``; ``t.less_equal(t.advanced(n))`` for every ``n >= 0``.
      * ``entered``, ``left``, ``advanced`` and ``next_epoch`` are monotone.
      * ``a.less_equal(b)`` implies ``a.sort_key() <= b.sort_key()``.

    There is no ``<`` or ``<=``: ``sorted()`` would quietly take a partial order for a total one.

    >>> t = Time.root(3).entered().advanced(2)
    >>> t, t.epoch, t.counters
    (Time(3, (2,)), 3, (2,))
    >>> t.less_equal(t.advanced()), t.advanced().less_equal(t)
    (True, False)
    >>> Time(1, (5,)).less_equal(Time(2, (4,))), Time(2, (4,)).less_equal(Time(1, (5,)))
    (False, False)
    >>> t.left() == Time.root(3)
    True
    """

    __slots__ = ()

    def __new__(cls, epoch: int, counters: Iterable[int] = ()) -> Time:
        flat = (epoch, *counters)
        for part in flat:
            if not isinstance(part, int) or part < 0:
                raise ValueError(
                    f"a time is made of integers from 0 up, got epoch {epoch!r} and counters "
                    f"{flat[1:]!r}"
                )
        return _new(cls, flat)

    @classmethod
    def root(cls, epoch: int) -> Time:
        """Return the time of ``epoch`` outside every loop."""
        return cls(epoch)

    @classmethod
    def from_wire(cls, parts: Iterable[int]) -> Time:
        """Return the time whose flat parts are ``(epoch, *counters)``, as unpacked from a message.

        >>> Time.from_wire([3, 0, 2])
        Time(3, (0, 2))
        """
        flat = tuple(parts)
        if min(flat) < 0:
            raise ValueError(f"a time is made of integers from 0 up, got {flat!r}")
        return _new(cls, flat)

    @property
    def epoch(self) -> int:
        """The input epoch."""
        return self[0]

    @property
    def counters(self) -> tuple[int, ...]:
        """One counter per enclosing loop, outermost first."""
        return self[1:]

    @property
    def depth(self) -> int:
        """How many loops enclose the place that this time belongs to."""
        return len(self) - 1

    def less_equal(self, other: Time) -> bool:
        """Tell whether every coordinate of this time is at most the other's (product order)."""
        if len(self) != len(other):
            return False
        if self[0] > other[0]:
            return False
        if len(self) == 1:
            return True
        return all(map(le, self, other))

    def less_than(self, other: Time) -> bool:
        """Tell whether this time is before the other and not equal to it."""
        return self.less_equal(other) and self != other

    def join(self, other: Time) -> Time:
        """Return the least time at or after both (equal depth only)."""
        return _new(Time, map(max, self._same_depth(other), other))

    def meet(self, other: Time) -> Time:
        """Return the greatest time at or before both (equal depth only)."""
        return _new(Time, map(min, self._same_depth(other), other))

    def entered(self) -> Time:
        """Return the time after an ingress: a new innermost counter, at 0."""
        return _new(Time, (*self, 0))

    def left(self) -> Time:
        """Return the time after an egress: the innermost counter is dropped."""
        if len(self) == 1:
            raise ValueError(f"{self!r} is in no loop and cannot leave one")
        return _new(Time, self[:-1])

    def advanced(self, n: int = 1) -> Time:
        """Return the time ``n`` iterations of the innermost loop later, as a feedback does."""
        if len(self) == 1:
            raise ValueError(f"{self!r} is in no loop: it has no counter to advance")
        if n < 0:
            raise ValueError(f"a time cannot go back: advanced({n})")
        return _new(Time, (*self[:-1], self[-1] + n))

    def converged(self) -> Time:
        """Return the time after all iterations of the innermost loop.

        It is complete when nothing circulates any more: a vertex that asks to be notified at it
        learns that the loop has converged for this epoch (and outer iteration).

        >>> Time(3, (0, 2)).converged().is_converged, Time(3, (0, 2)).is_converged
        (True, False)
        """
        if len(self) == 1:
            raise ValueError(f"{self!r} is in no loop that could converge")
        return _new(Time, (*self[:-1], CONVERGED))

    @property
    def is_converged(self) -> bool:
        """Whether this is the time after all iterations of the innermost loop."""
        return len(self) > 1 and self[-1] >= CONVERGED

    def next_epoch(self) -> Time:
        """Return the same counters one epoch later."""
        return _new(Time, (self[0] + 1, *self[1:]))

    def sort_key(self) -> tuple[int, ...]:
        """Return a plain tuple whose total order extends the partial order, for stable listings."""
        return tuple(self)

    def _same_depth(self, other: Time) -> Time:
        if len(self) != len(other):
            raise ValueError(f"{self!r} and {other!r} are of different loop depth")
        return self

    def __repr__(self) -> str:
        return f"Time({self[0]}, {self[1:]!r})" if len(self) > 1 else f"Time({self[0]})"

    def __reduce__(self) -> tuple[type[Time], tuple[int, tuple[int, ...]]]:
        return Time, (self[0], self[1:])

    def __lt__(self, other: object) -> NoReturn:
        raise TypeError("times are partially ordered: use less_equal, or sort_key to sort")

    __le__ = __gt__ = __ge__ = __lt__
