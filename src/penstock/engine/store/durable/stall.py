"""Writes that the store does not take for a while: who waits, since when, and until when.

A disk may be full, a mount gone, a quota used up.  The writer then tries again, less and
less often, and goes on when it works; after ``timeout_s`` it gives up and says why.  Nothing that
depends on the write happens in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.core.control.host_reports import WriterStalled
from penstock.errors import TransientError

__all__ = ["Stall"]

FIRST_S = 0.05
LONGEST_S = 1.0
"""Pauses between two tries grow from the first to the longest."""


class Stall:
    """The waiting of one writer.

    >>> told = []
    >>> stall = Stall("counts[0]", 10.0, told.append)
    >>> stall.failed(OSError(28, "No space left on device")); stall.is_on
    True
    >>> stall.worked(); [news.waiting for news in told], stall.is_on
    ([True, False], False)
    """

    def __init__(self, name: str, timeout_s: float, tell: Callable[[WriterStalled], None]) -> None:
        self.name = name
        self.timeout_s = timeout_s
        self._tell = tell
        self._since: float | None = None
        self._pause_s = FIRST_S
        self._next = 0.0

    @property
    def is_on(self) -> bool:
        """Whether the last try failed."""
        return self._since is not None

    def is_due(self) -> bool:
        """Whether it is time for another try."""
        return time.monotonic() >= self._next

    def failed(self, error: Exception) -> None:
        """A try failed: wait; raises when there was none that worked for too long."""
        now = time.monotonic()
        if self._since is None:
            self._since, self._pause_s = now, FIRST_S
            self._tell(WriterStalled(self.name, True, str(error), 0.0))
        waited_s = now - self._since
        if waited_s > self.timeout_s:
            raise TransientError(
                f"{self.name}: nothing could be written for {waited_s:.0f} s ({error}). Nothing is "
                "lost: make room, or mend what is wrong, and start the flow again with the same "
                "checkpointLocation; storeTimeout says how long it waits",
                node=self.name,
            ) from error
        self._next = now + self._pause_s
        self._pause_s = min(LONGEST_S, 2 * self._pause_s)

    def worked(self) -> None:
        """A try was successful."""
        if self._since is not None:
            waited_s, self._since = time.monotonic() - self._since, None
            self._next = 0.0
            self._tell(WriterStalled(self.name, False, "", waited_s))
