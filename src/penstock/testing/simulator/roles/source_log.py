"""The simulated log of a source role: which rows each of its reads has.

As on disk: a fence puts a copy in the log's place, and a process that had the old file open finds
out when it notes something there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["SourceFile", "SourceLog", "rows_of_read"]


@dataclass
class SourceFile:
    """The log as one player has it open."""

    log: SourceLog
    notes: list[tuple[int, int]]
    """Numbers of reads, and the row after the last of each."""
    ends: list[int]
    """Per read that this player has made or has found noted: the row after its last one."""

    def append(self, end: int) -> bool:
        """Note the next read; False: the log was taken over."""
        if not self.log.holds(self.notes):
            return False
        self.ends.append(end)
        self.notes.append((len(self.ends), end))
        return True


class SourceLog:
    """Where the reads of a source role end.

    >>> log = SourceLog()
    >>> old = log.claim(1)
    >>> old.append(3)
    True
    >>> log.take_over(fence=2)
    >>> old.append(7), log.claim(1), log.claim(2).ends
    (False, None, [3])
    """

    def __init__(self) -> None:
        self._notes: list[tuple[int, int]] = []
        self._ends: tuple[int, list[int]] = (0, [])
        self.fence = 0

    @property
    def ends(self) -> list[int]:
        """Per read: the row after its last one."""
        if self._ends[0] != len(self._notes):
            found = dict(self._notes)
            self._ends = len(self._notes), [found[number] for number in sorted(found)]
        return self._ends[1]

    def take_over(self, fence: int) -> None:
        """Fence off incarnations before this one."""
        self._notes = list(self._notes)
        self.fence = max(self.fence, fence)

    def claim(self, incarnation: int) -> SourceFile | None:
        """Open it, unless a later incarnation was fenced off from it."""
        if incarnation < self.fence:
            return None
        return SourceFile(self, self._notes, list(self.ends))

    def holds(self, notes: list[tuple[int, int]]) -> bool:
        """Whether these are the notes that are read, and not a file that was replaced."""
        return notes is self._notes


def rows_of_read(ends: Sequence[int], number: int) -> range:
    """The rows of a read: 1, 2, 3 …"""
    return range(ends[number - 2] if number > 1 else 0, ends[number - 1])
