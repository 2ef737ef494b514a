"""Spans: downward-closed sets of times, which is what a node's state can reflect.

Decides membership, inclusion, union and intersection; knows nothing of nodes. Follows "Falkirk
Wheel" (SoCC 2021), section 3.1: times are epochs, structured times ``(epoch, loop counters)``, or
sequence numbers on an edge, and a node is restored to a span of them. A span is kept as its maximal
times. A counter that no loop reaches stands for "every iteration", so the span of a whole epoch
inside a loop has one maximal time too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

from penstock.core.time import CONVERGED, Time

__all__ = ["EMPTY", "TOP", "Moment", "NumberedTime", "Span"]

_ALL: Final = 1 << 62
_new = tuple.__new__


class NumberedTime(tuple[int, tuple[int, ...]]):
    """The time of a message by its number: ``(edge, stamp)``.

    Times of different edges are never comparable. Stamps are compared as tuples, so that between
    any two there is another; a plain number ``n`` is the stamp ``(n,)``.

    >>> first = NumberedTime(3, 1)
    >>> first.less_equal(NumberedTime(3, 2)), first.less_equal(NumberedTime(4, 2))
    (True, False)
    """

    __slots__ = ()

    def __new__(cls, edge: int, stamp: int | tuple[int, ...]) -> NumberedTime:
        return _new(cls, (edge, (stamp,) if isinstance(stamp, int) else stamp))

    @property
    def edge(self) -> int:
        """The edge that the message was sent on."""
        return self[0]

    @property
    def stamp(self) -> tuple[int, ...]:
        """The message's number on its edge."""
        return self[1]

    def less_equal(self, other: Moment) -> bool:
        """Tell whether this is a message of the same edge at or before the other."""
        return isinstance(other, NumberedTime) and self[0] == other[0] and self[1] <= other[1]

    def sort_key(self) -> tuple[int, tuple[int, ...]]:
        """Return a plain tuple whose total order extends the partial order."""
        return (self[0], self[1])

    def __repr__(self) -> str:
        return f"NumberedTime({self[0]}, {self[1][0] if len(self[1]) == 1 else self[1]})"


Moment: TypeAlias = Time | NumberedTime
"""A time of any domain."""


