"""Partial orders: the one relation that times, path summaries and antichains share.

Decides which elements of a collection are minimal; never sorts by a partial order. The relation is
spelled ``less_equal`` because ``sorted()`` would accept a ``<=`` and give an order that means
nothing. Where a listing needs *some* order, ``sort_key`` gives a total one that extends the
partial one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, Self, TypeVar

__all__ = ["PartiallyOrdered", "dominated", "minimal"]


class PartiallyOrdered(Protocol):
    """A value with a partial order.

    Laws
      * reflexive: ``a.less_equal(a)``
      * antisymmetric: ``a.less_equal(b) and b.less_equal(a)`` implies ``a == b``
      * transitive: ``a.less_equal(b) and b.less_equal(c)`` implies ``a.less_equal(c)``
      * ``a.less_equal(b)`` implies ``a.sort_key() <= b.sort_key()``
    """

    def less_equal(self, other: Self, /) -> bool:
        """Tell whether this value is at or before the other."""

    def sort_key(self) -> Any:
        """Return a key whose total order extends the partial order."""


P = TypeVar("P", bound=PartiallyOrdered)


def dominated(elements: Iterable[P], value: P) -> bool:
    """Tell whether some element is at or before ``value``."""
    for element in elements:  # noqa: SIM110 - a generator costs more than these few comparisons
        if element.less_equal(value):
            return True
    return False


def minimal(values: Iterable[P]) -> tuple[P, ...]:
    """Return the minimal elements of ``values``, without duplicates, by ``sort_key``.

    Sorting first means that nothing that comes later can be before what was kept: one pass.

    >>> from penstock.core.time import Time
    >>> minimal([Time(2, (1,)), Time(1, (3,)), Time(2, (4,)), Time(1, (3,))])
    (Time(1, (3,)), Time(2, (1,)))
    """
    ordered = sorted(values, key=_sort_key)
    if len(ordered) < 2:
        return tuple(ordered)
    kept: list[P] = []
    for value in ordered:
        if not dominated(kept, value):
            kept.append(value)
    return tuple(kept)


def _sort_key(value: PartiallyOrdered) -> Any:
    return value.sort_key()
