"""When the epochs of a lane are complete at a role, told by its parcels alone.

Every read of a lane sends one parcel along each way, with or without rows.  Each says which epoch
the read belongs to, with which number that epoch began, whether it ended there, and which epoch
came before.  So any player of a role, from whatever epoch on, knows without asking: an epoch is
complete when the one before it is, and all its numbers have come on all ways.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LaneEpochs"]


@dataclass
class _Epoch:
    first: int
    previous: int
    last: int | None = None
    whole: int = 0
    """Numbers that have come on all ways."""
    watermark_us: int | None = None


class LaneEpochs:
    """The epochs of one lane at one role; what was published before counts as complete.

    >>> lane = LaneEpochs(ways=2, completed=4)
    >>> lane.came(7, epoch=5, first=7, last=True, previous=3, watermark_us=10)
    []
    >>> lane.came(7, epoch=5, first=7, last=True, previous=3, watermark_us=10)
    [(5, 10)]
    >>> lane.came(9, epoch=6, first=8, last=True, previous=5, watermark_us=20)
    []
    >>> lane.missing(floor=7), lane.missing(floor=8)
    (None, 8)
    """

    def __init__(self, ways: int, completed: int) -> None:
        self.completed = completed
        self._ways = ways
        self._came: dict[int, int] = {}
        self._epochs: dict[int, _Epoch] = {}

    def came(
        self,
        number: int,
        epoch: int,
        first: int,
        last: bool,
        previous: int,
        watermark_us: int | None,
    ) -> list[tuple[int, int | None]]:
        """One parcel of a read; gives the epochs that are complete now, with their watermarks."""
        if epoch <= self.completed:
            return []
        found = self._epochs.get(epoch)
        if found is None:
            found = self._epochs[epoch] = _Epoch(first, previous)
        came = self._came[number] = self._came.get(number, 0) + 1
        found.whole += came == self._ways
        if last:
            found.last, found.watermark_us = number, watermark_us
        return self._complete()

    def _complete(self) -> list[tuple[int, int | None]]:
        done: list[tuple[int, int | None]] = []
        while self._epochs:
            epoch = min(self._epochs)
            found = self._epochs[epoch]
            if found.previous > self.completed or found.last is None:
                break
            if found.whole <= found.last - found.first:
                break
            for number in range(found.first, found.last + 1):
                del self._came[number]
            del self._epochs[epoch]
            self.completed = epoch
            done.append((epoch, found.watermark_us))
        return done

    def missing(self, floor: int) -> int | None:
        """A number that is needed and at or before a floor, so that it will never come."""
        if not self._epochs:
            return None
        found = self._epochs[min(self._epochs)]
        if found.previous > self.completed:
            needed = found.first - 1  # the epoch before it: of that nothing has come
        else:
            needed = found.first
            while self._came.get(needed) == self._ways and needed != found.last:
                needed += 1
        return needed if needed <= floor and self._came.get(needed) != self._ways else None
