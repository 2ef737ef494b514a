"""The simulated log of a source role: which rows each of its reads has.

As on disk: a fence puts a copy in the log's place, and a process that had the old file open goes on
writing into that one, which no other process reads.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["SourceLog", "rows_of_read"]


class SourceLog:
    """Where the reads of a source role end.

    >>> log = SourceLog()
    >>> old = log.claim(1)
    >>> old.append(3)
    >>> log.take_over(fence=2)
    >>> old.append(7)
    >>> log.claim(1), log.claim(2)
    (None, [3])
    """

    def __init__(self) -> None:
        self.ends: list[int] = []
        """Per read: the row after its last one."""
        self.fence = 0

    def take_over(self, fence: int) -> None:
        """Fence off incarnations before this one."""
        self.ends = list(self.ends)
        self.fence = max(self.fence, fence)

    def claim(self, incarnation: int) -> list[int] | None:
        """Open it, unless a later incarnation was fenced off from it."""
        return None if incarnation < self.fence else self.ends


def rows_of_read(ends: Sequence[int], number: int) -> range:
    """The rows of a read: 1, 2, 3 …"""
    return range(ends[number - 2] if number > 1 else 0, ends[number - 1])
