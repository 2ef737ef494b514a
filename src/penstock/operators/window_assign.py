"""Which windows a row belongs to, in pieces ("panes") that windows are made of.

A sliding window shares most of its rows with the next one.  Event time is therefore cut into panes,
at every start and every end of a window: a row is aggregated once, into its pane, and a window's
result is merged from the panes in it (paired windows: at most two panes per slide, even when the
size is not a multiple of the slide).  A tumbling window is a single pane.

All times are microseconds; windows are ``[start, start + size)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Panes"]


@dataclass(frozen=True)
class Panes:
    """The panes of windows of ``size_us`` that start every ``slide_us``, first at ``start_us``.

    >>> panes = Panes(10, 4, 0)
    >>> [panes.pane_of(t) for t in (0, 1, 2, 3, 4)], list(panes.windows_of(4))
    ([0, 0, 2, 2, 4], [-4, 0, 4])
    """

    size_us: int
    slide_us: int
    start_us: int = 0

    @property
    def tumbling(self) -> bool:
        """Whether each window is one pane."""
        return self.size_us == self.slide_us

    def pane_of(self, time_us: int) -> int:
        """The start of the pane that a time lies in."""
        base = (time_us - self.start_us) // self.slide_us * self.slide_us + self.start_us
        cut = self.size_us % self.slide_us
        return base + cut if cut and time_us - base >= cut else base

    def numbers_of(self, times_us: Any) -> Any:
        """Which pane each time lies in, panes counted: near times have near numbers."""
        base = times_us - self.start_us if self.start_us else times_us
        cut = self.size_us % self.slide_us
        if not cut:
            return base // self.slide_us
        slides, rest = np.divmod(base, self.slide_us)
        return 2 * slides + (rest >= cut)

    def starts_of(self, numbers: Any) -> Any:
        """The starts of panes from their numbers."""
        cut = self.size_us % self.slide_us
        if not cut:
            return numbers * self.slide_us + self.start_us
        return numbers // 2 * self.slide_us + numbers % 2 * cut + self.start_us

    def panes_of(self, times_us: Any) -> Any:
        """The starts of the panes that an int64 array of times lies in."""
        return self.starts_of(self.numbers_of(times_us))

    def last_window(self, pane_us: int) -> int:
        """The start of the last window that contains a pane."""
        return (pane_us - self.start_us) // self.slide_us * self.slide_us + self.start_us

    def last_end(self, pane_us: int) -> int:
        """The end of the last window that contains a pane: the pane is not needed after it."""
        return self.last_window(pane_us) + self.size_us

    def windows_of(self, pane_us: int) -> Iterator[int]:
        """The starts of the windows that contain a pane, ascending."""
        last = self.last_window(pane_us)
        count = (self.size_us - 1 - (pane_us - last)) // self.slide_us
        return iter(range(last - count * self.slide_us, last + 1, self.slide_us))

    def grid_us(self) -> int:
        """The coarsest grid that all ends of windows lie on."""
        return math.gcd(self.slide_us, self.start_us + self.size_us)
