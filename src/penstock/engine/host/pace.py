"""When a source reads next.

Handling a batch has a price of its own, however few its rows are, so rows gather before they are
read: until there are about :data:`WORTH_A_STEP`, but neither shorter nor longer than ``linger``
says.  Results must not wait for that: the end of a window is foreseen from how far event time lags
behind the wall clock, and at that moment the source reads at once.  A source that is behind, whose
last batch was full, never waits.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.control.assignment import Linger

__all__ = ["Pace"]

WORTH_A_STEP = 1_000
"""With so many rows, what they cost outweighs what a step costs."""
MARGIN_US = 100
"""Read this much after the foreseen moment: better once, a little late, than twice."""
RETRY_US = 500
"""If event time had not come as far as foreseen, look again after this long."""
BEFORE_US = 2_000
"""Read also this much before it, so that little is left to do at the moment itself."""
DRIFT_US = 50
"""How fast the lag is forgotten: the least lag of the last reads counts."""


@dataclass
class Pace:
    """Decides how long a source waits between two reads.

    >>> pace = Pace(Linger(5_000, 5_000), grid_us=1_000_000)
    >>> pace.was_read(now=997_000, rows=10, rows_max=100, seen_us=996_900)
    >>> pace.wait_us(997_000)          # event time passes 1,000,000 at 1,000,100: a little before
    1200
    >>> pace.was_read(now=998_200, rows=10, rows_max=100, seen_us=998_100)
    >>> pace.wait_us(998_200)          # and then at that moment
    2000
    >>> pace = Pace(Linger(5_000, 25_000))
    >>> pace.was_read(now=0, rows=10, rows_max=65_536, seen_us=None)
    >>> pace.was_read(now=5_000, rows=500, rows_max=65_536, seen_us=None)  # 100 in a millisecond
    >>> pace.wait_us(5_000)
    10000
    """

    linger: Linger
    foreseen: bool = True
    """Whether it is known when an epoch ends; if the reader decides, it is not made to wait."""
    grid_us: int | None = None
    _read_us: int | None = None
    _next_us: int = 0
    _lag_us: int | None = None
    _due_us: int | None = None

    def wait_us(self, now: int) -> int:
        """How long to wait before the next read; 0: read now."""
        at = self._next_us
        if self._due_us is not None and self._due_us < at:
            at = self._due_us
        return max(0, at - now)

    def was_read(self, now: int, rows: int, rows_max: int, seen_us: int | None) -> None:
        """Take note of a read that began at ``now``; ``seen_us`` is the event time it reached."""
        gathers = 0 < rows < rows_max
        self._next_us = now + self._gathering_us(now, rows) if gathers else now
        self._read_us = now
        if self.grid_us is None or seen_us is None:
            return
        lag = now - seen_us
        self._lag_us = lag if self._lag_us is None else min(lag, self._lag_us + DRIFT_US)
        point = (seen_us // self.grid_us + 1) * self.grid_us
        due_us = point + self._lag_us + MARGIN_US
        if due_us - BEFORE_US > now + RETRY_US:
            due_us -= BEFORE_US
        self._due_us = max(due_us, now + RETRY_US)

    def _gathering_us(self, now: int, rows: int) -> int:
        """How long it takes, at the pace of the last rows, until there are enough again."""
        since = 0 if self._read_us is None else now - self._read_us
        most_us = self.linger.most_us if self.foreseen else self.linger.least_us
        return max(self.linger.least_us, min(since * WORTH_A_STEP // rows, most_us))
