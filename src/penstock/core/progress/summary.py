"""Path summaries: what a path through the graph does to a time.

Decides how summaries compose, apply and compare; never looks at a graph. Follows the Naiad paper,
section 2.3. Ingress appends a counter at 0, egress drops the innermost counter, feedback adds 1 to
it. Whatever order a path mixes them in, the result is: keep some outer counters, add to the
innermost kept one, append constants. That is the canonical form, and two paths have the same
effect exactly when their canonical forms are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.core.time import Time

__all__ = ["PathSummary", "Transform"]

Transform = Callable[[Time], Time]

_new = tuple.__new__


@dataclass(frozen=True, slots=True)
class PathSummary:
    """Keep ``kept`` counters, add ``increment`` to the innermost of them, append ``appended``.

    Laws (``;`` is :meth:`then`, all times and summaries of fitting depth)
      * ``(a ; b)(t) == b(a(t))``; ``;`` is associative; ``identity`` is neutral;
      * summaries are monotone: ``t.less_equal(u)`` implies ``s(t).less_equal(s(u))``;
      * ``a.less_equal(b)`` exactly when ``a(t).less_equal(b(t))`` for every ``t``;
      * ``;`` is monotone on both sides.

    Under the product order summaries between two places need not be comparable (staying in an
    inner loop, or going round the outer one), so the minimum over paths is an antichain.

    >>> enter, again, leave = (
    ...     PathSummary.ingress(0), PathSummary.feedback(1), PathSummary.egress(1))
    >>> enter.then(again).then(again)
    PathSummary(kept=0, increment=0, appended=(2,))
    >>> enter.then(again)(Time(7))
    Time(7, (1,))
    >>> enter.then(again).then(leave) == PathSummary.identity(0)
    True
    """

    kept: int
    increment: int = 0
    appended: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kept < 0 or self.increment < 0 or min(self.appended, default=0) < 0:
            raise ValueError(f"{self!r} has a negative part")
        if self.increment and not self.kept:
            raise ValueError(f"{self!r} keeps no counter that it could increment")

    @classmethod
    def identity(cls, depth: int) -> PathSummary:
        """The summary of the empty path at a place in ``depth`` loops."""
        return cls(depth)

    @classmethod
    def ingress(cls, depth: int) -> PathSummary:
        """Enter a loop from a place in ``depth`` loops."""
        return cls(depth, 0, (0,))

    @classmethod
    def egress(cls, depth: int) -> PathSummary:
        """Leave the innermost of ``depth`` loops."""
        if depth < 1:
            raise ValueError("there is no loop to leave at depth 0")
        return cls(depth - 1)

    @classmethod
    def feedback(cls, depth: int, increment: int = 1) -> PathSummary:
        """Go round the innermost of ``depth`` loops once (or ``increment`` times)."""
        return cls(depth, increment)

    @property
    def depth(self) -> int:
        """The number of loops around the place where the path ends."""
        return self.kept + len(self.appended)

    def is_identity(self, depth: int) -> bool:
        """Tell whether times of ``depth`` counters come out unchanged."""
        return self.kept == depth and not self.increment and not self.appended

    def __call__(self, time: Time) -> Time:
        """Return the time at the path's end for a time at its start."""
        if len(time) <= self.kept:
            raise ValueError(
                f"{time!r} has fewer than {self.kept} counters: wrong place for {self}"
            )
        return self.compiled()(time)

    def compiled(self) -> Transform:
        """Return an unchecked function that applies this summary, for tables of hot loops."""
        cut, by, tail = self.kept + 1, self.increment, self.appended
        if by:
            return lambda time: _new(Time, (*time[: cut - 1], time[cut - 1] + by, *tail))
        if tail:
            return lambda time: _new(Time, time[:cut] + tail)
        return lambda time: _new(Time, time[:cut])

    def then(self, later: PathSummary) -> PathSummary:
        """Return the summary of this path followed by ``later``."""
        if later.kept > self.depth:
            raise ValueError(f"{later} keeps more counters than {self} leaves")
        if later.kept < self.kept:
            return later
        if later.kept == self.kept:
            return PathSummary(self.kept, self.increment + later.increment, later.appended)
        middle = self.appended[: later.kept - self.kept]
        middle = (*middle[:-1], middle[-1] + later.increment)
        return PathSummary(self.kept, self.increment, middle + later.appended)

    def less_equal(self, other: PathSummary) -> bool:
        """Tell whether this path never gives a later time than the other, whatever the start.

        A path that keeps fewer counters has constants where the other has the time's own counters;
        those may be as small as 0, so the constants must be 0 (or within the other's increment).
        """
        if self.depth != other.depth or self.kept > other.kept:
            return False
        if self.kept == other.kept:
            if self.increment > other.increment:
                return False
            return all(a <= b for a, b in zip(self.appended, other.appended, strict=True))
        if self.increment:
            return False
        least = (*(0 for _ in range(other.kept - self.kept - 1)), other.increment, *other.appended)
        return all(a <= b for a, b in zip(self.appended, least, strict=True))

    def sort_key(self) -> tuple[int, ...]:
        """Return a key whose total order extends the partial order."""
        return (self.kept, self.increment, *self.appended)

    def __str__(self) -> str:
        parts = [f"keep {self.kept}"]
        if self.increment:
            parts.append(f"add {self.increment}")
        if self.appended:
            parts.append("append " + ", ".join(map(str, self.appended)))
        return "; ".join(parts)
