"""Sequence times: dense, totally ordered, private to the node that hands them out.

A stamp is a tuple of integers, compared lexicographically.  ``ZERO`` (the empty tuple) comes before
everything.  A node counts its steps (1,), (2,), (3,) … in normal operation; a replay may have to
put a step between two that its children already know, so between any two stamps there is another:

    after(a) > a
    a < b  implies  a < between(a, b) < b

Positions are always given as "resume after t", never as "t + 1": with consecutive integers the
replay of a node can have no solution once two neighbours were restarted.
"""

from __future__ import annotations

from penstock.errors import require

__all__ = ["END", "ZERO", "Stamp", "after", "between", "show"]

Stamp = tuple[int, ...]

ZERO: Stamp = ()
END: Stamp = (1 << 62,)
"""After everything."""


def after(stamp: Stamp) -> Stamp:
    """The next stamp of normal operation.

    >>> after(ZERO), after((4,)), after((4, -2, 7))
    ((1,), (5,), (5,))
    """
    return (stamp[0] + 1,) if stamp else (1,)


def between(low: Stamp, high: Stamp) -> Stamp:
    """A short stamp strictly between two.

    >>> between((4,), (9,)), between((4,), (5,)), between((4,), (4, 0)), between((4, 3), (5,))
    ((5,), (4, 0), (4, -1), (4, 4))
    """
    require(low < high, f"there is no stamp between {low} and {high}", low=low, high=high)
    shared = 0
    while shared < len(low) and low[shared] == high[shared]:
        shared += 1
    if shared == len(low):
        return (*low, high[shared] - 1)
    if low[shared] + 1 < high[shared]:
        return (*low[:shared], low[shared] + 1)
    if len(low) > shared + 1:
        return (*low[: shared + 1], low[shared + 1] + 1)
    return (*low, 0)


def show(stamp: Stamp) -> str:
    """A stamp for people.

    >>> show((4, -1)), show(ZERO)
    ('4.-1', '0')
    """
    return ".".join(str(part) for part in stamp) if stamp else "0"