class Span:
    """A downward-closed set of times of one domain: immutable, hashable.

    Laws
      * ``a in s`` and ``b.less_equal(a)`` imply ``b in s``;
      * :meth:`includes` is a partial order with least element ``EMPTY`` and greatest ``TOP``;
      * ``a | b`` and ``a & b`` are union and intersection: least upper, greatest lower bound.

    ``TOP`` has every time of every domain: "as I am". ``scalar`` is the epoch *e* if the span is
    that of all times of epochs up to *e*, in whatever depth of loops, and None for any other.

    >>> s = Span.of(Time(2, (1,)), Time(1, (4,)), Time(1, (3,)))
    >>> s, Time(1, (2,)) in s, Time(2, (2,)) in s
    (Span(Time(1, (4,)), Time(2, (1,))), True, False)
    >>> s & Span.epoch(1, depth=1), s & EMPTY, s | TOP
    (Span(Time(1, (4,))), EMPTY, TOP)
    """

    __slots__ = ("scalar", "tops")

    tops: tuple[Moment, ...]
    scalar: int | None

    def __init__(self, tops: tuple[Moment, ...], scalar: int | None) -> None:
        self.tops = tops
        self.scalar = scalar

    @classmethod
    def of(cls, *moments: Moment) -> Span:
        """Return the least span that has all these times."""
        if len(moments) == 1:
            return cls(moments, _scalar(moments[0]))
        if not moments:
            return EMPTY
        kept = _maximal(moments)
        return cls(kept, _scalar(kept[0]) if len(kept) == 1 else None)

    @classmethod
    def epoch(cls, epoch: int, depth: int = 0) -> Span:
        """Return all times of epochs up to ``epoch``; below 0, none."""
        return cls.of(Time(epoch, (CONVERGED,) * depth)) if epoch >= 0 else EMPTY

    @classmethod
    def from_plain(cls, plain: Sequence[Any] | None) -> Span:
        """Return the span that :meth:`to_plain` described."""
        if plain is None:
            return TOP
        return cls.of(
            *(
                Time.from_wire(part) if kind == 0 else NumberedTime(part[0], tuple(part[1:]))
                for kind, part in plain
            )
        )

    def to_plain(self) -> list[Any] | None:
        """Return a form that msgpack and JSON can carry.

        >>> Span.from_plain(Span.of(NumberedTime(2, 7)).to_plain()), Span.from_plain(TOP.to_plain())
        (Span(NumberedTime(2, 7)), TOP)
        """
        if self is TOP:
            return None
        return [
            [1, [top[0], *top[1]]] if isinstance(top, NumberedTime) else [0, list(top)]
            for top in self.tops
        ]

    def includes(self, other: Span) -> bool:
        """Tell whether every time of the other span is in this one."""
        if self is TOP or not other.tops:
            return self is TOP or other is not TOP
        mine = self.tops
        if len(mine) == 1:
            only = mine[0]
            for top in other.tops:  # noqa: SIM110 - checked once per edge and visit
                if not top.less_equal(only):  # type: ignore[arg-type]
                    return False
            return True
        return all(any(top.less_equal(m) for m in mine) for top in other.tops)  # type: ignore[arg-type]

    def on(self, edge: int) -> Span:
        """Return the part that messages on ``edge`` can have: numbers of other edges go."""
        if not self.tops or not isinstance(self.tops[0], NumberedTime):
            return self
        return Span.of(*(top for top in self.tops if top[0] == edge))

    def __contains__(self, moment: Moment) -> bool:
        return self is TOP or any(moment.less_equal(top) for top in self.tops)  # type: ignore[arg-type]

    def __or__(self, other: Span) -> Span:
        if self.includes(other):
            return self
        return other if other.includes(self) else Span.of(*self.tops, *other.tops)

    def __and__(self, other: Span) -> Span:
        if self.includes(other):
            return other
        if other.includes(self):
            return self
        common = [_meet(one, two) for one in self.tops for two in other.tops]
        return Span.of(*(moment for moment in common if moment is not None))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Span):
            return NotImplemented
        return self is other or (self.scalar == other.scalar and self.tops == other.tops)

    def __hash__(self) -> int:
        return hash((self.scalar, self.tops))

    def __reduce__(self) -> tuple[Any, ...]:
        return Span.from_plain, (self.to_plain(),)

    def __repr__(self) -> str:
        if not self.tops:
            return "TOP" if self is TOP else "EMPTY"
        return f"Span({', '.join(map(repr, self.tops))})"


TOP: Final = Span((), _ALL)
"""Every time."""
EMPTY: Final = Span((), -1)
"""No time."""


def _scalar(top: Moment) -> int | None:
    if isinstance(top, NumberedTime):
        return None
    if len(top) == 1 or all(counter >= CONVERGED for counter in top[1:]):
        return top[0]
    return None


def _maximal(moments: Iterable[Moment]) -> tuple[Moment, ...]:
    kept: list[Moment] = []
    for moment in sorted(moments, key=lambda each: each.sort_key(), reverse=True):
        if not any(moment.less_equal(other) for other in kept):  # type: ignore[arg-type]
            kept.append(moment)
    return tuple(reversed(kept))


def _meet(one: Moment, two: Moment) -> Moment | None:
    if isinstance(one, NumberedTime) or isinstance(two, NumberedTime):
        if one.less_equal(two):  # type: ignore[arg-type]
            return one
        return two if two.less_equal(one) else None  # type: ignore[arg-type]
    return one.meet(two) if len(one) == len(two) else None
